"""``paceline tune`` on the tiny model, what it refuses, and the knobs' way from a configuration to the engine."""

from io import StringIO
from pathlib import Path

import pytest
import yaml
from rich.console import Console
from typer.testing import CliRunner, Result

from policies.cycle_policy import Knobs
from policies.types import Interval
from tests.engine.tiny_model import make_tiny_model
from tests.system.live_service import tiny_settings
from tuner.cli import app
from tuner.settings import EngineSettings, KnobSettings, RouteSettings, Settings, SettingsError
from tuner.settings_loader import load_settings
from tuner.tune.knobs import (
    EVERYWHERE,
    KNOBS,
    PER_ROUTE,
    Ground,
    as_settings,
    possible,
    production_point,
    production_values,
    searched,
)
from tuner.tune.options import TuneOptions
from tuner.tune.report import Found, as_yaml, recommended, tell_verdict
from tuner.tune.run import run_tune
from tuner.tune.search import SearchOptions, Verdict
from tuner.tune.study import Trial

ALL_DRAFTERS = ("none", "ngram", "suffix", "head")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


def test_candidates_are_served_on_the_engine_and_a_second_run_goes_on(model: Path, tmp_path: Path) -> None:
    settings = tiny_settings(model, tmp_path / "paceline.db")
    settings = settings.model_copy(update={"engine": settings.engine.model_copy(update={"drafters": ("ngram",)})})
    search = SearchOptions(trials=3, rounds=2, patience=10)
    options = TuneOptions(scopes=("chat",), search=search, concurrency=2, prompts=2, tokens=12)
    first = Console(file=StringIO(), width=200)
    code = run_tune(settings, options, first, "paceline tune --routes chat")
    assert isinstance(first.file, StringIO)
    told = first.file.getvalue()
    assert code in (0, 3)
    assert "study engine/chat/" in told
    assert "ngram_min_match 1 to 8, ngram_max_match 2 to 32" in told
    assert "left out, since they cannot be told here or nothing reads them: suffix_min_score, draft_stop" in told
    for number in range(3):
        assert f"trial {number}: " in told
    assert (tmp_path / "paceline-tune.db").is_file(), "beside the store"
    again = Console(file=StringIO(), width=200)
    assert run_tune(settings, options, again, "paceline tune --routes chat") == code
    assert isinstance(again.file, StringIO)
    assert "goes on after 3 trials" in again.file.getvalue()
    assert "\ntrial 0" not in again.file.getvalue()


def tune(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["tune", *arguments])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--on", "paper"), "'paper' is none; give engine or replay."),
        (
            ("--on", "replay"),
            "give a file of `paceline trace record`, or tuner/replay/traces/workload.npz of",
        ),
        (("--trace", __file__), "only --on replay reads a trace."),
        (("--sampler", "dice"), "'dice' is none; give tpe or gp."),
        (("--routes", "nowhere"), "'nowhere' is not configured; use some of code-edit, extract, chat, story."),
        (("--routes", ","), "give at least one route, or leave the option out."),
        (("--start",), "it is not read without --live."),
        (("--live", "--trials", "3"), "it is not read with --live."),
        (("--live", "--start", "--stop", "--reason", "x"), "Give one of --start, --stop and --revert"),
        (("--live", "--start"), "Give --reason TEXT with --start, --stop or --revert, and only with them."),
        (("--live", "--reason", "x"), "Give --reason TEXT with --start, --stop or --revert, and only with them."),
    ],
)
def test_what_cannot_be_searched_is_one_sentence_and_exit_code_2(arguments: tuple[str, ...], sentence: str) -> None:
    result = tune(*arguments)
    assert result.exit_code == 2
    assert sentence in " ".join(result.stderr.replace("│", " ").split())


def test_every_knob_is_a_setting_of_its_group_within_what_it_takes() -> None:
    for knob in KNOBS:
        for value in (knob.low, knob.high):
            taken = int(value) if knob.whole else value
            others = {"ngram_min_match": 1, "ngram_max_match": 64} if knob.group == "engine" else {}
            Settings.model_validate({knob.group: others | {knob.name: taken}})


def test_routes_have_their_own_knobs_and_the_rest_has_the_engines() -> None:
    settings = Settings(
        engine=EngineSettings(draft_stop=0.1, ngram_min_match=3),
        routes={"chat": RouteSettings(knobs=KnobSettings(draft_stop=0.2)), "story": RouteSettings()},
    )
    point = production_point(settings)
    assert set(point.knobs) == {EVERYWHERE, "chat"}
    assert point.knobs[EVERYWHERE] == Knobs(3, 16, 0.3, 0.1, 1.0, 128)
    assert point.knobs["chat"] == Knobs(3, 16, 0.3, 0.2, 1.0, 128)
    tried = point.with_values("story", {"ngram_min_match": 5.0, "draft_stop": 0.31234})
    assert tried.knobs["story"] == Knobs(5, 16, 0.3, 0.312, 1.0, 128)
    assert tried.knobs["chat"] == point.knobs["chat"]
    assert point.with_values(EVERYWHERE, {"margin": 0.1}).margin == 0.1


