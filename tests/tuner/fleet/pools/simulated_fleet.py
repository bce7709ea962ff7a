"""A fleet whose truth is known: servers whose requests slow each other, driven by clients that wait for their answers.

Seconds per token follow a table by route, drafter and requests in progress; between the loads of the table they are
interpolated in the logarithms. Every request has a speed of its own around that. A request first waits for its prompt,
as far as its upstream did not serve its session before.
"""

import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from policies.types import PLAIN, Decision
from tuner.fleet.pools.chooser import PoolChooser
from tuner.fleet.pools.controller import FleetController
from tuner.fleet.pools.options import FleetOptions
from tuner.fleet.types import Asked, Capability, Choice, Effect, End, EngineKind, Exchange, Lane, Lever, Upstream

LOADS = (1, 4, 8, 16)
PLAIN_RATES: Mapping[str, tuple[float, ...]] = {
    "write": (59, 240, 402, 663),
    "edit": (63, 215, 340, 405),
    "chat": (60, 229, 384, 649),
    "story": (60, 215, 408, 606),
}
NGRAM_RATES: Mapping[str, tuple[float, ...]] = {
    "write": (71, 214, 299, 400),
    "edit": (196, 360, 397, 375),
    "chat": (70, 212, 320, 424),
    "story": (64, 204, 309, 405),
}
"""Tokens per second of the whole server: the design's table of vLLM's CPU build."""

Truth = Callable[[str, str, float], float]
"""Seconds per token of (route, drafter) at a load."""


def table_seconds(route: str, drafter: str, load: float) -> float:
    """The design's table."""
    rates = (PLAIN_RATES if drafter == PLAIN else NGRAM_RATES)[route]
    logs = [math.log(at / rate) for at, rate in zip(LOADS, rates, strict=True)]
    where = math.log2(max(load, 1.0))
    knots = [math.log2(at) for at in LOADS]
    place = max(0, min(len(knots) - 2, sum(where >= knot for knot in knots) - 1))
    slope = (logs[place + 1] - logs[place]) / (knots[place + 1] - knots[place])
    return math.exp(logs[place] + slope * (where - knots[place]))


@dataclass(slots=True)
class _Running:
    route: str
    drafter: str
    upstream: str
    choice: Choice
    client: int
    session: int
    arrived_at: float
    prompt: int
    cached: int
    first_at: float
    """When its prompt is done."""
    tokens: int
    left: float
    speed: float
    plain_seconds: float = 0.0
    load_seconds: float = 0.0
    fails: bool = False


@dataclass(frozen=True, slots=True)
class Served:
    """One request that ended."""

    route: str
    lane: str
    drafter: str
    reason: str
    tokens: int
    seconds: float
    plain_seconds: float
    """What plain would have taken for its tokens at the loads that it met."""
    load: float
    ended_at: float
    decision: Decision | None


@dataclass(slots=True)
class Client:
    """Asks again when it has its answer; a new session after a few turns."""

    route: str
    session: int = 0
    turns: int = 0
    prompt: int = 0


