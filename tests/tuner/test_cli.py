"""The command line against a real admin port, and without one."""

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.metadata import version
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import typer
import uvicorn
import yaml
from rich.console import Console
from rich.table import Table
from typer.testing import CliRunner, Result

from policies import Arm, Interval, Reason
from policies.cycle_policy import Copier, Outlook
from policies.decision_id import DecisionFields, encode
from policies.store import Store
from policies.types import UNKNOWN_LENGTH
from tests.policies import store_samples as samples
from tests.tuner.scripted_steering import ScriptedSteering, snapshot
from tuner.acceptance import Acceptance
from tuner.api.app import create_admin_app
from tuner.cli import app
from tuner.cli.admin_client import AdminClient
from tuner.cli.output import make_console, print_table
from tuner.cli.service import run_console
from tuner.cli.tables import print_status
from tuner.guardrails import Check, GuardrailState, Standing, Verdict
from tuner.recorder import Recorder, RecorderOptions
from tuner.safety import Gate, SafetyState
from tuner.settings import EngineSettings, Settings
from tuner.settings_loader import load_settings

DEADLINE_SECONDS = 60.0
PIN = ("pin", "code-edit", "--language", "code", "--drafter", "ngram", "--block-length", "4")
WHY = ("--for", "2h", "--reason", "a trial")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


