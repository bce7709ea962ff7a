"""What llguidance would misread in a JSON schema without saying so: refused before it sees the schema."""

import json
import math
from collections.abc import Iterable, Mapping
from decimal import Decimal

from llguidance import LLMatcher

from engine.grammar_wording import GrammarError

MAX_REMAINDERS = 20_000
"""How many remainders the numbers with a multipleOf may need in all. Each is a state, and some tens of thousands take
seconds to make, which no limit of llguidance cuts short."""
EXACT = 1 << 53
"""llguidance holds numbers as float64 and as int64: beyond this a whole number becomes another one, and one that
becomes the least int64, as every large negative number does, ends the process."""
_COUNTS = frozenset({"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"})
_MAX_COUNT = (1 << 31) - 1
_VALUES = frozenset({"const", "enum"})
MAX_LEVELS = 1000
"""llguidance goes down into a grammar level by level, through references too, and the process would end where its
stack does: with 8 MiB, somewhere between 2,000 levels and 4,000."""
MAX_JOINED = 10
"""How many regular expressions one value may have to match together: twice as many take llguidance seconds, and each
more about half as long again, which none of its limits cuts short."""
_MAX_STEPS = 20_000
"""Of the search for a finite value: what is not settled by then is accepted."""


def check_schemas(schemas: Iterable[object]) -> None:
    """Raises GrammarError for a number that would be changed, multiples that would take too long, a regular expression
    that would be cut, what is too deep, or a schema that no finite value satisfies."""
    roots = list(schemas)
    for root in roots:
        _check_depth(root)
    multiples: list[int] = []
    floats: list[tuple[str, float]] = []
    patterns = joined = 0
    # With each value the keyword that it stands under; under const and enum it stays, whatever the value's own keys.
    open_values = [(root, "schema") for root in roots]
    while open_values:
        value, keyword = open_values.pop()
        if isinstance(value, list):
            open_values += [(entry, keyword) for entry in value]
        elif isinstance(value, dict):
            open_values += [(entry, keyword if keyword in _VALUES else key) for key, entry in value.items()]
            _check_patterns(value)
            patterns += ("pattern" in value) + ("format" in value)
            joined += len(_listed(value, "allOf")) + ("$ref" in value and len(value) > 1)
            for key in _COUNTS & value.keys():
                _check_count(key, value[key])
            multiple = value.get("multipleOf")
            if isinstance(multiple, int | float) and 0 < abs(multiple) <= EXACT:
                multiples.append(abs(int("".join(map(str, Decimal(str(multiple)).normalize().as_tuple().digits)))))
        elif isinstance(value, int | float):
            if not -EXACT <= value <= EXACT:
                _refuse_number(keyword, value, f"a number from {-EXACT} to {EXACT}")
            if isinstance(value, float):
                floats.append((keyword, value))
    if min(patterns, joined) > MAX_JOINED:
        raise GrammarError(
            f"its allOf, and what stands beside a $ref, may join {min(patterns, joined)} patterns and formats in one "
            f"value; give at most {MAX_JOINED} of the one or of the other"
        )
    # Those of one number may be given in several places: then it is their least common multiple that counts.
    remainders = len(multiples) * math.lcm(*multiples)
    if remainders > MAX_REMAINDERS:
        raise GrammarError(
            f"its multipleOf are {len(multiples)} with a least common multiple that is too large; give fewer, "
            f"or smaller ones, so that the two multiplied are at most {MAX_REMAINDERS}"
        )
    _check_floats(floats)
    for root in roots:
        if not _Finite(root).holds():
            raise GrammarError("no finite value satisfies it, since it requires itself; make that property optional")


def _check_depth(root: object) -> None:
    depths: dict[int, int] = {}
    references: set[str] = set()

    def measure(value: object, outermost: bool = False) -> int:
        inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else None
        if inner is None:
            return 0
        if isinstance(value, dict):
            if isinstance(value.get("$id"), str) and not outermost:
                raise GrammarError("it has a $id inside of it, which is not supported; leave that out")
            if isinstance(value.get("$ref"), str):
                references.add(value["$ref"])
        depth = depths[id(value)] = 1 + max(map(measure, inner), default=0)
        return depth

    # One inside another: in the worst case all of them are open at once.
    levels = measure(root, outermost=True)
    levels += sum(depths.get(id(_target(root, reference)), levels) for reference in references)
    if levels > MAX_LEVELS:
        raise GrammarError(
            f"it is nested too deeply, {levels} levels with what its $ref name; give at most {MAX_LEVELS} in all"
        )


