"""Keeps the texts that SGLang's n-gram drafter reads besides the request's own: one for each language with traffic.

The texts are files of the operator (setting fleet.corpora). Nothing of a client goes in: what comes here from traffic
is how many requests each language had. Read in ``sglang/srt/speculative/external_corpus_manager.py`` and
``entrypoints/http_server.py`` (2026-08): one text loads at a time and a second is refused, what is there already is
refused, documents beyond the server's limit in tokens are cut off without an error, and a restart forgets all of them.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from policies.quoting import clipped
from tuner.wording import counted

PREFIX = "paceline-"
"""Of the names of texts that are ours; others are left alone."""
MOST_TEXTS = 4
"""Loaded at once: all of them share the drafter's branches and the server's limit in tokens."""
MOST_BYTES = 8 << 20
"""Of one file."""
LEAST_SHARE = 0.02
"""Of the requests, below which a language has no traffic."""
IDLE_SECONDS = 900.0
"""Without traffic before a text is removed, so that a lull does not cost a load."""
_NOT_NGRAM = "it is no SGLang with --speculative-algorithm NGRAM."
_LOAD_SECONDS = 120.0
_ASK_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Corpora:
    """What a server has of our texts."""

    tokens: Mapping[str, int]
    """By language."""
    sentences: tuple[str, ...]
    """What did not work, one sentence each with its remedy; it is tried again at the next call."""


class CorporaRefusedError(Exception):
    """The server did not do what it was asked; one sentence."""


class CorporaKeeper:
    """Of one SGLang server. Calls do not overlap."""

    def __init__(
        self, client: httpx.AsyncClient, url: str, files: Mapping[str, Path], clock: Callable[[], float]
    ) -> None:
        """`files` by language; `clock` gives seconds that never go back. The server's admin key, if it has one, is
        among the client's headers."""
        self._client = client
        self._url = url
        self._files = files
        self._clock = clock
        self._seen: dict[str, float] = {}
        self._loaded: dict[str, tuple[int, int]] = {}
        """What each loaded file was: its change time and its size."""

    async def keep(self, requests: Mapping[str, int]) -> Corpora:
        """Load what has traffic and remove what has none. `requests` are those since the last call, by language.

        Never raises for what a server or a file does.
        """
        now = self._clock()
        total = sum(requests.values())
        for language, count in requests.items():
            if language in self._files and count and count >= LEAST_SHARE * total:
                self._seen[language] = now
        failures: list[str] = []
        try:
            there = await self._list()
            wanted = self._wanted(requests, now)
            # A text that is removed while another loads is not defined, so removals come first.
            for language in sorted(there.keys() - wanted.keys()):
                await self._ask("remove_external_corpus", {"corpus_id": PREFIX + language}, _ASK_SECONDS)
                del there[language]
            for language in wanted:
                try:
                    await self._load(language, there)
                except CorporaRefusedError as error:  # the next one may still find room
                    failures.append(str(error))
        except CorporaRefusedError as error:
            return Corpora({}, (*failures, str(error)))
        return Corpora(there, tuple(failures))

    def _wanted(self, requests: Mapping[str, int], now: float) -> dict[str, None]:
        """The languages whose texts shall be there, those with the most traffic first."""
        alive = [language for language, seen in self._seen.items() if now - seen < IDLE_SECONDS]
        alive.sort(key=lambda language: (-requests.get(language, 0), -self._seen[language], language))
        return dict.fromkeys(alive[:MOST_TEXTS])

    async def _list(self) -> dict[str, int]:
        """Tokens by language of what is there and ours."""
        answer = await self._ask("list_external_corpora", None, _ASK_SECONDS)
        counts = answer.get("corpus_token_counts")
        if not isinstance(counts, Mapping):
            raise CorporaRefusedError(f"{self._url}/list_external_corpora told no corpus_token_counts: {_NOT_NGRAM}")
        return {
            str(name).removeprefix(PREFIX): count if isinstance(count, int) else 0
            for name, count in counts.items()
            if str(name).startswith(PREFIX)
        }

    async def _load(self, language: str, there: dict[str, int]) -> None:
        documents, state = await asyncio.to_thread(self._read, language, there)
        if documents is None:
            return
        name = PREFIX + language
        if language in there:
            await self._ask("remove_external_corpus", {"corpus_id": name}, _ASK_SECONDS)
            del there[language]
        answer = await self._ask("add_external_corpus", {"corpus_id": name, "documents": documents}, _LOAD_SECONDS)
        self._loaded[language] = state
        loaded = answer.get("loaded_token_count")
        there[language] = loaded if isinstance(loaded, int) else 0

    def _read(self, language: str, there: Mapping[str, int]) -> tuple[list[str] | None, tuple[int, int]]:
        """The paragraphs of a file; None while what is loaded is what the file holds."""
        path = self._files[language]
        try:
            status = path.stat()
            state = (status.st_mtime_ns, status.st_size)
            if language in there and self._loaded.get(language, state) == state:
                self._loaded[language] = state
                return None, state
            if status.st_size > MOST_BYTES:
                raise CorporaRefusedError(
                    f"fleet.corpora.{language}: {path} has {counted(status.st_size, 'byte')}; "
                    f"give {MOST_BYTES:,} at most."
                )
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise CorporaRefusedError(
                f"fleet.corpora.{language}: {path} cannot be read ({error.strerror or error}): name another file."
            ) from error
        except UnicodeDecodeError as error:
            raise CorporaRefusedError(f"fleet.corpora.{language}: {path} is no UTF-8: write it as such.") from error
        documents = [paragraph.strip() for paragraph in text.split("\n\n") if paragraph.strip()]
        if not documents:
            raise CorporaRefusedError(f"fleet.corpora.{language}: {path} is empty: give it text, or take it out.")
        return documents, state

    async def _ask(self, what: str, body: Mapping[str, Any] | None, seconds: float) -> Mapping[str, Any]:
        """Raises CorporaRefusedError unless the server says that it did it."""
        url = f"{self._url}/{what}"
        try:
            answer = await (
                self._client.get(url, timeout=seconds)
                if body is None
                else self._client.post(url, json=body, timeout=seconds)
            )
        except httpx.HTTPError as error:
            raise CorporaRefusedError(f"{url} did not answer ({type(error).__name__}); it is tried again.") from error
        try:
            told = answer.json()
        except ValueError:
            told = None
        if not isinstance(told, Mapping):
            raise CorporaRefusedError(f"{url} answered {answer.status_code} and no JSON: {_NOT_NGRAM}")
        if answer.is_success and told.get("success") is True:
            return told
        reason = told.get("message") or told.get("detail") or f"status {answer.status_code}"
        raise CorporaRefusedError(f"{url} refused: {clipped(str(reason)).rstrip('.')}.")
