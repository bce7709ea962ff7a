"""Tensor operations: a plain PyTorch reference of each, and the public functions that choose an implementation.

This package has no `__version__` and does nothing on import: transformers probes for a distribution of this name.
"""
