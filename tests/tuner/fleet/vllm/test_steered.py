"""What is added to vLLM's scheduler, over a scheduler that behaves as vLLM's does where it matters."""

import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from policies.stats import BlockEnd, CycleStats, FinishReason, RequestStats
from policies.types import OTHER_ROUTE, UNDETERMINED, Context, Reason, SamplingClass
from policies.wire import from_value, kind_of, to_wire
from tests.tuner.fleet.vllm.plugin_examples import MODEL, NGRAM, decision, policy, vllm_config
from tuner.fleet.vllm.plugin.launch import LaunchRefused
from tuner.fleet.vllm.plugin.messages import LENGTH_ARGUMENT, ORDERS, WORD_ARGUMENT, Hello, Orders, State, word_argument
from tuner.fleet.vllm.plugin.steered import Steered

VERSION = "0.32.0"
DRAFTS = [7, 7, 7, 7, 7]


class Parent:
    """vLLM's scheduler: all that runs decodes in every step, with the drafts that it has."""

    def __init__(self, vllm_config: Any) -> None:
        self.dynamic_sd_lookup: list[int] | None = None
        self.running: list[Any] = []
        self.requests: dict[str, Any] = {}
        self.drafted: list[int] = []
        self.closed = False

    def add_request(self, request: Any) -> None:
        self.running.append(request)
        self.requests[request.request_id] = request

    def schedule(self, throttle_prefills: bool = False) -> Any:
        drafts = {each.request_id: each.spec_token_ids for each in self.running if each.spec_token_ids}
        scheduled = {each.request_id: 1 + len(each.spec_token_ids) for each in self.running}
        length = 5 if self.dynamic_sd_lookup is None else self.dynamic_sd_lookup[len(scheduled)]
        self.drafted.append(length)
        return SimpleNamespace(
            num_scheduled_tokens=scheduled,
            scheduled_spec_decode_tokens=drafts,
            num_spec_tokens_to_schedule=length,
            num_invalid_spec_tokens=None,
        )

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> str:
        for request in list(self.running):
            place = model_runner_output.req_id_to_index[request.request_id]
            tokens = model_runner_output.sampled_token_ids[place]
            del tokens[request.max_tokens - len(request.output_token_ids) :]
            request.output_token_ids += tokens
            request.spec_token_ids = DRAFTS[: self.drafted[-1]]
            if len(request.output_token_ids) >= request.max_tokens:
                self.end(request, "LENGTH")
        return "outputs"

    def end(self, request: Any, reason: str) -> None:
        request.ended = reason
        self.running.remove(request)
        self._free_request(request)

    def _free_request(self, request: Any) -> None:
        del self.requests[request.request_id]

    def get_request_counts(self) -> tuple[int, int]:
        return len(self.running), 0

    def shutdown(self) -> None:
        self.closed = True


class Scheduler(Steered, Parent):
    vllm_version = VERSION


class Request:
    """vLLM's request."""

    def __init__(self, name: str, arguments: dict[str, Any] | None = None, max_tokens: int = 50) -> None:
        self.request_id = name
        self.sampling_params = SimpleNamespace(extra_args=arguments, temperature=0.0)
        self.num_prompt_tokens = self.num_computed_tokens = 9
        self.max_tokens = max_tokens
        self.use_structured_output = self.is_prefill_chunk = False
        self.arrival_time = 0.0
        self.num_stale_output_tokens = 0
        self.spec_token_ids = list(DRAFTS)
        self.output_token_ids = [7]
        self.ended = ""

    @property
    def num_output_tokens(self) -> int:
        return len(self.output_token_ids)

    def is_finished(self) -> bool:
        return bool(self.ended)

    def get_finished_reason(self) -> Any:
        return SimpleNamespace(name=self.ended)


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10)
        host, port = server.getsockname()
        monkeypatch.setenv("PACELINE_TELEMETRY", f"{host}:{port}")
        yield server


@pytest.fixture
def orders_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "orders.json"
    monkeypatch.setenv("PACELINE_POLICY", str(path))
    return path


def step(scheduler: Any, *tokens: list[int]) -> str:
    """One step in which the target chose `tokens` for each request; by default its drafts and one more."""
    output = scheduler.schedule()
    names = list(output.num_scheduled_tokens)
    chosen = list(tokens) or [[7] * output.num_scheduled_tokens[name] for name in names]
    places = {name: place for place, name in enumerate(names)}
    result = SimpleNamespace(sampled_token_ids=chosen, req_id_to_index=places)
    told: str = scheduler.update_from_output(output, result)
    return told


def reports(listener: socket.socket, count: int) -> list[Any]:
    """The first `count` of them, without states."""
    kinds: dict[str, Any] = {"hello": Hello, "cycle": CycleStats, "request": RequestStats, "state": State}
    found: list[Any] = []
    connection, _ = listener.accept()
    with connection, connection.makefile("rb") as lines:
        while len(found) < count:
            kind, value = kind_of(next(lines))
            if kind != "state":
                found.append(from_value(kinds[kind], value))
    return found