def test_match_lengths_of_a_route_that_cross_are_refused() -> None:
    with pytest.raises(ValueError, match=r"routes\.chat\.knobs gives n-gram matches of at least 20 and at most 16"):
        Settings(routes={"chat": RouteSettings(knobs=KnobSettings(ngram_min_match=20))})


def test_only_knobs_that_something_reads_are_searched() -> None:
    def names(scope: str, drafters: tuple[str, ...], ground: Ground = Ground.ENGINE) -> set[str]:
        return {knob.name for knob in searched(Settings(), scope, drafters, ground)}

    assert names("chat", ("none", "ngram")) == {"ngram_min_match", "ngram_max_match"}
    assert names("chat", ALL_DRAFTERS) == PER_ROUTE
    assert names("chat", ("none", "suffix", "head")) == {"suffix_min_score", "draft_stop", "draft_temperature"}
    assert names(EVERYWHERE, ("none",)) == {"margin", "prefill_chunk"}
    assert names(EVERYWHERE, ALL_DRAFTERS, Ground.REPLAY) == {"margin", "max_block_length"}


def test_bounds_hold_what_production_has_and_what_memory_allows() -> None:
    settings = Settings(engine=EngineSettings(slots=2, prefill_chunk=40, draft_stop=0.9))
    space = {knob.name: knob for knob in searched(settings, EVERYWHERE, ALL_DRAFTERS, Ground.ENGINE)}
    assert (space["draft_stop"].low, space["draft_stop"].high) == (0.0, 0.9)
    assert space["prefill_chunk"].high == 40, "2 sequences of 17 rows are fewer than its own 40"


def test_a_longest_match_below_the_shortest_is_raised() -> None:
    assert possible({"ngram_min_match": 7.0, "ngram_max_match": 3.0}) == {"ngram_min_match": 7, "ngram_max_match": 7}


def verdict(values: dict[str, float], low: float) -> Verdict:
    best = Trial(3, values, False, 1.2, ())
    return Verdict(best, Interval(1.1, low, 1.2), 0.01, 12, False)


def test_the_recommendation_is_a_configuration_that_loads_with_what_differs_from_production(tmp_path: Path) -> None:
    settings = Settings()
    space = searched(settings, EVERYWHERE, ALL_DRAFTERS, Ground.ENGINE)
    production = production_values(settings, EVERYWHERE, space)
    changed = production | {"ngram_min_match": 4, "draft_stop": 0.2, "margin": 0.05}
    of_chat = {name: production[name] for name in PER_ROUTE}
    found = [
        Found(EVERYWHERE, production, verdict(changed, 1.02)),
        Found("chat", of_chat, verdict(of_chat | {"draft_temperature": 0.6}, 1.01)),
        Found("story", of_chat, verdict(of_chat | {"draft_temperature": 0.5}, 0.99)),
    ]
    file = tmp_path / "tuned.yaml"
    file.write_text(as_yaml(found, "paceline tune\n2026-01-01"), encoding="utf-8")
    text = file.read_text(encoding="utf-8")
    assert text.splitlines()[:3] == [
        "# paceline tune",
        "# 2026-01-01",
        "# all traffic: 1.100 [1.020, 1.200] times production",
    ]
    assert (
        yaml.safe_load(text)
        == recommended(found)
        == {
            "engine": {"ngram_min_match": 4, "draft_stop": 0.2},
            "tuner": {"margin": 0.05},
            "routes": {"chat": {"knobs": {"draft_temperature": 0.6}}},
        }
    )
    loaded = load_settings(file).settings
    assert (loaded.engine.ngram_min_match, loaded.engine.draft_stop, loaded.tuner.margin) == (4, 0.2, 0.05)
    assert loaded.routes["chat"].knobs == KnobSettings(draft_temperature=0.6)
    assert production_point(loaded).knobs["chat"].draft_stop == 0.2


def test_a_verdict_shows_every_value_of_its_trial_and_what_the_noise_is() -> None:
    console = Console(file=StringIO(), width=80)
    found = Found(
        EVERYWHERE, {"margin": 0.02, "max_block_length": 12}, verdict({"margin": 0.11, "max_block_length": 12}, 0.99)
    )
    tell_verdict(console, found)
    assert isinstance(console.file, StringIO)
    assert console.file.getvalue().splitlines() == [
        "all traffic: all trials done after 12 trials, noise 0.010, the standard error of a trial",
        "all traffic: trial 3 (margin 0.11; max_block_length 12 as production) in new rounds is 1.100 [0.990, 1.200] "
        "times production: it is not told from production",
    ]


def test_what_is_as_production_is_no_recommendation() -> None:
    assert as_settings(EVERYWHERE, {"margin": 0.02}, {"margin": 0.02}) == {}


def test_a_trace_is_not_asked_about_routes() -> None:
    with pytest.raises(SettingsError, match="leave out --routes, or use --on engine"):
        run_tune(
            Settings(),
            TuneOptions(ground=Ground.REPLAY, scopes=("chat",), trace=Path("x")),
            Console(file=StringIO()),
            "paceline tune",
        )
