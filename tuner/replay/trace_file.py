"""Traces on disk: one .npz of plain arrays and a header in JSON. No token and no text is in it, and nothing that runs
when it is read."""

import json
import zipfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policies.cycle_policy import DraftCost, PassCost
from policies.types import MAX_BLOCK_LENGTH
from tuner.replay.trace import Costs, DraftTrace, Trace, TracedRequest

FORMAT = 1
"""Raised whenever what is written changes."""
MAX_TOKENS = 100_000_000
"""Output tokens of a file that is read: a few hundred bytes could claim any number."""
MAX_REQUESTS = 1_000_000
MAX_BYTES = 2**31
_HEADER_BYTES = 4_000_000
_PARTS = ("offered", "kept", "confidence")
_COLUMNS = ("route", "language", "prompt_tokens", "output_tokens", "structured", "load")


class TraceFileError(Exception):
    """A file that is no trace; one sentence with what is wrong and a remedy."""


def save(trace: Trace, path: Path) -> None:
    """Write a trace. Raises OSError where the file cannot be written."""
    requests = trace.requests
    routes = list(dict.fromkeys(one.route for one in requests))
    languages = list(dict.fromkeys(one.language for one in requests))
    header = {
        "format": FORMAT,
        "drafters": trace.drafters,
        "routes": routes,
        "languages": languages,
        "slots": trace.slots,
        "restarts": trace.restarts,
        "keeps_memory": trace.keeps_memory,
        "changes": trace.changes,
        "arrival": trace.arrival,
        "costs": asdict(trace.costs),
        "later_costs": [[request, asdict(costs)] for request, costs in trace.later_costs],
        "calibrated": None if trace.calibrated is None else asdict(trace.calibrated),
        "seconds_sd": trace.seconds_sd,
        "stall_share": trace.stall_share,
        "stall_factor": trace.stall_factor,
        "confidence_buckets": dict(trace.confidence_buckets),
        "machine": trace.machine,
    }
    arrays: dict[str, NDArray[Any]] = {
        "header": np.frombuffer(json.dumps(header).encode(), dtype=np.uint8),
        "route": np.array([routes.index(one.route) for one in requests], dtype=np.int32),
        "language": np.array([languages.index(one.language) for one in requests], dtype=np.int32),
        "prompt_tokens": np.array([one.prompt_tokens for one in requests], dtype=np.int32),
        "output_tokens": np.array([one.output_tokens for one in requests], dtype=np.int32),
        "structured": np.array([one.structured for one in requests], dtype=np.int32),
        "load": np.array(trace.loads, dtype=np.int32),
    }
    for place, name in enumerate(trace.drafters):
        for part in _PARTS:
            flat = b"".join(getattr(one.drafts[name], part) for one in requests)
            arrays[f"{part}_{place}"] = np.frombuffer(flat, dtype=np.uint8)
    with path.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]  # the stub takes names for its own options


def load(path: Path) -> Trace:
    """Read a trace. Raises TraceFileError, one sentence, for anything that `save` would not have written."""
    try:
        # Opened here, since what numpy opens of a damaged file stays open.
        with path.open("rb") as raw:
            if not zipfile.is_zipfile(raw):
                raise ValueError("it is no .npz file, or not a whole one")
            with zipfile.ZipFile(raw) as archive:
                if sum(member.file_size for member in archive.infolist()) > MAX_BYTES:
                    raise ValueError(f"it would unpack to more than {MAX_BYTES} bytes")
            raw.seek(0)
            with np.load(raw, allow_pickle=False) as file:
                return _read(file)
    except Exception as error:
        told = " ".join(str(error).strip("'\"").split()) or "it ends early"
        raise TraceFileError(
            f"{path} cannot be read as a trace ({told}): record it again with `paceline trace record`."
        ) from error


