"""Keeping prompts out of the training data: those that a benchmark measures on, exact or nearly so."""

import re
from collections.abc import Iterable

_WORDS_OF_A_RUN = 6
_SHARED_SHARE = 0.2
"""Runs of words shared with one excluded text, over the smaller text's runs, from which a prompt counts as its copy."""

_WORD = re.compile(r"\w+")


def _runs(text: str) -> frozenset[tuple[str, ...]]:
    words = [word.lower() for word in _WORD.findall(text)]
    last = max(1, len(words) - _WORDS_OF_A_RUN + 1)
    return frozenset(tuple(words[start : start + _WORDS_OF_A_RUN]) for start in range(last))


class Exclusion:
    """Says whether a text is one of the excluded ones, word for word (case and punctuation aside) or nearly."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._excluded = [runs for text in texts if (runs := _runs(text)) != {()}]
        self._texts_by_run: dict[tuple[str, ...], list[int]] = {}
        for number, runs in enumerate(self._excluded):
            for run in runs:
                self._texts_by_run.setdefault(run, []).append(number)

    def covers(self, text: str) -> bool:
        """True if the text shares a fifth of the shorter one's runs of six words with an excluded text."""
        runs = _runs(text)
        shared: dict[int, int] = {}
        for run in runs:
            for number in self._texts_by_run.get(run, ()):
                shared[number] = shared.get(number, 0) + 1
        return any(
            count >= _SHARED_SHARE * min(len(runs), len(self._excluded[number])) for number, count in shared.items()
        )