def _check_count(keyword: str, value: object) -> None:
    if isinstance(value, int) and not isinstance(value, bool) and value > _MAX_COUNT:
        _refuse_number(keyword, value, f"at most {_MAX_COUNT}")


def _check_patterns(schema: Mapping[str, object]) -> None:
    patterns, pattern = schema.get("patternProperties"), schema.get("pattern")
    for text in [*(patterns if isinstance(patterns, dict) else ()), *([pattern] if isinstance(pattern, str) else ())]:
        refuse_lone_backslash(text)


def refuse_lone_backslash(pattern: str) -> None:
    """llguidance drops one at the end. Raises GrammarError."""
    if (len(pattern) - len(pattern.rstrip("\\"))) % 2:
        raise GrammarError("a regular expression ends with a lone backslash; write two for one, or none")


def _check_floats(floats: list[tuple[str, float]]) -> None:
    """llguidance's reader of JSON takes some numbers of many digits for their neighbours."""
    given = json.dumps({"enum": [value for _, value in floats]})
    text = LLMatcher.grammar_from_json_schema(given, overrides={"lenient": False})
    for (keyword, value), read in zip(floats, json.loads(text)["grammars"][0]["json_schema"]["enum"], strict=True):
        if value != read:
            _refuse_number(keyword, value, "one with fewer digits")


def _refuse_number(keyword: str, value: float, remedy: str) -> None:
    try:
        shown = str(value)
    except ValueError:  # more digits than Python is willing to print
        shown = "a number with thousands of digits"
    shown = shown if len(shown) <= 40 else shown[:39] + "…"
    raise GrammarError(f"its {keyword} holds {shown}, which cannot be kept to exactly; give {remedy}")


class _Finite:
    """Whether some finite value may satisfy a schema, as far as its required properties and items tell: the least
    fixed point over its references. Keywords that say nothing of it count as satisfied."""

    def __init__(self, root: object) -> None:
        self._root = root
        self._finite: dict[str, bool] = {}
        """References that were met, and whether their targets are known to be satisfied by something."""
        self._steps = 0

    def holds(self) -> bool:
        while True:
            found = self._may_be(self._root)
            before = list(self._finite.items())
            for reference, finite in before:
                if not finite:
                    self._finite[reference] = self._may_be(_target(self._root, reference))
            if found or self._steps > _MAX_STEPS:
                return True
            if before == list(self._finite.items()):
                return False

    def _may_be(self, schema: object) -> bool:
        self._steps += 1
        if not isinstance(schema, dict) or self._steps > _MAX_STEPS:
            return True
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference.startswith("#") and not self._finite.setdefault(reference, False):
            return False
        needed, choices = list(_listed(schema, "allOf")), [_listed(schema, key) for key in ("anyOf", "oneOf")]
        if schema.get("type") in ("object", ["object"]) and isinstance(schema.get("properties"), dict):
            names = [name for name in _listed(schema, "required") if isinstance(name, str)]
            needed += [schema["properties"][name] for name in names if name in schema["properties"]]
        least = schema.get("minItems")
        if schema.get("type") in ("array", ["array"]) and isinstance(least, int) and least > 0:
            first = _listed(schema, "prefixItems")[:least]
            needed += first if len(first) == least else [*first, schema.get("items")]
        return all(map(self._may_be, needed)) and all(any(map(self._may_be, some)) for some in choices if some)


def _listed(schema: Mapping[str, object], key: str) -> list[object]:
    value = schema.get(key)
    return value if isinstance(value, list) else []


def _target(root: object, reference: str) -> object:
    """What a JSON pointer names; None where it names nothing, which is llguidance's to refuse."""
    found = root
    for part in reference[1:].split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict):
            found = found.get(key)
        elif isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        else:
            return None
    return found