def _read(file: Any) -> Trace:
    packed = file["header"]
    if packed.dtype != np.uint8 or packed.ndim != 1 or len(packed) > _HEADER_BYTES:
        raise ValueError("its header is no text")
    header = json.loads(packed.tobytes())
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise ValueError(f"its format is not {FORMAT}, which this version reads")
    columns = {name: _integers(file[name], name) for name in _COLUMNS}
    count = len(columns["load"])
    if not 0 < count <= MAX_REQUESTS:
        raise ValueError(f"it has {count} requests")
    outputs = columns["output_tokens"]
    if any(len(column) != count for column in columns.values()):
        raise ValueError("its columns are of different lengths")
    slots = _count(header["slots"], "slots")
    _within(columns["load"], 1, slots, "load")
    _within(outputs, 1, MAX_TOKENS, "output_tokens")
    _within(columns["prompt_tokens"], 0, MAX_TOKENS, "prompt_tokens")
    _within(columns["structured"], 0, 1, "structured")
    routes, languages = _names(header["routes"], "routes"), _names(header["languages"], "languages")
    _within(columns["route"], 0, len(routes) - 1, "route")
    _within(columns["language"], 0, len(languages) - 1, "language")
    drafters = _names(header["drafters"], "drafters")
    total = int(outputs.sum())
    if total > MAX_TOKENS:
        raise ValueError(f"it has {total} output tokens, and at most {MAX_TOKENS} are read")
    drafts = [_drafts(file, place, outputs, total) for place in range(len(drafters))]
    ends = np.cumsum(outputs).tolist()
    lengths = outputs.tolist()
    requests = tuple(
        TracedRequest(
            routes[columns["route"][index]],
            languages[columns["language"][index]],
            int(columns["prompt_tokens"][index]),
            lengths[index],
            {
                name: DraftTrace(*(part[ends[index] - lengths[index] : ends[index]] for part in parts))
                for name, parts in zip(drafters, drafts, strict=True)
            },
            bool(columns["structured"][index]),
        )
        for index in range(count)
    )
    later = tuple((_place(request, count), _costs(costs, drafters)) for request, costs in header["later_costs"])
    arrival = header["arrival"]
    return Trace(
        drafters=drafters,
        requests=requests,
        loads=tuple(columns["load"].tolist()),
        costs=_costs(header["costs"], drafters),
        slots=slots,
        restarts=tuple(_place(request, count) for request in header["restarts"]),
        keeps_memory=header["keeps_memory"] is True,
        changes=tuple(_place(request, count) for request in header["changes"]),
        later_costs=later,
        arrival=None if arrival is None else (str(arrival[0]), str(arrival[1])),
        calibrated=None if header["calibrated"] is None else _costs(header["calibrated"], drafters),
        seconds_sd=_number(header["seconds_sd"], "seconds_sd"),
        stall_share=_number(header["stall_share"], "stall_share"),
        stall_factor=_number(header["stall_factor"], "stall_factor"),
        confidence_buckets={
            name: _count(header["confidence_buckets"][name], "confidence_buckets") for name in drafters
        },
        machine=str(header["machine"]),
    )


def _drafts(file: Any, place: int, outputs: NDArray[np.int64], total: int) -> tuple[bytes, bytes, bytes]:
    offered, kept, confidence = (file[f"{part}_{place}"] for part in _PARTS)
    for part, array in zip(_PARTS, (offered, kept, confidence), strict=True):
        if array.dtype != np.uint8 or array.shape != (total,):
            raise ValueError(f"{part} of drafter {place} is not one byte for each of {total} output tokens")
    if offered.max() > MAX_BLOCK_LENGTH or (kept > offered).any():
        raise ValueError(f"drafter {place} offers more than {MAX_BLOCK_LENGTH}, or has more kept than offered")
    ends = np.repeat(np.cumsum(outputs), outputs)
    if (kept > ends - np.arange(total)).any():
        raise ValueError(f"drafter {place} has drafts kept behind the end of a request")
    if ((confidence == 0) != (offered == 0)).any():
        raise ValueError(f"drafter {place} has a confidence where it offers nothing, or none where it does")
    return offered.tobytes(), kept.tobytes(), confidence.tobytes()


def _integers(array: NDArray[Any], name: str) -> NDArray[np.int64]:
    if array.dtype != np.int32 or array.ndim != 1:
        raise ValueError(f"{name} is no column of numbers")
    return array.astype(np.int64)


def _within(column: NDArray[np.int64], least: int, most: int, name: str) -> None:
    if column.min() < least or column.max() > most:
        raise ValueError(f"{name} is outside {least} to {most}")


def _names(values: Any, name: str) -> tuple[str, ...]:
    if not isinstance(values, list) or not values or not all(isinstance(value, str) for value in values):
        raise ValueError(f"{name} are no names")
    if len(set(values)) != len(values):
        raise ValueError(f"{name} name one twice")
    return tuple(values)


def _count(value: Any, name: str) -> int:
    if type(value) is not int or value < 1:
        raise ValueError(f"{name} is no number above 0")
    return value


def _place(value: Any, count: int) -> int:
    if type(value) is not int or not 0 < value < count:
        raise ValueError(f"{value!r} is no request behind the first")
    return value


def _number(value: Any, name: str) -> float:
    if type(value) not in (int, float) or not 0.0 <= value < float("inf"):
        raise ValueError(f"{name} is {value!r} and no number from 0 up")
    return float(value)


def _costs(written: Any, drafters: tuple[str, ...]) -> Costs:
    target: Mapping[str, Any] = written["target"]
    knots = tuple(_count(tokens, "token_knots") for tokens in target["token_knots"])
    seconds = tuple(_number(value, "knot_seconds") for value in target["knot_seconds"])
    if not knots or len(knots) != len(seconds) or list(knots) != sorted(set(knots)) or min(seconds) <= 0.0:
        raise ValueError("the knots of its cost do not rise, or have no seconds")
    return Costs(
        PassCost(
            knots,
            seconds,
            _number(target["sequence_seconds"], "sequence_seconds"),
            _number(target["kv_token_seconds"], "kv_token_seconds"),
        ),
        {
            name: DraftCost(
                **{field: _number(written["drafters"][name][field], field) for field in DraftCost.__slots__}
            )
            for name in drafters
        },
    )
