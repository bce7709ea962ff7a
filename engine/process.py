"""The engine's process and the control process's handle on it.

The engine loop owns a process: a busy Python thread beside it would cost more than any drafter gains. Messages cross
a socket pair as pickled values. In the control process one thread reads and one writes, so that neither a slow reader
nor a full socket ever stops the event loop or a cycle.
"""

import asyncio
import itertools
import logging
import pickle
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

from engine.drafter_files import RESERVED
from engine.messages import (
    AskStatus,
    Cancel,
    CycleDone,
    DraftersAre,
    EngineOptions,
    FromEngine,
    LoadDrafter,
    Progress,
    Ready,
    Redirect,
    SequenceFailed,
    SetCyclePolicy,
    Shutdown,
    StartFailed,
    StatusIs,
    Submit,
    ToEngine,
    Tokens,
    UnloadDrafter,
)
from engine.priority import step_back_for
from policies.cycle_policy import CyclePolicy
from policies.protocols import TelemetrySink
from policies.stats import EngineInfo, EngineStatus
from policies.types import Decision

_log = logging.getLogger(__name__)


class EngineStartError(Exception):
    """The engine process could not start; the message is one sentence for people."""


class EngineGoneError(Exception):
    """The engine process has ended while somebody waited for it."""


class SequenceFailedError(Exception):
    """The engine cannot run this sequence; the message is one sentence for people."""

    def __init__(self, message: str, *, fault: bool = False, of_grammar: bool = False) -> None:
        super().__init__(message)
        self.fault = fault
        """True: the engine's or the model's fault; False: what the request asks for cannot be."""
        self.of_grammar = of_grammar
        """As in `engine.messages.SequenceFailed`."""


class DrafterRefusedError(Exception):
    """A drafter cannot be loaded or unloaded; the message is one sentence for people."""


class Generation:
    """The tokens of one sequence, as an asynchronous iterator that ends after the message with `finished`.

    Leaving it before its end (`aclose`) cancels the sequence.
    """

    def __init__(self, client: "EngineClient", request_key: int) -> None:
        self._client = client
        self._request_key = request_key
        self._arrived: asyncio.Queue[Tokens | Exception | None] = asyncio.Queue()
        self._open = True

    def __aiter__(self) -> "Generation":
        return self

    async def __anext__(self) -> Tokens:
        if not self._open:
            raise StopAsyncIteration
        item = await self._arrived.get()
        if isinstance(item, Exception):
            self._open = False
            raise item
        if item is None:
            self._open = False
            raise StopAsyncIteration
        if item.finished is not None:
            self._open = False
        return item

    async def aclose(self) -> None:
        """Cancel the sequence unless it has ended."""
        if self._open:
            self._open = False
            self._client.cancel(self._request_key)

    def put(self, item: Tokens | Exception | None) -> None:
        """Called by the client in the event loop; None ends the iteration."""
        self._arrived.put_nowait(item)


