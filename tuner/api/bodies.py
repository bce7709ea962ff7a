"""What the admin API takes."""

import unicodedata
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, model_validator

from policies.quoting import clipped
from policies.types import PLAIN
from tuner.api.durations import parse_duration
from tuner.setting_types import BlockLength, DrafterName


def known_duration(text: str) -> str:
    """`text`, if `parse_duration` reads it. Raises ValueError with the remedy."""
    parse_duration(text)
    return text


def printable(text: str) -> str:
    """`text`, if it is of characters that people can read, and that every database can store. Raises ValueError."""
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in text):
        raise ValueError(f"{clipped(ascii(text))} has control characters: leave them out")
    return text


Duration = Annotated[str, AfterValidator(known_duration)]
"""As it was written, e.g. ``2h``: `parse_duration` reads no more than six digits of a unit, 12 days in seconds have
seven."""
ReasonText = Annotated[
    str, StringConstraints(strip_whitespace=True, min_length=1, max_length=500), AfterValidator(printable)
]
Drafter = Annotated[DrafterName, AfterValidator(printable)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class PinBody(_Body):
    """``PUT .../pin``: a drafter with a block length, or ``mode: off``."""

    drafter: Drafter | None = None
    block_length: BlockLength | None = None
    mode: Literal["off"] | None = None
    reason: ReasonText
    expires_in: Duration
    exempt_from_switchback: bool = False

    @model_validator(mode="after")
    def _one_way_of_saying_it(self) -> Self:
        if self.mode == "off":
            if self.drafter is not None or self.block_length is not None:
                raise ValueError("mode off goes alone: leave out drafter and block_length")
        elif self.drafter is None or (self.block_length is None and self.drafter != PLAIN):
            raise ValueError("give drafter and block_length, or mode: off")
        elif self.drafter == PLAIN and self.block_length:
            raise ValueError(f"drafter {PLAIN!r} proposes nothing: give block_length 0, or another drafter")
        return self

    @property
    def arm(self) -> tuple[str, int]:
        """(drafter, block length) of the pin."""
        if self.drafter is None or not self.block_length:
            return PLAIN, 0
        return self.drafter, self.block_length


class DrafterBody(_Body):
    """``POST /api/v1/drafters``."""

    source: Drafter
    """ngram, suffix, a name that `paceline draft list` shows, or a folder on the server's machine."""
    reason: ReasonText


class TuningBody(_Body):
    """``POST /api/v1/tuning``."""

    reason: ReasonText


class KillSwitchBody(_Body):
    """``POST /api/v1/kill-switch``."""

    route: Annotated[str, Field(min_length=1, max_length=64)]
    """A route, or ``*`` for all."""
    active: bool
    reason: ReasonText | None = None
    expires_in: Duration | None = None

    @model_validator(mode="after")
    def _reason_to_switch_off(self) -> Self:
        if self.active and self.reason is None:
            raise ValueError("give a reason for switching speculation off")
        return self
