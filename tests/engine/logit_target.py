"""A target with logits: a random row for every prefix, verified by the real kernels, over the scripted paged cache."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.blocks import Blocks, blocks_for
from engine.drafter import SILENT, Drafter, Proposal
from engine.grammar import Grammars
from engine.loop import EngineLoop
from engine.messages import CycleDone, Submit, ToEngine
from engine.ngram import NgramDrafter
from engine.request import RunningSequence
from engine.rows import Rows
from engine.token_bytes import load_token_bytes
from kernels.sampling import Block, Chosen, DraftProbs, Sampling, TokenLogprob, Verifier
from kernels.verify import verify
from tests.engine.scripted import Delivered, ScriptedTarget, decision
from tests.engine.tiny_model import END_OF_TEXT, IM_END

VOCABULARY = 384
CONTEXT_LIMIT = 192
SLOTS = 4
ENDS = (END_OF_TEXT, IM_END)
PROMPT = (5, 70, 9, 70, 9)
BLOCK_LENGTHS = (1, 2, 4, 8, 16)
_CLOSING = frozenset(b'"}],: 0123456789')
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
"""A JSON schema with a bound on each of its parts."""


def _lot(*values: int) -> int:
    return int.from_bytes(hashlib.blake2b(repr(values).encode(), digest_size=8).digest(), "big")


class LogitTarget(ScriptedTarget):
    """Rows are peaked, and lean to what closes strings and brackets, so that JSON comes to an end."""

    def __init__(self, blocks: int, capacity: int, token_bytes: Sequence[bytes], seed: int) -> None:
        super().__init__(blocks, capacity)
        self._seed = seed
        lean = [3.0 if piece and set(piece) <= _CLOSING else 0.0 for piece in token_bytes]
        self._lean = np.array(lean, dtype=np.float32)
        self.nan_after: set[int] = set()
        """After one of these tokens no logit is a number."""

    def logits(self, prefix: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        # Two tokens decide, so that texts repeat themselves and n-grams find something.
        row = np.random.default_rng(_lot(self._seed, *prefix[-2:])).normal(size=VOCABULARY).astype(np.float32)
        if prefix[-1] in self.nan_after:
            row[:] = np.nan
        return row * np.float32(2.5) + self._lean

    def _choose(self, part: Rows, first: int, block: Block) -> Chosen:
        rows = [self.logits(self._prefix(part, first + offset)) for offset in range(len(block.drafts) + 1)]
        return verify(torch.from_numpy(np.stack(rows)), [replace(block, first_row=0)])[0]


@dataclass(slots=True)
class RecallingDrafter:
    """Has the text from an earlier run. A proposed token is right or wrong by a fixed lot."""

    texts: dict[int, list[int]]
    """By request key."""
    right_of_ten: int
    name: str = "recall"
    memory_bytes: int = 0
    context_limit: int | None = None

    def propose(self, sequences: Sequence[RunningSequence], lengths: Sequence[int]) -> list[Proposal]:
        return [self._one(sequence, length) for sequence, length in zip(sequences, lengths, strict=True)]

    def _one(self, sequence: RunningSequence, length: int) -> Proposal:
        at, text = sequence.output_length, self.texts[sequence.key]
        known = text[at : at + length]
        known += [_lot(at, place) % VOCABULARY for place in range(length - len(known))]
        # A wrong token is most often another one of the text: a grammar may well let it come.
        wrong = [*text, *range(0, VOCABULARY, 16)]
        drafts = tuple(
            token if _lot(sequence.key, at, place) % 10 < self.right_of_ten else wrong[_lot(token, at) % len(wrong)]
            for place, token in enumerate(known)
        )
        if sequence.sampling.verifier is Verifier.COUPLED:
            return Proposal(drafts, 1) if drafts else SILENT
        # Half a chance for the draft and the rest for another: what is right is in the drafter's hands, not in chance.
        probs = tuple(
            DraftProbs(np.array(sorted({draft, (draft + 1) % VOCABULARY})), np.array([0.5, 0.5], dtype=np.float32))
            for draft in drafts
        )
        return Proposal(drafts, 1, probs)

    def observe(self, sequence: RunningSequence, emitted: Sequence[int]) -> None:
        """Nothing is kept."""

    def release(self, request_key: int) -> None:
        """Nothing is kept."""


@dataclass(frozen=True, slots=True)
class Output:
    """What a sequence has delivered."""

    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    finish: str
    accepted: int
    rejected: int


class LogitRig:
    """An `EngineLoop` over the logits, with the tiny model's tokenizer."""

    def __init__(
        self, model_path: Path, *, seed: int = 0, drafters: Sequence[Drafter] = (), kv_blocks: int | None = None
    ) -> None:
        self.token_bytes = load_token_bytes(model_path, VOCABULARY)
        blocks = Blocks(SLOTS, kv_blocks or SLOTS * blocks_for(CONTEXT_LIMIT))
        self.target = LogitTarget(blocks.blocks, CONTEXT_LIMIT, self.token_bytes, seed)
        self.delivered = Delivered()
        self.loop = EngineLoop(
            target=self.target,
            drafters={drafter.name: drafter for drafter in (NgramDrafter(1, 4), *drafters)},
            blocks=blocks,
            context_limit=CONTEXT_LIMIT,
            prefill_chunk=7,
            token_bytes=lambda: self.token_bytes,
            deliver=self.delivered,
            grammars=Grammars(model_path, VOCABULARY),
        )

    def run(self, *messages: ToEngine, steps: int = 3000) -> None:
        self.loop.step(messages)
        for _ in range(steps):
            if self.loop.idle:
                return
            self.loop.step(())
        raise AssertionError(f"still busy after {steps} steps")

    def output(self, request_key: int) -> Output:
        items = [
            item
            for message in self.delivered.messages
            if isinstance(message, CycleDone)
            for item in message.tokens
            if item.request_key == request_key
        ]
        finished = items[-1].finished
        assert finished is not None
        return Output(
            tuple(token for item in items for token in item.token_ids),
            tuple(logprob for item in items for logprob in item.logprobs),
            finished.reason.value,
            finished.accepted,
            sum(finished.rejected_at),
        )

    def text(self, request_key: int) -> str:
        return b"".join(self.token_bytes[token] for token in self.output(request_key).tokens).decode(errors="replace")