class EngineClient:
    """Starts the engine process and speaks with it. All methods are called in one event loop."""

    def __init__(self, process: subprocess.Popen[bytes], connection: Connection, sink: TelemetrySink) -> None:
        self._process = process
        self._connection = connection
        self._sink = sink
        self._loop = asyncio.get_running_loop()
        self._keys = itertools.count(1)
        self._serials = itertools.count(1)
        self._generations: dict[int, Generation] = {}
        self._statuses: dict[int, asyncio.Future[EngineStatus]] = {}
        self._changes: dict[int, asyncio.Future[DraftersAre]] = {}
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.end = ""
        """How the process ended, in one sentence; empty while it runs."""
        self._closing = False
        self._reader = threading.Thread(target=self._read, name="engine-reader", daemon=True)
        self._writer = threading.Thread(target=self._write, name="engine-writer", daemon=True)
        self.info: EngineInfo

    @classmethod
    async def start(
        cls, options: EngineOptions, sink: TelemetrySink, progress: Callable[[str], None] = lambda message: None
    ) -> "EngineClient":
        """Start the process and wait until it can serve.

        Raises EngineStartError with one sentence when it cannot.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", "engine.process", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                # An interrupt from the terminal is the control process's to handle: it ends this one in order. The
                # session stays the same, since Linux may weigh the niceness of two processes within a session only.
                process_group=0,
            )
        client = cls(process, Connection(ours.detach()), sink)
        try:
            await asyncio.to_thread(client._handshake, options, progress)
        except BaseException:
            process.kill()
            process.wait()
            client._connection.close()
            raise
        client._reader.start()
        client._writer.start()
        step_back_for(process.pid)
        return client

    @property
    def alive(self) -> bool:
        """Whether the engine can take requests."""
        return not self.end

    @property
    def pid(self) -> int:
        return self._process.pid

    def next_key(self) -> int:
        """A request key that was not used before."""
        return next(self._keys)

    def submit(self, message: Submit) -> Generation:
        """Start a sequence. Raises EngineGoneError when the process has ended."""
        if self.end:
            raise EngineGoneError(self.end)
        generation = Generation(self, message.request_key)
        self._generations[message.request_key] = generation
        self._send(message)
        return generation

    def cancel(self, request_key: int) -> None:
        """Stop a sequence within one cycle; its generation ends after what has already arrived."""
        generation = self._generations.pop(request_key, None)
        if generation is not None:
            generation.put(None)
            self._send(Cancel(request_key))

    def redirect(self, request_key: int, decision: Decision) -> None:
        """Give a running sequence another decision; ignored once it has ended."""
        self._send(Redirect(request_key, decision))

    def set_cycle_policy(self, policy: CyclePolicy) -> None:
        """In force in the next cycle. May be called from any thread."""
        self._send(SetCyclePolicy(policy))

    async def status(self) -> EngineStatus:
        """A reading, taken between two cycles. Raises EngineGoneError."""
        if self.end:
            raise EngineGoneError(self.end)
        serial = next(self._serials)
        answer: asyncio.Future[EngineStatus] = self._loop.create_future()
        self._statuses[serial] = answer
        self._send(AskStatus(serial))
        return await answer

    async def load_drafter(self, source: str) -> None:
        """Load a drafter, named as in `EngineOptions.drafters`; `info.drafters` has it then.

        Raises:
            DrafterRefusedError: it cannot be loaded.
            EngineGoneError: the process has ended.
        """
        await self._change_drafters(LoadDrafter(next(self._serials), source))

    async def unload_drafter(self, name: str) -> None:
        """Let go of a drafter: what still runs with it goes on plain. Raises as `load_drafter`."""
        await self._change_drafters(UnloadDrafter(next(self._serials), name))

    async def _change_drafters(self, message: LoadDrafter | UnloadDrafter) -> None:
        if self.end:
            raise EngineGoneError(self.end)
        answer: asyncio.Future[DraftersAre] = self._loop.create_future()
        self._changes[message.serial] = answer
        self._send(message)
        came = await answer
        drafters = set(came.drafters)
        kept = {name: version for name, version in self.info.versions.items() if name in RESERVED}
        timed = tuple(timing for timing in self.info.draft_calibration if timing.drafter in drafters)
        self.info = replace(
            self.info,
            drafters=came.drafters,
            versions=kept | dict(came.versions),
            resident_bytes=came.resident_bytes,
            resident_seconds={name: cost for name, cost in self.info.resident_seconds.items() if name in drafters},
            draft_calibration=timed + came.draft_calibration,
        )
        if came.problem is not None:
            raise DrafterRefusedError(came.problem)

    async def close(self) -> None:
        """End the process; sequences that still run end with EngineGoneError."""
        self._closing = True
        self._send(Shutdown())
        self._outbox.put(None)
        await asyncio.to_thread(self._end_process)

    def _end_process(self) -> None:
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._writer.join()
        self._reader.join()
        self._connection.close()

    def _handshake(self, options: EngineOptions, progress: Callable[[str], None]) -> None:
        try:
            self._connection.send(options)
            while True:
                message: FromEngine = self._connection.recv()
                match message:
                    case Ready(info):
                        self.info = info
                        return
                    case StartFailed(text):
                        raise EngineStartError(text)
                    case Progress(text):
                        progress(text)
        except (EOFError, OSError) as error:
            raise EngineStartError(f"{_how_it_ended(self._process)} It could not serve yet.") from error

    def _read(self) -> None:
        try:
            while True:
                message: FromEngine = self._connection.recv()
                if isinstance(message, CycleDone):
                    self._sink.record_cycle(message.stats)
                self._in_loop(self._dispatch, message)
        except (EOFError, OSError):
            self.end = _how_it_ended(self._process)
            if not self._closing:
                _log.error("%s", self.end)
            self._outbox.put(None)
            self._in_loop(self._fail_all)

    def _in_loop(self, callback: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:
            # The event loop may be closed already when the whole program ends: then nobody waits for an answer.
            if not self._loop.is_closed():
                raise

    def _send(self, message: ToEngine) -> None:
        # Pickled here, so that a message that cannot cross fails in front of its sender and not in the thread.
        self._outbox.put(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))

    def _write(self) -> None:
        while (message := self._outbox.get()) is not None:
            try:
                self._connection.send_bytes(message)
            except OSError:
                return  # the reader sees the end of the process as well and tells everybody

    def _dispatch(self, message: FromEngine) -> None:
        match message:
            case CycleDone(tokens, _):
                for item in tokens:
                    generation = self._generations.get(item.request_key)
                    if generation is None:
                        continue
                    if item.finished is not None:
                        del self._generations[item.request_key]
                    generation.put(item)
            case StatusIs(serial, status):
                answer = self._statuses.pop(serial, None)
                if answer is not None and not answer.done():
                    answer.set_result(status)
            case DraftersAre(serial):
                change = self._changes.pop(serial, None)
                if change is not None and not change.done():
                    change.set_result(message)
            case SequenceFailed(request_key, text, fault, of_grammar):
                generation = self._generations.pop(request_key, None)
                if generation is not None:
                    generation.put(SequenceFailedError(text, fault=fault, of_grammar=of_grammar))

    def _fail_all(self) -> None:
        gone = EngineGoneError(self.end)
        for generation in self._generations.values():
            generation.put(gone)
        self._generations.clear()
        answers: list[asyncio.Future[Any]] = [*self._statuses.values(), *self._changes.values()]
        for answer in answers:
            if not answer.done():
                answer.set_exception(gone)
        self._statuses.clear()
        self._changes.clear()


def _how_it_ended(process: subprocess.Popen[bytes]) -> str:
    """One sentence; a signal is named. To be asked when its connection has ended."""
    try:
        code = process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        return "The engine process does not answer any more."
    if code == -signal.SIGKILL:
        return "The engine process was ended by SIGKILL, as the system does when memory runs out."
    if code < 0:
        known = {number.value: number.name for number in signal.Signals}
        return f"The engine process was ended by {known.get(-code, f'signal {-code}')}."
    return f"The engine process has ended with code {code}." if code else "The engine process has ended."


def run_engine(connection: Connection) -> None:
    """The engine process: build everything, then step until told to stop or left alone."""
    options: EngineOptions = connection.recv()
    # Only this process needs the tensor libraries.
    from engine.build import EngineBuildError, build_engine

    try:
        loop, info = build_engine(options, connection.send)
    except EngineBuildError as error:
        connection.send(StartFailed(str(error)))
        return
    connection.send(Ready(info))
    while not loop.stopping:
        if loop.idle:
            loop.scheduler.check()
            connection.poll(None)
        messages: list[ToEngine] = []
        while connection.poll(0):
            messages.append(connection.recv())
        loop.step(messages)


def main() -> None:
    """Entry of the child: the file descriptor of its end of the socket pair is the only argument."""
    connection = Connection(int(sys.argv[1]))
    try:
        run_engine(connection)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the control process has ended, and so do we


if __name__ == "__main__":
    main()
