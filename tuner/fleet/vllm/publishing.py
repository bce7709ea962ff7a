"""Hands orders to plug-ins: as a file that is replaced whole, and as a page with an ETag. Never waits for either."""

import contextlib
import hashlib
import logging
import os
import threading
from dataclasses import dataclass
from pathlib import Path

from policies.cycle_policy import CyclePolicy
from policies.types import Decision
from policies.wire import to_wire
from tuner.fleet.vllm.plugin.messages import ORDERS, Orders

log = logging.getLogger(__name__)

ORDERS_PATH = "/plugin/orders"
"""Where the page is, below the admin API's address."""
AGAIN_SECONDS = 1.0
"""How often the date of the file is renewed, so that plug-ins know that somebody is there: see
`tuner.fleet.vllm.plugin.following.SILENCE_SECONDS`."""


@dataclass(frozen=True, slots=True)
class Page:
    """The orders as an answer to a GET."""

    etag: str
    """With its quotes."""
    body: bytes

    def matches(self, if_none_match: str | None) -> bool:
        """Whether the asker has this already: answer 304, without the body."""
        if if_none_match is None:
            return False
        return any(one.strip().removeprefix("W/") in (self.etag, "*") for one in if_none_match.split(","))


class Publisher:
    """`publish` may be handed to `tuner.controller.Controller`. Nothing is there for plug-ins before its first call:
    until then, and after `close`, they are as they were launched."""

    def __init__(self, path: Path | None) -> None:
        """`path` is the file that plug-ins read; None where they all ask for `page`."""
        self.page: Page | None = None
        """The orders in force, as soon as they are written."""
        self.sentence = ""
        """Why the file could not be written; empty where it could."""
        self._path = path
        self._policy: CyclePolicy | None = None
        self._others: Decision | None = None
        self._moved = threading.Event()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="paceline-publisher", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Take the orders away again."""
        self._ended = True
        self._moved.set()
        if self._thread.is_alive():
            self._thread.join()
        self.page = None
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)

    def publish(self, policy: CyclePolicy) -> None:
        """Put another policy in force soon."""
        self._policy = policy
        self._moved.set()

    def set_others(self, decision: Decision | None) -> None:
        """What holds for requests that reach vLLM without a word of ours; None: what vLLM was launched with."""
        self._others = decision
        self._moved.set()

    def _run(self) -> None:
        is_written = True
        while not self._ended:
            moved = self._moved.wait(AGAIN_SECONDS)
            self._moved.clear()
            policy = self._policy
            if policy is None or self._ended:
                continue
            try:
                if moved or not is_written:
                    self._write(to_wire(ORDERS, Orders(policy, self._others)))
                elif self._path is not None:
                    os.utime(self._path)
                is_written, self.sentence = True, ""
            except OSError as error:
                if is_written:
                    log.warning("the orders for vLLM's plug-in cannot be written: %s", error)
                is_written, self.sentence = False, f"the orders for vLLM's plug-in cannot be written: {error}"

    def _write(self, body: bytes) -> None:
        self.page = Page(f'"{hashlib.blake2s(body, digest_size=12).hexdigest()}"', body)
        if self._path is None:
            return
        beside = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        beside.write_bytes(body)
        os.replace(beside, self._path)
