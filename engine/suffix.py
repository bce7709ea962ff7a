"""Suffix drafting: the continuation with the highest frequency after the longest runs that the text ends with.

The text so far is kept in a suffix automaton, prompt and output alike. By opt-in for a route, the outputs of its
finished requests are kept in another one, bounded in tokens, in memory only, the oldest forgotten first. Sharing tells
by its timing what others were answered: hence the opt-in.

The probability of a next token blends its frequencies after the longest match, the next shorter one that occurred more
often, and so on, as prediction by partial matching does: each level keeps for the shorter ones the share that its own
evidence leaves open. So one occurrence after a long match beats many after a short one, and many beat a few.
"""

from collections import deque
from collections.abc import Sequence
from weakref import WeakKeyDictionary

from engine.drafter import SILENT, Proposal
from engine.request import RunningSequence
from engine.suffix_automaton import ROOT, SuffixAutomaton

LEVELS = 3
"""Matches that are blended, the longest first."""

WIDEST = 64
"""A match that more different tokens followed says nothing, and would cost time in every step."""

MIN_SCORE = 0.3
"""A proposal ends before the product of its probabilities falls under this."""

CONFIDENCE_EDGES = (0.4, 0.7, 0.9, 0.97)
"""Probabilities of the first token from which on a proposal is in bucket 2, 3, 4, 5."""

TOKEN_BYTES = 600
"""Upper bound of an automaton's memory for a token: at most two states, hardly ever more than one and a half."""

Match = tuple[SuffixAutomaton, int, int]
"""An automaton, and the state and length of the longest run in it that ends the text."""


class SharedText:
    """The latest outputs of one route: two automata that take turns, so that the oldest half is forgotten at once."""

    def __init__(self, token_limit: int) -> None:
        self._half = token_limit // 2
        self.halves: deque[SuffixAutomaton] = deque([SuffixAutomaton()], maxlen=2)

    @property
    def tokens(self) -> int:
        return sum(automaton.tokens for automaton in self.halves)

    def add(self, token_ids: Sequence[int]) -> None:
        """Keep a finished output, or the end of one that is longer than a half."""
        kept = token_ids[-self._half :] if len(token_ids) > self._half else token_ids
        if self.halves[-1].tokens + len(kept) > self._half:
            self.halves.append(SuffixAutomaton())
        self.halves[-1].start_text()
        self.halves[-1].extend(kept)


class _Text:
    """One running sequence: its own automaton, and where its end stands in those of its route."""

    def __init__(self, sequence: RunningSequence) -> None:
        self.sequence = sequence
        self.own = SuffixAutomaton()
        self._shared: dict[int, Match] = {}

    def matches(self, shared: SharedText | None) -> list[Match]:
        """Take in what was added to the text, and find the longest known ends of it."""
        tokens = self.sequence.tokens
        fresh = tokens[self.own.tokens :]
        automata = shared.halves if shared is not None else ()
        followed: dict[int, Match] = {}
        for automaton in automata:
            known = self._shared.get(id(automaton))
            if known is None:
                state, length, unread = ROOT, 0, tokens
            else:
                state, length, unread = automaton.settle(known[1], known[2]), known[2], fresh
            for token in unread:
                state, length = automaton.advance(state, length, token)
            followed[id(automaton)] = (automaton, state, length)
        self._shared = followed
        self.own.extend(fresh)
        # The whole text occurs once, at its end: what occurred before is what its link leads to.
        before = self.own.links[self.own.last]
        return [(self.own, before, self.own.lengths[before]), *followed.values()]


