"""The scenarios of `paceline replay`, read from scenarios.yaml and checked strictly; what a key means stands there."""

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

SCENARIO_FILE = Path(__file__).with_name("scenarios.yaml")

Share = Annotated[float, Field(ge=0.0, le=1.0)]
Seconds = Annotated[float, Field(ge=0.0)]
Positive = Annotated[float, Field(gt=0.0)]
Count = Annotated[int, Field(ge=1)]


class ScenarioError(Exception):
    """The scenarios cannot be used; one sentence with a key, its value and a remedy."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=False, allow_inf_nan=False)


class Seeds(_Part):
    """First and last of each kind; no seed is in both."""

    tuning: tuple[int, int]
    held_out: tuple[int, int]

    @model_validator(mode="after")
    def _apart(self) -> Self:
        if not self.tuning[0] <= self.tuning[1] < self.held_out[0] <= self.held_out[1]:
            raise ValueError("give held-out seeds above those for tuning, each as the first and the last")
        return self


class Noise(_Part):
    seconds_sd: Share
    stall_share: Share
    stall_factor: Annotated[float, Field(ge=1.0)]
    calibration_sd: Share


class Latent(_Part):
    request_sd: Seconds
    drafter_sd: Seconds
    stretch_sd: Seconds
    stretch_memory: Share
    token_sd: Seconds
    confidence_sd: Seconds


class OutputTokens(_Part):
    least: Count
    mean: Count
    most: Annotated[int, Field(ge=1, le=4096)]

    @model_validator(mode="after")
    def _rising(self) -> Self:
        if not self.least < self.mean < self.most:
            raise ValueError("give a mean between the least and the most")
        return self


class Drafting(_Part):
    call_seconds: Seconds
    sequence_seconds: Seconds
    step_seconds: Seconds
    row_seconds: Seconds


class Machine(_Part):
    slots: Count
    token_knots: tuple[Count, ...]
    knot_seconds: tuple[Positive, ...]
    sequence_seconds: Seconds
    kv_token_seconds: Seconds
    drafting: Mapping[str, Drafting]

    @model_validator(mode="after")
    def _knots(self) -> Self:
        if len(self.token_knots) != len(self.knot_seconds) or list(self.token_knots) != sorted(set(self.token_knots)):
            raise ValueError("give rising token_knots and as many knot_seconds")
        return self


class Copier(_Part):
    match: Count
    chance: Share
    stop: Share


class Copying(_Part):
    right: Share
    right_elsewhere: Share
    ngram: Copier
    suffix: Copier


class Learned(_Part):
    stop: Share
    right: Mapping[str, Share]


class Stretch(_Part):
    start: Share
    length: Annotated[float, Field(ge=1.0)]


class Route(_Part):
    prompt_tokens: tuple[Count, Count]
    copies: Stretch
    shift: float


class Mix(_Part):
    routes: Mapping[str, Share]
    languages: Mapping[str, Share]
    without: tuple[tuple[str, str], ...] = ()


class Load(_Part):
    kind: Literal["levels", "sine", "spikes"]
    levels: tuple[Count, ...] = ()
    hold: Count = 1
    low: Count = 1
    high: Count = 1
    period: Count = 1
    base: Count = 1
    peak: Count = 1
    at: tuple[int, ...] = ()
    length: Count = 1

    @model_validator(mode="after")
    def _only_its_own(self) -> Self:
        own = {
            "levels": {"levels", "hold"},
            "sine": {"low", "high", "period"},
            "spikes": {"base", "peak", "at", "length"},
        }[self.kind]
        if self.model_fields_set != own | {"kind"}:
            raise ValueError(f"give {', '.join(sorted(own))} and nothing else to the kind {self.kind}")
        return self


class Dearer(_Part):
    tokens: tuple[Count, Count]
    factor: Positive


class Change(_Part):
    """What holds from a request on, until another change says otherwise; None leaves it as it is."""

    request: Count
    mix: str | None = None
    right: Mapping[str, Mapping[str, Share]] | None = None
    swap: tuple[str, ...] | None = None
    copies_factor: Annotated[float, Field(ge=0.0)] | None = None
    prompt_factor: Positive | None = None
    dearer: Dearer | None = None
    slower: Positive | None = None


class Arrival(_Part):
    """A (route, language) pair that nobody has seen before `request`, with a share of the requests from there on."""

    request: Count
    route: str
    language: str
    share: Share
    relatives: bool


class Bursts(_Part):
    stay: Share
    right: tuple[Share, Share]


class Scenario(_Part):
    about: str
    machine: str
    requests: Annotated[int, Field(ge=600, le=20_000)]
    mix: str
    load: Load
    stationary: bool = False
    compared: bool = False
    changes: tuple[Change, ...] = ()
    arrival: Arrival | None = None
    bursts: Bursts | None = None
    restarts: tuple[int, ...] = ()
    keeps_memory: bool = True

    @model_validator(mode="after")
    def _inside(self) -> Self:
        starts = [change.request for change in self.changes]
        if starts != sorted(set(starts)):
            raise ValueError("give changes in rising order of their requests")
        arrivals = [self.arrival.request] if self.arrival else []
        for request in (*starts, *self.restarts, *self.load.at, *arrivals):
            if not 0 < request < self.requests:
                raise ValueError(f"request {request} is not one of 1 to {self.requests - 1}: move it inside")
        return self


class ScenarioBook(_Part):
    """The whole file."""

    seeds: Seeds
    noise: Noise
    latent: Latent
    output_tokens: OutputTokens
    machines: Mapping[str, Machine]
    copying: Copying
    learned: Mapping[str, Learned]
    routes: Mapping[str, Route]
    loops: Mapping[str, Stretch]
    mixes: Mapping[str, Mix]
    code_routes: tuple[str, ...]
    scenarios: Mapping[str, Scenario]

    @property
    def drafters(self) -> tuple[str, ...]:
        """The copying ones first."""
        return ("ngram", "suffix", *self.learned)

    def held_out(self, count: int) -> tuple[int, ...]:
        """The first `count` seeds of those that are reported. Raises ScenarioError where there are fewer."""
        return _first(self.seeds.held_out, count, "held-out")

    def tuning(self, count: int) -> tuple[int, ...]:
        """The first `count` seeds of those that a controller may be tuned on. Raises ScenarioError likewise."""
        return _first(self.seeds.tuning, count, "tuning")

    @model_validator(mode="after")
    def _known(self) -> Self:
        for name, where, known in _references(self):
            if name not in known:
                raise ValueError(f"{where} names {name!r}, which is none of {', '.join(known)}: correct the name")
        return self


def _first(ends: tuple[int, int], count: int, kind: str) -> tuple[int, ...]:
    there = ends[1] - ends[0] + 1
    if not 1 <= count <= there:
        raise ScenarioError(f"{count} {kind} seeds were asked for, and there are {there}: give 1 to {there}.")
    return tuple(range(ends[0], ends[0] + count))


def _references(book: ScenarioBook) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """(name, where it is used, names that there are)."""
    drafters, routes, languages = book.drafters, tuple(book.routes), tuple(book.loops)
    learned = tuple(book.learned)
    for name, machine in book.machines.items():
        for drafter in machine.drafting:
            yield drafter, f"machines.{name}.drafting", drafters
        for drafter in drafters:
            yield drafter, f"machines.{name} lacks a drafter's cost: it", tuple(machine.drafting)
    for route in book.code_routes:
        yield route, "code_routes", routes
    for name, settings in book.learned.items():
        for language in languages:
            yield language, f"loops has a language that learned.{name}.right lacks: it", tuple(settings.right)
    for name, mix in book.mixes.items():
        for route in (*mix.routes, *(route for route, _ in mix.without)):
            yield route, f"mixes.{name}", routes
        for language in (*mix.languages, *(language for _, language in mix.without)):
            yield language, f"mixes.{name}", languages
    for name, scenario in book.scenarios.items():
        where = f"scenarios.{name}"
        yield scenario.machine, f"{where}.machine", tuple(book.machines)
        for used in (scenario.mix, *(change.mix for change in scenario.changes if change.mix is not None)):
            yield used, f"{where}.mix", tuple(book.mixes)
        if scenario.arrival is not None:
            yield scenario.arrival.route, f"{where}.arrival.route", routes
            yield scenario.arrival.language, f"{where}.arrival.language", languages
        for change in scenario.changes:
            for drafter in (*(change.right or ()), *(change.swap or ())):
                yield drafter, f"{where}.changes", learned


def load_scenarios(path: Path = SCENARIO_FILE) -> ScenarioBook:
    """The scenarios in a file. Raises ScenarioError in one sentence for a file that says anything else."""
    try:
        text = path.read_text(encoding="utf-8")
        return ScenarioBook.model_validate(yaml.safe_load(text))
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{path.name} cannot be read ({error}): give a file that can.") from error
    except yaml.YAMLError as error:
        problem = " ".join(str(error).split())
        raise ScenarioError(f"{path.name} is no YAML ({problem}): correct it there.") from error
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "the whole file"
        message = first["msg"].removeprefix("Value error, ")
        shown = "" if isinstance(first["input"], dict | BaseModel) else f" is {first['input']!r}:"
        raise ScenarioError(f"{path.name}: {key}{shown} {message}.") from error


@cache
def shipped_scenarios() -> ScenarioBook:
    """What this package ships; read once, immutable."""
    return load_scenarios()
