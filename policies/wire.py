"""Policies and statistics as JSON, and back to equal values; the standard library only.

A message is one line, ``{"format": 1, "kind": NAME, "value": ...}``. In its value a dataclass is the list of its fields
in the order of their definition, a mapping the list of its pairs, a tuple or a set a list. So cycles, which are sent by
the hundred a second, stay short, and what is read is checked against the annotations of the class that is asked for.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from policies.quoting import shown

FORMAT = 1
"""Grows with every change of the fields of what is sent: then the two ends must be of one version."""

T = TypeVar("T")
_Decoder = Callable[[Any, str], Any]
_Encoder = Callable[[Any], Any]


class WireError(ValueError):
    """What came is no message of this format; the text is one sentence."""


def to_wire(kind: str, value: object) -> bytes:
    """One message, without the end of its line."""
    message = {"format": FORMAT, "kind": kind, "value": _encoder(type(value))(value)}
    return json.dumps(message, separators=(",", ":")).encode()


def kind_of(line: bytes | str) -> tuple[str, Any]:
    """The kind of a message, and its value still to be given to `from_value`.

    Raises:
        WireError: it is not JSON, no message, or of another format.
    """
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise WireError(f"the message is not JSON: {error}") from None
    if not isinstance(message, dict) or not isinstance(message.get("kind"), str) or "value" not in message:
        raise WireError(f"the message is {shown(message)}: expected an object with format, kind and value")
    if message.get("format") != FORMAT:
        raise WireError(
            f"the message has format {shown(message.get('format'))}, and this end reads {FORMAT}: write the plug-in "
            "anew with `paceline plugin vllm`, so that both ends are of one version"
        )
    return message["kind"], message["value"]


def from_value(kind: type[T], value: Any) -> T:
    """The `kind` that a message's value tells of.

    Raises:
        WireError: it does not fit the fields of `kind`.
    """
    return cast(T, _decoder(kind)(value, kind.__name__))


def from_wire(name: str, kind: type[T], line: bytes | str) -> T:
    """The message of one known kind.

    Raises:
        WireError: it is no such message.
    """
    told, value = kind_of(line)
    if told != name:
        raise WireError(f"the message is of kind {shown(told)}: expected {name}")
    return from_value(kind, value)


def _encoder_of(kind: type) -> _Encoder:
    """By the class of the value, not by annotations: what is written was checked when it was made."""
    if is_dataclass(kind):
        names = [field.name for field in fields(kind) if field.init]
        return lambda value: [_encoder(type(each))(each) for each in [getattr(value, name) for name in names]]
    if issubclass(kind, Enum):
        return lambda value: value.value
    if issubclass(kind, Mapping):
        return lambda value: [
            [_encoder(type(key))(key), _encoder(type(each))(each)] for key, each in sorted(value.items())
        ]
    if issubclass(kind, frozenset):
        return lambda value: [_encoder(type(each))(each) for each in sorted(value)]
    if issubclass(kind, tuple | list):
        return lambda value: [_encoder(type(each))(each) for each in value]
    return lambda value: value


def _decoder_of(kind: Any) -> _Decoder:
    origin, arguments = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        return _dataclass_decoder(cast(type, kind))
    if origin is UnionType:
        inner = _decoder(next(each for each in arguments if each is not NoneType))
        return lambda value, where: None if value is None else inner(value, where)
    if origin is tuple and arguments[1:] == (...,):
        each_of = _decoder(arguments[0])
        return lambda value, where: tuple([each_of(each, where) for each in _list(value, where)])
    if origin is tuple:
        places = [_decoder(each) for each in arguments]
        return lambda value, where: tuple(
            [place(each, where) for place, each in zip(places, _list(value, where, len(places)), strict=True)]
        )
    if origin is frozenset:
        member = _decoder(arguments[0])
        return lambda value, where: frozenset([member(each, where) for each in _list(value, where)])
    if origin is not None and issubclass(origin, Mapping):
        key_of, value_of = _decoder(arguments[0]), _decoder(arguments[1])
        return lambda value, where: {
            key_of(key, where): value_of(each, where)
            for key, each in [_list(pair, where, 2) for pair in _list(value, where)]
        }
    return _scalar_decoder(kind)


def _dataclass_decoder(kind: type) -> _Decoder:
    hints = get_type_hints(kind)
    members = [(field.name, _decoder(hints[field.name])) for field in fields(cast(Any, kind)) if field.init]

    def decode(value: Any, where: str) -> Any:
        values = _list(value, where, len(members))
        read = [decoder(each, f"{where}.{name}") for (name, decoder), each in zip(members, values, strict=True)]
        try:
            return kind(**{name: each for (name, _), each in zip(members, read, strict=True)})
        except ValueError as error:
            raise WireError(f"the message's {where} is refused: {error}") from None

    return decode


def _scalar_decoder(kind: type) -> _Decoder:
    def decode(value: Any, where: str) -> Any:
        if issubclass(kind, Enum):
            if isinstance(value, str) and value in kind._value2member_map_:
                return kind(value)
        elif kind is float:
            if isinstance(value, int | float) and not isinstance(value, bool):
                return value
        elif type(value) is kind:
            return value
        raise WireError(f"the message's {where} is {shown(value)}: expected {kind.__name__}")

    return decode


def _list(value: Any, where: str, length: int | None = None) -> list[Any]:
    if not isinstance(value, list) or (length is not None and len(value) != length):
        expected = "a list" if length is None else f"a list of {length}"
        raise WireError(f"the message's {where} is {shown(value)}: expected {expected}")
    return value


_encoder: Callable[[Any], _Encoder] = cache(_encoder_of)
_decoder: Callable[[Any], _Decoder] = cache(_decoder_of)
