"""Traces on disk."""

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tuner.replay.small_traces import STEPPED_COSTS, small_trace
from tuner.replay import trace_file
from tuner.replay.trace_file import MAX_TOKENS, TraceFileError, load, save

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


@pytest.mark.parametrize(
    ("name", "change", "sentence"),
    [
        ("format", lambda _: 99, "its format is not 1, which this version reads"),
        ("load", _with_first(9), "load is outside 1 to 3"),
        ("route", _with_first(-1), "route is outside 0 to 1"),
        ("output_tokens", _with_first(0), f"output_tokens is outside 1 to {MAX_TOKENS}"),
        ("load", lambda column: column[:-1], "its columns are of different lengths"),
        ("load", lambda column: column.astype(np.float64), "load is no column of numbers"),
        ("offered_0", _with_first(17), "drafter 0 offers more than 16, or has more kept than offered"),
        ("kept_1", _with_first(17), "drafter 1 offers more than 16, or has more kept than offered"),
        ("confidence_0", _silent_but_sure, "drafter 0 has a confidence where it offers nothing, or none where it does"),
        ("kept_0", lambda array: array[:-1], "kept of drafter 0 is not one byte for each of"),
        ("drafters", lambda _: ["copy", "copy"], "drafters name one twice"),
        ("drafters", lambda _: [], "drafters are no names"),
        ("slots", lambda _: 0, "slots is no number above 0"),
        ("restarts", lambda _: [60], "60 is no request behind the first"),
        ("stall_share", lambda _: -0.1, "stall_share is -0.1 and no number from 0 up"),
        ("costs", lambda costs: costs | {"target": costs["target"] | {"token_knots": [4, 1]}}, "the knots of its cost"),
    ],
)
def test_a_file_that_breaks_a_rule_of_traces_is_refused(
    tmp_path: Path, name: str, change: Callable[[Any], Any], sentence: str
) -> None:
    with pytest.raises(TraceFileError) as caught:
        load(rewritten(tmp_path / "trace.npz", name, change))
    assert sentence in str(caught.value)


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
