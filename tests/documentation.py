"""The documents' tables, made from the code. `make docs` writes them between their markers, and a test compares.

A table called NAME stands between the lines ``<!-- NAME -->`` and ``<!-- /NAME -->``.
"""

import ast
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import typer
from fastapi import FastAPI
from typer.core import TyperGroup

from engine.drafter_files import DESCRIPTION, SHIPPED, read_drafter
from engine.server import rules
from engine.server.app import ServerOptions, create_app
from policies import FixedPolicy, Reason
from policies.testing import ListSink
from policies.types import PLAIN, Interval
from tests.tuner.telemetry_examples import INFO
from tuner.api.app import create_admin_app
from tuner.api.explain import REASON_SENTENCES
from tuner.bench import proxy
from tuner.bench.drafters import BEST_BARS, LEARNED_BARS
from tuner.bench.fleet import NEAR_PLAIN
from tuner.bench.floor import BLOCK_BAR, FLOOR_BARS
from tuner.bench.matrix import NEAR_BEST
from tuner.bench.options import SCENARIOS
from tuner.bench.other_engines import ASSISTED_BAR, PLAIN_BAR, VLLM_BAR, VLLM_LOADS
from tuner.bench.report import Bar
from tuner.bench.tuner_speed import (
    FOLD_BAR,
    LOADS,
    MEDIAN_BAR,
    MEMORY_BAR,
    P99_BAR,
    POLICY_BAR,
    ROUTE_NAMES,
    SEQUENCES,
)
from tuner.cli import app as command_line
from tuner.fleet.feature_rows import ROWS, Trouble
from tuner.fleet.render.lossy import LOSSY_SETTINGS
from tuner.fleet.render.spellings import SPELLINGS
from tuner.fleet.types import EngineKind
from tuner.metric_table import FLEET_METRICS, METRICS, NEEDS_OWN_ENGINE, NEEDS_PLUGIN, Metric
from tuner.settings import Settings, setting_rows
from tuner.settings_loader import OTHER_VARIABLES
from tuner.tune.knobs import KNOBS, PER_ROUTE

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
RESULTS = ROOT / "docs/results"
BENCH_RESULT = RESULTS / "bench.json"
NOT_YET = "not measured yet"
DECLARED_BARS: Mapping[str, Sequence[tuple[str, float, bool]]] = {
    "floor": (
        *((f"plain cycle at load {load}, share of the floor's rate", bar, True) for load, bar in FLOOR_BARS.items()),
        ("a block of 8 (9 rows) over a single token at load 1", BLOCK_BAR, False),
    ),
    "transformers": (
        ("plain decoding at load 1 over transformers' generate", PLAIN_BAR, True),
        ("our best drafter over the best assisted generation, on the mixed workload", ASSISTED_BAR, True),
        *((f"plain decoding over vLLM's at load {load}", VLLM_BAR, True) for load in VLLM_LOADS),
    ),
    "drafters": (
        *((f"{route}: best learned drafter, times plain", bar, True) for route, bar in LEARNED_BARS.items()),
        *((f"{route}: best drafter, times plain", bar, True) for route, bar in BEST_BARS.items()),
    ),
    "matrix": (
        ("each route at each concurrency: tuned over the best fixed arm", NEAR_BEST, True),
        ("mixed, all loads: tuned over the best fixed arm", 1.0, True),
    ),
    "fleet": (
        ("mixed, all loads: tuned over the best single launch", 1.0, True),
        ("each route at each load: tuned over plain", NEAR_PLAIN, True),
    ),
    "proxy": tuple((f"{mode.value}: {what}", bar, False) for mode in proxy.MODES for what, bar in proxy.BARS.items()),
    "tuner": (
        ("a decision, median microseconds", MEDIAN_BAR, False),
        ("a decision, p99 microseconds", P99_BAR, False),
        (f"cycles of {SEQUENCES} sequences folded in a second", FOLD_BAR, True),
        (f"plan of {LOADS[-1]} sequences, median microseconds", POLICY_BAR, False),
        (f"allocation of {LOADS[-1]} sequences, median microseconds", POLICY_BAR, False),
        (f"MiB held after {ROUTE_NAMES} names of routes", MEMORY_BAR, False),
    ),
}
"""(what, bar, whether at least so much) of each scenario with bars, for as long as no result of it is committed;
results bear the names of their scenarios."""

