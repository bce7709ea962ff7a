"""One sequence from its submission to its end: text as it comes, the output's language, and what was measured."""

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Protocol

from engine.messages import Finished, Submit, Tokens
from engine.process import EngineGoneError, SequenceFailedError
from engine.server.answers import Delta, joined
from engine.server.detokenize import TextStream
from engine.server.errors import ApiError, unavailable
from engine.server.logprobs import LogprobReader, TokenNames
from engine.server.resolve import Resolver
from engine.server.structured import StructuredOutput
from engine.server.tool_calls import ToolCall, ToolCallStream
from engine.server.tools import Tools
from policies.language_detection import LanguageDetector
from policies.protocols import TelemetrySink
from policies.stats import EngineInfo, FinishReason, RequestStats
from policies.types import Decision, RequestFeatures

OUTPUT_LANGUAGE_TOKENS = 32
"""After so many output tokens the language is resolved once more: the output's language decides acceptance."""

_log = logging.getLogger(__name__)


class TokenSource(Protocol):
    """The tokens of one sequence; closing it before its end cancels the sequence."""

    def __aiter__(self) -> AsyncIterator[Tokens]: ...

    async def __anext__(self) -> Tokens: ...

    async def aclose(self) -> None: ...


class EngineHandle(Protocol):
    """What the server uses of `engine.process.EngineClient`."""

    info: EngineInfo

    @property
    def alive(self) -> bool: ...

    def next_key(self) -> int: ...

    def submit(self, message: Submit) -> TokenSource: ...

    def redirect(self, request_key: int, decision: Decision) -> None: ...


@dataclass(frozen=True, slots=True)
class Job:
    """A sequence to run."""

    submit: Submit
    features: RequestFeatures
    received_at: float
    """When the request reached the server, on the runner's clock."""
    resolve_output: bool
    """Whether the language of the output may change the decision; not where the client named the language."""
    tools: Tools | None = None
    """Whose calls are looked for in the output."""
    grammar_field: str | None = None
    """Where the request asks for the grammar of `submit`."""
    structured: StructuredOutput | None = None
    """The form of the output, where the client gave one."""


@dataclass(slots=True)
class _Progress:
    """What has been seen of a sequence so far."""

    decision: Decision
    finish: FinishReason = FinishReason.CANCELLED
    """Until the engine says otherwise: whoever leaves early has cancelled."""
    finished: Finished | None = None
    tokens: int = 0
    first_at: float | None = None
    last_at: float = 0.0
    opening: str | None = ""
    """The text so far, until the output's language has been resolved."""
    written: str = ""
    """All of the text, where it has a form that is looked at in the end."""


class _Reader:
    """Turns the messages of one sequence into what its client reads."""

    def __init__(self, job: Job, token_bytes: Sequence[bytes], names: TokenNames) -> None:
        submit = job.submit
        self.text = TextStream(token_bytes, submit.stops, max(0, submit.sampling.min_tokens - 1))
        self.logprobs = LogprobReader(names)
        self.calls = ToolCallStream(job.tools.names, job.tools.several) if job.tools is not None else None

    def delta(self, message: Tokens, written: str) -> Delta:
        """`written` is the text that `message`, of one token, has made certain."""
        # The engine ends at the same token where a stop is complete; one that does not is not waited for.
        stopped = FinishReason.STOP if self.text.stopped else None
        finish = message.finished.reason if message.finished is not None else stopped
        looped = message.finished is not None and message.finished.looped
        calls: tuple[ToolCall, ...] = ()
        if self.calls is not None:
            written, calls = self.calls.push(written)
            if finish is not None and not self.calls.ended:
                rest, more = self.calls.finish()
                written, calls = written + rest, calls + more
            if self.calls.ended:
                finish = FinishReason.STOP
        return Delta(written, 1, finish, looped, self.logprobs.read(message), calls)


