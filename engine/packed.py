"""Weights in the layout of the native kernels: strips of 16 outputs, so that one vector load serves 16 sums."""

import torch
from torch import Tensor

from kernels.native_library import BFLOAT16, FLOAT32, LANES
from kernels.native_threads import NativeThreads

ELEMENTS = {torch.bfloat16: BFLOAT16, torch.float32: FLOAT32}


def packed(native: NativeThreads, weight: Tensor) -> Tensor:
    """[outputs, inputs] as pairs of strips, [outputs / 32, words of the inputs, 32]; zeros fill the last pair up."""
    weight = weight.contiguous()
    outputs, inputs = weight.shape
    strips = torch.empty(-(-outputs // (2 * LANES)) * 2 * LANES, inputs, dtype=weight.dtype)
    native.library.pack_strips(ELEMENTS[weight.dtype], weight.data_ptr(), outputs, inputs, strips.data_ptr())
    return strips


def alternating(gate_up: Tensor) -> Tensor:
    """The rows of gates [F] and ups [F], one below the other, as 16 gates and their 16 ups in turn."""
    halves = gate_up.view(2, -1, LANES, *gate_up.shape[1:])
    return halves.transpose(0, 1).reshape(gate_up.shape)