WITHOUT_FAULTS = {
    "matrix": "outputs that differ between arms",
    "drafters": "outputs that differ between drafters",
    "cancel": "texts that differ from those alone; slots and blocks lost",
    "preempt": "texts that differ from those alone; slots and blocks lost",
    "fragment": "slots and blocks lost",
}
"""Scenarios that look for what must not be."""

RESERVED = frozenset(
    {
        Reason.FREEZE,
        Reason.TELEMETRY_MISSING,
        Reason.STALE_POLICY,
        Reason.STORE_UNAVAILABLE,
    }
)
"""Reasons of the finite list that nothing gives yet; the table says so beside them."""

DATA_PATHS = {
    "/v1/chat/completions": "OpenAI's chat completions, streaming and not",
    "/v1/completions": "OpenAI's completions, streaming and not",
    "/v1/models": "The model that is served, as a list",
    "/v1/models/{model}": "The model that is served",
    "/health": "200 while requests can be served",
    "/ping": "As /health",
    "/version": "The version that runs",
    "/tokenize": "How many tokens a text or a conversation has, and which",
    "/detokenize": "The text of tokens",
}


def metrics_table() -> str:
    """Every metric of a server with its labels, its meaning, what to do about it, and whether a sidecar has it."""
    sidecar = dict.fromkeys(NEEDS_OWN_ENGINE, "no") | dict.fromkeys(NEEDS_PLUGIN, "plug-in")
    rows = [(*_metric_cells(metric), sidecar.get(metric.name, "yes")) for metric in METRICS.values()]
    return markdown((*_METRIC_COLUMNS, "Sidecar"), rows)


def fleet_metrics_table() -> str:
    """Every metric that only a sidecar has."""
    return markdown(_METRIC_COLUMNS, [_metric_cells(metric) for metric in FLEET_METRICS.values()])


_METRIC_COLUMNS = ("Metric", "Type", "Labels", "Meaning", "What to do about it")


def _metric_cells(metric: Metric) -> tuple[str, ...]:
    return f"`{metric.name}`", metric.kind, ", ".join(metric.labels), metric.meaning, metric.action


def settings_table() -> str:
    """Every setting with its variable, default and help."""
    rows = []
    for row in setting_rows():
        default = f"`{row.default}`" if row.default else ""
        rows.append((f"`{row.name}`", f"`{row.env}`", default, row.help))
    return markdown(("Setting", "Environment", "Default", "Meaning"), rows)


def reasons_table() -> str:
    """Every reason of a decision."""
    rows = [
        (f"`{reason}`", REASON_SENTENCES[reason] + (" Reserved: nothing gives it yet." if reason in RESERVED else ""))
        for reason in Reason
    ]
    return markdown(("Reason", "Meaning"), rows)


def routes_table() -> str:
    """Every route of the data path and of the admin port."""
    rows = [("data", method, f"`{path}`", DATA_PATHS[path]) for method, path, _ in routes(data_app())]
    rows += [("admin", method, f"`{path}`", summary) for method, path, summary in routes(admin_app())]
    return markdown(("Port", "Method", "Path", "What it does"), rows)


def commands_table() -> str:
    """Every command with the first sentence of its help."""
    return markdown(("Command", "What it does"), [(f"`paceline {name}`", text) for name, text in commands().items()])


def options_table() -> str:
    """Every option and argument of every command, with its default."""
    rows = []
    for name, command in _commands(typer.main.get_command(command_line), ""):
        for parameter in command.params:
            said = f"`{', '.join(parameter.opts)}`" if parameter.param_type_name == "option" else parameter.name.upper()
            default = "" if parameter.default in (None, False) or callable(parameter.default) else parameter.default
            shown = f"`{default.value if isinstance(default, StrEnum) else default}`" if default != "" else ""
            rows.append((f"`paceline {name}`".replace(" `", "`"), said, shown, parameter.help or ""))
    return markdown(("Command", "Option or argument", "Default", "Meaning"), rows)