class SequenceRunner:
    """Runs sequences on the engine and reports each of them to the sink, however it ends."""

    def __init__(
        self,
        client: EngineHandle,
        token_bytes: Sequence[bytes],
        names: TokenNames,
        detector: LanguageDetector,
        resolver: Resolver,
        sink: TelemetrySink,
        clock: Callable[[], float],
    ) -> None:
        self._client = client
        self._token_bytes = token_bytes
        self._names = names
        self._detector = detector
        self._resolver = resolver
        self._sink = sink
        self._clock = clock

    async def run(self, job: Job) -> AsyncGenerator[Delta, None]:
        """One delta for each message of the engine, at once. Raises `ApiError`; closing it cancels the sequence."""
        progress = _Progress(job.submit.decision, opening="" if job.resolve_output else None)
        reader = _Reader(job, self._token_bytes, self._names)
        try:
            async with aclosing(self._client.submit(job.submit)) as messages:
                async for message in messages:
                    delta = self._read(job, progress, reader, message)
                    yield delta
                    if delta.finish is not None:
                        return
        except EngineGoneError as error:
            progress.finish = FinishReason.ERROR
            raise unavailable("The engine has stopped while it ran this request; send it again later.") from error
        except SequenceFailedError as error:
            progress.finish = FinishReason.ERROR
            if error.fault:
                raise ApiError(str(error), status=500, code="sequence_failed", kind="server_error") from error
            param = job.grammar_field if error.of_grammar else None
            raise ApiError(str(error), param=param, code="sequence_refused") from error
        finally:
            self._record(job, progress)

    def _read(self, job: Job, progress: _Progress, reader: _Reader, message: Tokens) -> Delta:
        """What `message` adds, up to the token that ends the answer: a call of a tool may end it in mid-message."""
        deltas: list[Delta] = []
        for single in _singly(message):
            deltas.append(self._delta(job, progress, reader, single))
            if deltas[-1].finish is not None:
                break
        return joined(deltas)

    def _delta(self, job: Job, progress: _Progress, reader: _Reader, message: Tokens) -> Delta:
        """What a message of one token adds."""
        progress.last_at = self._clock()
        progress.first_at = progress.last_at if progress.first_at is None else progress.first_at
        progress.tokens += 1
        written = reader.text.push(_without_end(message, job.submit.stop_token_ids))
        finished = message.finished
        if finished is not None:
            progress.finished, progress.finish = finished, finished.reason
            written += reader.text.finish()
            if finished.reason not in (FinishReason.STOP, FinishReason.LENGTH):
                raise unavailable("The engine has ended this request before its time; send it again later.")
        if job.structured is not None:
            progress.written += written
        delta = reader.delta(message, written)
        if progress.tokens == 1 and job.submit.sampling.choice == 0:
            delta = replace(delta, cached_tokens=message.reused_tokens)
        if delta.finish is not None:
            progress.finish = delta.finish
        elif progress.opening is not None:
            self._resolve_output(job, progress, written)
        return delta

    def _resolve_output(self, job: Job, progress: _Progress, written: str) -> None:
        """Ask for another decision once the first words are there and are sure to be in another language."""
        progress.opening = (progress.opening or "") + written
        if progress.tokens < OUTPUT_LANGUAGE_TOKENS:
            return
        context = progress.decision.context
        language, progress.opening = self._detector.detect_output(progress.opening, context.language), None
        if language != context.language:
            progress.decision = self._resolver.decide(replace(context, language=language), job.features)
            self._client.redirect(job.submit.request_key, progress.decision)

    def _record(self, job: Job, progress: _Progress) -> None:
        finished = progress.finished
        first_at = progress.first_at
        stats = RequestStats(
            request_key=job.submit.request_key,
            decision=progress.decision,
            features=job.features,
            finish=progress.finish,
            output_tokens=progress.tokens,
            # The engine sends its own measurements with the last tokens; of a cancelled sequence there are none.
            queue_seconds=finished.queue_seconds if finished else 0.0,
            ttft_seconds=first_at - job.received_at if first_at is not None else 0.0,
            decode_seconds=progress.last_at - first_at if first_at is not None else 0.0,
            cycles=finished.cycles if finished else 0,
            proposed=finished.proposed if finished else 0,
            verified=finished.verified if finished else 0,
            accepted=finished.accepted if finished else 0,
            rejected_at=finished.rejected_at if finished else (),
            draft_seconds=finished.draft_seconds if finished else 0.0,
            verify_seconds=finished.verify_seconds if finished else 0.0,
            looped=finished.looped if finished else False,
            valid=_valid(job, progress),
        )
        try:
            self._sink.record_request(stats)
        except Exception:  # noqa: BLE001 - telemetry never fails a request; the log says what it lost
            _log.exception("the telemetry sink failed; one request is not counted")


def _valid(job: Job, progress: _Progress) -> bool | None:
    """Of an output that ended by itself: what a limit or a stop of the client's cut off has no form."""
    if job.structured is None or progress.finish is not FinishReason.STOP or job.submit.stops:
        return None
    return job.structured.holds(progress.written)


def _singly(message: Tokens) -> Iterator[Tokens]:
    """One message for each token, so that no answer depends on how many a cycle emitted; `finished` is the last's."""
    last = len(message.token_ids) - 1
    for place, token in enumerate(message.token_ids):
        yield replace(
            message,
            token_ids=(token,),
            logprobs=message.logprobs[place : place + 1],
            finished=message.finished if place == last else None,
        )


def _without_end(message: Tokens, stop_token_ids: tuple[int, ...]) -> tuple[int, ...]:
    """The tokens of a message that have text: not the one that ended the sequence, whatever its bytes."""
    tokens = message.token_ids
    if message.finished is not None and tokens and tokens[-1] in stop_token_ids:
        return tokens[:-1]
    return tokens
