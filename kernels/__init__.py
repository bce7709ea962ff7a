"""Tensor operations and verification: native kernels for the CPU, in C, and a plain reference of each.

The kernels in `native/` are compiled at first start, for the processor at hand (`native_library`).

This package has no `__version__` and does nothing on import: transformers probes for a distribution of this name.
"""
