"""Where settings come from: the command line, over the environment, over one YAML file, over the defaults.

An unknown key is an error wherever it stands, also a ``PACELINE_*`` variable that names no setting.
"""

import difflib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_settings import EnvSettingsSource
from pydantic_settings.exceptions import SettingsError as UnreadableVariable

from policies.database_url import without_password
from policies.quoting import listed
from tuner.settings import DEFAULT_ROUTES, ENV_PREFIX, Settings, SettingsError, env_name, setting_rows

CONFIG_VARIABLE = "PACELINE_CONFIG"
OTHER_VARIABLES = {
    CONFIG_VARIABLE: "The configuration file; `--config` goes before it.",
    "PACELINE_SERVER": "The admin port's URL, for the commands that talk to a server.",
    "PACELINE_CACHE": "Folder of models, added drafters, compiled kernels and training; ~/.cache/paceline without it.",
    "PACELINE_VLLM_ENV": "Folder of an environment that has vLLM, for the scenario fleet and the tests against vLLM.",
    "PACELINE_VLLM_PYTHON": "A Python that has vLLM, which the scenario transformers then measures too.",
}
"""Variables with the prefix that are no settings, and what each is for."""

_LIKENESS = 0.75
"""Of a name that is suggested for an unknown one: a slip of the pen or two, and not another word."""

_SECRETS = ("token", "api_key")
"""Keys whose values no message shows."""

DEFAULT_ORIGIN = "default"
COMMAND_LINE = "the command line"


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """The settings, and where each value that is not a default comes from."""

    settings: Settings
    origins: Mapping[str, str]
    """By dotted name: a variable, a file, or the command line."""

    def values(self) -> Iterator[tuple[str, Any, str]]:
        """(dotted name, value, origin) of every setting in force; secrets are masked."""
        for name, value in _leaves(self.settings.model_dump(mode="json")):
            shown = without_password(value) if name == "database.url" else value
            yield name, shown, self.origins.get(name, DEFAULT_ORIGIN)


def load_settings(config: Path | None = None, overrides: Mapping[str, Any] | None = None) -> LoadedSettings:
    """Read the file `config` (or that of ``PACELINE_CONFIG``) and the environment, under `overrides`.

    `overrides` is nested as the file is, e.g. ``{"server": {"port": 0}}``.

    Raises:
        SettingsError: one line for each fault, naming key, value and remedy.
    """
    if config is None and os.environ.get(CONFIG_VARIABLE):
        config = Path(os.environ[CONFIG_VARIABLE])
    _refuse_unknown_variables()
    file_values = {} if config is None else _read_file(config)
    merged = {"routes": {name: {} for name in DEFAULT_ROUTES}} | file_values
    origins = {name: str(config) for name, _ in _leaves(file_values)}
    environment = _with_known_routes(_read_environment(), merged["routes"])
    for values, origin in ((environment, None), (overrides or {}, COMMAND_LINE)):
        origins |= {name: origin or env_name(name) for name, _ in _leaves(values)}
        merged = _merge(merged, values)
    try:
        return LoadedSettings(Settings(**merged), origins)
    except ValidationError as error:
        raise SettingsError("\n".join(_sentence(fault, origins) for fault in error.errors())) from error


class _TwiceError(Exception):
    """A key that a group has twice, and where."""