class SuffixDrafter:
    """`engine.drafter.Drafter` over suffix automata."""

    name = "suffix"
    context_limit: int | None = None

    def __init__(
        self,
        *,
        context_tokens: int = 0,
        shared_routes: Sequence[str] = (),
        shared_tokens: int = 32768,
        min_score: float = MIN_SCORE,
    ) -> None:
        """
        Args:
            context_tokens: what the running sequences hold together at most; it makes `memory_bytes`.
            shared_routes: routes whose requests read the outputs of those before them.
            shared_tokens: tokens of output that are kept for each of them.
            min_score: a proposal ends before the product of its probabilities falls under this.

        Raises:
            ValueError: a bound that cannot be, in one sentence.
        """
        if shared_tokens < 2:
            raise ValueError(f"suffix shared_tokens is {shared_tokens}; give at least 2, or no shared routes")
        if not 0.0 < min_score <= 1.0:
            raise ValueError(f"suffix min_score is {min_score}; give more than 0 and at most 1")
        self._min_score = min_score
        self.shared = {route: SharedText(shared_tokens) for route in shared_routes}
        self._texts: dict[int, _Text] = {}
        self._shared_until: WeakKeyDictionary[RunningSequence, int] = WeakKeyDictionary()
        """Length of the text that was kept of a sequence that was preempted, and may come back."""
        self.memory_bytes = (context_tokens + shared_tokens * len(self.shared)) * TOKEN_BYTES

    def propose(self, sequences: Sequence[RunningSequence], lengths: Sequence[int]) -> list[Proposal]:
        proposals: list[Proposal] = []
        for sequence, length in zip(sequences, lengths, strict=True):
            shared = self.shared.get(sequence.decision.context.route)
            knob = sequence.knobs.suffix_min_score
            min_score = self._min_score if knob is None else knob
            tokens, probs = continuation(self._text(sequence).matches(shared), length, min_score)
            proposals.append(Proposal(tokens, confidence_of(probs[0])) if tokens else SILENT)
        return proposals

    def observe(self, sequence: RunningSequence, emitted: Sequence[int]) -> None:
        """On a shared route every output is kept, whoever drafted it. Elsewhere `propose` reads what was added."""
        if sequence.decision.context.route in self.shared:
            self._text(sequence)

    def release(self, request_key: int) -> None:
        text = self._texts.pop(request_key, None)
        if text is None:
            return
        sequence = text.sequence
        shared = self.shared.get(sequence.decision.context.route)
        if shared is not None:
            shared.add(sequence.tokens[self._shared_until.get(sequence, sequence.prompt_length) :])
            self._shared_until[sequence] = len(sequence.tokens)

    def _text(self, sequence: RunningSequence) -> _Text:
        text = self._texts.get(sequence.key)
        if text is None:
            text = self._texts[sequence.key] = _Text(sequence)
        return text


def continuation(matches: Sequence[Match], length: int, min_score: float) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Up to `length` tokens, each the most probable after those before it, with their probabilities."""
    tokens: list[int] = []
    probs: list[float] = []
    score = 1.0
    current = list(matches)
    while len(tokens) < length:
        token, prob = most_probable(current)
        score *= prob
        if score < min_score:
            break
        tokens.append(token)
        probs.append(prob)
        current = [(automaton, *automaton.advance(state, matched, token)) for automaton, state, matched in current]
    return tuple(tokens), tuple(probs)


def most_probable(matches: Sequence[Match]) -> tuple[int, float]:
    """The most probable next token and its probability; (-1, 0.0) when nothing matches.

    Among equals the one that followed last; then the one of the longest match.
    """
    if len(matches) == 1:
        levels = _levels(matches[0])
    else:
        levels = sorted((level for match in matches for level in _levels(match)), key=lambda level: -level[0])
    blended: dict[int, float] = {}
    recency: dict[int, int] = {}
    remaining = 1.0
    for matched, automaton, following in levels[:LEVELS]:
        counts, latest = automaton.counts, automaton.latest
        total = 0
        for state in following.values():
            total += counts[state]
        evidence = total * matched
        trusted = remaining * evidence / (evidence + len(following))
        for token, state in following.items():
            blended[token] = blended.get(token, 0.0) + trusted * counts[state] / total
            recency.setdefault(token, latest[state])
        remaining -= trusted
    if not blended:
        return -1, 0.0
    best = max(blended, key=lambda token: (blended[token], recency[token]))
    return best, blended[best]


def _levels(match: Match) -> list[tuple[int, SuffixAutomaton, dict[int, int]]]:
    """The longest match and the shorter ones that occurred more often: (length, automaton, what followed)."""
    automaton, state, matched = match
    levels: list[tuple[int, SuffixAutomaton, dict[int, int]]] = []
    while state > ROOT and len(levels) < LEVELS:
        following = automaton.transitions[state]
        if 0 < len(following) <= WIDEST:
            levels.append((matched, automaton, following))
        state = automaton.links[state]
        matched = automaton.lengths[state]
    return levels


def confidence_of(first_prob: float) -> int:
    """The confidence bucket of the first token's probability."""
    return 1 + sum(first_prob >= edge for edge in CONFIDENCE_EDGES)