def test_requests_with_a_word_and_without_are_steered_and_reported(listener: socket.socket) -> None:
    scheduler = Scheduler(vllm_config=vllm_config())
    scheduler.add_request(Request("a", {WORD_ARGUMENT: word_argument(42, decision(2, "code", forced=True))}))
    scheduler.add_request(Request("b", max_tokens=7))
    assert step(scheduler) == "outputs"
    hello, cycle, ended = reports(listener, 3)
    scheduler.shutdown()
    assert scheduler.closed
    assert (hello.model, hello.drafter, hello.block_length, hello.block_lengths) == (
        MODEL,
        NGRAM,
        5,
        (0, 1, 2, 3, 4, 5),
    )
    first, second = cycle.sequences
    assert (first.request_key, first.context, first.verified, first.emitted) == (42, Context(MODEL, "code", "en"), 2, 3)
    assert second.context == Context(MODEL, OTHER_ROUTE, UNDETERMINED)
    assert second.request_key >= 1 << 62
    assert (second.verified, second.emitted) == (5, 6)
    assert (ended.request_key, ended.finish, ended.output_tokens) == (second.request_key, FinishReason.LENGTH, 6)
    assert (ended.cycles, ended.verified, ended.accepted) == (1, 5, 5)
    assert (ended.features.sampling, ended.decision.reason) == (SamplingClass.GREEDY, Reason.ENGINE_DEFAULT)


def test_the_choices_of_one_request_are_told_apart(listener: socket.socket) -> None:
    """vLLM makes each of them a request of its own, with the same arguments."""
    scheduler = Scheduler(vllm_config=vllm_config())
    arguments = {WORD_ARGUMENT: word_argument(42, decision(2, "code", forced=True))}
    requests = [Request(f"{place}_a", arguments) for place in range(2)]
    for request in requests:
        scheduler.add_request(request)
    step(scheduler)
    _, cycle = reports(listener, 2)
    scheduler.end(requests[0], "ABORT")
    scheduler.add_request(Request("b", arguments))
    assert scheduler._seats["b"].key == 42
    scheduler.shutdown()
    first, second = cycle.sequences
    assert first.request_key == 42
    assert second.request_key >= 1 << 62
    assert (second.context, second.verified) == (first.context, 2)


def test_a_block_that_an_end_cuts_is_told_as_cut(listener: socket.socket) -> None:
    scheduler = Scheduler(vllm_config=vllm_config())
    request = Request("a", max_tokens=20)
    scheduler.add_request(request)
    output = scheduler.schedule()
    request.max_tokens = 4  # it ends where nobody knew of, as at a stop token
    result = SimpleNamespace(sampled_token_ids=[[7] * 6], req_id_to_index={"a": 0})
    scheduler.update_from_output(output, result)
    _, cycle, ended = reports(listener, 3)
    scheduler.shutdown()
    one = cycle.sequences[0]
    assert (one.verified, one.accepted, one.emitted, one.end) == (5, 3, 3, BlockEnd.CENSORED)
    assert (ended.output_tokens, ended.accepted) == (3, 3)


def test_drafts_that_a_grammar_forbids_count_as_never_proposed(listener: socket.socket) -> None:
    scheduler = Scheduler(vllm_config=vllm_config())
    scheduler.add_request(Request("a"))
    output = scheduler.schedule()
    output.num_invalid_spec_tokens = {"a": 2, "gone": 1}
    result = SimpleNamespace(sampled_token_ids=[[7] * 4], req_id_to_index={"a": 0})
    scheduler.update_from_output(output, result)
    _, cycle = reports(listener, 2)
    scheduler.shutdown()
    one = cycle.sequences[0]
    assert (one.requested, one.proposed, one.verified, one.accepted, one.end) == (5, 3, 3, 3, BlockEnd.FULL)


def test_a_request_that_is_aborted_between_steps_is_told_at_once(listener: socket.socket) -> None:
    scheduler = Scheduler(vllm_config=vllm_config())
    request = Request("a")
    scheduler.add_request(request)
    scheduler.end(request, "ABORT")
    _, ended = reports(listener, 2)
    scheduler.shutdown()
    assert (ended.finish, ended.output_tokens, ended.cycles) == (FinishReason.CANCELLED, 0, 0)


def test_a_request_that_is_aborted_while_its_step_runs_is_in_no_cycle(listener: socket.socket) -> None:
    scheduler = Scheduler(vllm_config=vllm_config())
    requests = [Request("a"), Request("b")]
    for request in requests:
        scheduler.add_request(request)
    output = scheduler.schedule()
    scheduler.end(requests[0], "ABORT")
    result = SimpleNamespace(sampled_token_ids=[[7], [7]], req_id_to_index={"a": 0, "b": 1})
    scheduler.update_from_output(output, result)
    _, ended, cycle = reports(listener, 3)
    scheduler.shutdown()
    assert ended.finish is FinishReason.CANCELLED
    assert (cycle.load, len(cycle.sequences)) == (1, 1)


