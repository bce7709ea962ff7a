"""The target as the loop uses it: a decoder and the verification that chooses its tokens."""

import torch

from engine.decoder import Decoder, Pass
from kernels.coupled_verify import coupled_verify
from kernels.sampling import Block


class DecoderTarget:
    """`engine.cycle.Target` over a decoder, and the prefill of a prompt."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder

    @torch.inference_mode()
    def verify(
        self, token_ids: list[int], slots: list[int], positions: list[int], blocks: list[Block]
    ) -> list[list[int]]:
        logits = self.decoder.forward(Pass(token_ids, slots, positions, None))
        return coupled_verify(logits, blocks)

    @torch.inference_mode()
    def prefill(self, token_ids: list[int], slot: int, start: int, block: Block | None) -> int | None:
        """Put a chunk of a prompt into the cache at `start`; with `block`, choose the token after its last one."""
        count = len(token_ids)
        rows = [] if block is None else [count - 1]
        logits = self.decoder.forward(Pass(token_ids, [slot] * count, list(range(start, start + count)), rows))
        return None if block is None else coupled_verify(logits, [block])[0][0]
