"""Traces on disk: one .npz of plain arrays and a header in JSON. No token and no text is in it, and nothing that runs
when it is read."""

import json
import zipfile
from dataclasses import asdict
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policies.quoting import shown
from policies.types import MAX_BLOCK_LENGTH
from tuner.output_file import write
from tuner.replay.trace import DraftTrace, Trace, TracedRequest
from tuner.replay.trace_header import FORMAT, MAX_TOKENS, read_header

MAX_REQUESTS = 1_000_000
MAX_BYTES = 2**31
_HEADER_BYTES = 4_000_000
_PARTS = ("offered", "kept", "confidence")
_COLUMNS = ("route", "language", "prompt_tokens", "output_tokens", "structured", "load")


class TraceFileError(Exception):
    """A file that is no trace; one sentence with what is wrong and a remedy."""


def save(trace: Trace, path: Path) -> None:
    """Write a trace, as `paceline trace record --out`. Raises OutputFileError."""
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
    packed = BytesIO()
    np.savez_compressed(packed, **arrays)  # type: ignore[arg-type]  # the stub takes names for its own options
    write(path, "--out", packed.getvalue())


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
        told = " ".join(str(error).split()) or "it ends early"
        raise TraceFileError(
            f"{path} cannot be read as a trace ({told}): record it again with `paceline trace record`."
        ) from error


def _read(file: Any) -> Trace:
    packed = _array(file, "header")
    if packed.dtype != np.uint8 or packed.ndim != 1 or len(packed) > _HEADER_BYTES:
        raise ValueError("its header is no text")
    header = read_header(packed.tobytes())
    columns = {name: _integers(_array(file, name), name) for name in _COLUMNS}
    count = len(columns["load"])
    if not 0 < count <= MAX_REQUESTS:
        raise ValueError(f"it has {count} requests: it should have 1 to {MAX_REQUESTS}")
    outputs = columns["output_tokens"]
    for name, column in columns.items():
        if len(column) != count:
            raise ValueError(f"{name} has {len(column)} requests, and load has {count}")
    _within(columns["load"], 1, header.slots, "load")
    _within(outputs, 1, MAX_TOKENS, "output_tokens")
    _within(columns["prompt_tokens"], 0, MAX_TOKENS, "prompt_tokens")
    _within(columns["structured"], 0, 1, "structured")
    routes, languages, drafters = header.routes, header.languages, header.drafters
    _within(columns["route"], 0, len(routes) - 1, "route")
    _within(columns["language"], 0, len(languages) - 1, "language")
    later = tuple(request for request, _ in header.later_costs)
    for field, places in (("restarts", header.restarts), ("changes", header.changes), ("later_costs", later)):
        for request in places:
            if request >= count:
                raise ValueError(f"{field} has request {request}, and there are {count}, the first of them 0")
    if list(later) != sorted(set(later)):
        raise ValueError(f"later_costs has requests {shown(later)}: they should rise")
    total = int(outputs.sum())
    if total > MAX_TOKENS:
        raise ValueError(f"it has {total} output tokens, and at most {MAX_TOKENS} are read")
    drafts = [
        _drafts(file, place, header.confidence_buckets[name], outputs, total) for place, name in enumerate(drafters)
    ]
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
    return Trace(
        drafters=drafters,
        requests=requests,
        loads=tuple(columns["load"].tolist()),
        costs=header.costs.costs(),
        slots=header.slots,
        restarts=header.restarts,
        keeps_memory=header.keeps_memory,
        changes=header.changes,
        later_costs=tuple((request, costs.costs()) for request, costs in header.later_costs),
        arrival=header.arrival,
        calibrated=None if header.calibrated is None else header.calibrated.costs(),
        seconds_sd=header.seconds_sd,
        stall_share=header.stall_share,
        stall_factor=header.stall_factor,
        confidence_buckets=header.confidence_buckets,
        machine=header.machine,
    )


def _drafts(file: Any, place: int, buckets: int, outputs: NDArray[np.int64], total: int) -> tuple[bytes, bytes, bytes]:
    """What is offered, kept, and the confidence of one drafter over all requests. Raises ValueError."""
    arrays: list[NDArray[np.uint8]] = []
    for part in _PARTS:
        field = f"{part}_{place}"
        array = _array(file, field)
        if array.dtype != np.uint8 or array.shape != (total,):
            raise ValueError(
                f"{field} has {array.dtype} of shape {array.shape}: it should have a byte for each of {total} output "
                "tokens"
            )
        arrays.append(array)
    offered, kept, confidence = arrays
    ends = np.repeat(np.cumsum(outputs), outputs)
    for wrong, field, values, reason in (
        (offered > MAX_BLOCK_LENGTH, "offered", offered, f"it should be at most {MAX_BLOCK_LENGTH}"),
        (kept > offered, "kept", kept, "it should be at most what is offered there"),
        (kept > ends - np.arange(total), "kept", kept, "it should be no more than the request has left"),
        (confidence > buckets, "confidence", confidence, f"its confidence_buckets are {buckets}"),
        ((confidence == 0) != (offered == 0), "confidence", confidence, "it should be 0 exactly where none is offered"),
    ):
        if wrong.any():
            where = int(np.argmax(wrong))
            raise ValueError(f"{field}_{place} is {values[where]} at token {where}: {reason}")
    return offered.tobytes(), kept.tobytes(), confidence.tobytes()


def _array(file: Any, name: str) -> NDArray[Any]:
    if name not in file:
        raise ValueError(f"it has no array {name}")
    found: NDArray[Any] = file[name]
    return found


def _integers(array: NDArray[Any], name: str) -> NDArray[np.int64]:
    if array.dtype != np.int32 or array.ndim != 1:
        raise ValueError(f"{name} has {array.dtype} of shape {array.shape}: it should be a column of int32")
    return array.astype(np.int64)


def _within(column: NDArray[np.int64], least: int, most: int, name: str) -> None:
    wrong = (column < least) | (column > most)
    if wrong.any():
        where = int(np.argmax(wrong))
        raise ValueError(f"{name} is {column[where]} for request {where}: it should be {least} to {most}")
