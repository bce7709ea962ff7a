"""What both scheduler classes add to vLLM's own: each override does the parent's work whatever becomes of ours.

A fault of the plug-in is counted and logged once, and that step is as vLLM was launched.
"""

import logging
import os
import secrets
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from policies.features import request_features
from policies.stats import FinishReason
from policies.types import Reason
from policies.wire import WireError
from tuner.fleet.vllm.plugin.following import Follower
from tuner.fleet.vllm.plugin.launch import hello_of, launch_of, refuse
from tuner.fleet.vllm.plugin.messages import LENGTH_ARGUMENT, WORD_ARGUMENT, State, read_word
from tuner.fleet.vllm.plugin.reporting import Reporter
from tuner.fleet.vllm.plugin.seat import Seat
from tuner.fleet.vllm.plugin.steering import Steering
from tuner.fleet.vllm.plugin.step import Step

if TYPE_CHECKING:
    from vllm.v1.core.sched.scheduler import Scheduler as Parent
else:
    Parent = object

POLICY = "PACELINE_POLICY"
"""Environment: the file or the URL of the orders."""
TOKEN = "PACELINE_ADMIN__TOKEN"
"""Environment: what the URL of the orders asks for, if it does."""
TELEMETRY = "PACELINE_TELEMETRY"
"""Environment: ``HOST:PORT`` or the path of the Unix socket that takes the reports."""
_log = logging.getLogger("paceline_vllm")
_ENDS = {
    "STOP": FinishReason.STOP,
    "REPETITION": FinishReason.STOP,
    "LENGTH": FinishReason.LENGTH,
    "ABORT": FinishReason.CANCELLED,
}
"""By vLLM's names. A stop string is found outside of its core, which then aborts: that counts as cancelled here."""
_OWN_KEYS = 1 << 62
"""Keys of requests that come without a word are above it, and those of other starts elsewhere."""

T = TypeVar("T")


