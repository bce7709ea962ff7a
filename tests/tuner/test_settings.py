"""Settings: defaults that serve, four layers, and a sentence for every fault."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from policies import MAX_BLOCK_LENGTH, Mode
from policies.database_url import without_password
from tuner.guardrails import Objective
from tuner.settings import Settings, SettingsError, is_loopback, setting_rows
from tuner.settings_loader import load_settings
from tuner.steering_options import controller_options

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_file(text: str) -> Path:
        path = tmp_path / "paceline.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write_file


def test_nothing_needs_to_be_configured() -> None:
    settings = load_settings().settings
    assert settings == Settings()
    assert list(settings.routes) == ["code-edit", "extract", "chat", "story"]
    assert {route.mode for route in settings.routes.values()} == {Mode.AUTO}
    assert settings.admin.host == "127.0.0.1"
    assert settings.database.url == "sqlite:///paceline.db"
    assert settings.engine.max_block_length <= MAX_BLOCK_LENGTH


def test_the_command_line_beats_the_environment_beats_the_file(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write("server: {host: 127.0.0.2, port: 1}\nengine: {slots: 2}\nmodel: {threads: 1}")
    monkeypatch.setenv("PACELINE_SERVER__PORT", "2")
    monkeypatch.setenv("PACELINE_ENGINE__SLOTS", "4")
    loaded = load_settings(path, {"server": {"port": 3}})
    assert loaded.settings.server.port == 3
    assert loaded.settings.server.host == "127.0.0.2"
    assert loaded.settings.engine.slots == 4
    origins = {name: origin for name, _, origin in loaded.values()}
    assert origins["server.port"] == "the command line"
    assert origins["engine.slots"] == "PACELINE_ENGINE__SLOTS"
    assert origins["model.threads"] == str(path)
    assert origins["model.dtype"] == "default"


def test_the_file_may_be_named_by_a_variable(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_CONFIG", str(write("engine: {slots: 3}")))
    assert load_settings().settings.engine.slots == 3


def test_a_file_replaces_the_set_of_routes_and_a_bare_off_is_a_mode(write: Write) -> None:
    path = write("routes:\n  chat:\n  code:\n    mode: off\n    default_arm: {drafter: ngram, block_length: 4}\n")
    routes = load_settings(path).settings.routes
    assert list(routes) == ["chat", "code"]
    assert routes["chat"].mode is Mode.AUTO
    assert routes["code"].mode is Mode.OFF
    assert routes["code"].default_arm is not None
    assert routes["code"].default_arm.block_length == 4


def test_objectives_and_bars_reach_the_controller(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(
        "routes:\n  chat: {slo: {tpot_p95_seconds: 0.03, ttft_p95_seconds: 1.5}}\n  story:\n"
        "guardrails: {max_error_share: 0.1, cooldown_seconds: 60}"
    )
    monkeypatch.setenv("PACELINE_ROUTES__STORY__SLO__TTFT_P95_SECONDS", "2.5")
    loaded = load_settings(path)
    options = controller_options(loaded.settings, switchback=True)
    assert options.tpot_limits == {"chat": 0.03}
    assert options.guardrails.objectives == {"chat": Objective(1.5, 0.03), "story": Objective(2.5, None)}
    assert (options.guardrails.max_error_share, options.guardrails.cooldown_seconds) == (0.1, 60.0)
    origins = {name: origin for name, _, origin in loaded.values()}
    assert origins["routes.chat.slo.tpot_p95_seconds"] == str(path)
    assert origins["routes.story.slo.ttft_p95_seconds"] == "PACELINE_ROUTES__STORY__SLO__TTFT_P95_SECONDS"
    assert origins["guardrails.enabled"] == "default"


@pytest.mark.parametrize("fault", ["slo: {tpot_p95_seconds: 0}", "slo: {ttft_p95_seconds: true}", "slo: {tpot: 1}"])
def test_an_objective_that_makes_no_sense_is_one_sentence(write: Write, fault: str) -> None:
    with pytest.raises(SettingsError, match=r"routes\.chat\.slo\.") as caught:
        load_settings(write(f"routes: {{chat: {{{fault}}}}}"))
    assert "\n" not in str(caught.value)


def test_drafters_are_a_list_in_a_file_and_a_text_with_commas_in_a_variable(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write("engine: {drafters: [ngram, suffix, drafters/code-head], default_drafter: code-head}")
    engine = load_settings(path).settings.engine
    assert engine.drafter_names == ("none", "ngram", "suffix", "code-head")
    assert engine.learned_drafter == "code-head"
    monkeypatch.setenv("PACELINE_ENGINE__DRAFTERS", "suffix, ngram")
    engine = load_settings().settings.engine
    assert (engine.drafters, engine.learned_drafter) == (("suffix", "ngram"), "suffix")


def test_a_variable_changes_a_route_whose_name_has_a_hyphen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_ROUTES__CODE_EDIT__MODE", "observe")
    loaded = load_settings()
    assert loaded.settings.routes["code-edit"].mode is Mode.OBSERVE
    assert list(loaded.settings.routes) == list(Settings().routes)
    assert loaded.origins["routes.code-edit.mode"] == "PACELINE_ROUTES__CODE_EDIT__MODE"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("engine: {slotz: 3}", r"engine\.slotz is no setting \(from .*\): did you mean engine\.slots\?"),
        ("nonsense: 1", r"nonsense is no setting .*`paceline config show`"),
        ("engine: {stops: 1}", r"engine\.stops is no setting .*: `paceline config show`"),
        ("engine: {colour: red}", r"engine\.colour is no setting .*: `paceline config show`"),
        ("engine: {port: 1}", r"engine\.port is no setting .*: did you mean server\.port\?"),
        ("enigne: {slots: 1}", r"enigne is no setting .*: did you mean engine\?"),
        ("engine: {max_block_length: 17}", r"engine\.max_block_length is 17 .*less than or equal to 16\."),
        ("engine: {max_block_length: -1}", r"engine\.max_block_length is -1 .*greater than or equal to 0\."),
        ("engine: {slots: many}", r"engine\.slots is 'many' .*should be a valid integer\."),
        ("engine: {ngram_min_match: 20}", r"engine\.ngram_min_match is 20, above ngram_max_match, which is 16: lower"),
        ("engine: {drafters: [ngram, ngram]}", r"engine\.drafters is 'ngram, ngram': give each a name of its own"),
        ("engine: {drafters: [none]}", r"engine\.drafters is 'none': give each a name of its own, and not 'none'"),
        ("engine: {drafters: [/]}", r"engine\.drafters is '/': give each a name of its own"),
        ("engine: {drafters: []}", r"engine\.drafters is \[\] .*at least 1 item"),
        ("engine: {suffix_shared_routes: [sales]}", r"engine\.suffix_shared_routes has 'sales': use some of code-edit"),
        ("engine: {draft_stop: 1.0}", r"engine\.draft_stop is 1\.0 .*less than 1"),
        ("engine: {drafters: [auto, ngram]}", r"engine\.drafters is 'auto, ngram': auto stands alone"),
        (
            "engine: {drafters: [ngram], default_drafter: head}",
            r"engine\.default_drafter is 'head': use one of none, ngram",
        ),
        ("engine: {verifier: fast}", r"engine\.verifier is 'fast' .*'coupled', 'rejection' or 'block'"),
        ("engine: {prefill_chunk: 65537}", r"engine\.prefill_chunk is 65537 .*less than or equal to 65536\."),
        ("model: {threads: 100000}", r"model\.threads is 100000 .*less than or equal to 1024\."),
        (
            "engine: {suffix_shared_routes: [sales]}\nroutes: {" + ", ".join(f"r{n}: {{}}" for n in range(99)) + "}",
            r"has 'sales': use some of r0, r1, .*, r9 and 89 more, or add the route",
        ),
        ("engine: {kv_blocks: -1}", r"engine\.kv_blocks is -1 .*greater than or equal to 0"),
        ("engine: {price_per_hour: 0}", r"engine\.price_per_hour is 0 .*greater than 0"),
        ("engine: 3", r"engine is 3 .*give keys"),
        ("model: {dtype: int8}", r"model\.dtype is 'int8' .*'auto', 'bfloat16' or 'float32'"),
        (
            "routes: {chat: {mode: fast}}",
            r"routes\.chat\.mode is 'fast' .*'off', 'observe', 'advise', 'canary' or 'auto'",
        ),
        ("routes: {chat: {modes: auto}}", r"routes\.chat\.modes is no setting .*did you mean routes\.<ROUTE>\.mode\?"),
        (
            "{engine: {drafters: [ngram]}, routes: {chat: {default_arm: {drafter: eagle, block_length: 4}}}}",
            r"^routes\.chat\.default_arm\.drafter is 'eagle': use one of none, ngram, or add it to engine\.drafters "
            r"\(engine\.drafters from .*, routes\.chat\.default_arm\.drafter from .*\)\.$",
        ),
        (
            "routes: {chat: {default_arm: {drafter: ngram, block_length: 17}}}",
            r"default_arm\.block_length is 17 .*less than or equal to 16",
        ),
        ("routes: {chat: {default_arm: {drafter: ngram}}}", r"default_arm\.drafter is 'ngram' and block_length is 0"),
        ("routes: {Chat Room: {}}", r"routes\.Chat Room is 'Chat Room'.*small letters"),
        ("admin: {host: 0.0.0.0}", r"admin\.host is '0\.0\.0\.0', which others can reach, and there is no token: set"),
        ("admin: {token: ''}", r"admin\.token is empty \(from .*\): give one"),
        ("database: {url: ''}", r"database\.url is '' .*at least 1 character"),
        ("tuner: {switchback_share_floor: 0.3}", r"tuner\.switchback_share_floor is 0\.3, above"),
        ("engine: {slots: true}", r"^engine\.slots is True \(from .*\): give a number\.$"),
        ("model: {threads: false}", r"model\.threads is False .*: give a number\.$"),
        ("engine: {price_per_hour: true}", r"engine\.price_per_hour is True .*: give a number\.$"),
        ("engine: {watermark_key: false}", r"engine\.watermark_key is False .*: give a number\.$"),
        ("tuner: {margin: true}", r"tuner\.margin is True .*: give a number\.$"),
        ("tuner: {margin: .nan}", r"tuner\.margin is nan .*: it should be a finite number\.$"),
        ("tuner: {max_neighbour_slowdown: .inf}", r"max_neighbour_slowdown is inf .*: it should be a finite number\.$"),
        ("server: {host: ''}", r"server\.host is '' .*at least 1 character"),
        ("admin: {host: ''}", r"admin\.host is '' .*at least 1 character"),
        ("model: {path: ''}", r"model\.path is '' .*at least 1 character"),
        ("engine: {drafters: [ngram, '']}", r"^engine\.drafters has '' \(from .*\): .*at least 1 character"),
        *(
            (
                f"engine: {{kv_blocks: {blocks}}}",
                rf"^engine\.kv_blocks is {blocks} \(from .*\): give at least 4, which ",
            )
            for blocks in (1, 3)
        ),
        (
            "engine: {slots: 1}\nengine: {slots: 2}",
            r"yaml has the key 'engine' at line 1 and again at line 2: leave one out\.$",
        ),
        (
            "engine:\n  slots: 1\n  seed: 1\n  'slots': 2",
            r"yaml has the key 'slots' at line 2 and again at line 4: leave one out\.$",
        ),
        ("server: [", r"The configuration file .* is not valid YAML at line 1: correct it\."),
        ("tuner: {seed: 2024-13-45}", r"The configuration file .* is not valid YAML: correct it\."),
        ("tuner: {seed: " + "9" * 5000 + "}", r"The configuration file .* is not valid YAML: correct it\."),
        ("server: &all {host: *all}", r"The configuration file .* is not valid YAML: correct it\."),
        ("a: " + "[" * 3000 + "]" * 3000, r"The configuration file .* is not valid YAML: correct it\."),
        ("- 1", r"The configuration file .* must hold groups of keys"),
    ],
)
def test_a_fault_in_the_file_is_one_sentence_with_key_value_and_remedy(write: Write, text: str, sentence: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(write(text))
    message = str(caught.value)
    assert re.search(sentence, message), message
    assert "\n" not in message


def test_each_of_several_faults_has_its_line(write: Write) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(write("engine: {slotz: 3}\nserver: {port: 70000}"))
    lines = str(caught.value).splitlines()
    assert [line.split(" is ")[0] for line in lines] == ["engine.slotz", "server.port"]


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("PACELINE_ENGIN__SLOTS", "3", "names no setting: did you mean PACELINE_ENGINE__SLOTS?"),
        ("PACELINE_ENGINE__SLOTZ", "3", "engine.slotz is no setting (from PACELINE_ENGINE__SLOTZ): did you mean"),
        ("PACELINE_ENGINE__SLOTS", "0", "engine.slots is '0' (from PACELINE_ENGINE__SLOTS): it should be greater"),
        ("PACELINE_ROUTES__NEW__MODE", "off", "which is not one of code-edit, extract, chat, story"),
        ("PACELINE_ROUTES__CHAT", "{", "routes.chat is '{' (from PACELINE_ROUTES__CHAT): give keys"),
        ("PACELINE_ENGINE", "3", "The variable PACELINE_ENGINE names no setting: `paceline config show` lists"),
        ("PACELINE_ENGINE__DRAFTERS", "", "engine.drafters is '' (from PACELINE_ENGINE__DRAFTERS): "),
        ("PACELINE_ENGINE__DRAFTERS", "a,,b", "engine.drafters has '' (from PACELINE_ENGINE__DRAFTERS): "),
        (
            "PACELINE_ENGINE__KV_BLOCKS",
            "1",
            "engine.kv_blocks is '1' (from PACELINE_ENGINE__KV_BLOCKS): give at",
        ),
        ("PACELINE_SLOTS", "3", "names no setting: did you mean PACELINE_ENGINE__SLOTS?"),
        ("PACELINE_SERVR", "x", "names no setting: did you mean PACELINE_SERVER?"),
    ],
)
def test_a_fault_in_the_environment_names_its_variable(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, sentence: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError) as caught:
        load_settings()
    assert sentence in str(caught.value)


def test_a_fault_between_keys_tells_where_those_come_from_that_it_names(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_ADMIN__HOST", "0.0.0.0")
    with pytest.raises(SettingsError, match=r"127\.0\.0\.1 \(host from PACELINE_ADMIN__HOST\)\.$"):
        load_settings(None, {"admin": {"port": 0}})
    monkeypatch.delenv("PACELINE_ADMIN__HOST")
    monkeypatch.setenv("PACELINE_ENGINE__NGRAM_MAX_MATCH", "3")
    path = write("engine: {slots: 2, ngram_min_match: 4}")
    with pytest.raises(SettingsError) as caught:
        load_settings(path)
    ends = f" (ngram_min_match from {path}, ngram_max_match from PACELINE_ENGINE__NGRAM_MAX_MATCH)."
    assert str(caught.value).endswith(ends)
    monkeypatch.setenv("PACELINE_ENGINE__NGRAM_MAX_MATCH", "1")
    with pytest.raises(SettingsError, match=r"\(ngram_max_match from PACELINE_ENGINE__NGRAM_MAX_MATCH\)\.$"):
        load_settings(write("engine: {slots: 2}"))
    monkeypatch.setenv("PACELINE_ENGINE__DRAFTERS", "ngram")
    arm = "routes: {chat: {mode: off, default_arm: {drafter: eagle, block_length: 4}}}"
    monkeypatch.delenv("PACELINE_ENGINE__NGRAM_MAX_MATCH")
    with pytest.raises(SettingsError) as between:
        load_settings(path := write(arm))
    origin = f"(routes.chat.default_arm.drafter from {path}, engine.drafters from PACELINE_ENGINE__DRAFTERS)."
    assert str(between.value).endswith(origin)


def test_a_group_may_take_over_anothers_keys(write: Write) -> None:
    path = write("routes:\n  chat: &arm {mode: observe}\n  story: {<<: *arm}\n  code: {<<: *arm, mode: auto}")
    routes = load_settings(path).settings.routes
    assert [route.mode for route in routes.values()] == [Mode.OBSERVE, Mode.OBSERVE, Mode.AUTO]


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ada:hunter2@db/paceline",
        "postgresql+psycopg://ada:hun@t/er:hunter2@db:5432/paceline?sslmode=require",
        "postgresql://:hunter2@db/x",
        "postgresql://db/paceline?user=ada&password=hunter2",
        "postgresql://db/paceline?sslPassword=hunter2&x=1",
        "nonsense://ada:hunter2@",
    ],
)
def test_the_password_of_a_database_is_never_shown(url: str, monkeypatch: pytest.MonkeyPatch, write: Write) -> None:
    monkeypatch.setenv("PACELINE_DATABASE__URL", url)
    values = {name: value for name, value, _ in load_settings().values()}
    assert "hunter2" not in values["database.url"]
    assert "***" in values["database.url"]
    monkeypatch.delenv("PACELINE_DATABASE__URL")
    with pytest.raises(SettingsError, match=r"database\.url is \[") as caught:
        load_settings(write(f"database: {{url: ['{url}']}}"))
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("url", ["sqlite:///paceline.db", "sqlite:////a/b@c:d.db", "postgresql://db:5432/x"])
def test_a_url_without_a_password_is_shown_as_it_is(url: str) -> None:
    assert without_password(url) == url


def test_the_command_lines_own_variables_are_no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_SERVER", "http://127.0.0.1:8001")
    monkeypatch.setenv("PACELINE_CACHE", "cache")
    assert load_settings().settings == Settings()


def test_a_missing_file_is_an_error_and_not_the_defaults(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"absent\.yaml cannot be read \(No such file or directory\)"):
        load_settings(tmp_path / "absent.yaml")


def test_a_secret_is_never_shown(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_ADMIN__TOKEN", "hunter2")
    loaded = load_settings()
    assert "hunter2" not in repr(list(loaded.values()))
    assert "hunter2" not in repr(loaded.settings)
    monkeypatch.delenv("PACELINE_ADMIN__TOKEN")
    with pytest.raises(SettingsError, match=r"admin\.token is \*+ ") as caught:
        load_settings(write("admin: {token: [hunter2]}"))
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "fleet: {upstreams: {a: {url: 'http://h', api_key: \"hunter2\\r\\nX: y\"}}}",
        "fleet: {upstreams: {a: {url: 'http://h', api_key: \"hunter2\\n\"}}}",
        "fleet: {upstreams: {a: {url: 'http://h', api_key: hunter2 schlüssel}}}",
        "fleet: {upstreams: {a: {url: 'http://h', api_key: [hunter2]}}}",
        "fleet: {upstreams: [{url: 'http://h', api_key: hunter2}]}",
        "fleet: {upstreams: {a: [{api_key: hunter2}]}}",
        "fleet: {upstreams: {a: 'api_key: hunter2'}}",
        "fleet: {upstreams: {a: {url: {api_key: hunter2}}}}",
        "fleet: {upstreams: {a: {url: 'http://me:hunter2@h'}}}",
        'admin: {token: "hunter2\\n"}',
        "admin: [token, hunter2]",
    ],
)
def test_a_key_that_cannot_be_used_is_refused_and_not_shown(write: Write, text: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(write(text))
    (line,) = str(caught.value).splitlines()
    assert "hunter2" not in line
    assert ": give " in line or "it should be a valid string" in line


@pytest.mark.parametrize(
    "url", ["http://", "http://höst:1", "http://h/a b", 'http://h"', "http://h/\r\nX: y", "http://h?q", "ftp://h"]
)
def test_an_upstreams_url_is_one_that_a_request_line_takes(url: str) -> None:
    with pytest.raises(SettingsError, match=r"fleet\.upstreams\.a\.url is .*: give http://HOST:PORT or https://HOST"):
        load_settings(overrides={"fleet": {"upstreams": {"a": {"url": url}}}})


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"drafter": "übel"}, r"fleet\.upstreams\.a\.drafter is 'übel' .*: give printable ASCII"),
        ({"drafter": "a\r\nX: y"}, r"fleet\.upstreams\.a\.drafter is .*: give printable ASCII"),
        ({"aliases": {"m": {"drafter": " a"}}}, r"aliases\.m\.drafter is ' a' .*: give printable ASCII"),
        ({"aliases": {"m\nn": {}}}, r"fleet\.upstreams\.a\.aliases\.m\\nn is .*: a model's name has printable"),
    ],
)
def test_names_that_headers_tell_are_plain_text(given: dict[str, object], sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence) as caught:
        load_settings(overrides={"fleet": {"upstreams": {"a": {"url": "http://h", **given}}}})
    assert str(caught.value).isprintable()


def test_the_table_has_every_setting_once_with_a_sentence_of_help() -> None:
    names = [row.name for row in setting_rows()]
    assert len(set(names)) == len(names)
    assert {name.split(".")[0] for name in names} == set(Settings.model_fields)
    for row in setting_rows():
        assert row.help.endswith("."), row
        assert row.env.startswith("PACELINE_")
    slots = next(row for row in setting_rows() if row.name == "engine.slots")
    assert (slots.env, slots.default) == ("PACELINE_ENGINE__SLOTS", "16")


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("db", False),
    ],
)
def test_loopback_is_what_only_this_machine_reaches(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback
