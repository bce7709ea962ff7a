"""tuner.fleet.vllm.chooser: where requests go in front of vLLM's plug-in, and what each carries for it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from policies.cycle_policy import INITIAL_CYCLE_POLICY
from policies.language_detection import LanguageDetector
from policies.types import PLAIN, PLAIN_ARM, KillSwitch, Mode, Pin, Reason
from tuner.decider import RouteModes
from tuner.fleet.pools.controller import FleetController
from tuner.fleet.pools.options import FleetOptions
from tuner.fleet.types import Asked, Capability, Choice, Effect, EngineKind, Lever, Upstream
from tuner.fleet.vllm.chooser import PluginChooser, PluginSnapshot, for_decisions
from tuner.fleet.vllm.plugin.messages import WORD_ARGUMENT, Word, read_word
from tuner.snapshot import Guide, PolicySnapshot, Throughput

NOW = 1_800_000_000.0
WITH_PLUGIN = Upstream(
    name="vllm",
    url="http://h:1",
    engine=EngineKind.VLLM,
    version="0.32.0+cpu",
    models=("tiny",),
    speculates=True,
    drafter="ngram",
    block_length=5,
    capabilities=(Capability(Lever.PLUGIN, Effect.WORKS, "its drafts stopped"),),
)
TWIN = replace(WITH_PLUGIN, name="twin", url="http://h:2")
PLAIN_POOL = Upstream("plain", "http://h:3", EngineKind.VLLM, "0.32.0+cpu", ("tiny",), speculates=False)


@pytest.fixture(scope="module")
def detector() -> LanguageDetector:
    return LanguageDetector()


def snapshot_of(mode: Mode, *upstreams: Upstream, **changed: Any) -> PluginSnapshot:
    modes = RouteModes({"chat": mode}, Mode.OBSERVE, {}, PLAIN_ARM, 0.1)
    options = FleetOptions(model="tiny", routes=frozenset(("chat",)), modes=modes)
    fleet = FleetController(upstreams, options, lambda told: None).fleet
    learned = PolicySnapshot(
        version=1,
        created_at=NOW,
        policies={},
        pins=(),
        kill_switches=(),
        cycle_policy=INITIAL_CYCLE_POLICY,
        throughput=Throughput(),
        baseline=(),
        cost_error=None,
        switchback_share=0.02,
        default_guide=Guide(explored="ngram"),
    )
    names = frozenset(one.name for one in upstreams if one.effect(Lever.PLUGIN) is Effect.WORKS)
    return PluginSnapshot(fleet, for_decisions(replace(learned, **changed)), names, 5)


def asked(body: Mapping[str, Any] | None = None, **changed: Any) -> Asked:
    given = Asked(
        path="/v1/chat/completions",
        body={"model": "tiny", "messages": [{"role": "user", "content": "Name three rivers of Europe."}]}
        | dict(body or {}),
        body_bytes=100,
        route="chat",
        language=None,
        mode=None,
        debug=False,
        session=None,
        in_flight={"vllm": 0, "twin": 1, "plain": 0},
        arrived_at=NOW,
    )
    return replace(given, **changed)


def word_of(choice: Choice) -> Word:
    return read_word(dict(choice.edits)["vllm_xargs"][WORD_ARGUMENT])


def test_a_request_carries_its_decision_to_the_plug_in(detector: LanguageDetector) -> None:
    chooser = PluginChooser(snapshot_of(Mode.AUTO, WITH_PLUGIN), detector)
    choice = chooser.choose(asked())
    assert choice.decision is not None
    assert (choice.decision.drafter, choice.decision.cap, choice.decision.reason) == ("ngram", 5, Reason.EXPLORE)
    assert choice.decision.context.language == "en"
    assert word_of(choice) == Word(choice.request_key, choice.decision)
    assert chooser.choose(asked()).request_key != choice.request_key
    assert dict(choice.answer_headers)["x-paceline-decision"] == choice.decision.decision_id


def test_what_the_client_itself_told_vllm_stays(detector: LanguageDetector) -> None:
    chooser = PluginChooser(snapshot_of(Mode.AUTO, WITH_PLUGIN), detector)
    given = dict(chooser.choose(asked({"vllm_xargs": {"mine": 7}})).edits)["vllm_xargs"]
    assert given["mine"] == 7
    assert read_word(given[WORD_ARGUMENT]).decision.drafter == "ngram"


@pytest.mark.parametrize("mode", [Mode.OBSERVE, Mode.ADVISE])
def test_nothing_is_said_to_the_plug_in_where_nothing_is_steered(mode: Mode, detector: LanguageDetector) -> None:
    chooser = PluginChooser(snapshot_of(mode, WITH_PLUGIN), detector)
    choice = chooser.choose(asked({"stream": True}))
    assert choice.decision is None
    assert dict(choice.edits).keys() == ({"stream_options"} if mode is Mode.ADVISE else set())
    assert choice.answer_headers == ()
    assert chooser.reads("/v1/completions", "chat") is (mode is not Mode.OBSERVE)
    assert chooser.reads("/v1/completions", "no such route") is False


@pytest.mark.parametrize(
    ("changed", "header", "reason"),
    [
        ({"kill_switches": (KillSwitch("*", "incident", "me", NOW, None),)}, None, Reason.KILL_SWITCH),
        ({"pins": (Pin("chat", "*", PLAIN, 0, "trial", "me", NOW, NOW + 60.0),)}, None, Reason.PINNED),
        ({}, "off", Reason.CLIENT_OPT_OUT),
    ],
)
def test_who_is_above_what_is_learned_has_no_drafts(
    changed: dict[str, Any], header: str | None, reason: Reason, detector: LanguageDetector
) -> None:
    chooser = PluginChooser(snapshot_of(Mode.AUTO, WITH_PLUGIN, **changed), detector)
    word = word_of(chooser.choose(asked(mode=header)))
    assert (word.decision.reason, word.decision.cap) == (reason, 0)


def test_what_vllm_refuses_while_it_drafts_goes_to_the_plain_pool(detector: LanguageDetector) -> None:
    chooser = PluginChooser(snapshot_of(Mode.AUTO, WITH_PLUGIN, PLAIN_POOL), detector)
    choice = chooser.choose(asked({"min_p": 0.1}))
    assert (choice.upstream, dict(choice.edits)) == ("plain", {})
    assert choice.decision is not None
    assert (choice.decision.reason, choice.decision.cap) == (Reason.FEATURE_UNSUPPORTED, 0)
    assert ".FEATURE_UNSUPPORTED." in choice.decision.decision_id
    assert chooser.choose(asked()).upstream == "vllm", "the plain pool is not for what the plug-in can serve"


def test_what_is_only_wrong_while_it_drafts_stays_and_is_not_drafted_for(detector: LanguageDetector) -> None:
    chooser = PluginChooser(snapshot_of(Mode.AUTO, WITH_PLUGIN), detector)
    choice = chooser.choose(asked({"tools": [{"type": "function"}]}))
    word = word_of(choice)
    assert choice.upstream == "vllm"
    assert (word.decision.reason, word.decision.cap) == (Reason.FEATURE_UNSUPPORTED, 0)


def test_without_a_plain_pool_a_refusal_is_vllms_own(detector: LanguageDetector) -> None:
    chooser = PluginChooser(snapshot_of(Mode.AUTO, WITH_PLUGIN), detector)
    choice = chooser.choose(asked({"min_p": 0.1}))
    assert choice.upstream == "vllm"
    assert choice.decision is not None
    assert choice.decision.reason is Reason.EXPLORE


def test_a_session_stays_where_it_was_unless_that_is_crowded(detector: LanguageDetector) -> None:
    chooser = PluginChooser(snapshot_of(Mode.AUTO, WITH_PLUGIN, TWIN), detector)
    assert chooser.choose(asked(session=7)).upstream == "vllm"
    assert chooser.choose(asked(session=7, in_flight={"vllm": 2, "twin": 0})).upstream == "vllm"
    assert chooser.choose(asked(session=7, in_flight={"vllm": 3, "twin": 0})).upstream == "twin"


def test_a_fault_inside_passes_the_request_on(detector: LanguageDetector, caplog: pytest.LogCaptureFixture) -> None:
    chooser = PluginChooser(snapshot_of(Mode.AUTO, WITH_PLUGIN, TWIN), detector)
    chooser.snapshot = replace(chooser.snapshot, upstreams=None)  # type: ignore[arg-type]
    assert chooser.choose(asked()) == Choice("vllm")
    assert chooser.faults == 1
    assert "a choice failed" in caplog.text


@pytest.mark.parametrize(
    "garbage",
    [
        {"temperature": 10**400},
        {"temperature": float("nan")},
        {"temperature": True},
        {"max_tokens": 10**400},
        {"max_completion_tokens": -1},
        {"stream": True, "stream_options": {"x": "\ud800"}},
        {"stream": True, "stream_options": [1]},
        {"vllm_xargs": 7},
        {"response_format": 10**400},
    ],
)
def test_garbage_of_a_client_is_no_fault_of_the_chooser(garbage: dict[str, object], detector: LanguageDetector) -> None:
    chooser = PluginChooser(snapshot_of(Mode.AUTO, WITH_PLUGIN, TWIN), detector)
    assert chooser.choose(asked(garbage)).decision is not None
    assert chooser.faults == 0