class _Loader(yaml.SafeLoader):
    """Of two equal keys YAML's own would take the last, without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                line = key.start_mark.line + 1
                if key.value in lines:
                    raise _TwiceError(f"the key {key.value!r} at line {lines[key.value]} and again at line {line}")
                lines[key.value] = line
        return super().construct_mapping(node, deep)


def _read_file(path: Path) -> dict[str, Any]:
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
        if isinstance(values, dict):
            for _ in _leaves(values):
                pass  # a group that holds itself, through an alias, has no end
    except _TwiceError as error:
        raise SettingsError(f"The configuration file {path} has {error}: leave one out.") from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise SettingsError(
            f"The configuration file {path} cannot be read ({reason}): give a readable file."
        ) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        # ValueError: no UTF-8, or what looks like a date or a number and is none, such as 2024-13-45.
        where = getattr(error, "problem_mark", None)
        line = f" at line {where.line + 1}" if where is not None else ""
        raise SettingsError(f"The configuration file {path} is not valid YAML{line}: correct it.") from error
    if values is None:
        return {}
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise SettingsError(f"The configuration file {path} must hold groups of keys, such as server: {{port: 8000}}.")
    values = {group: keys for group, keys in values.items() if keys is not None}
    if isinstance(values.get("routes"), dict):
        values["routes"] = {name: {} if keys is None else keys for name, keys in values["routes"].items()}
    return values


class _Environment(EnvSettingsSource):
    """Nested variables as nested dictionaries; what is not JSON stays text for the validation to judge."""

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        try:
            return super().decode_complex_value(field_name, field, value)
        except ValueError:
            return value


def _read_environment() -> dict[str, Any]:
    source = _Environment(Settings)
    # A name without a group is no setting's: PACELINE_SERVER, for one, is the command line's own.
    source.env_vars = {name: value for name, value in source.env_vars.items() if "__" in name}
    try:
        return dict(source())
    except UnreadableVariable as error:
        raise SettingsError(f"A {ENV_PREFIX} variable cannot be read ({error}): correct or remove it.") from error


def _with_known_routes(values: dict[str, Any], known: Any) -> dict[str, Any]:
    """`values` with the routes' own names: a variable's name cannot hold a hyphen, and only a file adds a route."""
    if not isinstance(values.get("routes"), dict) or not isinstance(known, dict):
        return values
    names = {str(name).replace("-", "_"): name for name in known}
    routes: dict[str, Any] = {}
    for name, keys in values["routes"].items():
        found = names.get(name.replace("-", "_"))
        if found is None:
            raise SettingsError(
                f"The variable {env_name(f'routes.{name}')} names the route {name!r}, which is not one of "
                f"{listed(map(str, known))}: correct it, or add the route to the configuration file."
            )
        routes[found] = keys
    return values | {"routes": routes}


def _refuse_unknown_variables() -> None:
    groups = tuple(Settings.model_fields)
    for name in sorted(os.environ):
        upper = name.upper()
        if not upper.startswith(ENV_PREFIX) or upper in OTHER_VARIABLES:
            continue
        group, _, key = upper.removeprefix(ENV_PREFIX).partition("__")
        if group.lower() not in groups or not key:
            known = [row.env for row in setting_rows()] + list(OTHER_VARIABLES)
            raise SettingsError(f"The variable {name} names no setting: {_closest(upper, known)}")


def _sentence(fault: ErrorDetails, origins: dict[str, str]) -> str:
    """One fault in words: the key, its value, where it comes from, and what to do."""
    path = [str(part) for part in fault["loc"] if isinstance(part, str)]  # of a list's item the list
    kind, context = fault["type"], fault.get("ctx", {})
    if not path:  # a fault between two groups, whose sentence names both keys
        return f"{context['error']}{_origins_of(str(context['error']), '', origins)}."
    name = ".".join(path[:-1] if path[-1] == "[key]" else path)
    name = name if name.isprintable() else repr(name)[1:-1]
    if isinstance(fault["input"], Mapping) and kind == "value_error":  # a fault between keys of one group
        return f"{name}.{context['error']}{_origins_of(str(context['error']), f'{name}.', origins)}."
    came_from = next(
        (f" (from {origin})" for key, origin in reversed(origins.items()) if f"{key}.".startswith(f"{name}.")), ""
    )
    if kind == "extra_forbidden":
        known = [row.name for row in setting_rows()] + list(Settings.model_fields)
        generic = _generic(path)
        return f"{name} is no setting{came_from}: {_closest(generic, known)}"
    if kind in ("model_type", "dict_type"):
        remedy = "give keys, one a line below it"
    elif path[-1] == "[key]" and kind != "value_error":
        remedy = "a name has small letters, digits, - and _, and at most 64 of them"
    elif kind == "value_error":
        remedy = str(context["error"])
    else:
        remedy = fault["msg"].partition(", unable")[0].replace("Input should", "it should")
    shown = _shown(path[-1], fault["input"], kind)
    verb = "is" if len(path) == len(fault["loc"]) else "has"
    return f"{name} {verb} {shown}{came_from}: {remedy}."


def _shown(key: str, value: Any, kind: str) -> str:
    """The `value` of a key as a message shows it: without a secret, however deep in it one may stand."""
    if key in _SECRETS:
        return "empty" if value == "" else "**********"
    text = without_password(repr(value)) if key == "url" else repr(value)
    if kind in ("model_type", "dict_type") or isinstance(value, Mapping | list | tuple):
        # What was meant to be a group, or to hold one: nobody knows where its secrets end.
        return "not shown, since a secret may be in it" if any(one in text for one in _SECRETS) else text
    return text


def _generic(path: list[str]) -> str:
    """The dotted name with the operator's own names left open, as the table of settings has it."""
    if path[0] == "routes":
        path = ["routes", "<ROUTE>", *path[2:]]
    elif path[:2] == ["fleet", "upstreams"]:
        path = ["fleet", "upstreams", "<NAME>", *path[3:]]
        if path[3:4] == ["aliases"]:
            path = [*path[:4], "<MODEL>", *path[5:]]
    return ".".join(path)


def _origins_of(sentence: str, group: str, origins: Mapping[str, str]) -> str:
    """Where those keys come from that a sentence about the keys of `group` names, as far as they are no defaults."""
    named = {
        key.removeprefix(group): origin
        for key, origin in origins.items()
        if key.startswith(group) and re.search(rf"(?<![\w.-]){re.escape(key.removeprefix(group))}(?![\w-])", sentence)
    }
    return f" ({', '.join(f'{key} from {origin}' for key, origin in named.items())})" if named else ""


def _closest(name: str, known: list[str]) -> str:
    """What `name` may have been meant to be, by group and key: a group in common makes two keys no more alike."""
    separator = "__" if name.startswith(ENV_PREFIX) else "."

    def parts(of: str) -> tuple[str, str]:
        group, _, key = of.removeprefix(ENV_PREFIX).rpartition(separator)
        return group, key

    group, key = parts(name)
    groups = {parts(other)[0] for other in known}
    near_group = difflib.get_close_matches(group, groups, n=1, cutoff=_LIKENESS)
    in_group = {parts(other)[1]: other for other in known if parts(other)[0] in near_group}
    near = [in_group[found] for found in difflib.get_close_matches(key, in_group, n=1, cutoff=_LIKENESS)]
    near = near or [other for other in known if parts(other)[1] == key]
    return f"did you mean {near[0]}?" if near else "`paceline config show` lists those that exist."


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{name}.")
        else:
            yield name, value


def _merge(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(lower)
    for key, value in upper.items():
        below = merged.get(key)
        merged[key] = _merge(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged
