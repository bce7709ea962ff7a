"""Where the plug-in's orders come from: a file or a URL, read by a thread of its own.

Whoever steers reads one attribute. Orders that cannot be read leave the last good ones in force. When nothing has been
heard for `SILENCE_SECONDS`, blocks are as vLLM was launched, as they are before the first orders: nobody can say any
more whether they pay. What was switched off stays off, since it is for a person to switch it on again.
"""

import os
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, replace
from pathlib import Path

from policies.cycle_policy import INITIAL_CYCLE_POLICY, CyclePolicy
from policies.quoting import clipped
from policies.types import Decision
from tuner.fleet.vllm.plugin.messages import Orders
from tuner.fleet.vllm.plugin.reading import OrdersReader

SILENCE_SECONDS = 10.0
FILE_SECONDS = 0.02
"""Between two looks at a file's date."""
URL_SECONDS = 0.1
_TIMEOUT_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class InForce:
    """What a step reads."""

    policy: CyclePolicy
    others: Decision | None
    """Of requests without a word; None leaves them to the launch."""
    steered: bool
    """False: blocks are as vLLM was launched, but for what was switched off or asked for."""


NOTHING_HEARD = InForce(INITIAL_CYCLE_POLICY, None, steered=False)


class Follower:
    """Keeps `in_force` up to date."""

    def __init__(self, source: str | None, token: str | None = None) -> None:
        """`source` is a URL, which may ask for `token`, or the path of a file; None: nothing is ever heard."""
        self.in_force = NOTHING_HEARD
        self.sentence = ""
        """What is wrong with what came last."""
        self._source = source
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._is_url = source is not None and source.startswith(("http://", "https://"))
        self._seen: tuple[int, int, int] | None = None
        """Of the file: date, size and inode."""
        self._etag: str | None = None
        self._heard_at: float | None = None
        self._reader = OrdersReader()
        self._text = ""
        self._orders: Orders | None = None
        """The last good ones."""
        self._ended = threading.Event()
        # What proxies the environment names is for elsewhere: orders come from next door.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self._thread = threading.Thread(target=self._run, name="paceline-orders", daemon=True)

    def start(self) -> None:
        if self._source is not None:
            self._look()
            self._thread.start()

    def close(self) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(_TIMEOUT_SECONDS)

    def _run(self) -> None:
        while not self._ended.wait(URL_SECONDS if self._is_url else FILE_SECONDS):
            self._look()

    def _look(self) -> None:
        now = time.monotonic()
        try:
            if self._fetch() if self._is_url else self._read():
                self._heard_at = now
                self.sentence = ""
        except Exception as error:  # noqa: BLE001  it is told in `State`; whatever came, the next orders must be read
            self.sentence = clipped(f"{type(error).__name__}: {error}".replace("\n", " "))
        if self._heard_at is None or self._orders is None:
            return
        if now - self._heard_at > SILENCE_SECONDS:
            if self.in_force.steered:
                self.in_force = _after_silence(self._orders.policy)
        elif self.in_force.policy is not self._orders.policy or self.in_force.others is not self._orders.others:
            self.in_force = InForce(self._orders.policy, self._orders.others, steered=True)

    def _take(self, text: str) -> None:
        if text != self._text:
            self._orders = self._reader.read(text)
            self._text = text

    def _read(self) -> bool:
        """Whether it was written since the last look."""
        assert self._source is not None
        found = os.stat(self._source)
        seen = found.st_mtime_ns, found.st_size, found.st_ino
        if seen == self._seen:
            return False
        self._seen = seen
        self._take(Path(self._source).read_text(encoding="utf-8"))
        return True

    def _fetch(self) -> bool:
        """Whether somebody answered."""
        assert self._source is not None
        headers = self._headers if self._etag is None else {**self._headers, "If-None-Match": self._etag}
        request = urllib.request.Request(self._source, headers=headers)
        try:
            with self._opener.open(request, timeout=_TIMEOUT_SECONDS) as answer:
                text = answer.read().decode("utf-8")
                etag = answer.headers.get("ETag")
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 304:
                    return True
                raise
        self._take(text)
        self._etag = etag
        return True


def _after_silence(policy: CyclePolicy) -> InForce:
    kept = replace(INITIAL_CYCLE_POLICY, kill=policy.kill, killed_routes=policy.killed_routes, version=policy.version)
    return InForce(kept, None, steered=False)