def variables_table() -> str:
    """Variables of the environment that are no settings."""
    return markdown(("Variable", "Meaning"), [(f"`{name}`", text) for name, text in OTHER_VARIABLES.items()])


def fields_without_effect_table() -> str:
    """Every field of a request that is accepted and changes nothing, with the values that are."""
    chat, completion = rules.CHAT_RULES, rules.COMPLETION_RULES
    groups = {
        "both": {name: rule for name, rule in chat.items() if completion.get(name) is rule},
        "a chat": {name: rule for name, rule in chat.items() if completion.get(name) is not rule},
        "a completion": {name: rule for name, rule in completion.items() if chat.get(name) is not rule},
        "a message": rules.MESSAGE_RULES,
        "`stream_options`": rules.STREAM_OPTION_RULES,
    }
    rows = []
    for group, fields in groups.items():
        for name, rule in fields.items():
            values = rule.remedy.partition("leave it out or give ")[2]
            if name in rules.LABELS:
                rows.append((f"`{name}`", group, f"any, {rule.remedy}"))
            elif rule.neutral and values:
                rows.append((f"`{name}`", group, values))
    return markdown(("Field", "Of", "Values that are accepted"), rows)


def routes(app: FastAPI) -> list[tuple[str, str, str]]:
    """(method, path, first paragraph of its description) of each route, in the order of the application."""
    return [
        (method.upper(), path, _summary(operation))
        for path, operations in app.openapi()["paths"].items()
        for method, operation in operations.items()
    ]


def _summary(operation: Mapping[str, Any]) -> str:
    text = operation.get("description") or operation["summary"]
    return " ".join(text.split("\n\n")[0].split()).rstrip(".")


def data_app() -> FastAPI:
    """The data path, built over nothing that could answer: only its routes are read."""
    nothing = cast(Any, SimpleNamespace(info=INFO, token_bytes=(), special_tokens=()))
    options = ServerOptions(INFO.model, frozenset(), INFO.context_limit)
    return create_app(nothing, nothing, FixedPolicy(), ListSink(), options)


def admin_app() -> FastAPI:
    """The admin application, built over nothing that could answer: only its routes are read."""
    nothing = cast(Any, None)
    return create_admin_app(nothing, nothing, nothing, nothing, Settings())


def commands() -> dict[str, str]:
    """The first sentence of each command's help, by its name; a group's commands carry the group's name."""
    root = typer.main.get_command(command_line)
    return {
        name: re.split(r"(?<=\.)\s", " ".join((command.help or "").split()))[0] for name, command in _commands(root, "")
    }


