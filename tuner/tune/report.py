"""What `paceline tune` prints, and the configuration that it recommends."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml
from rich.console import Console

from policies.types import Interval
from tuner.tune.knobs import Knob, Values, as_settings, left_out
from tuner.tune.search import Verdict
from tuner.tune.study import Trial

NOTHING_BETTER = 3
"""The exit code when nothing beats production."""


@dataclass(frozen=True, slots=True)
class Found:
    """What came of one scope's search."""

    scope: str
    production: Values
    verdict: Verdict


def recommended(found: Sequence[Found]) -> dict[str, Any]:
    """The configuration that puts in force what beats production, as a file has it; empty if nothing does."""
    told: dict[str, Any] = {}
    for one in found:
        if one.verdict.beats_production and one.verdict.best is not None:
            _merge(told, as_settings(one.scope, one.verdict.best.values, one.production))
    return told


def as_yaml(found: Sequence[Found], head: str) -> str:
    """`recommended` as a file, with `head` and the gains as comments."""
    lines = [f"# {line}" for line in head.splitlines()]
    for one in found:
        if one.verdict.beats_production and one.verdict.interval is not None:
            lines.append(f"# {_scope(one.scope)}: {_times(one.verdict.interval)} production")
    return "\n".join(lines) + "\n" + yaml.safe_dump(recommended(found), sort_keys=False)


def tell_beginning(console: Console, name: str, space: Sequence[Knob], done: Sequence[Trial]) -> None:
    """What is searched, what is not, and where it goes on."""
    bounds = ", ".join(f"{knob.name} {knob.low:g} to {knob.high:g}" for knob in space)
    _print(console, f"study {name}: {bounds}")
    missing = left_out(space)
    if missing:
        _print(console, f"left out, since they cannot be told here or nothing reads them: {', '.join(missing)}")
    if done:
        _print(console, f"goes on after {len(done)} trials")


def tell_trial(console: Console, trial: Trial, noise: float) -> None:
    """One line for a trial."""
    values = "production" if trial.is_production else _shown(trial.values)
    _print(console, f"trial {trial.number}: {trial.ratio:.3f} of production, noise {noise:.3f}: {values}")


def tell_verdict(console: Console, found: Found) -> None:
    """What came of a scope."""
    verdict, where = found.verdict, _scope(found.scope)
    ended = "no more improvement" if verdict.stopped_early else "all trials done"
    _print(
        console,
        f"{where}: {ended} after {verdict.trials} trials, noise {verdict.noise:.3f}, the standard error of a trial",
    )
    if verdict.best is None or verdict.interval is None:
        _print(console, f"{where}: nothing was faster than production")
        return
    judgement = "is not told from production"
    if verdict.beats_production:
        judgement = "beats production"
    elif verdict.interval.high < 1.0:
        judgement = "is slower than production"
    shown = _told_apart(verdict.best.values, found.production)
    _print(
        console,
        f"{where}: trial {verdict.best.number} ({shown}) in new rounds is {_times(verdict.interval)} production: "
        f"it {judgement}",
    )


def _times(interval: Interval) -> str:
    return f"{interval.estimate:.3f} [{interval.low:.3f}, {interval.high:.3f}] times"


def _scope(scope: str) -> str:
    return "all traffic" if scope == "*" else f"route {scope}"


def _shown(values: Values) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in values.items())


def _told_apart(values: Values, production: Values) -> str:
    """All of a trial's values, so that they can be found again in its line: those that production has say so."""
    changed = {name: value for name, value in values.items() if value != production[name]}
    same = {name: value for name, value in values.items() if name not in changed}
    return "; ".join(part for part in (_shown(changed), same and f"{_shown(same)} as production") if part)


def _print(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _merge(told: dict[str, Any], more: dict[str, Any]) -> None:
    for key, value in more.items():
        if isinstance(value, dict):
            _merge(told.setdefault(key, {}), value)
        else:
            told[key] = value
