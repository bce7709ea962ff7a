"""Traces on disk."""

import errno
import json
import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.cycle_policy import DraftCost, PassCost
from tests.tuner.replay.small_traces import STEPPED_COSTS, small_trace
from tuner.output_file import OutputFileError
from tuner.replay import trace_file
from tuner.replay.run import Job, all_controllers, run_job
from tuner.replay.trace import Costs
from tuner.replay.trace_file import TraceFileError, load, save
from tuner.replay.trace_header import LEAST_SECONDS, MAX_TOKENS, MOST_SECONDS, Header

TRACE = replace(
    small_trace(1),
    restarts=(3,),
    keeps_memory=False,
    changes=(5, 9),
    later_costs=((5, STEPPED_COSTS),),
    arrival=("chat", "da"),
    calibrated=STEPPED_COSTS,
    seconds_sd=0.03,
    stall_share=0.01,
    stall_factor=5.0,
)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1_000_000))
def test_a_trace_comes_back_as_it_was(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    path = tmp_path_factory.mktemp("traces") / "trace.npz"
    trace = small_trace(seed)
    save(trace, path)
    assert load(path) == trace


def test_everything_that_a_trace_may_say_comes_back(tmp_path: Path) -> None:
    save(TRACE, tmp_path / "trace.npz")
    assert load(tmp_path / "trace.npz") == TRACE


def test_bytes_that_are_damaged_anywhere_are_one_sentence_or_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "trace.npz"
    save(TRACE, path)
    whole = path.read_bytes()
    generator = random.Random(4)
    refused = 0
    for attempt in range(300):
        damaged = bytearray(whole)
        if attempt % 3 == 0:
            del damaged[generator.randrange(len(damaged)) :]
        else:
            for _ in range(3):
                damaged[generator.randrange(len(damaged))] = generator.randrange(256)
        path.write_bytes(damaged)
        try:
            load(path)
        except TraceFileError as error:
            refused += 1
            message = str(error)
            assert message.startswith(f"{path} cannot be read as a trace (")
            assert message.endswith("): record it again with `paceline trace record`.")
            assert "\n" not in message
    assert refused > 250


def rewritten(path: Path, name: str, change: Callable[[Any], Any]) -> Path:
    """The file with one of its arrays changed; the header is changed as what its JSON says."""
    save(TRACE, path)
    with np.load(path) as file:
        arrays = {key: file[key] for key in file.files}
    if name in arrays:
        arrays[name] = change(arrays[name].copy())
    else:
        header = json.loads(arrays["header"].tobytes())
        header[name] = change(header[name])
        arrays["header"] = np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)
    np.savez(path, **arrays)
    return path


def _with_first(value: int) -> Callable[[Any], Any]:
    def change(array: Any) -> Any:
        array[0] = value
        return array

    return change


def _silent_but_sure(array: Any) -> Any:
    array[:] = 0
    return array


def _of_target(field: str, value: Any) -> Callable[[Any], Any]:
    return lambda costs: costs | {"target": costs["target"] | {field: value}}


DRAFTING = {"call_seconds": 0.0, "sequence_seconds": 0.0, "step_seconds": 0.0, "row_seconds": 0.0}


@pytest.mark.parametrize(
    ("name", "change", "sentence"),
    [
        ("format", lambda _: 99, "format is 99: this version reads 1"),
        ("format", lambda _: True, "format is true: it should be a valid integer"),
        ("load", _with_first(9), "load is 9 for request 0: it should be 1 to 3"),
        ("route", _with_first(-1), "route is -1 for request 0: it should be 0 to 1"),
        ("output_tokens", _with_first(0), f"output_tokens is 0 for request 0: it should be 1 to {MAX_TOKENS}"),
        ("route", lambda column: column[:-1], "route has 59 requests, and load has 60"),
        ("load", lambda column: column.astype(np.float64), "load has float64 of shape (60,): it should be a column of"),
        ("offered_0", _with_first(17), "offered_0 is 17 at token 0: it should be at most 16"),
        ("kept_1", _with_first(17), "kept_1 is 17 at token 0: it should be at most what is offered there"),
        ("confidence_0", _silent_but_sure, "confidence_0 is 0 at token "),
        ("confidence_1", _with_first(255), "confidence_1 is 255 at token 0: its confidence_buckets are 3"),
        ("kept_0", lambda array: array[:-1], "kept_0 has uint8 of shape "),
        ("drafters", lambda _: ["copy", "copy"], 'drafters is ["copy", "copy"]: "copy" is there twice'),
        ("drafters", lambda _: [], "drafters is []: Tuple should have at least 1 item"),
        ("drafters", lambda _: ["none", "copy"], 'drafters is ["none", "copy"]: "none" is what serving without a'),
        ("drafters", lambda _: ["copy", "other"], 'costs and drafters do not both have "learned"'),
        ("slots", lambda _: 0, "slots is 0: it should be greater than or equal to 1"),
        ("slots", lambda _: 1_000_000_000, "slots is 1000000000: it should be less than or equal to 4096"),
        ("restarts", lambda _: [60], "restarts has request 60, and there are 60"),
        ("restarts", lambda _: [0], "restarts.0 is 0: it should be greater than or equal to 1"),
        ("changes", lambda _: None, "changes is null: it should be a valid array"),
        ("arrival", lambda _: ["chat"], "arrival.1"),
        ("machine", lambda _: None, "machine is null: it should be a valid string"),
        ("keeps_memory", lambda _: 1, "keeps_memory is 1: it should be a valid boolean"),
        ("seconds_sd", lambda _: 1e300, "seconds_sd is 1e+300: it should be less than or equal to 10"),
        ("seconds_sd", lambda _: float("nan"), "seconds_sd is NaN"),
        ("stall_share", lambda _: -0.1, "stall_share is -0.1: it should be greater than or equal to 0"),
        ("stall_share", lambda _: 100, "stall_share is 100: it should be less than or equal to 1"),
        ("stall_factor", lambda _: 0, "stall_factor is 0: it should be greater than or equal to 1"),
        ("confidence_buckets", lambda found: found | {"copy": 0}, "confidence_buckets.copy is 0: it should be"),
        ("costs", _of_target("token_knots", [4, 1]), "costs.target.token_knots is [4, 1]: it does not rise"),
        ("costs", _of_target("token_knots", [10**30]), "costs.target.token_knots.0 is 1000000000"),
        ("costs", _of_target("knot_seconds", [1.0]), "costs.target: 6 token_knots have 1 knot_seconds"),
        ("costs", _of_target("knot_seconds", [1e300]), "costs.target.knot_seconds.0 is 1e+300: it should be"),
        ("costs", _of_target("kv_token_seconds", 1e300), "costs.target.kv_token_seconds is 1e+300: it should be"),
        ("costs", _of_target("sequence_seconds", 1e308), "costs.target.sequence_seconds is 1e+308: it should be"),
        (
            "costs",
            lambda costs: costs | {"drafters": costs["drafters"] | {"copy": DRAFTING | {"step_seconds": 1e308}}},
            "costs.drafters.copy.step_seconds is 1e+308: it should be",
        ),
        ("later_costs", lambda later: [*later, *later], "later_costs has requests [5, 5]: they should rise"),
    ],
)
def test_a_file_that_breaks_a_rule_of_traces_is_refused(
    tmp_path: Path, name: str, change: Callable[[Any], Any], sentence: str
) -> None:
    with pytest.raises(TraceFileError) as caught:
        load(rewritten(tmp_path / "trace.npz", name, change))
    assert sentence in str(caught.value)