def _commands(command: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    if not isinstance(command, TyperGroup):
        yield prefix, command
        return
    for name, child in command.commands.items():
        yield from _commands(child, f"{prefix} {name}".strip())


def rooms_table() -> str:
    """Every room with the first sentence of its package's docstring."""
    return markdown(("Folder", "What it owns"), [(f"`{room}/`", text) for room, text in rooms(ROOT).items()])


def rooms(root: Path) -> dict[str, str]:
    """The first sentence of each top-level package, and the tests."""
    found = {}
    for package in sorted(root.glob("*/__init__.py")):
        docstring = ast.get_docstring(ast.parse(package.read_text(encoding="utf-8"))) or ""
        found[package.parent.name] = re.split(r"(?<=\.)\s", " ".join(docstring.split()))[0]
    return found | {"tests": "Mirrors the rooms."}


def run_table() -> str:
    """The committed run of ``paceline bench``, and the machine and command that made it."""
    report = json.loads(BENCH_RESULT.read_text(encoding="utf-8"))
    command, machine = report["command"], report["machine"]
    rates = {(cell["route"], cell["concurrency"], cell["arm"]): cell["tokens_per_second"] for cell in report["cells"]}
    against = {
        (ratio["route"], ratio["concurrency"], ratio["arm"], ratio["against"]): ratio for ratio in report["ratios"]
    }
    speculating = [arm for arm in command["arms"] if arm != "plain"]
    rows = []
    for route in command["routes"]:
        for concurrency in command["concurrency"]:
            ratios = [against[route, concurrency, arm, "plain"] for arm in speculating]
            rows.append(
                (
                    f"`{route}`",
                    str(concurrency),
                    f"{rates[route, concurrency, 'plain']:.0f}",
                    *(_interval(ratio) for ratio in ratios),
                )
            )
    header = ("Route", "Concurrency", "Plain, tokens/s", *(f"{arm}, times plain" for arm in speculating))
    lists = " ".join(f"--{name} {','.join(map(str, command[name]))}" for name in ("routes", "concurrency", "arms"))
    return (
        markdown(header, rows)
        + f"\n`paceline bench {lists} --repeats {command['repeats']}`: {machine['model']} in {machine['dtype']} on "
        + f"{machine['cores']} cores ({machine['processor']}), threads of the engine: {machine['threads']}. "
        + "Medians over rounds of the same prompts with the same seeds, arms in turn within one process, order "
        + "reversed; 95 % intervals over rounds. "
        + f"{report['texts_that_differ_between_arms']} outputs differ between arms. The whole "
        + f"result: [docs/results/bench.json](docs/results/bench.json){_when(report, ', ', '')}.\n\n"
        + what_intervals_say(report)
    )


def what_intervals_say(report: Mapping[str, Any]) -> str:
    """A list of the cells in which whole intervals lie above 1 or below: tuned against plain, tuned against the fixed
    arms, the fixed arms against plain."""
    from_plain = [ratio for ratio in report["ratios"] if ratio["against"] == "plain"]
    tuned = [ratio for ratio in from_plain if ratio["arm"] == "tuned"]
    fixed = [ratio for ratio in from_plain if ratio["arm"] != "tuned"]
    against = [ratio for ratio in report["ratios"] if ratio["against"] != "plain"]
    found = {
        "Tuned is faster than plain": _cells([ratio for ratio in tuned if _decided(ratio) > 0], ""),
        "Tuned is slower than plain": _cells([ratio for ratio in tuned if _decided(ratio) < 0], ""),
        "Tuned is slower than fixed arms": _cells([ratio for ratio in against if _decided(ratio) < 0], "against"),
        "Fixed arms are slower than plain": _cells([ratio for ratio in fixed if _decided(ratio) < 0], "arm"),
    }
    lines = "".join(f"* {what}: {cells or 'nowhere'}.\n" for what, cells in found.items())
    return f"By the whole interval, at these concurrencies; what is not named is undecided:\n\n{lines}"


def _cells(ratios: Sequence[Mapping[str, Any]], named: str) -> str:
    """Each route and concurrency once; with the arms that the key `named` has, unless it is empty."""
    arms: dict[str, list[str]] = {}
    for ratio in ratios:
        arms.setdefault(f"`{ratio['route']}` at {ratio['concurrency']}", []).append(ratio[named] if named else "")
    return ", ".join(f"{cell} ({', '.join(names)})" if named else cell for cell, names in arms.items())


def _decided(ratio: Mapping[str, Any]) -> int:
    """1 where the whole interval of a ratio lies above 1, -1 where it lies below, 0 where it holds 1 or is unknown."""
    if ratio["high"] is None or ratio["low"] <= 1.0 <= ratio["high"]:
        return 0
    return 1 if ratio["low"] > 1.0 else -1


def drafters_table() -> str:
    """Every drafter that comes with the package, with the curve that its training measured on held-out text."""
    rows = [
        ("`ngram`", "lookup", "text that repeats itself", "", "measured by `paceline draft test ngram`"),
        ("`suffix`", "lookup", "text that repeats itself, with variations", "", "`paceline draft test suffix`"),
    ]
    for folder in sorted(SHIPPED.iterdir()) if SHIPPED.is_dir() else ():
        if not (folder / DESCRIPTION).is_file():
            continue
        drafter = read_drafter(folder)
        size = sum(file.stat().st_size for file in folder.iterdir()) / 2**20
        curve = ", ".join(f"{share:.2f}" for share in drafter.held_out)
        kind = drafter.kind.value.replace("_", " ")
        rows.append((f"`{drafter.name}`", kind, drafter.target_model, f"{size:.1f} MiB", curve))
    return markdown(("Drafter", "Kind", "For", "Size", "S_1..S_8 on held-out text"), rows)


def fleet_run_table() -> str:
    """The committed run of ``paceline bench --scenario fleet``: tokens per second of each launch in each cell."""
    report = _result("fleet")
    if not report:
        return f"{NOT_YET}\n"
    cells = {(cell["route"], cell["concurrency"], cell["arm"]): cell for cell in report["cells"]}
    arms = list(dict.fromkeys(arm for _, _, arm in cells))
    rows = [
        (f"`{route}`", str(load), *(_rate(cells[route, load, arm]["tokens_per_second"]) for arm in arms))
        for route, load in dict.fromkeys((route, load) for route, load, _ in cells)
    ]
    same, texts = (sum(cell[name] for cell in cells.values()) for name in ("texts_as_plain", "texts"))
    machine = report["machine"]
    return (
        markdown(("Route", "Load", *arms), rows)
        + f"\n`{report['command_line']}`, vLLM {report['vllm']} on {machine['cores']} cores ({machine['processor']}): "
        + "tokens per second, geometric means over launches with their 95 % intervals. "
        + f"{same} of {texts} greedy texts are those of the first plain launch; vLLM's rounding depends on what runs "
        + f"together. The whole result: [results/fleet.json](results/fleet.json){_when(report, ', ', '')}.\n"
    )


def proxy_run_table() -> str:
    """The committed run of ``paceline bench --scenario proxy``."""
    report = _result("proxy")
    if not report:
        return f"{NOT_YET}\n"
    figures = ("added_median_ms", "added_p99_ms", "cpu_us_a_chunk")
    rows = [
        (f"`{one['mode']}`", *(_interval(one[name]) for name in figures), f"{one['mebibytes_idle']:.0f}")
        for one in report["modes"]
    ]
    added = f"Added to the first byte at {report['streams']} streams, p50 ms"
    idle = f"MiB with {report['idle_streams']} idle streams"
    machine = report["machine"]
    return (
        markdown(("Mode", added, "p99 ms", "CPU us a chunk", idle), rows)
        + f"\n`{report['command_line']}`, {machine['cores']} cores ({machine['processor']}), against a stub that "
        + "answers at once; with 95 % intervals. The whole result: [results/proxy.json](results/proxy.json)"
        + f"{_when(report, ', ', '')}.\n"
    )


def _rate(found: Mapping[str, Any]) -> str:
    if found["high"] is None:  # a single launch
        return f"{found['estimate']:.0f}"
    return f"{found['estimate']:.0f} ({found['low']:.0f} to {found['high']:.0f})"


def bars_table() -> str:
    """What the engine is held to, and what the committed runs of the scenarios measured of it."""
    rows = []
    for name, declared in DECLARED_BARS.items():
        bars = _result(name).get("bars", ())
        for bar in bars:
            found = "" if bar["measured"] is None else _interval(bar["measured"])
            rows.append((f"`{name}`", bar["name"], _bar_words(bar["bar"], bar["at_least"]), found, _verdict(bar)))
        if len(bars) < len(declared):  # a run of some routes has the bars of those alone
            told = {_without_names(bar["name"]) for bar in bars}
            missing = [bar for bar in declared if _without_names(bar[0]) not in told]
            rows += [(f"`{name}`", what, _bar_words(bar, at_least), "", NOT_YET) for what, bar, at_least in missing]
    for name, what in WITHOUT_FAULTS.items():
        faults = _result(name).get("faults")
        verdict = NOT_YET if faults is None else "fails" if faults else "holds"
        rows.append((f"`{name}`", what, "none", "" if faults is None else str(len(faults)), verdict))
    header = ("Scenario", "What", "Bar", "Measured, 95 % interval", "Holds?")
    runs = [
        f"[{path.name}](results/{path.name})" + _when(json.loads(path.read_text(encoding="utf-8")), " (", ")")
        for path in sorted(RESULTS.glob("*.json"))
    ]
    return markdown(header, rows) + f"\nThe runs: {', '.join(runs)}.\n"


def check_table() -> str:
    """What the replay predicts of fixed arms, against what the committed run of `paceline trace verify` measured."""
    report = _result("replay-check")
    rows = []
    for row in report.get("rows", ()):
        measured = row["measured"]
        arm = row["drafter"] if row["drafter"] == PLAIN else f"{row['drafter']}:{row['block_length']}"
        interval = f"{measured['estimate']:.1f} ({measured['low']:.1f} to {measured['high']:.1f})"
        found = f"{row['error_percent']:+.1f} %"
        cycles = f"{row['predicted_cycles']}, {row['measured_cycles']}"
        rows.append((str(row["load"]), arm, f"{row['predicted_tokens_per_second']:.1f}", interval, found, cycles))
    header = ("Load", "Arm", "Predicted, tokens/s", "Measured, 95 % interval", "Error", "Cycles, predicted and served")
    return markdown(header, rows)


def replay_table() -> str:
    """Every controller over all scenarios, and ours on each, as the committed run of `paceline replay` has it."""
    report = _result("replay")
    header = (
        "Controller",
        "Regret, %",
        "Time over oracle-copying, %",
        "Over ours, points",
        "Worst window, %",
        "Runs with a window > 2 %",
        "Runs with a neighbour > 1.10",
    )
    fixed = [row for row in report.get("overall", ()) if ":" in row["controller"]]
    best = min(fixed, key=lambda row: float(row["mean"]), default=None)
    shown = [row for row in report.get("overall", ()) if ":" not in row["controller"] or row is best]
    rows = []
    for row in sorted(shown, key=lambda row: (row["controller"] != "oracle", row["mean"])):
        over, copying = row["over_ours"], row["over_copying"]
        rows.append(
            (
                f"`{row['controller']}`",
                _interval({"estimate": row["mean"], "low": row["low"], "high": row["high"]}),
                "" if copying is None or row["controller"] == "oracle-copying" else _interval(copying),
                "" if over is None or row["controller"] == "paceline" else _interval(over),
                f"{row['worst_window_percent']:.1f}",
                f"{100.0 * row['window_share']:.1f} %",
                f"{100.0 * row['neighbour_share']:.1f} %",
            )
        )
    if not report:
        return markdown(header, rows)
    took = f"{len(report['seeds'])} seeds; {report['wall_seconds'] / 60.0:.0f} minutes on {report['processes']} cores"
    return markdown(header, rows) + f"\n{took}{_when(report, ' (', ')')}.\n"


def unbound_table() -> str:
    """Ours with and without its promise to neighbours, as the committed run has it."""
    report = _result("replay-unbound")
    regret: dict[str, dict[str, Mapping[str, Any]]] = {}
    for row in (*report.get("summary", ()), *report.get("overall", ())):
        regret.setdefault(row["scenario"], {})[row["controller"]] = row
    rows = [
        (
            f"`{scenario}`" if scenario != "mean" else scenario,
            f"{by['paceline']['mean']:.1f}",
            f"{by['paceline-unbound']['mean']:.1f}",
            f"{100.0 * by['paceline']['neighbour_share']:.0f} %",
            f"{100.0 * by['paceline-unbound']['neighbour_share']:.0f} %",
        )
        for scenario, by in regret.items()
    ]
    header = ("Scenario", "Regret, %", "without the bound, %", "Runs with a neighbour > 1.10", "without the bound")
    return markdown(header, rows)


def replay_bars_table() -> str:
    """What the tuner is held to in replay, and what the committed run says of it."""
    report = _result("replay")
    rows = [
        (
            bar["name"],
            _bar_words(bar["bar"], bar["at_least"]),
            "" if bar["measured"] is None else _interval(bar["measured"]),
            _verdict(bar),
        )
        for bar in report.get("bars", ())
    ]
    return markdown(("What", "Bar", "Measured, 95 % interval", "Holds?"), rows)


def _result(name: str) -> dict[str, Any]:
    """The committed result of a scenario; empty where none is."""
    path = RESULTS / ("bench.json" if name == "matrix" else f"{name}.json")
    report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return report


def _without_names(bar: str) -> str:
    """The name of a bar without what a run put into it in brackets, such as the drafter that was best."""
    return re.sub(r" \([^)]*\)", "", bar)


def _bar_words(bar: float, at_least: bool) -> str:
    return f"{'at least' if at_least else 'at most'} {bar:g}"


def _verdict(bar: Mapping[str, Any]) -> str:
    """By the numbers of a committed run: the words are today's, whenever it ran."""
    found = bar["measured"]
    if found is None:
        return Bar(bar["name"], None, bar["bar"], bar["at_least"]).verdict
    low, high = (
        -math.inf if found["low"] is None else found["low"],
        math.inf if found["high"] is None else found["high"],
    )
    return Bar(bar["name"], Interval(found["estimate"], low, high), bar["bar"], bar["at_least"]).verdict


def _when(report: Mapping[str, Any], before: str, after: str) -> str:
    """Day and commit of a result; nothing where it does not tell, as those of long ago do not."""
    told = [str(report[key]) for key in ("date", "commit") if report.get(key)]
    return f"{before}{', '.join(told)}{after}" if told else ""


def _interval(found: Mapping[str, Any]) -> str:
    if found["high"] is None or found["low"] == found["high"]:  # no spread: a single pair, or a count
        return f"{found['estimate']:.2f}"
    return f"{found['estimate']:.2f} ({found['low']:.2f} to {found['high']:.2f})"


def knobs_table() -> str:
    """Every knob of the slow loop."""
    read_by = {
        "ngram": "`ngram`",
        "suffix": "`suffix`",
        "learned": "learned drafters",
        "": "every cycle or prompt",
    }
    rows = [
        (
            f"`{knob.group}.{knob.name}`",
            f"{knob.low:g} to {knob.high:g}",
            read_by[knob.drafter],
            "yes" if knob.name in PER_ROUTE else "no",
            " and ".join(f"`{ground.value}`" for ground in knob.grounds),
        )
        for knob in KNOBS
    ]
    return markdown(("Knob", "Bounds", "Read by", "A route may have its own", "Searched `--on`"), rows)


def scenarios_table() -> str:
    """Every scenario of bench."""
    return markdown(("Scenario", "What it measures"), [(f"`{name}`", text) for name, text in SCENARIOS.items()])


def features_table() -> str:
    """Every feature that a speculating engine refuses or gets wrong; fields of one trouble in one row."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for row in sorted(ROWS, key=lambda one: (list(EngineKind).index(one.engine), list(Trouble).index(one.trouble))):
        builds = f" (builds {', '.join(sorted(row.builds))})" if row.builds else ""
        key = (row.engine, row.trouble, row.sentence + builds, row.right_from, "yes" * row.plugin, row.source)
        rows.setdefault(key, []).append(f"`{row.field}`")
    header = ("Engine", "Fields", "Trouble", "What becomes of it", "Right from", "K = 0", "Read or reported")
    return markdown(header, [(key[0], ", ".join(fields), *key[1:]) for key, fields in rows.items()])


def spellings_table() -> str:
    """What each engine calls a drafter."""
    rows = [
        (
            f"`{name}`",
            *(
                f"`{called}`" if called else ""
                for called in (each.vllm, each.sglang, each.tensorrt_llm, each.llama_server)
            ),
        )
        for name, each in SPELLINGS.items()
    ]
    return markdown(("Drafter", "vLLM", "SGLang", "TensorRT-LLM", "llama-server"), rows)


def lossy_table() -> str:
    """Every setting under which speculation changes the text."""
    rows = [(f"`{name}`", setting.engine, setting.does, setting.remedy) for name, setting in LOSSY_SETTINGS.items()]
    return markdown(("Setting", "Of", "What it does", "Remedy"), rows)


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; bars inside a cell are escaped."""
    lines = [list(header), ["---"] * len(header), *(list(row) for row in rows)]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


def rewritten(text: str, tables: Mapping[str, Callable[[], str]]) -> str:
    """`text` with each table made again. Raises ValueError for a table without its markers."""
    for name, make in tables.items():
        opening, closing = f"<!-- {name} -->", f"<!-- /{name} -->"
        if text.count(opening) != 1 or text.count(closing) != 1:
            raise ValueError(f"the text needs one line {opening} and one line {closing} after it")
        before, rest = text.split(opening)
        after = rest.split(closing)[1]
        text = f"{before}{opening}\n{make()}{closing}{after}"
    return text


def code_lines(text: str) -> Iterator[str]:
    """Every line of a fenced block and every inline code span: what a reader may type."""
    fenced = re.findall(r"^```[a-z]*\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    for block in fenced:
        for line in block.replace("\\\n", " ").splitlines():
            yield line.strip().removeprefix("$ ")
    without = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    yield from re.findall(r"`([^`\n]+)`", without)


def unknown_targets(text: str, makefile: str) -> list[str]:
    """Targets that the text tells to make and that the Makefile does not have."""
    known = set(re.findall(r"^([a-z][a-z-]*):", makefile, flags=re.MULTILINE))
    told = {
        word
        for line in code_lines(text)
        if (match := re.match(r"make((?: [a-z][a-z-]*)+)", line))
        for word in match[1].split()
    }
    return sorted(told - known)


def unknown_commands(text: str, commands: set[str]) -> list[str]:
    """``paceline X`` that the text names and that the command line does not have. `commands` has subcommands with
    their group, e.g. ``model fetch``."""
    groups = {command.split()[0] for command in commands if " " in command}
    unknown = set()
    for line in code_lines(text):
        for match in re.finditer(r"(?:^|[\s/])paceline ([a-z][a-z-]*)(?: ([a-z][a-z-]*))?", line):
            told = f"{match[1]} {match[2]}" if match[1] in groups and match[2] else match[1]
            if told not in commands | groups:
                unknown.add(told)
    return sorted(unknown)


def broken_links(path: Path, root: Path) -> list[str]:
    """Links of a Markdown file to files that are not there, or to headings that no file has."""
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        there = file.is_relative_to(root) and file.exists()
        if not there or (anchor and anchor not in anchors(file.read_text(encoding="utf-8"))):
            broken.append(target)
    return broken


def anchors(text: str) -> set[str]:
    """The anchors that a Markdown file's headings get."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


TABLES: Mapping[str, Mapping[str, Callable[[], str]]] = {
    "README.md": {"run": run_table, "drafters": drafters_table},
    "docs/measuring.md": {"bars": bars_table, "fleet": fleet_run_table, "scenarios": scenarios_table},
    "docs/how-it-works.md": {"rooms": rooms_table},
    "docs/replay.md": {
        "check": check_table,
        "replay": replay_table,
        "bars": replay_bars_table,
        "unbound": unbound_table,
    },
    "docs/tuning.md": {"knobs": knobs_table},
    "docs/engines.md": {"features": features_table, "spellings": spellings_table, "lossy": lossy_table},
    "docs/sidecar.md": {"proxy": proxy_run_table},
    "docs/requests.md": {"neutral": fields_without_effect_table},
    "docs/reference.md": {
        "commands": commands_table,
        "options": options_table,
        "routes": routes_table,
        "settings": settings_table,
        "variables": variables_table,
        "metrics": metrics_table,
        "fleet": fleet_metrics_table,
        "reasons": reasons_table,
    },
}
"""The tables of each document, by the name in their markers."""

if __name__ == "__main__":
    for document, tables in TABLES.items():
        path = ROOT / document
        path.write_text(rewritten(path.read_text(encoding="utf-8"), tables), encoding="utf-8")
