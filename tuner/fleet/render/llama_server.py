"""llama-server: flags in the spelling of the build, and a preset file with an alias for each arm.

Read in llama.cpp b10573 (``common/arg.cpp``, ``tools/server``) and in #22397 (2026-04-28), which removed
``--draft-max`` and its like: they end a newer server at its start. It follows no schedule; a router chooses by alias.
"""

from tuner.fleet.render.account import account
from tuner.fleet.render.launch import Launch, LaunchFile
from tuner.fleet.render.merging import Merged
from tuner.fleet.render.spellings import Spelling, spelling_of, weights_note
from tuner.fleet.versions import is_before

_SURELY_OLD = "b8500"
"""A build of weeks before #22397."""
_SURELY_NEW = "b9200"
"""A build of weeks after it and after #22964, which called the types ``draft-*``."""
_FILE = "paceline-presets.ini"
_BY_SIZE = ("ngram-simple", "ngram-map-k", "ngram-map-k4v")
"""Types whose block is a piece of the text, of a size that a flag of their own gives."""


def render(merged: Merged, version: str, file: str) -> Launch:
    """Flags for one server with the block length that does best over all loads; in the file an alias for each arm."""
    name, spelling = spelling_of(merged.drafter)
    notes: list[str] = []
    if spelling.llama_server is None:
        merged = merged.at([0] * len(merged.steps))
        notes.append(f"llama-server has no drafter {name}.")
    arms = sorted({length for step in merged.steps for length in (*step.asked, step.block_length) if length})
    every = len(merged.ranges) == 1
    one = merged if every else merged.single()
    if not every:
        notes.append("llama-server follows no schedule: one block length for every load, or an alias for each.")
    if not arms or spelling.llama_server is None:
        return Launch(False, (), None, (*account(one), *notes, "Launch with --spec-type none, which is its default."))
    old = is_before(version, _SURELY_OLD) is True
    if not old and is_before(version, _SURELY_NEW) is not False:
        notes.append(
            f"{f'Build {version}' if version else 'An unknown build'} may be one of before #22397 or #22964: if it "
            "knows no --spec-draft-n-max it has --draft-max, and draft-simple is called draft."
        )
    if "ngram-cache" in spelling.llama_server:
        notes.append("ngram-cache has no flag for its block length, so that it drafts as far as it does.")
    if spelling.weights:
        notes.append(weights_note(merged.drafter, "--model-draft"))
    flags = tuple(part for key, value in _options(spelling, one.longest, old).items() for part in (f"--{key}", value))
    file = file or _FILE
    aliases = ", ".join(_alias(merged.model, length) for length in (0, *arms))
    notes += [
        f"{file} has the aliases {aliases}: put the model's file in place of MODEL, start llama-server --models-preset "
        "with it and without --spec flags, which would win over the file, and let the sidecar choose by alias. Each "
        "alias that is loaded takes its memory.",
        "Log-probabilities of accepted drafts are 0.0: ask plain for them.",
    ]
    return Launch(
        bool(one.longest),
        flags if one.longest else ("--spec-type", "none"),
        LaunchFile(file, _presets(merged.model, spelling, arms, old), True),
        (*account(one), *notes),
    )


def _options(spelling: Spelling, length: int, old: bool) -> dict[str, str]:
    """The options of a server that drafts at most `length`, without dashes."""
    if not length:
        return {"spec-type": "none"}
    kinds = (spelling.llama_server or "").split(",")
    # An old build knows a draft model by its weights alone.
    types = [kind for kind in kinds if not (old and kind.startswith("draft-"))]
    options = {"spec-type": ",".join(types)} if types else {}
    if spelling.weights:
        options["model-draft"] = "WEIGHTS"
    for kind in kinds:
        options |= _length(kind, str(length), old)
    return options


def _length(kind: str, length: str, old: bool) -> dict[str, str]:
    """What bounds a block of one type of drafter."""
    if kind in _BY_SIZE:
        return {f"spec-ngram-{'' if old else kind.removeprefix('ngram-') + '-'}size-m": length}
    if kind == "ngram-mod" and not old:
        return {"spec-ngram-mod-n-max": length}
    if kind == "ngram-cache":
        return {}
    return {"draft-max" if old else "spec-draft-n-max": length}


def _presets(model: str, spelling: Spelling, arms: list[int], old: bool) -> str:
    sections = ["version = 1\n"]
    for length in (0, *arms):
        lines = {"model": "MODEL"} | _options(spelling, length, old)
        body = "".join(f"{key} = {value}\n" for key, value in lines.items())
        sections.append(f"[{_alias(model, length)}]\n{body}")
    return "\n".join(sections)


def _alias(model: str, length: int) -> str:
    return f"{model}-{length or 'plain'}"
