"""The compiled kernels, kept in the same folder as the engine's."""

import functools
from collections.abc import Sequence

import torch

from engine.model_fetch import cache_folder
from kernels.native_library import load_library
from kernels.native_sampler import NativeSampler
from kernels.sampling import Block, Chosen
from kernels.verify import verify


@functools.cache
def native_sampler() -> NativeSampler:
    return NativeSampler(load_library(cache_folder() / "kernels"))


def verify_natively(logits: torch.Tensor, blocks: Sequence[Block]) -> list[Chosen]:
    """`verify` as the engine calls it."""
    return verify(logits, blocks, native_sampler())
