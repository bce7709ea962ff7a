"""N-gram prompt lookup: what followed the last time that the text ended like this?

The longest match wins, and among equally long ones the most recent. Prompt and output are searched alike. Where the
text behind a match runs out, the proposal goes on reading from itself, so that a period is continued.
"""

from collections.abc import Sequence

from engine.drafter import SILENT, Proposal
from engine.request import RunningSequence

CANDIDATES = 64
"""Occurrences of the shortest match that are looked at, most recent first: it bounds a cycle's time in long
repetitive texts."""

INDEX_BYTES = 320
"""Upper bound of an index's memory for a token of context: a key, a list and their place in the dictionary."""

CONFIDENCE_EDGES = (2, 4, 8, 15)
"""Match lengths up to the first edge are bucket 1, up to the second bucket 2, and so on; longer is the last."""


class NgramIndex:
    """Where each run of `min_match` tokens ended, for one sequence."""

    def __init__(self, min_match: int) -> None:
        self.min_match = min_match
        self._ends: dict[tuple[int, ...], list[int]] = {}
        self._indexed = min_match - 1

    def lookup(self, tokens: Sequence[int], length: int, max_match: int) -> tuple[tuple[int, ...], int]:
        """Up to `length` tokens that may follow `tokens`, and the length of the match that they rest on."""
        total = len(tokens)
        minimum = self.min_match
        # The run that ends the text is left out until there is a token behind it to propose.
        for end in range(self._indexed + 1, total):
            self._ends.setdefault(tuple(tokens[end - minimum : end]), []).append(end)
        self._indexed = max(self._indexed, total - 1)
        if total < minimum:
            return (), 0
        ends = self._ends.get(tuple(tokens[total - minimum :]))
        if not ends:
            return (), 0
        best_end, best_match = 0, 0
        for end in ends[: -CANDIDATES - 1 : -1]:
            match = minimum
            while match < max_match and match < end and tokens[end - 1 - match] == tokens[total - 1 - match]:
                match += 1
            if match > best_match:
                best_end, best_match = end, match
                if match >= max_match:
                    break
        proposal = list(tokens[best_end : best_end + length])
        period = total - best_end
        while len(proposal) < length:
            proposal.append(proposal[len(proposal) - period])
        return tuple(proposal), best_match


class NgramDrafter:
    """`engine.drafter.Drafter` by prompt lookup; its memory is an index for each running sequence."""

    name = "ngram"
    context_limit: int | None = None

    def __init__(self, min_match: int, max_match: int, *, context_tokens: int = 0) -> None:
        """`context_tokens`: what the running sequences hold together at most; it makes `memory_bytes`.

        ValueError for match lengths that cannot be.
        """
        if not 1 <= min_match <= max_match:
            raise ValueError(f"ngram match lengths {min_match}..{max_match}: give 1 <= min <= max")
        self._min_match = min_match
        self._max_match = max_match
        self._indexes: dict[int, NgramIndex] = {}
        self.memory_bytes = context_tokens * INDEX_BYTES

    def propose(self, sequences: Sequence[RunningSequence], lengths: Sequence[int]) -> list[Proposal]:
        proposals: list[Proposal] = []
        for sequence, length in zip(sequences, lengths, strict=True):
            shortest = max(1, sequence.knobs.ngram_min_match or self._min_match)
            # Where one of the two is the engine's own, they may cross: the shortest match holds.
            longest = max(shortest, sequence.knobs.ngram_max_match or self._max_match)
            index = self._indexes.get(sequence.key)
            if index is None or index.min_match != shortest:
                index = self._indexes[sequence.key] = NgramIndex(shortest)
            tokens, match = index.lookup(sequence.tokens, length, longest)
            proposals.append(Proposal(tokens, confidence_of(match)) if tokens else SILENT)
        return proposals

    def observe(self, sequence: RunningSequence, emitted: Sequence[int]) -> None:
        """Nothing to do: `propose` reads what was added to the text."""

    def release(self, request_key: int) -> None:
        self._indexes.pop(request_key, None)


def confidence_of(match: int) -> int:
    """The confidence bucket of a match length."""
    return 1 + sum(match > edge for edge in CONFIDENCE_EDGES)
