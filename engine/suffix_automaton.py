"""A suffix automaton that counts: how often, and how lately, did each token follow this text?

Built online, one token at a time (Blumer et al. 1985; the version for several texts of Mohri, Moreno, Weinstein 2009).
A state stands for all runs of tokens that end at the same places; its link leads to the longest run that ends at more.
The number of those places and the latest of them are kept with each state, so that the tokens that followed any run,
with their frequencies, are read off its transitions.
"""

from collections.abc import Sequence

ROOT = 0
COUNTED_CHAIN = 64
"""States of a chain of links that one token counts in. A text that repeats itself with a short period has chains as
long as itself; there the shortest runs are counted too low. Elsewhere chains are short and the counts exact."""


class SuffixAutomaton:
    """Every run of tokens of the texts that were added."""

    def __init__(self) -> None:
        self.transitions: list[dict[int, int]] = [{}]
        self.links: list[int] = [-1]
        self.lengths: list[int] = [0]
        """The longest run of each state."""
        self.counts: list[int] = [0]
        """How often the runs of each state occurred."""
        self.latest: list[int] = [0]
        """Tokens that had been added when they occurred last."""
        self.last = ROOT
        """The state of the whole text that is being added."""
        self.tokens = 0

    def start_text(self) -> None:
        """The next token begins another text: no run reaches over the border."""
        self.last = ROOT

    def extend(self, token_ids: Sequence[int]) -> None:
        """Add tokens to the end of the text; O(1) each, amortised."""
        transitions, links, lengths = self.transitions, self.links, self.lengths
        counts, latest = self.counts, self.latest
        last = self.last
        for place, token in enumerate(token_ids, start=self.tokens + 1):
            state = last
            known = transitions[state].get(token)
            if known is not None:
                last = known if lengths[known] == lengths[state] + 1 else self._split(state, token, known)
            else:
                last = len(transitions)
                transitions.append({})
                lengths.append(lengths[state] + 1)
                links.append(ROOT)
                counts.append(0)
                latest.append(0)
                while state >= 0 and token not in transitions[state]:
                    transitions[state][token] = last
                    state = links[state]
                if state >= 0:
                    known = transitions[state][token]
                    exact = lengths[known] == lengths[state] + 1
                    links[last] = known if exact else self._split(state, token, known)
            counted = last
            for _ in range(COUNTED_CHAIN):
                if counted == ROOT:
                    break
                counts[counted] += 1
                latest[counted] = place
                counted = links[counted]
        self.last = last
        self.tokens += len(token_ids)

    def advance(self, state: int, length: int, token: int) -> tuple[int, int]:
        """The longest known run that ends a text, as (state, length), after `token` was added to that text.

        `state` and `length` are those before it.
        """
        transitions, links, lengths = self.transitions, self.links, self.lengths
        while state != ROOT and token not in transitions[state]:
            state = links[state]
            length = lengths[state]
        following = transitions[state].get(token)
        return (ROOT, 0) if following is None else (following, length + 1)

    def settle(self, state: int, length: int) -> int:
        """The state of a run of `length` that was in `state`: states are split while texts are added."""
        while state != ROOT and length <= self.lengths[self.links[state]]:
            state = self.links[state]
        return state

    def _split(self, state: int, token: int, known: int) -> int:
        """Give the runs of `known` that are one longer than those of `state` a state of their own, and return it."""
        transitions, links = self.transitions, self.links
        split = len(transitions)
        transitions.append(transitions[known].copy())
        self.lengths.append(self.lengths[state] + 1)
        self.counts.append(self.counts[known])
        self.latest.append(self.latest[known])
        links.append(links[known])
        links[known] = split
        while state >= 0 and transitions[state].get(token) == known:
            transitions[state][token] = split
            state = links[state]
        return split