@pytest.mark.parametrize(("wish", "verified"), [(0, 0), (2, 2), (9, 5), ("none", 5), (-1, 0)])
def test_a_client_may_ask_for_shorter_blocks(wish: Any, verified: int) -> None:
    scheduler = Scheduler(vllm_config=vllm_config())
    request = Request("a", {LENGTH_ARGUMENT: wish})
    scheduler.add_request(request)
    scheduler.schedule()
    assert len(request.spec_token_ids) == verified
    assert scheduler._state().unread == (wish == "none")


@pytest.mark.parametrize("word", ["", "{}", 7, [1], '{"format":9,"kind":"word","value":[]}'])
def test_a_word_that_cannot_be_read_makes_a_request_without_one(word: Any) -> None:
    scheduler = Scheduler(vllm_config=vllm_config())
    request = Request("a", {WORD_ARGUMENT: word})
    scheduler.add_request(request)
    scheduler.schedule()
    assert len(request.spec_token_ids) == 5
    assert scheduler._state().unread == 1
    assert scheduler._state().faults == 0


def test_orders_in_a_file_hold_for_requests_without_a_word(orders_file: Path) -> None:
    orders_file.write_bytes(to_wire(ORDERS, Orders(policy(), decision(3, forced=True))))
    scheduler = Scheduler(vllm_config=vllm_config())
    request = Request("a")
    scheduler.add_request(request)
    scheduler.schedule()
    assert len(request.spec_token_ids) == 3
    assert scheduler.drafted == [3]
    state = scheduler._state()
    scheduler.shutdown()
    assert (state.steered, state.policy_version, state.sentence) == (True, 3, "")


def test_a_fault_of_the_plug_in_is_counted_and_vllm_goes_on_as_launched(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = Scheduler(vllm_config=vllm_config())

    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("on purpose")

    for name in ("open", "enter", "close"):
        monkeypatch.setattr(scheduler._steering, name, fail)
    request = Request("a")
    scheduler.add_request(request)
    scheduler.dynamic_sd_lookup = [0] * 9
    for _ in range(3):
        assert step(scheduler) == "outputs"
    assert scheduler.drafted == [5, 5, 5]
    state = scheduler._state()
    assert (state.faults, state.first_fault) == (3, "ZeroDivisionError: on purpose")
    assert len(caplog.records) == 1


def test_what_cannot_be_looked_up_in_an_output_is_a_fault_of_ours_alone(caplog: pytest.LogCaptureFixture) -> None:
    scheduler = Scheduler(vllm_config=vllm_config())
    request = Request("a")
    scheduler.add_request(request)
    del request.num_stale_output_tokens
    assert step(scheduler) == "outputs"
    assert scheduler._state().faults == 1
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("version", "changed", "says"),
    [
        ("0.33.0", {}, "checked with vLLM 0.32.x and this is 0.33.0"),
        ("0.3.0", {}, "this is 0.3.0"),
        (
            VERSION,
            {"scheduler_config": {"async_scheduling": True}},
            "--scheduler-cls paceline_vllm.AsyncPolicyScheduler",
        ),
        (VERSION, {"parallel_config": {"data_parallel_size": 2}}, "data_parallel_size is 2"),
        (VERSION, {"parallel_config": {"pipeline_parallel_size": 4}}, "pipeline_parallel_size is 4"),
        (VERSION, {"model_config": {"runner_type": "pooling"}}, "does not write one token after the other"),
    ],
)
def test_what_the_plug_in_was_not_made_for_is_refused_before_anything_is_served(
    version: str, changed: dict[str, Any], says: str
) -> None:
    other = type("Other", (Scheduler,), {"vllm_version": version})
    with pytest.raises(LaunchRefused) as refused:
        other(vllm_config=vllm_config(**changed))
    assert says in str(refused.value)


def test_the_twin_is_refused_where_vllm_schedules_step_by_step() -> None:
    twin = type("Twin", (Scheduler,), {"asynchronous": True})
    with pytest.raises(LaunchRefused, match=r"not asynchronously here.*paceline_vllm.PolicyScheduler"):
        twin(vllm_config=vllm_config())


def test_a_server_that_was_launched_without_a_drafter_is_reported_and_not_touched(listener: socket.socket) -> None:
    config = vllm_config()
    config.speculative_config = None
    scheduler = Scheduler(vllm_config=config)
    request = Request("a")
    request.spec_token_ids = []
    scheduler.add_request(request)
    step(scheduler)
    hello, cycle = reports(listener, 2)
    scheduler.shutdown()
    assert (hello.drafter, hello.block_length, hello.block_lengths) == ("none", 0, (0,))
    assert scheduler.dynamic_sd_lookup is None
    assert (cycle.load, cycle.tokens) == (1, 1)