@pytest.mark.parametrize("name", ["header", "load", "kept_1"])
def test_an_array_that_is_missing_is_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / "trace.npz"
    save(TRACE, path)
    with np.load(path) as file:
        kept = {key: file[key] for key in file.files if key != name}
    np.savez(path, **kept)
    with pytest.raises(TraceFileError, match=rf"\(it has no array {name}\)"):
        load(path)


@pytest.mark.parametrize("name", sorted(Header.model_fields))
def test_a_field_of_the_header_that_is_missing_is_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / "trace.npz"
    save(TRACE, path)
    with np.load(path) as file:
        arrays = {key: file[key] for key in file.files}
    header = json.loads(arrays["header"].tobytes())
    del header[name]
    arrays["header"] = np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)
    np.savez(path, **arrays)
    with pytest.raises(TraceFileError, match=rf"\(its header has no {name}\)"):
        load(path)


@pytest.mark.parametrize(
    ("fields", "seconds", "drafting"),
    [
        ({"seconds_sd": 10.0, "stall_share": 1.0, "stall_factor": 1e6}, MOST_SECONDS, MOST_SECONDS),
        ({"seconds_sd": 0.0}, LEAST_SECONDS, MOST_SECONDS),
        ({"seconds_sd": 10.0}, LEAST_SECONDS, 0.0),
        ({}, MOST_SECONDS, 0.0),
    ],
)
def test_what_is_read_at_its_bounds_can_be_replayed(
    tmp_path: Path, fields: dict[str, float], seconds: float, drafting: float
) -> None:
    of_sequence, of_token = (MOST_SECONDS, 1.0) if seconds == MOST_SECONDS else (0.0, 0.0)
    target = PassCost((1, MAX_TOKENS), (seconds, seconds), of_sequence, of_token)
    each = DraftCost(drafting, drafting, drafting, drafting)
    costs = Costs(target, {"copy": each, "learned": each})
    trace = replace(small_trace(1), costs=costs, **fields)  # type: ignore[arg-type]
    save(trace, tmp_path / "trace.npz")
    path = tmp_path / "trace.npz"
    assert load(path) == trace
    done = run_job(Job("bounds", 1, path, tuple(all_controllers()), fixed=True))
    assert all(math.isfinite(run.seconds) for run in done.runs)


def test_a_file_that_would_unpack_to_gigabytes_is_refused_before_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "trace.npz"
    save(TRACE, path)
    monkeypatch.setattr(trace_file, "MAX_BYTES", path.stat().st_size)
    with pytest.raises(TraceFileError, match=f"it would unpack to more than {path.stat().st_size} bytes"):
        load(path)


def test_a_file_of_objects_is_not_unpickled(tmp_path: Path) -> None:
    path = tmp_path / "trace.npz"
    np.savez(path, header=np.array([{"a": 1}], dtype=object))
    with pytest.raises(TraceFileError, match="Object arrays cannot be loaded"):
        load(path)


def test_what_is_no_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(TraceFileError, match="No such file or directory"):
        load(tmp_path / "none.npz")


def test_a_recording_that_cannot_be_written_leaves_the_one_before_and_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "trace.npz"
    save(TRACE, path)

    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OutputFileError, match=r"^--out: .*trace\.npz cannot be written \(No space left on device\)"):
        save(small_trace(2), path)
    assert load(path) == TRACE
