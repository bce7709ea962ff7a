"""What cycles and drafting cost, and what that makes of acceptance."""

from tuner.cost.model import CostModel

__all__ = ["CostModel"]
