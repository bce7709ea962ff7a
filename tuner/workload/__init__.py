"""The workload: prompts that people would really send, for ``demo``, ``bench`` and the tests on a real model.

One file of JSON lines for each route, all written for this project:

* ``code-edit``: a short file and a change; "return the whole file". Most are the second edit of a conversation, as
  people work with an assistant. Instructions in several languages; the language is ``code``, which dominates.
* ``extract``: a text (mail, invoice, log, advert, CV, review...) and the JSON fields wanted from it.
* ``chat``: everyday questions and conversations of several turns.
* ``story``: stories, poems, letters, dialogues.

A record is ``{id, route, language, messages, sampling, max_tokens}``. `sampling` holds fields of an OpenAI request as
people set them for such a route: greedy or nearly so for ``code-edit`` and ``extract``, 0.7 for ``chat``, 0.9 to 1.0
for ``story``, some with penalties. Prompts are short and outputs end by `max_tokens`: the default target is small.
In a file the languages take turns, so that the first prompts of a route are a fair sample of it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

ROUTES = ("code-edit", "extract", "chat", "story")

MAX_OUTPUT_TOKENS = 256

SAMPLING_RANGES: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "temperature": (0.0, 2.0),
        "top_p": (0.0, 1.0),
        "top_k": (0, 1000),
        "min_p": (0.0, 1.0),
        "repetition_penalty": (0.01, 10.0),
        "presence_penalty": (-2.0, 2.0),
        "frequency_penalty": (-2.0, 2.0),
    }
)
"""What a record may set, with its range, ends included; within what the server takes."""

_FIELDS = ("id", "route", "language", "messages", "sampling", "max_tokens")
_SPEAKERS = ("system", "user", "assistant")
_FOLDER = Path(__file__).parent


class WorkloadError(ValueError):
    """A record that cannot be used; one sentence that begins with ``file:line``."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request of the workload, without the name of a model."""

    id: str
    """Unique in the workload."""
    route: str
    language: str
    """BCP 47 primary subtag of the answer that is wanted, or ``code``."""
    messages: tuple[Mapping[str, str], ...]
    """Each with `role` and `content`; the last is the user's."""
    sampling: Mapping[str, float]
    """Fields of an OpenAI request, of those in `SAMPLING_RANGES`."""
    max_tokens: int


def load_workload(routes: Sequence[str] | None = None) -> tuple[Prompt, ...]:
    """The prompts of `routes` (default: all), in their order and, within a route, in the order of its file.

    Raises `WorkloadError` for an unknown route and for a record that cannot be used.
    """
    wanted = ROUTES if routes is None else tuple(routes)
    for route in wanted:
        if route not in ROUTES:
            raise WorkloadError(f"The workload has no route {route!r}: choose from {', '.join(ROUTES)}.")
    return tuple(prompt for route in wanted for prompt in read_prompts(_FOLDER / f"{route}.jsonl", route))


def read_prompts(path: Path, route: str) -> tuple[Prompt, ...]:
    """The records of one file, all of `route`. Raises `WorkloadError` with the file and line of the first bad one."""
    lines_by_id: dict[str, int] = {}
    prompts = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        where = f"{path.name}:{number}"
        prompt = _prompt(line, route, where)
        if prompt.id in lines_by_id:
            raise WorkloadError(
                f"{where}: id is {prompt.id!r}, as in line {lines_by_id[prompt.id]}: give each record its own."
            )
        lines_by_id[prompt.id] = number
        prompts.append(prompt)
    return tuple(prompts)


def _prompt(line: str, route: str, where: str) -> Prompt:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise WorkloadError(f"{where}: the line is no JSON ({error}): write one object a line.") from error
    if not isinstance(record, dict) or set(record) != set(_FIELDS):
        found = sorted(record) if isinstance(record, dict) else record
        raise WorkloadError(f"{where}: the fields are {found!r}: give exactly {', '.join(_FIELDS)}.")
    for field in ("id", "language"):
        _require(isinstance(record[field], str) and record[field], where, field, record[field], "a non-empty string")
    _require(record["route"] == route, where, "route", record["route"], f"{route!r}, the name of its file")
    limit = record["max_tokens"]
    _require(
        _is_number(limit, int) and 1 <= limit <= MAX_OUTPUT_TOKENS,
        where, "max_tokens", limit, f"a whole number from 1 to {MAX_OUTPUT_TOKENS}",
    )  # fmt: skip
    return Prompt(
        id=record["id"],
        route=route,
        language=record["language"],
        messages=_messages(record["messages"], where),
        sampling=_sampling(record["sampling"], where),
        max_tokens=limit,
    )


def _messages(given: object, where: str) -> tuple[Mapping[str, str], ...]:
    """A system message may come first; then user and assistant take turns, from the user to the user."""
    if not isinstance(given, list) or not given:
        raise WorkloadError(f"{where}: messages is {given!r}: give a list of at least one message.")
    for index, message in enumerate(given):
        field = f"messages[{index}]"
        complete = isinstance(message, dict) and set(message) == {"role", "content"}
        _require(complete, where, field, message, "an object with role and content")
        role, content = message["role"], message["content"]
        _require(role in _SPEAKERS, where, f"{field}.role", role, f"one of {', '.join(_SPEAKERS)}")
        text = isinstance(content, str) and bool(content.strip())
        _require(text, where, f"{field}.content", content, "a text that is not blank")
    turns = [message["role"] for message in given]
    spoken = turns[1:] if turns[0] == "system" else turns
    in_turn = all(role == ("user", "assistant")[index % 2] for index, role in enumerate(spoken))
    _require(in_turn and len(spoken) % 2 == 1, where, "messages", turns, "user and assistant in turn, the user last")
    return tuple(MappingProxyType(message) for message in given)


def _sampling(given: object, where: str) -> Mapping[str, float]:
    if not isinstance(given, dict) or "temperature" not in given:
        raise WorkloadError(f"{where}: sampling is {given!r}: give an object with at least the temperature.")
    for field, value in given.items():
        known = ", ".join(SAMPLING_RANGES)
        _require(field in SAMPLING_RANGES, where, "a field of sampling", field, f"one of {known}")
        low, high = SAMPLING_RANGES[field]
        kinds = (int,) if field == "top_k" else (int, float)
        in_range = _is_number(value, *kinds) and low <= value <= high
        _require(in_range, where, f"sampling.{field}", value, f"a number from {low:g} to {high:g}")
    return MappingProxyType(given)


def _is_number(value: object, *kinds: type) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool)


def _require(holds: object, where: str, field: str, value: object, remedy: str) -> None:
    if not holds:
        raise WorkloadError(f"{where}: {field} is {value!r}: give {remedy}.")