class Admin:
    """An admin port on a free loopback port, in a thread."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.store = Store(f"sqlite:///{folder / 'paceline.db'}")
        self.steering = ScriptedSteering(snapshot())
        self.recorder = Recorder(self.store, RecorderOptions(samples.MODEL))
        self.recorder.start()
        assert self.recorder.flush(DEADLINE_SECONDS)

        async def render() -> bytes:
            return b""

        admin_app = create_admin_app(self.steering, self.recorder, render, lambda: True, settings)
        self._socket = socket.create_server(("127.0.0.1", 0))  # listens before the server runs: nothing to wait for
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._server = uvicorn.Server(uvicorn.Config(admin_app, log_config=None, lifespan="off", ws="none"))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(DEADLINE_SECONDS)
        self._socket.close()
        self.recorder.close(DEADLINE_SECONDS)

    def actions(self) -> list[str]:
        """What the audit says was done, newest first."""
        assert self.recorder.flush(DEADLINE_SECONDS)
        return [entry.action for entry in self.store.audit(10)]


@pytest.fixture
def admin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Admin]:
    started = Admin(tmp_path, Settings())
    monkeypatch.setenv("PACELINE_SERVER", started.url)
    yield started
    started.close()


@pytest.fixture
def nothing_listens(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a port that is taken and answers nobody."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


def test_help_loads_no_tensor_library() -> None:
    code = (
        "import sys\nfrom tuner.cli import main\nsys.argv = ['paceline', '--help']\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code\n"
        "print('LOADED', sorted({'torch', 'transformers', 'triton', 'optuna', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "LOADED []"
    for name in ("serve", "demo", "bench", "status", "explain", "pin", "unpin", "off", "on", "model", "config"):
        assert f" {name} " in done.stdout


def test_status_shows_contexts_without_colour(admin: Admin) -> None:
    result = run("status")
    assert result.exit_code == 0
    assert "\x1b" not in result.stdout
    assert "1-2: ngram 8, 3-8: suffix 4" in result.stdout
    assert "1.62 (1.50 to 1.74)" in result.stdout
    assert "tuned 90, plain 60 tokens per busy second" in result.stdout


def test_json_and_yaml_hold_the_same(admin: Admin) -> None:
    as_json = json.loads(run("status", "-o", "json").stdout)
    as_yaml = yaml.safe_load(run("status", "-o", "yaml").stdout)
    assert as_json == as_yaml
    assert as_json["contexts"][0]["route"] == "code-edit"


def test_explain_prints_ladder_reason_and_evidence(admin: Admin) -> None:
    result = run("explain", "code-edit", "--language", "code")
    assert result.exit_code == 0
    for part in (
        "version 7, on: ngram and suffix, K by load 1-2: ngram 8, 3-8: suffix 4",
        "LEARNED: Learned from the acceptance",
        "kill switch",
        "engine default",
        "37 requests and 412 cycles",
        "1.62x plain, 95 % interval 1.50 to 1.74",
        "n-gram at 8 against measured plain: faster.",
    ):
        assert part in result.stdout


def test_one_block_length_for_every_load_is_told_so(admin: Admin) -> None:
    policy = admin.steering.snapshot.policies["code-edit", "code"]
    pinned = replace(policy, arm=Arm.fixed("ngram", 4), evidence=replace(policy.evidence, speedup=None))
    admin.steering.snapshot = replace(admin.steering.snapshot, policies={("code-edit", "code"): pinned})
    shown = run("explain", "code-edit", "--language", "code").stdout
    assert ": ngram, K 4 at every load\n" in shown
    told = run("status").stdout
    assert "4 at every load" in told
    assert "Speedups are measured again since the server started: unknown" in told


def test_status_on_80_columns_folds_no_cell(admin: Admin) -> None:
    client = AdminClient(admin.url, None)
    console = Console(width=80, file=StringIO(), markup=False, highlight=False)
    print_status(console, client.get("status"), client.get("policies")["policies"])
    assert isinstance(console.file, StringIO)
    lines = console.file.getvalue().splitlines()
    place = next(index for index, line in enumerate(lines) if line.startswith("context "))
    assert [line.split() for line in lines[place : place + 2]] == [
        ["context", "state", "drafter", "K", "at", "1,4,8,16", "speedup", "(95", "%)", "requests"],
        ["code-edit/code", "on", "ngram", "8,4,4,0", "1.62", "(1.50", "to", "1.74)", "37"],
    ]


WIDTH = 80
ROW = {
    "name": "smollm2-135m-general",
    "kind": "feature_head",
    "origin": "shipped",
    "target": "SmolLM2-135M-Instruct",
    "file_bytes": 8 << 20,
    "held_out": (0.59, 0.35, 0.22, 0.15, 0.10, 0.07, 0.06, 0.04),
    "misfit": "",
}


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> StringIO:
    """A terminal of 80 columns in the place of what commands print to."""
    shown = StringIO()
    console = Console(width=WIDTH, file=shown, force_terminal=True, color_system=None, markup=False, highlight=False)
    for module in ("draft", "service", "operator"):
        monkeypatch.setattr(f"tuner.cli.{module}.make_console", lambda: console)
    return shown


def assert_whole(shown: str, cells: Iterable[str]) -> None:
    """No line is longer than the terminal, and no word of a cell is folded."""
    assert max(map(len, shown.splitlines())) <= WIDTH
    words = {word.strip(":;") for line in shown.splitlines() for word in line.split()}
    assert {word.strip(":;") for cell in cells for word in cell.split()} <= words


def test_the_list_of_drafters_is_whole_on_80_columns(narrow: StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    misfit = "smollm2-135m-general was trained for a target whose hidden size is 576, and this one has 960"
    rows = [ROW, ROW | {"name": "other", "misfit": misfit}]
    monkeypatch.setattr("tuner.root.drafter_rows", lambda settings: rows)
    result = run("draft", "list")
    assert result.exit_code == 0, result.output
    curve = " ".join(f"{share:.2f}" for share in (0.59, 0.35, 0.22, 0.15, 0.10, 0.07, 0.06, 0.04))
    assert_whole(narrow.getvalue(), ["smollm2-135m-general", "feature head", "SmolLM2-135M-Instruct", curve, misfit])


def test_the_settings_are_whole_on_80_columns(narrow: StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_ROUTES__CODE_EDIT__DEFAULT_ARM__DRAFTER", "ngram")
    monkeypatch.setenv("PACELINE_ROUTES__CODE_EDIT__DEFAULT_ARM__BLOCK_LENGTH", "4")
    monkeypatch.setenv("PACELINE_DATABASE__URL", "sqlite:////a/long/path/to/a/folder/of/databases/that/is/shared/p.db")
    assert run("config", "show", "--origin").exit_code == 0
    rows = load_settings().values()
    cells = [", ".join(cell) if isinstance(cell, list) else str(cell) for row in rows for cell in row if cell]
    assert_whole(narrow.getvalue(), [cell for cell in cells if cell != "{}"])
    assert "['" not in narrow.getvalue()


def test_the_status_is_whole_on_80_columns(narrow: StringIO, admin: Admin) -> None:
    assert run("status").exit_code == 0
    assert_whole(narrow.getvalue(), ["code-edit/code", "8,4,4,0", "1.62 (1.50 to 1.74)"])


def _options(command: Any) -> Iterator[tuple[list[str], list[str]]]:
    """(path, options) of every command."""
    for name, child in getattr(command, "commands", {}).items():
        own = [option for parameter in child.params for option in parameter.opts if option.startswith("--")]
        yield [name], own
        for path, options in _options(child):
            yield [name, *path], options


@pytest.mark.parametrize(
    ("path", "options"), list(_options(typer.main.get_command(app))), ids=lambda part: " ".join(part)[:40]
)
def test_help_is_whole_on_80_columns(path: list[str], options: list[str]) -> None:
    result = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"})
    assert result.exit_code == 0
    assert max(map(len, result.output.splitlines())) <= WIDTH
    assert "…" not in result.output
    assert all(option in result.output for option in options)


@pytest.mark.parametrize("path", [[], ["draft"], ["model"], ["config"]])
def test_no_line_about_a_command_is_cut_on_80_columns(path: list[str]) -> None:
    result = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"})
    commands = result.output.partition("Commands:")[2].splitlines()
    assert len(commands) > 1
    assert [line for line in commands if "..." in line or len(line) > WIDTH] == []


def test_what_a_file_gets_has_no_blanks_at_the_ends_of_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    file = StringIO()
    monkeypatch.setattr("sys.stdout", file)
    table = Table("a", "a longer heading than its cells", title="a title", box=None)
    table.add_row("1", "2")
    run_console().log("a line")
    for console in (run_console(), make_console()):
        console.print(table)
    lines = file.getvalue().splitlines()
    assert lines[0].endswith("a line")
    assert sum(line.strip() == "a title" for line in lines) == 2
    assert [line for line in lines if line != line.rstrip()] == []


def test_a_table_that_does_not_fit_is_paragraphs_of_whole_words() -> None:
    table = Table("route", "an interval", "the curve", title="over all of them")
    table.add_row("code-edit", "1.42 [1.31, 1.55]", "0.59 0.35 0.22")
    table.add_section()
    table.add_row("", "", "0.57")
    console = Console(width=40, file=StringIO())
    print_table(console, table)
    assert isinstance(console.file, StringIO)
    assert console.file.getvalue().splitlines() == [
        "over all of them",
        "code-edit: an interval 1.42 [1.31,",
        "  1.55]; the curve 0.59 0.35 0.22",
        "code-edit: the curve 0.57",
    ]
    wide = Console(width=80, file=StringIO())
    print_table(wide, table)
    assert isinstance(wide.file, StringIO)
    assert "│ code-edit │ 1.42 [1.31, 1.55] │ 0.59 0.35 0.22 │" in wide.file.getvalue()


def test_the_version_is_told() -> None:
    result = run("--version")
    assert (result.exit_code, result.stdout) == (0, f"{version('paceline')}\n")


def test_a_drafter_is_unloaded_with_a_reason(admin: Admin) -> None:
    assert (run("draft", "unload", "ngram").exit_code, admin.actions()) == (2, [])
    refused = run("draft", "unload", "ngram", "--reason", "it lost")
    assert refused.stderr == "The drafters of this engine are fixed.\n"


def test_status_tells_the_cost_of_tokens_where_a_price_is_set(tmp_path: Path) -> None:
    admin = Admin(tmp_path, Settings(engine=EngineSettings(price_per_hour=0.36)))
    try:
        result = run("status", "--server", admin.url)
    finally:
        admin.close()
    assert "cost       tuned 1.11, plain 1.67 for a million output tokens on a busy machine" in result.stdout


def test_status_tells_what_was_gained_what_may_be_lost_and_what_is_held(admin: Admin) -> None:
    assert "gain       not known yet" in run("status").stdout
    held = GuardrailState("chat", Check.TTFT, Verdict.FAILED, Standing.TRIPPED, 0.05, 40, None, time.time() + 300.0, 1)
    admin.steering.snapshot = replace(
        admin.steering.snapshot,
        engine_gain=Interval(1.5, 1.4, 1.6),
        safety=SafetyState(Gate.PROVEN, 2.0, 5.0),
        shadow_share=0.004,
        changes_found={"acceptance": 2, "cost": 0},
        guardrails=(held,),
    )
    told = run("status").stdout
    assert "gain       1.50x plain at equal load, over everything (95 % interval 1.40 to 1.60)" in told
    assert "2.0 of 5.0 engine seconds may be lost to plain; only drafters that are proved to pay may be used" in told
    assert "cycles     predicted to within 4.0%; shadows took 0.4% of the time" in told
    assert "changes    acceptance 2, since the start" in told
    assert "guardrail  chat: ttft: plain for" in told


def test_explain_has_a_table_of_the_drafters(admin: Admin) -> None:
    curve = Acceptance().curves("ngram", ())[0]
    rising = tuple(max(0.0, 0.9 - 0.05 * place) for place in range(16))
    curve = replace(curve, unconditioned=rising, low=rising, high=rising, blocks=50.0)
    admin.steering.snapshot = replace(admin.steering.snapshot, curves={"ngram": {("code-edit", "code"): curve}})
    told = run("explain", "code-edit", "--language", "code").stdout
    assert "blocks of which at least so many drafts are kept" in told
    assert "90% (90%-90%)" in told


def test_explain_reads_a_decision_that_was_not_sampled(admin: Admin) -> None:
    decision_id = encode(DecisionFields(12, "ngram", 8, Reason.LEARNED, "chat", "da", "5f-1"))
    result = run("explain", "--decision", decision_id)
    assert result.exit_code == 0
    assert "chat/da, policy version 12" in result.stdout
    assert "ngram, up to 8 tokens a cycle" in result.stdout
    assert "not sampled" in result.stdout


def test_explain_shows_what_became_of_a_sampled_request(admin: Admin) -> None:
    stats = samples.request_stats(1)
    admin.recorder.record_decision(stats)
    assert admin.recorder.flush(DEADLINE_SECONDS)
    result = run("explain", "--decision", stats.decision.decision_id)
    assert "stop after 48 tokens; 60 proposed, 50 verified, 28 accepted" in result.stdout
    assert "50 ms to the first token, then 10.0 ms a token" in result.stdout
    assert "drawn      by chance, with probability 0.25" in result.stdout


def test_pin_and_unpin_change_what_is_in_force(admin: Admin) -> None:
    pinned = run(*PIN, *WHY)
    assert pinned.exit_code == 0
    assert "code-edit/code is pinned to ngram at block length 4 for" in pinned.stdout
    assert admin.steering.snapshot.pins[0].block_length == 4
    assert "code-edit/code: ngram at 4" in run("status").stdout
    unpinned = run("unpin", "code-edit", "--language", "code")
    assert unpinned.stdout == "The pin of code-edit/code is taken back; LEARNED decides.\n"
    assert admin.actions() == ["unpin", "pin"]
    assert run("pin", "chat", "--language", "*", *PIN[4:], *WHY).exit_code == 0
    every = run("unpin", "chat", "--language", "*").stdout
    assert every == "The pin of chat/* is taken back; each language is served by its own policy, or its own pin.\n"
    again = run("unpin", "code-edit", "--language", "code")
    assert (again.exit_code, "There is no pin" in again.stderr) == (2, True)


def test_a_context_whose_pin_is_taken_back_is_held_by_the_pin_for_every_language(admin: Admin) -> None:
    for language in ("code", "*"):
        assert run("pin", "code-edit", "--language", language, *PIN[4:], *WHY).exit_code == 0
    told = run("unpin", "code-edit", "--language", "code").stdout
    assert told == "The pin of code-edit/code is taken back; the pin for every language holds it.\n"


def test_a_pin_to_plain_needs_no_block_length(admin: Admin) -> None:
    pinned = run(*PIN[:4], "--drafter", "none", *WHY)
    assert pinned.exit_code == 0, pinned.output
    assert "code-edit/code is pinned to plain for" in pinned.stdout
    refused = run(*PIN[:6], *WHY)
    assert (refused.exit_code, "Give --block-length, which only" in refused.stderr) == (2, True)
    assert admin.actions() == ["pin"]


def test_status_names_what_copies_first_and_explains_k_and_changes_where_they_are_shown(admin: Admin) -> None:
    told = run("status").stdout
    assert "K is an estimate: it moves while little is known" in told
    assert "proposes first" not in told
    assert "look for other load on the machine" not in told
    served = admin.steering.snapshot
    copiers = {("code-edit", "code"): Copier("suffix", 6, (Outlook((0.9,), (1.0,)),))}
    admin.steering.snapshot = replace(
        served, cycle_policy=replace(served.cycle_policy, copiers=copiers), changes_found={"cost": 16}
    )
    told = run("status").stdout
    assert "ngram after suffix" in told
    assert "that one proposes first, by copying" in told
    assert "look for other load on the machine" in told
    [context] = json.loads(run("status", "-o", "json").stdout)["contexts"]
    assert (context["copier"], context["copier_most_load"]) == ("suffix", 6)


def test_off_and_on_are_the_kill_switch(admin: Admin) -> None:
    killed = run("off", "--all", "--for", "2h", "--reason", "[bold]an incident[/bold]")
    assert killed.exit_code == 0
    assert "Speculation is off for every route for" in killed.stdout
    assert "[bold]an incident[/bold]" in killed.stdout
    assert admin.steering.snapshot.kill_switches[0].route == "*"
    assert "kill       every route for" in run("status").stdout
    one = run("off", "chat", "--reason", "slow", "-o", "json")
    assert json.loads(one.stdout)["active"] is True
    still = run("on", "chat").stdout
    assert still.startswith("Speculation is still off for every route for ")
    assert still.endswith(": [bold]an incident[/bold]; `paceline on --all` takes that back.\n")
    assert run("on", "--all").stdout == "Speculation is on for every route.\n"
    assert admin.actions() == ["unkill", "unkill", "kill", "kill"]


def test_an_order_that_no_server_can_follow_says_so_with_the_remedy(admin: Admin) -> None:
    remedy = "launch one without a drafter"
    admin.steering.snapshot = replace(admin.steering.snapshot, unmet=f"no server here decodes plain: {remedy}")
    assert remedy not in run("status").stdout
    pinned = run("pin", "chat", "-l", "en", "--drafter", "none", "--for", "1h", "--reason", "a trial")
    assert remedy in pinned.stdout
    assert remedy in run("status").stdout
    assert remedy in run("explain", "chat", "-l", "en").stdout
    run("unpin", "chat", "-l", "en")
    assert remedy in run("off", "--all", "--reason", "an incident").stdout
    assert remedy in run("explain", "chat", "-l", "en").stdout


def test_a_block_length_that_nobody_knows_is_told_as_unknown(admin: Admin) -> None:
    (key, policy), *_ = admin.steering.snapshot.policies.items()
    unknown = replace(policy, arm=Arm.fixed("ngram", UNKNOWN_LENGTH))
    admin.steering.snapshot = replace(admin.steering.snapshot, policies={key: unknown})
    for told in (run("status").stdout, run("explain", key[0], "-l", key[1]).stdout):
        assert "unknown at every load" in told
        assert "-1" not in told
    decision = run("explain", "--decision", "v1.ngram-unknown.LEARNED.chat.en.1-2").stdout
    assert "ngram, nobody knows how many tokens a cycle" in decision


def test_on_for_all_names_the_routes_that_are_still_off(admin: Admin) -> None:
    run("off", "--all", "--reason", "an incident")
    run("off", "chat", "--reason", "slow")
    still = "Speculation is on for every route but chat: `paceline on ROUTE` takes that back.\n"
    assert run("on", "--all").stdout == still
    assert run("on", "chat").stdout == "Speculation is on for chat.\n"


@pytest.mark.parametrize(
    ("arguments", "exit_code", "sentence"),
    [
        (("off", "--reason", "x"), 2, "Give one ROUTE, or --all."),
        (("off", "chat", "--all", "--reason", "x"), 2, "Give one ROUTE, or --all."),
        (("on",), 2, "Give one ROUTE, or --all."),
        (("explain",), 2, "Give ROUTE with --language L, or --decision ID alone."),
        (("explain", "chat"), 2, "Give ROUTE with --language L, or --decision ID alone."),
        (("explain", "--decision", "nonsense"), 2, "decision id 'nonsense' is not one of this server's"),
        (("explain", "..", "-l", "status"), 2, "is empty or dots alone: give its name."),
        (("explain", "--decision", ""), 2, "is empty or dots alone: give its name."),
        (("off", "chat", "--reason", "\udcff"), 2, "holds bytes that cannot be sent"),
        (("unpin", "\udcff", "-l", "da"), 2, "holds bytes that cannot be sent"),
        (("status", "--token", "t\u00f6ken"), 2, "The token has characters that no header takes"),
        (("explain", "nowhere", "-l", "da"), 2, "Route 'nowhere' is not configured; the routes are chat"),
        (("off", "chat", "--reason", "x", "--for", "soon"), 2, "'soon' is not a duration above zero: write 90s"),
        (("unpin", "chat", "-l", "Danish"), 2, "'Danish' is no language: write a subtag such as da"),
        ((*PIN[:5], "", *PIN[6:], *WHY), 2, 'drafter is ""; give the name of a drafter'),
        ((*PIN[:-1], "17", *WHY), 2, "--block-length"),
        ((*PIN[:-1], "-1", *WHY), 2, "--block-length"),
        ((*PIN, "--for", "2h"), 2, "--reason"),
        ((*PIN, "--for", "soon", "--reason", "x"), 2, "Invalid value for '--for': 'soon' is not a duration above"),
        (("off", "chat", "--reason", "x", "--for", "0s"), 2, "Invalid value for '--for': '0s' is not a duration"),
        (("draft", "train", "x", "--kind", "eagle"), 2, "'feature_head', 'draft_model'"),
        (("nonsense",), 2, "nonsense"),
        (("bench", "--routes", "nowhere"), 2, "'nowhere' is not configured"),
        (("bench", "--concurrency", "1,zero"), 2, "'zero' is not a number above 0"),
        (("serve", "--port", "70000"), 2, "server.port is 70000 (from the command line): it should be less"),
        (("serve", "--config", "absent.yaml"), 2, "absent.yaml cannot be read (No such file or directory)"),
    ],
)
def test_a_command_that_cannot_be_ends_with_a_sentence_and_changes_nothing(
    admin: Admin, arguments: tuple[str, ...], exit_code: int, sentence: str
) -> None:
    result = run(*arguments)
    assert result.exit_code == exit_code, result.output
    assert sentence in " ".join(result.stderr.replace("│", " ").split())
    assert "Traceback" not in result.output
    assert admin.steering.calls == []


def test_without_a_server_the_remedy_is_named(nothing_listens: str) -> None:
    result = run("status", "--server", nothing_listens)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"No admin API answers at {nothing_listens} (")
    assert result.stderr.strip().endswith("start `paceline serve` or `paceline sidecar`, or give --server URL.")


def test_a_server_that_takes_too_long_is_not_an_absent_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.cli.admin_client.TIMEOUT_SECONDS", 0.01)
    monkeypatch.setattr("tuner.cli.operator.LOAD_TIMEOUT_SECONDS", 0.02)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # the system connects for it
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        result = run("draft", "load", "suffix", "--reason", "a trial", "--server", url)
    told = f"{url} did not answer within 0.02 s; it may still be doing it: `paceline status`.\n"
    assert (result.exit_code, result.stderr) == (1, told)


@pytest.mark.parametrize("server", ["nonsense", "http://", "http://127.0.0.1:99999999"])
def test_a_server_that_is_no_url_is_a_sentence(server: str) -> None:
    result = run("status", "--server", server)
    assert result.exit_code == 1
    assert "No admin API answers" in result.stderr


def test_another_kind_of_server_is_recognised(admin: Admin) -> None:
    result = run("status", "--server", f"{admin.url}/elsewhere")
    assert result.exit_code != 0
    assert result.stderr.count("\n") == 1


class _Elsewhere(BaseHTTPRequestHandler):
    """An API of somebody else, whose errors have a ``detail`` too."""

    def do_GET(self) -> None:
        body = b'{"detail":"Not Found"}'
        self.send_response(404)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.mark.parametrize("command", [("status",), ("export", "--engine", "vllm")])
def test_somebody_elses_api_is_told_from_ours(command: tuple[str, ...]) -> None:
    with HTTPServer(("127.0.0.1", 0), _Elsewhere) as server:
        answering = threading.Thread(target=server.handle_request)
        answering.start()
        url = f"http://127.0.0.1:{server.server_port}"
        result = run(*command, "--server", url)
        answering.join()
    told = f"{url} answered 404 and is no admin API: give --server the admin port's URL.\n"
    assert (result.exit_code, result.stderr) == (1, told)


@pytest.mark.parametrize("token", ["hunter2\r\nX: y", "hunter2\n", "hunter2 ö"])
def test_a_token_that_no_header_takes_is_refused_and_not_shown(token: str) -> None:
    result = run("status", "--server", "http://127.0.0.1:9", "--token", token)
    assert result.exit_code == 2
    assert "no header takes" in result.stderr
    assert "hunter2" not in result.output


def test_the_admin_token_is_sent(tmp_path: Path) -> None:
    started = Admin(tmp_path, Settings.model_validate({"admin": {"token": "hunter2"}}))
    try:
        refused = run("status", "--server", started.url)
        assert (refused.exit_code, "admin.token" in refused.stderr) == (1, True)
        assert run("status", "--server", started.url, "--token", "hunter2").exit_code == 0
    finally:
        started.close()


def test_config_show_tells_values_and_where_they_come_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "paceline.yaml"
    path.write_text("engine: {slots: 4}")
    monkeypatch.setenv("PACELINE_ADMIN__TOKEN", "hunter2")
    shown = run("config", "show", "--config", str(path), "--origin", "-o", "json")
    values: dict[str, Any] = json.loads(shown.stdout)
    assert values["engine.slots"] == {"value": 4, "origin": str(path)}
    assert values["admin.token"]["origin"] == "PACELINE_ADMIN__TOKEN"
    assert values["server.port"] == {"value": 8000, "origin": "default"}
    assert "hunter2" not in shown.stdout
    table = run("config", "show", "--config", str(path))
    assert "engine.slots" in table.stdout
    assert "origin" not in table.stdout


def test_an_unknown_key_ends_with_exit_code_2_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.yaml").write_text("engine: {slotz: 4}")
    for command in (("serve",), ("demo",), ("bench",), ("config", "show")):
        result = run(*command, "--config", "bad.yaml")
        assert result.exit_code == 2
        assert result.stderr == "engine.slotz is no setting (from bad.yaml): did you mean engine.slots?\n"
    assert [path.name for path in tmp_path.iterdir()] == ["bad.yaml"]
