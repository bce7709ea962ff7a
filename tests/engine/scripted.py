"""A target whose text is a plain function of seed and prefix, for tests of the loop.

It stands for the decoder and its verification. Each row's prefix is read from a paged cache as the rows wrote it: a
wrong block, a wrong position, a hole or a stale draft changes the text, as it would in the real one.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from engine.blocks import BLOCK_TOKENS, Blocks, blocks_for
from engine.drafter import SILENT, Drafter, Proposal
from engine.loop import EngineLoop
from engine.messages import CycleDone, Finished, FromEngine, Sampling, SequenceFailed, StatusIs, Submit, ToEngine
from engine.ngram import NgramDrafter
from engine.request import RunningSequence
from engine.rows import Rows
from kernels.sampling import Block, Chosen, TokenLogprob
from policies.stats import CycleStats, EngineStatus, FinishReason
from policies.types import MAX_BLOCK_LENGTH, Context, Decision, Reason

VOCABULARY = 6
PIECES = (b"a", b"bc", "é".encode(), "é".encode()[:1], "é".encode()[1:], b" ")
"""Bytes of each token: one letter, two letters, a whole character, and the two halves of it."""


def next_token(sampling: Sampling, position: int, prefix: Sequence[int]) -> int:
    """The token at output position `position`, after `prefix`: mostly a function of the last token, so that n-grams
    find something."""
    whole = _hash(sampling.seed, sampling.choice, position, *prefix)
    if whole % 4 == 0:
        return whole // 4 % VOCABULARY
    return _hash(sampling.seed, prefix[-1]) % VOCABULARY


def _hash(*values: int) -> int:
    return int.from_bytes(hashlib.blake2b(repr(values).encode(), digest_size=8).digest(), "big")


def endless_text(prompt: Sequence[int], sampling: Sampling, length: int, *, position: int = 0) -> list[int]:
    """`length` output tokens from output position `position` on, without regard to any end."""
    tokens = list(prompt)
    for place in range(position, position + length):
        tokens.append(next_token(sampling, place, tokens))
    return tokens[len(prompt) :]


def ended_text(message: Submit, context_limit: int) -> tuple[list[int], FinishReason]:
    """What a sequence must emit: its text up to the earliest end, by reading the whole output at each token."""
    limit = min(message.max_tokens, context_limit - len(message.prompt))
    text = endless_text(message.prompt, message.sampling, limit)
    for count in range(1, limit + 1):
        written = b"".join(PIECES[token] for token in text[:count])
        if text[count - 1] in message.stop_token_ids or any(stop.encode() in written for stop in message.stops):
            return text[:count], FinishReason.STOP
    return text, FinishReason.LENGTH


class ScriptedTarget:
    """`engine.loop.PrefillTarget` by `next_token`, over a paged cache of tokens."""

    def __init__(self, blocks: int, capacity: int) -> None:
        self._capacity = capacity
        self._cache: list[int | None] = [None] * (blocks * BLOCK_TOKENS)
        self.rows = 0
        self.prefilled = 0
        """Rows of all prefills."""
        self.first_choices = 0
        """Prefills that chose a first token."""
        self.passes: list[tuple[int, ...]] = []
        """Drafts of each block, for each verification."""
        self.broken_seeds: set[int] = set()
        """A pass with a block of one of these seeds raises."""
        self.speechless_seeds: set[int] = set()
        """No number comes out for blocks of these seeds."""

    def verify(self, parts: list[Rows], blocks: list[Block]) -> list[Chosen]:
        first_row = 0
        for part, block in zip(parts, blocks, strict=True):
            assert block.first_row == first_row
            assert tuple(part.token_ids[1:]) == block.drafts
            assert part.logit_count == len(part.token_ids)
            first_row += len(part.token_ids)
            self._write(part)
        self.passes.append(tuple(len(block.drafts) for block in blocks))
        self.rows += first_row
        return [self._choose(part, part.start, block) for part, block in zip(parts, blocks, strict=True)]

    def prefill(self, part: Rows, block: Block | None) -> Chosen | None:
        assert part.token_ids
        assert part.logit_count == (block is not None)
        self._write(part)
        self.prefilled += len(part.token_ids)
        if block is None:
            return None
        assert (block.first_row, block.drafts, block.position) == (0, (), 0)
        self.first_choices += 1
        return self._choose(part, part.start + len(part.token_ids) - 1, block)

    def _write(self, part: Rows) -> None:
        for position, token in enumerate(part.token_ids, part.start):
            assert 0 <= position < self._capacity
            self._cache[part.blocks[position // BLOCK_TOKENS] * BLOCK_TOKENS + position % BLOCK_TOKENS] = token

    def _prefix(self, part: Rows, last: int) -> list[int]:
        tokens = [
            self._cache[part.blocks[position // BLOCK_TOKENS] * BLOCK_TOKENS + position % BLOCK_TOKENS]
            for position in range(last + 1)
        ]
        assert None not in tokens, "a row sees a position that nobody wrote"
        return [token for token in tokens if token is not None]

    def _choose(self, part: Rows, first: int, block: Block) -> Chosen:
        sampling = block.sampling
        if sampling.seed in self.broken_seeds:
            raise ZeroDivisionError(f"seed {sampling.seed}")
        if sampling.seed in self.speechless_seeds:
            return Chosen(())
        before = self._prefix(part, first)
        prompt_length = len(before) - block.position
        assert prompt_length > 0
        if sampling.penalised:
            assert block.prompt_tokens == frozenset(before[:prompt_length])
            assert block.output_counts == Counter(before[prompt_length:])
        if sampling.tail_length:
            assert block.tail == tuple(before[-sampling.tail_length :])
        tokens: list[int] = []
        for offset in range(len(block.drafts) + 1):
            tokens.append(next_token(sampling, block.position + offset, self._prefix(part, first + offset)))
            if offset == len(block.drafts) or tokens[-1] != block.drafts[offset]:
                break
        if block.top_logprobs is None:
            return Chosen(tuple(tokens))
        return Chosen(tuple(tokens), tuple(TokenLogprob(-float(token), ()) for token in tokens))


@dataclass(slots=True)
class ForesightDrafter:
    """Knows the text. Each proposed token is right or wrong, and the proposal cut short, by a fixed lot."""

    name: str
    right_of_ten: int
    memory_bytes: int = 0
    context_limit: int | None = None

    def propose(self, sequences: Sequence[RunningSequence], lengths: Sequence[int]) -> list[Proposal]:
        return [self._one(sequence, length) for sequence, length in zip(sequences, lengths, strict=True)]

    def _one(self, sequence: RunningSequence, length: int) -> Proposal:
        lot = _hash(sequence.key, *sequence.tokens)
        offered = length if lot % 3 else lot % (length + 1)
        text = endless_text(sequence.tokens, sequence.sampling, offered, position=sequence.output_length)
        drafts = tuple(
            token if _hash(lot, place) % 10 < self.right_of_ten else (token + 1) % VOCABULARY
            for place, token in enumerate(text)
        )
        return Proposal(drafts, 1 + lot % 4) if drafts else SILENT

    def observe(self, sequence: RunningSequence, emitted: Sequence[int]) -> None:
        """Nothing is kept."""

    def release(self, request_key: int) -> None:
        """Nothing is kept."""


def decision(
    drafter: str = "none", cap: int = 0, *, forced: bool = True, route: str = "chat", shadows: Sequence[str] = ()
) -> Decision:
    context = Context("model", route, "en")
    return Decision("test", context, drafter, cap, forced, Reason.ENGINE_DEFAULT, 0, tuple(shadows))


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
        self.reused: dict[int, int] = {}

    def __call__(self, message: FromEngine) -> None:
        self.messages.append(message)
        if isinstance(message, CycleDone):
            for item in message.tokens:
                assert item.request_key not in self.finished, "tokens after the end"
                self.tokens.setdefault(item.request_key, []).extend(item.token_ids)
                assert self.reused.setdefault(item.request_key, item.reused_tokens) == item.reused_tokens
                if item.finished is not None:
                    self.finished[item.request_key] = item.finished

    @property
    def stats(self) -> list[CycleStats]:
        """Of every cycle in which something decoded."""
        return [message.stats for message in self.messages if isinstance(message, CycleDone) and message.stats.load]

    @property
    def failures(self) -> dict[int, str]:
        return {
            message.request_key: message.message for message in self.messages if isinstance(message, SequenceFailed)
        }

    @property
    def statuses(self) -> list[EngineStatus]:
        return [message.status for message in self.messages if isinstance(message, StatusIs)]


class Rig:
    """An `EngineLoop` over the scripted target, with drafters that are watched."""

    def __init__(
        self, *, slots: int = 4, context_limit: int = 96, chunk: int = 7, blocks: int | None = None, right: int = 8
    ) -> None:
        self.blocks = Blocks(slots, slots * blocks_for(context_limit) if blocks is None else blocks)
        self.target = ScriptedTarget(self.blocks.blocks, context_limit)
        self.delivered = Delivered()
        drafters: tuple[Drafter, ...] = (
            NgramDrafter(1, 4),
            ForesightDrafter("foresight", right),
            ForesightDrafter("wrong", 0),
        )
        self.watched = {drafter.name: Watched(drafter) for drafter in drafters}
        self.byte_loads = 0
        self.context_limit = context_limit
        self.loop = EngineLoop(
            target=self.target,
            drafters=self.watched,
            blocks=self.blocks,
            context_limit=context_limit,
            prefill_chunk=chunk,
            token_bytes=self._load_bytes,
            deliver=self.delivered,
        )

    def _load_bytes(self) -> list[bytes]:
        self.byte_loads += 1
        return list(PIECES)

    def step(self, *messages: ToEngine) -> None:
        self.loop.step(messages)
        self.loop.scheduler.check()

    def run(self, *messages: ToEngine, steps: int = 2000) -> None:
        """Step until nothing is left to do."""
        self.step(*messages)
        for _ in range(steps):
            if self.loop.idle:
                return
            self.step()
        raise AssertionError(f"still busy after {steps} steps")

    def assert_nothing_is_held(self) -> None:
        self.blocks.check({})
        assert (self.blocks.free_slots, self.blocks.free_blocks) == (self.blocks.slots, self.blocks.blocks)
        assert all(not watched.kept for watched in self.watched.values())


@dataclass(frozen=True, slots=True)
class Offer:
    """One proposal, with the output length at which it was made."""

    request_key: int
    output_length: int
    asked: int
    proposal: Proposal


class Watched:
    """A drafter, with a record of what it offered and of the keys that it has not been told to forget."""

    def __init__(self, drafter: Drafter) -> None:
        self.name = drafter.name
        self.memory_bytes = drafter.memory_bytes
        self.context_limit = drafter.context_limit
        self._drafter = drafter
        self.offers: list[Offer] = []
        self.calls = 0
        self.kept: set[int] = set()
        self.releases: list[int] = []
        self.observed: dict[int, list[int]] = {}
        """The output of each sequence, as it was told."""

    def propose(self, sequences: Sequence[RunningSequence], lengths: Sequence[int]) -> list[Proposal]:
        self.calls += 1
        proposals = self._drafter.propose(sequences, lengths)
        for sequence, length, proposal in zip(sequences, lengths, proposals, strict=True):
            assert 0 < length <= MAX_BLOCK_LENGTH
            room = len(sequence.blocks) * BLOCK_TOKENS - len(sequence.tokens)
            assert room >= length or self.name == NgramDrafter.name, "no room for its drafts"
            self.offers.append(Offer(sequence.key, sequence.output_length, length, proposal))
            self.kept.add(sequence.key)
        return proposals

    def observe(self, sequence: RunningSequence, emitted: Sequence[int]) -> None:
        output = self.observed.setdefault(sequence.key, [])
        output.extend(emitted)
        assert output == sequence.tokens[sequence.prompt_length :]
        self.kept.add(sequence.key)
        self._drafter.observe(sequence, emitted)

    def release(self, request_key: int) -> None:
        # What was offered for a cycle that did not come, since its sequence was preempted, says nothing.
        length = len(self.observed.get(request_key, ()))
        self.offers = [one for one in self.offers if (one.request_key, one.output_length) != (request_key, length)]
        self.releases.append(request_key)
        self.kept.discard(request_key)
        self._drafter.release(request_key)