class Fleet:
    """Upstreams with their clients on one clock."""

    def __init__(
        self,
        upstreams: Sequence[Upstream],
        options: FleetOptions,
        seed: int,
        truth: Truth = table_seconds,
        sigma: float = 0.15,
        prefill: float = 0.0002,
        place: Callable[[Asked], str] | None = None,
    ) -> None:
        """`place` sends requests by itself, to a lane's name, in place of the chooser."""
        self.now = 1_000_000.0
        self.random = random.Random(seed)
        self._truth, self._sigma, self._prefill, self._place = truth, sigma, prefill, place
        self.slow: dict[str, float] = {}
        """Factors of seconds by upstream."""
        self.failing: dict[str, float] = {}
        """Share of requests that fail by upstream and drafter, such as ``a/ngram``."""
        self.chooser = PoolChooser(_NEVER_ASKED)  # type: ignore[arg-type]
        self.controller = FleetController(
            upstreams, options, self.chooser.swap, clock=lambda: self.now, monotonic=lambda: self.now
        )
        self.upstreams = [one.name for one in upstreams]
        self.language = "en"
        self.served: list[Served] = []
        self.clients: list[Client] = []
        self._running: list[_Running] = []
        self._homes: dict[int, str] = {}
        self._sessions = itertools.count(1)
        self._ticked_at = self.now
        self.body_fields: dict[str, object] = {}

    @property
    def lanes(self) -> dict[str, Lane]:
        return {one.lane.name: one.lane for one in self.controller.fleet.lanes}

    def set_clients(self, routes: Sequence[str]) -> None:
        """One client for each of `routes`; those that are there go on, those that are too many stop asking."""
        before, self.clients = self.clients, [Client(route) for route in routes]
        for place, client in enumerate(before[: len(routes)]):
            if client.route == routes[place]:
                self.clients[place] = client
        busy = {one.client for one in self._running}
        for number in range(len(self.clients)):
            if number not in busy:
                self._ask(number)

    def run(self, requests: int) -> list[Served]:
        """Go on until so many requests more have ended; those."""
        first = len(self.served)
        while len(self.served) < first + requests:
            self._step()
        return self.served[first:]

    def _step(self) -> None:
        loads = {name: 0 for name in self.upstreams}
        for one in self._running:
            loads[one.upstream] += 1
        soonest, ends = math.inf, None
        rates = []
        for one in self._running:
            if one.first_at > self.now:
                rates.append(0.0)
                if one.first_at < soonest:
                    soonest, ends = one.first_at, None
                continue
            seconds = self._seconds(one, one.drafter, loads[one.upstream])
            rates.append(1.0 / seconds)
            if self.now + one.left * seconds < soonest:
                soonest, ends = self.now + one.left * seconds, one
        if soonest > self._ticked_at + 0.5:
            soonest, ends = self._ticked_at + 0.5, None
        passed = soonest - self.now
        for one, rate in zip(self._running, rates, strict=True):
            if rate:
                done = passed * rate
                one.left -= done
                one.plain_seconds += done * self._seconds(one, PLAIN, loads[one.upstream])
                one.load_seconds += passed * loads[one.upstream]
        self.now = soonest
        if ends is not None:
            self._end(ends)
        elif self.now >= self._ticked_at + 0.5 - 1e-9:
            self._ticked_at = self.now
            self.controller.tick()

    def _seconds(self, one: _Running, drafter: str, load: int) -> float:
        return self._truth(one.route, drafter, load) * one.speed * self.slow.get(one.upstream, 1.0)

    def _ask(self, number: int) -> None:
        client = self.clients[number]
        if client.turns == 0:
            client.session, client.turns, client.prompt = next(self._sessions), self.random.randint(1, 4), 200
        client.turns -= 1
        tokens = max(4, min(600, round(self.random.expovariate(1 / 100))))
        in_flight = {name: sum(one.upstream == name for one in self._running) for name in self.upstreams}
        asked = Asked(
            path="/v1/chat/completions",
            body={"model": "m", "stream": True, "max_tokens": 600, "messages": [], **self.body_fields},
            body_bytes=client.prompt * 4,
            route=client.route,
            language=self.language,
            mode=None,
            debug=False,
            session=client.session * 7919,
            in_flight=in_flight,
            arrived_at=self.now,
        )
        choice = self.chooser.choose(asked)
        if self._place is not None:
            lane = self.lanes[self._place(asked)]
            choice = Choice(lane.upstream, lane.name)
        lane = self.lanes[choice.lane]
        cached = client.prompt - 150 if self._homes.get(client.session) == choice.upstream else 0
        self._homes[client.session] = choice.upstream
        drafter = PLAIN if lane.plain else lane.drafter
        one = _Running(
            route=client.route,
            drafter=drafter,
            upstream=choice.upstream,
            choice=choice,
            client=number,
            session=client.session,
            arrived_at=self.now,
            prompt=client.prompt,
            cached=max(0, cached),
            first_at=self.now + (client.prompt - max(0, cached)) * self._prefill,
            tokens=tokens,
            left=tokens - 1.0,
            speed=self.random.lognormvariate(-(self._sigma**2) / 2, self._sigma),
            fails=self.random.random() < self.failing.get(f"{choice.upstream}/{drafter}", 0.0),
        )
        client.prompt += 150 + tokens
        self._running.append(one)

    def _end(self, one: _Running) -> None:
        self._running.remove(one)
        seconds = self.now - one.first_at
        load = one.load_seconds / seconds
        choice = one.choice
        self.controller.fold(
            Exchange(
                request_key=choice.request_key,
                upstream=choice.upstream,
                lane=choice.lane,
                decision=choice.decision,
                path="/v1/chat/completions",
                status=500 if one.fails else 200,
                end=End.UPSTREAM_ERROR if one.fails else End.DONE,
                streamed=True,
                arrived_at=one.arrived_at,
                first_byte_seconds=one.first_at - one.arrived_at,
                decode_seconds=seconds,
                output_tokens=one.tokens,
                prompt_tokens=one.prompt,
                cached_tokens=one.cached,
                load=load,
                drafts=None,
                overhead_seconds=0.0002,
            )
        )
        decision = choice.decision
        reason = decision.reason.value if decision is not None else ""
        self.served.append(
            Served(
                one.route,
                choice.lane,
                one.drafter,
                reason,
                one.tokens - 1,
                seconds,
                one.plain_seconds,
                load,
                self.now,
                decision,
            )
        )
        if one.client < len(self.clients):
            self._ask(one.client)


def plain_upstream(name: str, version: str = "1") -> Upstream:
    return Upstream(name, f"http://{name}", EngineKind.VLLM, version, ("m",), False, PLAIN, 0)


def ngram_upstream(name: str, version: str = "1") -> Upstream:
    return Upstream(name, f"http://{name}", EngineKind.VLLM, version, ("m",), True, "ngram", 5)


def two_in_one(name: str) -> Upstream:
    """A server that serves plain, and with drafting under the alias that `ALIASES` names."""
    works = Capability(Lever.ALIASES, Effect.WORKS, "")
    return Upstream(name, f"http://{name}", EngineKind.LLAMA_CPP, "b1", ("m",), False, PLAIN, 0, (works,))


def tokens_per_second(served: Sequence[Served]) -> float:
    """Of everybody, from the first end to the last."""
    return sum(one.tokens for one in served[1:]) / (served[-1].ended_at - served[0].ended_at)


def slowest_window(served: Sequence[Served], size: int = 500) -> dict[str, float]:
    """By route: the most that a window of `size` of its requests took, over what plain would have taken for them."""
    worst: dict[str, float] = {}
    for route in {one.route for one in served}:
        mine = [one for one in served if one.route == route]
        took = list(itertools.accumulate((one.seconds for one in mine), initial=0.0))
        plain = list(itertools.accumulate((one.plain_seconds for one in mine), initial=0.0))
        worst[route] = max(
            ((took[end] - took[end - size]) / (plain[end] - plain[end - size]) for end in range(size, len(took))),
            default=0.0,
        )
    return worst


class _NeverAsked:
    """Every request of these tests names its language."""


_NEVER_ASKED = _NeverAsked()