class Steered(Parent):
    """To be named before vLLM's class among the bases."""

    asynchronous = False
    vllm_version = ""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        config = kwargs["vllm_config"] if "vllm_config" in kwargs else args[0]
        refuse(self.vllm_version, config, self.asynchronous)
        super().__init__(*args, **kwargs)
        self.dynamic_sd_lookup: list[int] | None
        self._launched_lookup = self.dynamic_sd_lookup
        launch = launch_of(config, self.asynchronous, self._launched_lookup)
        self._steering = Steering(launch)
        most = int(config.scheduler_config.max_num_seqs)
        self._lookups = {length: [length] * (most + 2) for length in launch.block_lengths}
        self._seats: dict[str, Seat] = {}
        self._keys: set[int] = set()
        """Of the seats."""
        self._steps: deque[tuple[Any, Step]] = deque()
        self._left: dict[str, tuple[Seat, Any]] | None = None
        """Requests that ended with the output that is being read, by id; None between outputs."""
        self._next_key = _OWN_KEYS + (secrets.randbits(40) << 20)
        self._own_seconds = 0.0
        self._taken_steps = self._faults = self._unread = 0
        self._first_fault = ""
        self._follower = Follower(os.environ.get(POLICY), os.environ.get(TOKEN))
        self._reporter = Reporter(os.environ.get(TELEMETRY), hello_of(self.vllm_version, config, launch), self._state)
        self._follower.start()
        self._reporter.start()

    def add_request(self, request: Any) -> None:
        super().add_request(request)
        self._guarded(self._take_seat, request)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        step = self._guarded(self._open)
        output = super().schedule(*args, **kwargs)
        if step is not None:
            self._guarded(self._enter, step, output)
        return output

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        step = self._guarded(self._read, scheduler_output, model_runner_output)
        self._left = {}
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        self._guarded(self._close, step)
        return outputs

    def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        result = super()._free_request(request, *args, **kwargs)
        self._guarded(self._leave, request)
        return result

    def shutdown(self) -> None:
        self._guarded(self._follower.close)
        self._guarded(self._reporter.close)
        super().shutdown()

    def _guarded(self, do: Callable[..., T], *args: Any) -> T | None:
        started = time.perf_counter()
        try:
            return do(*args)
        except Exception as error:  # noqa: BLE001  a fault of ours must not fail a request; it is counted and logged
            self._faults += 1
            if not self._first_fault:
                self._first_fault = f"{type(error).__name__}: {error}"
                _log.exception("the plug-in had a fault; vLLM goes on as it was launched")
            self.dynamic_sd_lookup = self._launched_lookup
            return None
        finally:
            self._own_seconds += time.perf_counter() - started

    def _take_seat(self, request: Any) -> None:
        sampling = request.sampling_params
        if sampling is None or request.request_id in self._seats:
            return
        arguments = sampling.extra_args or {}
        launch = self._steering.launch
        most, key = launch.block_length, 0
        decision = self._follower.in_force.others or launch.decision()
        word = arguments.get(WORD_ARGUMENT)
        if word is not None:
            try:
                told = read_word(word)
                key, decision = told.request_key, told.decision
            except (WireError, TypeError):
                self._unread += 1
        wished = arguments.get(LENGTH_ARGUMENT)
        if isinstance(wished, int):
            most = max(0, wished)
        elif wished is not None:
            self._unread += 1
        if not key or key in self._keys:  # the choices of one request are requests of their own here
            key = self._next_key
            self._next_key += 1
        self._keys.add(key)
        features = request_features(
            sampling.temperature,
            request.num_prompt_tokens,
            request.max_tokens,
            opt_out=decision.reason is Reason.CLIENT_OPT_OUT or most == 0,
            structured=request.use_structured_output,
        )
        self._seats[request.request_id] = Seat(key, decision, most, features, request.arrival_time)

    def _open(self) -> Step:
        step, length = self._steering.open(self.running, self._seats, self._follower.in_force, time.monotonic())
        if self._steering.launch.block_length:
            self.dynamic_sd_lookup = self._launched_lookup if length is None else self._lookups[length]
        return step

    def _enter(self, step: Step, output: Any) -> None:
        """`step` was scheduled as `output`: some of it may have been left out, for want of room."""
        scheduled: dict[str, int] = output.num_scheduled_tokens
        if not scheduled:
            self._steering.pause()
            return
        self._steering.enter(
            step,
            scheduled,
            output.scheduled_spec_decode_tokens,
            self._seats,
            output.num_spec_tokens_to_schedule,
            sum(self.get_request_counts()[1:]),
            time.time(),
        )
        self._steps.append((output, step))

    def _read(self, scheduler_output: Any, output: Any) -> Step | None:
        """How much the target chose, before what is behind an end is cut off."""
        while self._steps:
            of, step = self._steps.popleft()
            if of is scheduler_output:
                break
        else:
            return None
        # Drafts that a grammar forbids, where they were seen too late to be left out of the pass.
        for request_id, drafts in (scheduler_output.num_invalid_spec_tokens or {}).items():
            step.leave_out(request_id, drafts)
        tokens, places = output.sampled_token_ids, output.req_id_to_index
        for entry in (*step.entries, *step.prefilling):
            request = self.requests.get(entry.request_id)
            if not tokens or request is None or request.is_finished() or request.num_stale_output_tokens > 0:
                continue
            # vLLM shortens this very list where a request ends inside it.
            entry.tokens = tokens[places[entry.request_id]]
            entry.chosen = len(entry.tokens)
        return step

    def _close(self, step: Step | None) -> None:
        left, self._left = self._left or {}, None
        if step is not None:
            self._taken_steps += 1
            stats = self._steering.close(step, left, bool(self.running), time.monotonic(), time.time())
            self._reporter.report(stats)
        for seat, request in left.values():
            self._report_end(seat, request)

    def _leave(self, request: Any) -> None:
        seat = self._seats.pop(request.request_id, None)
        if seat is None:
            return
        self._keys.discard(seat.key)
        if self._left is not None:
            self._left[request.request_id] = seat, request
        else:
            self._report_end(seat, request)

    def _report_end(self, seat: Seat, request: Any) -> None:
        reason = request.get_finished_reason()
        finish = _ENDS.get(getattr(reason, "name", ""), FinishReason.ERROR)
        self._reporter.report(seat.finished(finish, request.output_token_ids))

    def _state(self) -> State:
        in_force = self._follower.in_force
        return State(
            steps=self._taken_steps,
            faults=self._faults,
            first_fault=self._first_fault,
            dropped=self._reporter.dropped,
            unread=self._unread,
            own_seconds=self._own_seconds,
            policy_version=in_force.policy.version,
            steered=in_force.steered,
            sentence=self._follower.sentence,
        )
