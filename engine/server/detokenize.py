"""From token ids to text as it comes: whole characters only, and nothing of a stop string."""

import codecs
from collections.abc import Sequence


class TextStream:
    """The text of one sequence, token by token.

    A character whose bytes are spread over tokens comes with its last byte; bytes that are no UTF-8 come as U+FFFD;
    a character that is still incomplete at the end of the sequence is left out. Text that may be the beginning of a
    stop string is held back until that is decided. The stop that is complete first ends the text, the longer one
    where two are complete at once, and the text ends where it begins: this does not depend on how the text was cut
    into tokens.
    """

    def __init__(self, token_bytes: Sequence[bytes], stops: Sequence[str], exempt: int = 0) -> None:
        """Stop strings are not looked for in the text of the first `exempt` tokens."""
        self._exempt = exempt
        self._token_bytes = token_bytes
        self._stops = tuple(stops)
        self._longest = max((len(stop) for stop in stops), default=1)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""
        self.stopped = False
        """A stop string is complete; nothing comes after it."""

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that `token_ids` make certain; ids beyond the vocabulary stand for nothing."""
        if self.stopped:
            return ""
        exempt = self._decode(token_ids[: self._exempt])
        text = self._decode(token_ids[self._exempt :])
        self._exempt = max(0, self._exempt - len(token_ids))
        if not self._stops:
            return exempt + text
        return exempt + self._until_stop(self._held + text)

    def finish(self) -> str:
        """The text held back for a stop string that did not come."""
        held, self._held = self._held, ""
        return held

    def _decode(self, token_ids: Sequence[int]) -> str:
        known = len(self._token_bytes)
        return self._decoder.decode(b"".join(self._token_bytes[token] for token in token_ids if token < known))

    def _until_stop(self, text: str) -> str:
        """`text` as far as it is certain, up to the stop that is complete first."""
        ends = [(start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0]
        if ends:
            self.stopped = True
            self._held = ""
            return text[: min(ends)[1]]
        keep = self._undecided(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def _undecided(self, text: str) -> int:
        """Length of the longest end of `text` with which a stop string begins."""
        for length in range(min(len(text), self._longest - 1), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0
