"""A target whose text is a plain function of seed and prefix, for tests of the loop.

It stands for the decoder and its verification. Each row's prefix is read from a cache as the rows wrote it: a wrong
slot, a wrong position, a hole or a stale draft changes the text, as it would in the real one.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from engine.drafter import SILENT, Proposal
from engine.messages import CycleDone, Finished, FromEngine, Sampling, Submit
from engine.request import RunningSequence
from kernels.sampling import Block
from policies.types import Context, Decision, Reason

VOCABULARY = 6
PIECES = (b"a", b"bc", "é".encode(), "é".encode()[:1], "é".encode()[1:], b" ")
"""Bytes of each token: one letter, two letters, a whole character, and the two halves of it."""


def next_token(seed: int, choice: int, prefix: Sequence[int]) -> int:
    """The target's token after `prefix`: mostly a function of the last token, so that n-grams find something."""
    whole = _hash(seed, choice, *prefix)
    if whole % 4 == 0:
        return whole // 4 % VOCABULARY
    return _hash(seed, prefix[-1]) % VOCABULARY


def _hash(*values: int) -> int:
    return int.from_bytes(hashlib.blake2b(repr(values).encode(), digest_size=8).digest(), "big")


def endless_text(prompt: Sequence[int], sampling: Sampling, length: int) -> list[int]:
    """The first `length` output tokens, without regard to any end."""
    tokens = list(prompt)
    for _ in range(length):
        tokens.append(next_token(sampling.seed, sampling.choice, tokens))
    return tokens[len(prompt) :]


class ScriptedTarget:
    """`engine.loop.PrefillTarget` by `next_token`."""

    def __init__(self) -> None:
        self._cache: dict[int, dict[int, int]] = {}
        self._prompts: dict[int, list[int]] = {}
        self.rows = 0
        self.passes: list[tuple[int, ...]] = []
        """Drafts of each block, for each verification."""

    def verify(
        self, token_ids: list[int], slots: list[int], positions: list[int], blocks: list[Block]
    ) -> list[list[int]]:
        assert len(token_ids) == len(slots) == len(positions) == sum(len(block.drafts) + 1 for block in blocks)
        for token, slot, position in zip(token_ids, slots, positions, strict=True):
            self._cache[slot][position] = token
        self.passes.append(tuple(len(block.drafts) for block in blocks))
        self.rows += len(token_ids)
        emitted = []
        for block in blocks:
            rows = range(block.first_row, block.first_row + len(block.drafts) + 1)
            assert tuple(token_ids[row] for row in rows[1:]) == block.drafts
            assert len({slots[row] for row in rows}) == 1
            assert [positions[row] for row in rows] == list(range(positions[rows[0]], positions[rows[0]] + len(rows)))
            emitted.append(self._choose(slots[rows[0]], positions[rows[0]], block))
        return emitted

    def prefill(self, token_ids: list[int], slot: int, start: int, block: Block | None) -> int | None:
        assert token_ids
        if start == 0:
            self._cache[slot] = {}
        for position, token in enumerate(token_ids, start):
            self._cache[slot][position] = token
        if block is None:
            return None
        last = start + len(token_ids) - 1
        self._prompts[slot] = self._prefix(slot, last)
        return self._choose(slot, last, block)[0]

    def _prefix(self, slot: int, last: int) -> list[int]:
        return [self._cache[slot][position] for position in range(last + 1)]

    def _choose(self, slot: int, first: int, block: Block) -> list[int]:
        prompt = self._prompts[slot]
        assert block.position == first + 1 - len(prompt)
        if block.sampling.penalised:
            assert block.prompt_tokens == frozenset(prompt)
            assert block.output_counts == Counter(self._prefix(slot, first)[len(prompt) :])
        tokens: list[int] = []
        for offset in range(len(block.drafts) + 1):
            prefix = self._prefix(slot, first + offset)
            tokens.append(next_token(block.sampling.seed, block.sampling.choice, prefix))
            if offset == len(block.drafts) or tokens[-1] != block.drafts[offset]:
                break
        return tokens


@dataclass(slots=True)
class ForesightDrafter:
    """Knows the text. Each proposed token is right or wrong, and the proposal cut short, by a fixed lot."""

    name: str
    right_of_ten: int

    def propose(self, sequences: Sequence[RunningSequence], lengths: Sequence[int]) -> list[Proposal]:
        return [self._one(sequence, length) for sequence, length in zip(sequences, lengths, strict=True)]

    def _one(self, sequence: RunningSequence, length: int) -> Proposal:
        lot = _hash(sequence.key, *sequence.tokens)
        offered = length if lot % 3 else lot % (length + 1)
        text = endless_text(sequence.tokens, sequence.sampling, offered)
        drafts = tuple(
            token if _hash(lot, place) % 10 < self.right_of_ten else (token + 1) % VOCABULARY
            for place, token in enumerate(text)
        )
        return Proposal(drafts, 1 + lot % 4) if drafts else SILENT

    def release(self, request_key: int) -> None:
        """Nothing is kept."""


def decision(drafter: str = "none", cap: int = 0, *, forced: bool = True, route: str = "chat") -> Decision:
    return Decision("test", Context("model", route, "en"), drafter, cap, forced, Reason.ENGINE_DEFAULT, 0)


def submit(
    request_key: int,
    prompt: Sequence[int] = (1, 2, 3),
    *,
    max_tokens: int = 16,
    sampling: Sampling | None = None,
    stop_token_ids: Sequence[int] = (),
    stops: Sequence[str] = (),
    chosen: Decision | None = None,
) -> Submit:
    return Submit(
        request_key=request_key,
        prompt=tuple(prompt),
        sampling=sampling or Sampling(seed=request_key),
        max_tokens=max_tokens,
        stop_token_ids=tuple(stop_token_ids),
        stops=tuple(stops),
        decision=chosen or decision(),
        submitted_at=0.0,
    )


class Delivered:
    """Takes what the loop delivers and sorts it by sequence."""

    def __init__(self) -> None:
        self.messages: list[FromEngine] = []
        self.tokens: dict[int, list[int]] = {}
        self.finished: dict[int, Finished] = {}

    def __call__(self, message: FromEngine) -> None:
        self.messages.append(message)
        if isinstance(message, CycleDone):
            for item in message.tokens:
                assert item.request_key not in self.finished, "tokens after the end"
                self.tokens.setdefault(item.request_key, []).extend(item.token_ids)
                if item.finished is not None:
                    self.finished[item.request_key] = item.finished

    @property
    def cycles(self) -> list[CycleDone]:
        return [message for message in self.messages if isinstance(message, CycleDone)]


def counting(pieces: Sequence[bytes] = PIECES) -> tuple[Callable[[], list[bytes]], Mapping[str, int]]:
    """A loader of token bytes, and how often it was asked."""
    calls = {"calls": 0}

    def load() -> list[bytes]:
        calls["calls"] += 1
        return list(pieces)

    return load, calls
