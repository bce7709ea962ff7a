"""The compiled kernels, kept in the same folder as the engine's."""

import functools

from engine.model_fetch import cache_folder
from kernels.native_library import load_library
from kernels.native_sampler import NativeSampler


@functools.cache
def native_sampler() -> NativeSampler:
    return NativeSampler(load_library(cache_folder() / "kernels"))
