"""The target as the loop uses it: a decoder and the verification that chooses its tokens."""

from engine.decoder import Decoder
from engine.rows import Rows
from kernels.native_sampler import NativeSampler
from kernels.sampling import Block, Chosen
from kernels.verify import verify


class DecoderTarget:
    """`engine.cycle.Target` over a decoder, and the prefill of a prompt."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self._sampler = NativeSampler(decoder.native.library)

    def verify(self, parts: list[Rows], blocks: list[Block]) -> list[Chosen]:
        """What each block emits; the parts' wanted logits are the blocks' rows, in order."""
        return verify(self.decoder.forward(parts), blocks, self._sampler)

    def prefill(self, part: Rows, block: Block | None) -> Chosen | None:
        """Put a chunk of a prompt into the cache; with `block`, choose the token after its last row."""
        logits = self.decoder.forward([part])
        return None if block is None else verify(logits, [block], self._sampler)[0]
