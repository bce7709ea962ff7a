"""The header of a trace on disk: what it may say, and within which bounds a replay can reckon with it."""

from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from policies.cycle_policy import DraftCost, PassCost
from policies.quoting import clipped, shown
from policies.types import PLAIN
from tuner.replay.trace import Costs

FORMAT = 1
"""Raised whenever what is written changes."""
MAX_TOKENS = 100_000_000
"""Output tokens of a file that is read: a few hundred bytes could claim any number."""
MOST_SLOTS = 4096
MOST_SECONDS = 1000.0
"""Of a part of a cycle; far above any machine, and far below where sums and products of it overflow."""
LEAST_SECONDS = 1e-9
"""Of a pass: what is nearer to nothing cannot be divided by."""


def _readable(number: int) -> int:
    if number != FORMAT:
        raise ValueError(f"this version reads {FORMAT}")
    return number


def _each_once(names: tuple[str, ...]) -> tuple[str, ...]:
    for place, name in enumerate(names):
        if name in names[:place]:
            raise ValueError(f"{shown(name)} is there twice")
    return names


def _drafters(names: tuple[str, ...]) -> tuple[str, ...]:
    if PLAIN in names:
        raise ValueError(f"{shown(PLAIN)} is what serving without a drafter is called, and no drafter")
    return names


def _rising(knots: tuple[int, ...]) -> tuple[int, ...]:
    if list(knots) != sorted(set(knots)):
        raise ValueError("it does not rise")
    return knots


Names = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(min_length=1), AfterValidator(_each_once)]
Seconds = Annotated[float, Field(ge=0.0, le=MOST_SECONDS)]
Request = Annotated[int, Field(ge=1)]
"""One behind the first."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class TargetCost(_Part):
    """Of `PassCost`."""

    token_knots: Annotated[
        tuple[Annotated[int, Field(ge=1, le=MAX_TOKENS)], ...], Field(min_length=1), AfterValidator(_rising)
    ]
    knot_seconds: tuple[Annotated[float, Field(ge=LEAST_SECONDS, le=MOST_SECONDS)], ...]
    sequence_seconds: Seconds
    kv_token_seconds: Annotated[float, Field(ge=0.0, le=1.0)]

    @model_validator(mode="after")
    def _seconds_of_each_knot(self) -> Self:
        if len(self.token_knots) != len(self.knot_seconds):
            raise ValueError(f"{len(self.token_knots)} token_knots have {len(self.knot_seconds)} knot_seconds")
        return self


class DrafterCost(_Part):
    """Of `DraftCost`."""

    call_seconds: Seconds
    sequence_seconds: Seconds
    step_seconds: Seconds
    row_seconds: Seconds


class HeaderCosts(_Part):
    """Of `Costs`."""

    target: TargetCost
    drafters: dict[str, DrafterCost]

    def costs(self) -> Costs:
        """As a replay reckons with it."""
        return Costs(
            PassCost(**self.target.model_dump()),
            {name: DraftCost(**cost.model_dump()) for name, cost in self.drafters.items()},
        )


class Header(_Part):
    """All that a file says besides its arrays; `tuner.replay.trace.Trace` says what it means."""

    format: Annotated[int, AfterValidator(_readable)]
    drafters: Annotated[Names, AfterValidator(_drafters)]
    routes: Names
    languages: Names
    slots: Annotated[int, Field(ge=1, le=MOST_SLOTS)]
    restarts: tuple[Request, ...]
    keeps_memory: bool
    changes: tuple[Request, ...]
    arrival: tuple[str, str] | None
    costs: HeaderCosts
    later_costs: tuple[tuple[Request, HeaderCosts], ...]
    calibrated: HeaderCosts | None
    seconds_sd: Annotated[float, Field(ge=0.0, le=10.0)]
    stall_share: Annotated[float, Field(ge=0.0, le=1.0)]
    stall_factor: Annotated[float, Field(ge=1.0, le=1e6)]
    confidence_buckets: dict[str, Annotated[int, Field(ge=1, le=255)]]
    machine: str

    @model_validator(mode="after")
    def _of_each_drafter(self) -> Self:
        told = {"costs": set(self.costs.drafters), "confidence_buckets": set(self.confidence_buckets)}
        told |= {f"later_costs.{place}": set(costs.drafters) for place, (_, costs) in enumerate(self.later_costs)}
        if self.calibrated is not None:
            told["calibrated"] = set(self.calibrated.drafters)
        for field, names in told.items():
            for name in sorted(names ^ set(self.drafters)):
                raise ValueError(f"{field} and drafters do not both have {shown(name)}")
        return self


def read_header(text: bytes) -> Header:
    """The header in its JSON. Raises ValueError, one sentence without its full stop that names the first field that is
    wrong and its value."""
    try:
        return Header.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            raise ValueError(f"its header is no JSON: {first['ctx']['error']}") from error
        field = clipped(".".join(map(str, first["loc"])))
        reason = first["msg"].removeprefix("Value error, ").replace("Input should", "it should")
        if not field:
            raise ValueError(f"its header: {reason}") from error
        if first["type"] == "missing":
            raise ValueError(f"its header has no {field}") from error
        if first["type"] == "value_error" and isinstance(first["input"], dict):
            raise ValueError(f"{field}: {reason}") from error
        raise ValueError(f"{field} is {shown(first['input'])}: {reason}") from error