def outputs(
    model_path: Path,
    submits: Sequence[Submit],
    *,
    drafter: str,
    block_length: int,
    right: int = 6,
    seed: int = 0,
    plain: Mapping[int, Output] | None = None,
) -> dict[int, Output]:
    """Each sequence's output, all running together; `recall` is told what came out `plain`, which is run if need be."""
    if drafter == decision().drafter or plain is None:
        rig = LogitRig(model_path, seed=seed)
        rig.run(*(replace(submit, decision=decision()) for submit in submits))
        plain = {submit.request_key: rig.output(submit.request_key) for submit in submits}
    if drafter == decision().drafter:
        return dict(plain)
    texts = {key: list(output.tokens) for key, output in plain.items()}
    rig = LogitRig(model_path, seed=seed, drafters=[RecallingDrafter(texts, right)])
    rig.run(*(replace(submit, decision=decision(drafter, block_length)) for submit in submits))
    return {key: rig.output(key) for key in texts}


def ask(key: int = 1, *, grammar: str | None = None, stops: Sequence[str] = (), **sampling: Any) -> Submit:
    settings = {"temperature": 0.9, "seed": 40 + key, **sampling}
    return Submit(
        request_key=key,
        prompt=PROMPT,
        sampling=Sampling(**settings),
        max_tokens=64,
        stop_token_ids=ENDS,
        stops=tuple(stops),
        decision=decision(),
        submitted_at=0.0,
        top_logprobs=3,
        grammar=grammar,
    )


def assert_same(blocks: Output, plain: Output) -> None:
    assert blocks.tokens == plain.tokens
    assert blocks.finish == plain.finish
    assert len(blocks.logprobs) == len(blocks.tokens)
    for ours, theirs in zip(blocks.logprobs, plain.logprobs, strict=True):
        assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-3)
        assert [token for token, _ in ours.top] == [token for token, _ in theirs.top]
