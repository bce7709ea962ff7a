"""What a calibration sends and makes of what comes, before a server that answers at once."""

import asyncio
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from policies.stats import CycleStats, SequenceStats
from policies.types import PLAIN
from tests.tuner.fleet.vllm.plugin_examples import vllm_config
from tests.tuner.fleet.vllm.test_telemetry import cycle
from tuner.cost.model import CostModel
from tuner.fleet.vllm.calibration import ROUTE, Burst, Calibration, bursts, calibrate
from tuner.fleet.vllm.plugin.launch import hello_of, launch_of
from tuner.fleet.vllm.plugin.messages import WORD_ARGUMENT, Hello, read_word
from tuner.fleet.vllm.replica import Replica
from tuner.fleet.vllm.telemetry import engine_info

DRAFT_SECONDS = 0.002
"""Of one step of the drafter."""


def seconds(load: int, rows: int) -> float:
    return 0.010 + 0.001 * rows + 0.0005 * load


def hello(drafter: str = "ngram", slots: int = 16) -> Hello:
    config = vllm_config(scheduler_config={"max_num_seqs": slots}, speculative_config={"method": drafter})
    return hello_of("0.32.0", config, launch_of(config, False, None))


class Vllm(ThreadingHTTPServer):
    """Answers each request with the cycles that a server would report of it."""

    replica: Replica
    other_route = ""
    status = 200
    daemon_threads = True
    request_queue_size = 64

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.asked: list[dict[str, Any]] = []
        self.lock = threading.Lock()


class Answer(BaseHTTPRequestHandler):
    server: Vllm

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.asked.append(body)
        word = read_word(body["vllm_xargs"][WORD_ARGUMENT])
        verified = 0 if word.decision.drafter == PLAIN else word.decision.cap
        drafted = word.decision.cap if word.decision.shadows or verified else 0
        # One request of the burst tells of all.
        collect = self.server.replica.collect
        if collect is not None:
            for load in (1, 16):
                for _ in range(4):
                    collect(told(load, verified, drafted, self.server.other_route or ROUTE))
        self.send_response(self.server.status)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


def told(load: int, verified: int, drafted: int, route: str) -> CycleStats:
    rows = load * (1 + verified)
    one: SequenceStats = cycle(route).stats().sequences[0]
    took = seconds(load, rows) + DRAFT_SECONDS * drafted
    return replace(
        cycle(route).stats(), load=load, tokens=rows, kv_tokens=40 * load, cycle_seconds=took, sequences=(one,) * load
    )


@pytest.fixture
def vllm() -> Iterator[Vllm]:
    with Vllm() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def calibrated(vllm: Vllm, of: Hello, most_seconds: float = 60.0) -> Calibration:
    vllm.replica = Replica(of)
    found = asyncio.run(calibrate(f"http://127.0.0.1:{vllm.server_port}", vllm.replica, seconds=most_seconds))
    assert vllm.replica.collect is None
    return found


def test_what_is_sent_is_small_greedy_and_of_a_route_of_its_own(vllm: Vllm) -> None:
    calibrated(vllm, hello(slots=2))
    assert len(vllm.asked) == sum(burst.load for burst in bursts(hello(slots=2)))
    for body in vllm.asked:
        decision = read_word(body["vllm_xargs"][WORD_ARGUMENT]).decision
        assert (decision.context.route, decision.forced) == (ROUTE, True)
        assert body["max_tokens"] <= 62
        assert body["temperature"] == 0
    keys = [read_word(body["vllm_xargs"][WORD_ARGUMENT]).request_key for body in vllm.asked]
    assert len(set(keys)) == len(keys)


def test_the_cost_model_learns_a_server_from_it(vllm: Vllm) -> None:
    calibration = calibrated(vllm, hello())
    assert calibration.drafts == ()
    assert calibration.sentence.endswith("loads up to 16")
    cost = CostModel(engine_info(hello(), calibration)).cost
    assert cost is not None
    for load in (1, 16):
        assert cost.seconds(load, load, 40 * load) == pytest.approx(seconds(load, load), rel=0.05)


def test_what_a_drafter_takes_is_told_from_what_its_verification_takes(vllm: Vllm) -> None:
    calibration = calibrated(vllm, hello("draft_model"))
    timed = {(one.sequences, one.steps): one.seconds for one in calibration.drafts}
    assert timed[1, 5] == pytest.approx(5 * DRAFT_SECONDS)
    assert timed[16, 1] == pytest.approx(DRAFT_SECONDS)
    whole = next(one for one in calibration.cycles if one.load == 16 and one.tokens == 96)
    assert whole.draft_seconds == {"draft_model": pytest.approx(5 * DRAFT_SECONDS)}
    assert whole.verify_seconds == pytest.approx(seconds(16, 96))


def test_a_calibration_ends_when_others_are_served(vllm: Vllm) -> None:
    vllm.other_route = "chat"
    calibration = calibrated(vllm, hello())
    assert (calibration.cycles, len(vllm.asked)) == ((), 1)
    assert calibration.sentence.endswith("others were served meanwhile")


def test_a_calibration_ends_when_its_time_is_over(vllm: Vllm) -> None:
    calibration = calibrated(vllm, hello(), most_seconds=0.0)
    assert calibration.sentence.endswith("0 s were not enough") or calibration.sentence.endswith("ConnectTimeout")


@pytest.mark.parametrize("status", [400, 503])
def test_a_server_that_refuses_is_no_exception(vllm: Vllm, status: int) -> None:
    vllm.status = status
    calibration = calibrated(vllm, hello())
    assert calibration.cycles == ()
    assert "the server did not answer: HTTPStatusError" in calibration.sentence


def test_a_server_without_a_drafter_is_calibrated_plain() -> None:
    config = vllm_config()
    config.speculative_config = None
    plain = hello_of("0.32.0", config, launch_of(config, False, None))
    assert {burst.block_length for burst in bursts(plain)} == {0}
    assert bursts(plain)[0] == Burst(1, 0)
