"""How often drafts are kept: counts, hazards, pooling, re-blocking and change, for each drafter and context."""

from tuner.acceptance.blocks import observed_length as observed_length
from tuner.acceptance.blocks import product_limit as product_limit
from tuner.acceptance.change import Alarm as Alarm
from tuner.acceptance.curves import Curve as Curve
from tuner.acceptance.statistics import Acceptance as Acceptance
