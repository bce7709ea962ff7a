"""What the groups of the configuration are made of: their base, and the kinds of values that several of them have."""

from typing import Annotated, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    StringConstraints,
    ValidationInfo,
    field_validator,
)

from policies.types import MAX_BLOCK_LENGTH, Mode


def parted(value: object) -> object:
    """A text, as a variable has it, at its commas; nothing is no part."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",")] if value.strip() else []
    return value


def mode_name(value: object) -> object:
    """YAML reads a bare ``off`` as false; here it is the name of a mode."""
    return Mode.OFF if value is False else value


def goes_in_a_header(text: str) -> bool:
    """Whether a header takes `text` as it stands: printable ASCII, without a space at either end."""
    return text.isascii() and text.isprintable() and text == text.strip()


def _key(value: SecretStr) -> SecretStr:
    secret = value.get_secret_value()
    if not secret:
        raise ValueError("give one, or leave the key out")
    if not goes_in_a_header(secret):
        raise ValueError(
            "it has characters that no header takes: give printable ASCII, without a space or a new line at its end"
        )
    return value


def _header_text(value: str) -> str:
    if not goes_in_a_header(value):
        raise ValueError("give printable ASCII without a space at either end, since it stands in headers")
    return value


Key = Annotated[SecretStr, AfterValidator(_key)]
"""A secret that goes into a header."""
Text = Annotated[str, StringConstraints(min_length=1)]
DrafterName = Annotated[str, StringConstraints(min_length=1, max_length=256)]
DrafterLabel = Annotated[DrafterName, AfterValidator(_header_text)]
"""A name that an operator makes up for a drafter; an answer tells it in a header."""
Drafters = Annotated[tuple[DrafterName, ...], BeforeValidator(parted), Field(min_length=1, max_length=16)]
RouteMode = Annotated[Mode, BeforeValidator(mode_name)]
RouteName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")]
BlockLength = Annotated[int, Field(ge=0, le=MAX_BLOCK_LENGTH)]
Port = Annotated[int, Field(ge=0, le=65535)]


class Group(BaseModel):
    """A group of the configuration: its keys are closed, its values frozen, and a field's docstring is its help."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, validate_default=True, allow_inf_nan=False
    )

    @field_validator("*", mode="before")
    @classmethod
    def _no_boolean_for_a_number(cls, value: object, info: ValidationInfo) -> object:
        """Python counts true as 1, and a file that says true means something else."""
        annotation = cls.model_fields[info.field_name or ""].annotation
        kinds = {getattr(part, "__origin__", part) for part in (annotation, *get_args(annotation))}
        if isinstance(value, bool) and {int, float} & kinds:
            raise ValueError("give a number")
        return value
