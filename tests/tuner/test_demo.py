"""``paceline demo`` on the tiny model: the report, its keys, and the exit code."""

import itertools
import json
import os
import signal
import threading
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from engine.process import EngineClient, EngineGoneError
from policies.types import Arm, Interval, LoadStep, Policy, PolicyState
from tests.engine.tiny_model import make_tiny_model
from tests.system.live_service import tiny_settings
from tests.tuner.telemetry_examples import policy, snapshot
from tuner.cli import app
from tuner.demo import LEGEND, Traffic, as_json, contexts_table, run_demo, schedule_text, speedup_text, verdict_text
from tuner.settings import GuardrailSettings, Settings, TunerSettings
from tuner.snapshot import Throughput
from tuner.wording import counted, program
from tuner.workload import ROUTES

MINUTES = 0.06
QUICK = TunerSettings(
    switchback_window_seconds=0.1, switchback_share_start=0.5, switchback_share_floor=0.5, tick_seconds=0.05
)
"""Half of the time in plain windows to the end, so that a few seconds are sure to have some."""
CONTEXT_KEYS = {"route", "language", "drafter", "schedule", "state", "reason", "note", "acceptance", "speedup"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


def test_a_short_run_learns_every_route_and_reports_it(model: Path, tmp_path: Path) -> None:
    console = Console(file=StringIO(), width=160)
    database = tmp_path / "paceline.db"
    # On a model this small drafting loses, and a guardrail that finds out before the first plain window keeps it off.
    unguarded = {"guardrails": GuardrailSettings(enabled=False)}
    settings = tiny_settings(model, database, QUICK).model_copy(update=unguarded)
    assert run_demo(settings, tmp_path / "demo.json", MINUTES, console) == 0
    report = json.loads((tmp_path / "demo.json").read_text(encoding="utf-8"))
    assert report["requests"] > len(ROUTES)
    assert report["errors"] == 0
    assert {context["route"] for context in report["contexts"]} == set(ROUTES)
    for context in report["contexts"]:
        assert context.keys() == CONTEXT_KEYS
        assert context["speedup"].keys() == {"estimate", "low", "high"}
        assert context["state"] in list(PolicyState)
        assert all(low <= high for low, high, _, _ in context["schedule"])
        assert all(before[1] < after[0] for before, after in itertools.pairwise(context["schedule"])), (
            "a load has one block length; 0 (plain) may stand between others"
        )
    assert report["tokens_per_second"].keys() == {"tuned", "plain"}
    assert report["tokens_per_second"]["tuned"] > 0
    assert report["tokens_per_second"]["plain"] > 0
    assert report["database"] == f"sqlite:///{database}"
    assert isinstance(console.file, StringIO)
    printed = console.file.getvalue()
    after = printed[printed.index("Next, ") :].split("\n")[1:4]
    first = report["contexts"][0]
    assert [line.rstrip() for line in after] == [
        "paceline serve",
        f"paceline explain {first['route']} --language {first['language']}",
        "paceline bench --routes code-edit,chat --concurrency 1,4 --arms plain,ngram:4,tuned",
    ]
    assert "plain / tuned TPOT" in printed
    assert f"what is learned goes to sqlite:///{database}" in "".join(printed.split("\n"))
    assert printed.index("Against measured plain") < printed.index("plain / tuned TPOT") < printed.index("K: tokens")
    stages = ["starting the engine process", "loading tiny", "preparing the kernels", "reading and packing the weights"]
    stages += ["loading the drafter", "calibrating", "timing the linear layers", "reading the vocabulary"]
    stages += ["reading the tokenizer", "opening the store", "serving tiny"]
    places = [printed.find(stage) for stage in stages]
    assert -1 not in places
    assert places == sorted(places)


def test_a_failed_request_is_counted_and_the_exit_code_is_1(model: Path, tmp_path: Path) -> None:
    """Prompts longer than the context are refused."""
    console = Console(file=StringIO(), width=160)
    settings = tiny_settings(model, tmp_path / "paceline.db")
    cramped = settings.model_copy(update={"engine": settings.engine.model_copy(update={"context_limit": 512})})
    assert run_demo(cramped, tmp_path / "demo.json", MINUTES / 3, console) == 1
    report = json.loads((tmp_path / "demo.json").read_text(encoding="utf-8"))
    assert 0 < report["errors"] < report["requests"]
    assert isinstance(console.file, StringIO)
    printed = console.file.getvalue()
    assert f"{report['errors']} of {counted(report['requests'], 'request')} failed; the first: 400" in printed


def test_an_engine_that_ends_ends_the_run(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = threading.Event()
    start = EngineClient.start

    async def start_and_end(*arguments: Any) -> EngineClient:
        client = await start(*arguments)
        os.kill(client.pid, signal.SIGKILL)
        started.set()
        return client

    monkeypatch.setattr(EngineClient, "start", start_and_end)
    with pytest.raises(EngineGoneError):
        run_demo(tiny_settings(model, tmp_path / "paceline.db"), None, 5.0, Console(file=StringIO()))
    assert started.is_set()


def test_a_password_of_the_database_is_in_no_report() -> None:
    report = as_json(snapshot(policy()), Traffic(requests=3, errors=1), "postgresql://ada:secret@host/paceline")
    assert report["database"] == "postgresql://ada:***@host/paceline"
    assert "secret" not in json.dumps(report)


def test_the_table_is_whole_on_80_columns() -> None:
    """With routes, languages, schedules and gains as long as they get."""
    steps = tuple(LoadStep(low, low + 1, 12, "ngram") for low in range(1, 16, 2))
    policies = [
        replace(policy(route, language, Arm("ngram", steps), Interval(10.42, 10.31, 11.55)), state=state)
        for route, language in (("code-edit", "code"), ("extract", "und"))
        for state in PolicyState
    ]
    for one in policies:
        traffic = Traffic(requests=12_000, concurrency=8, tpot_seconds={("code-edit", "code"): [1.2345]})
        console = Console(file=StringIO(), width=80)
        console.print(contexts_table(snapshot(one), traffic, 80))
        assert isinstance(console.file, StringIO)
        lines = console.file.getvalue().splitlines()
        assert max(map(len, lines)) <= 80
        [row] = [line for line in lines if "/" in line and one.context.route in line]
        context = f"{one.context.route}/{one.context.language}"
        tpot = ["1234.5"] if context == "code-edit/code" else []
        cells = [context, one.state.value, "12,12,12", "0.90", *tpot, "10.42", "[10.31,", "11.55]"]
        assert row.split() == cells
        assert "…" not in console.file.getvalue()


@pytest.mark.parametrize(
    ("requests", "states", "headline"),
    [
        (1, ["learning"], "1 request at concurrency 4, 0 failed; 1 context, 1 learning"),
        (
            2,
            ["on", "off", "learning", "on"],
            "2 requests at concurrency 4, 0 failed; 4 contexts, 1 learning, 2 on, 1 off",
        ),
        (0, [], "0 requests at concurrency 4, 0 failed; 0 contexts"),
    ],
)
def test_the_headline_counts_every_state(requests: int, states: list[str], headline: str) -> None:
    policies = [replace(policy(f"route-{index}"), state=PolicyState(state)) for index, state in enumerate(states)]
    table = contexts_table(snapshot(*policies), Traffic(requests=requests, concurrency=4), 80)
    assert table.title == headline


def test_the_verdict_counts_what_is_faster_slower_open_and_unmeasured() -> None:
    intervals = [Interval(1.5, 1.2, 1.8), Interval(0.8, 0.7, 0.9), Interval(1.1, 0.9, 1.3), None, None]
    policies = [replace(policy(f"route-{index}", speedup=found)) for index, found in enumerate(intervals)]
    counts = "Against measured plain, of 5 contexts: 1 faster, 1 slower, 1 open, 2 unmeasured"
    known = replace(snapshot(*policies), engine_gain=Interval(1.28, 0.75, 2.21))
    assert verdict_text(known) == f"{counts}. All together: 1.28x at equal load (95 % interval 0.75 to 2.21)."
    unknown = replace(known, engine_gain=None, throughput=Throughput(300, 2.0, 100, 1.0))
    assert verdict_text(unknown) == f"{counts}. All together: not known yet.", "rates at unequal load are no gain"
    gains = [as_json(found, Traffic(), "sqlite://")["gain"] for found in (known, unknown)]
    assert gains == [
        {"estimate": 1.28, "low": 0.75, "high": 2.21},
        {"estimate": None, "low": None, "high": None},
    ]


def test_the_legend_says_that_a_schedule_is_an_estimate_while_little_is_known() -> None:
    assert "While little is known K is an estimate that moves." in LEGEND


@pytest.mark.parametrize("own", [True, False])
def test_a_demo_has_a_database_of_its_own_unless_one_is_named(
    own: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Settings] = []

    def run(settings: Settings, *rest: object) -> int:
        asked.append(settings)
        return 0

    monkeypatch.setattr("tuner.demo.run_demo", run)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    if not own:
        monkeypatch.setenv("PACELINE_DATABASE__URL", "sqlite:///named.db")
    for _ in range(2):
        assert CliRunner().invoke(app, ["demo"]).exit_code == 0
    first, second = (settings.database.url for settings in asked)
    if own:
        assert first != second
        assert first.startswith(f"sqlite:///{tmp_path}/paceline-demo-")
    else:
        assert (first, second) == ("sqlite:///named.db",) * 2


def test_the_program_is_called_by_its_path_where_the_shell_would_not_find_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.argv", [".venv/bin/paceline", "demo"])
    assert program() == ".venv/bin/paceline"
    (tmp_path / "paceline").touch(0o755)
    assert program() == "paceline"
    (tmp_path / "paceline").unlink()
    monkeypatch.setattr("sys.argv", ["-c"])
    assert program() == "paceline"


def test_schedules_and_speedups_are_written_for_people() -> None:
    on: Policy = policy()
    assert schedule_text(on) == "1-2: 8, 3-4: 4"
    steps = (LoadStep(1, 2, 8, "head"), LoadStep(3, 4, 4, "ngram"), LoadStep(5, 6, 0, "ngram"))
    assert schedule_text(replace(on, arm=Arm("head", steps))) == "1-2: head 8, 3-4: ngram 4, 5-6: off"
    assert speedup_text(on) == "1.90 [1.70, 2.10]"
    assert speedup_text(policy(speedup=None)) == "unknown"
