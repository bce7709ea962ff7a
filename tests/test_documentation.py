"""The documents say what the code says: their tables, commands, targets, links and rooms."""

import ast
import json
import re
from pathlib import Path

import pytest

from engine.server import rules
from engine.server.headers import decision_headers, looped_header
from policies import FixedPolicy
from policies.types import Context, Mode, Reason, RequestFeatures, SamplingClass
from tests import documentation
from tests.documentation import README, RESERVED, ROOT, TABLES
from tuner.api.explain import LADDER, REASON_SENTENCES

PAGES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md"))
DOCUMENTS = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", *PAGES)
LONGEST_README = 176
"""Lines. What is looked up stands in docs/."""


@pytest.mark.parametrize(("document", "name"), [(page, name) for page, tables in TABLES.items() for name in tables])
def test_a_table_is_the_one_that_the_code_makes(document: str, name: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    made = documentation.rewritten(text, {name: TABLES[document][name]})
    assert made == text, "run `make docs` and commit the result"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_a_document_has_no_table_that_nothing_makes(document: str) -> None:
    marked = re.findall(r"^<!-- ([a-z]+) -->$", (ROOT / document).read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert sorted(marked) == sorted(TABLES.get(document, ()))


def test_the_readme_is_read_in_one_sitting_and_leads_to_every_page() -> None:
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= LONGEST_README
    assert [page for page in PAGES if f"]({page})" not in text] == []


def test_every_option_of_the_command_line_is_in_the_reference() -> None:
    text = (ROOT / "docs/reference.md").read_text(encoding="utf-8")
    for option in ("--work", "--start-from", "--text-kinds", "--exempt-from-switchback", "engine.draft_stop"):
        assert f"`{option}`" in text


@pytest.mark.parametrize("document", DOCUMENTS)
def test_a_document_names_only_what_exists(document: str) -> None:
    path = ROOT / document
    text = path.read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert documentation.unknown_targets(text, makefile) == []
    assert documentation.unknown_commands(text, set(documentation.commands())) == []
    assert documentation.broken_links(path, ROOT) == []


def test_the_readme_tells_a_newcomer_how_to_begin() -> None:
    told = [line.split("#")[0].strip() for line in documentation.code_lines(README.read_text(encoding="utf-8"))]
    assert "make demo" in told
    assert "make test" in told


def test_every_reason_has_a_meaning_and_reserved_ones_are_given_by_nothing() -> None:
    assert set(REASON_SENTENCES) == set(Reason)
    given = {
        node.attr
        for room in ("engine", "tuner")
        for path in (ROOT / room).rglob("*.py")
        if path != ROOT / "tuner/api/explain.py"  # its table names them all
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Reason"
    }
    assert "ERROR" in given, "the search itself finds nothing"
    assert given & {reason.name for reason in RESERVED} == set()


def test_the_readme_lists_every_header_of_an_answer() -> None:
    features = RequestFeatures(SamplingClass.GREEDY, structured=False, prompt_tokens=1, max_tokens=1)
    decision = FixedPolicy().decide(Context("m", "chat", "en"), features)
    text = README.read_text(encoding="utf-8")
    headers = decision_headers(decision, debug=True) | looped_header(looped=True)
    assert len(headers) > 4
    assert [name for name in headers if f"`{name}`" not in text] == []


def test_every_field_that_is_accepted_without_effect_is_listed() -> None:
    table = documentation.fields_without_effect_table()
    for fields in (rules.CHAT_RULES, rules.COMPLETION_RULES, rules.MESSAGE_RULES, rules.STREAM_OPTION_RULES):
        for name, rule in fields.items():
            if name in rules.LABELS or (rule.neutral and rule.remedy != "leave it out"):
                assert f"| `{name}` |" in table
    for name in ("user", "metadata", "store", "service_tier", "spaces_between_special_tokens", "include_obfuscation"):
        assert f"| `{name}` |" in table


def test_no_rung_is_claimed_that_nothing_gives() -> None:
    reserved = {reason.value.partition("_")[0].lower() for reason in RESERVED}
    assert "freeze" in reserved
    assert reserved & set(LADDER) == set()
    for document in ("README.md", "docs/how-it-works.md"):
        text = " ".join((ROOT / document).read_text(encoding="utf-8").split())
        (claimed,) = re.findall(r"kill switch, (?:switchback|plain) window, [^.]*", text)
        assert [word for word in reserved if word in claimed] == []


def test_every_mode_of_a_route_is_explained() -> None:
    text = (ROOT / "docs/how-it-works.md").read_text(encoding="utf-8")
    (told,) = re.findall(r"^\* \*\*A route's mode\*\*.*?(?=^\* \*\*)", text, flags=re.MULTILINE | re.DOTALL)
    assert [mode for mode in Mode if f"`{mode}`" not in told] == []


def test_every_room_on_disk_has_a_docstring_and_is_in_the_wheel() -> None:
    rooms = documentation.rooms(ROOT)
    assert set(rooms) == {"policies", "kernels", "engine", "tuner", "migrations", "dashboards", "tests"}
    assert all(rooms.values())


def test_a_table_is_rewritten_between_its_markers_only() -> None:
    text = "a\n<!-- t -->\nold\n<!-- /t -->\nb\n"
    assert documentation.rewritten(text, {"t": lambda: "| new |\n"}) == "a\n<!-- t -->\n| new |\n<!-- /t -->\nb\n"


@pytest.mark.parametrize("text", ["", "<!-- t -->", "<!-- t --><!-- t --><!-- /t -->"])
def test_a_table_without_its_markers_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="needs one line <!-- t -->"):
        documentation.rewritten(text, {"t": lambda: ""})


def test_the_bars_follow_the_results_and_none_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documentation, "RESULTS", tmp_path)
    assert documentation.bars_table().count(documentation.NOT_YET) == 33
    bar = {"name": "chat: best learned drafter (mine), times plain", "bar": 1.3, "at_least": True, "verdict": "holds"}
    bar["measured"] = {"estimate": 1.4, "low": 1.2, "high": 1.6}  # its word is of a day when the estimate decided
    run = {"date": "2026-01-02", "commit": "abc", "bars": [bar], "faults": ["a text differs"]}
    (tmp_path / "drafters.json").write_text(json.dumps(run))
    lines = documentation.bars_table().splitlines()
    assert f"| `drafters` | {bar['name']} | at least 1.3 | 1.40 (1.20 to 1.60) | holds, within its interval |" in lines
    assert "| `drafters` | outputs that differ between drafters | none | 1 | fails |" in lines
    assert sum("chat: best learned drafter" in line for line in lines) == 1
    assert sum(line.endswith(f"| {documentation.NOT_YET} |") for line in lines) == 31
    assert lines[-1] == "The runs: [drafters.json](results/drafters.json) (2026-01-02, abc)."


def test_what_whole_intervals_say_of_the_cells_is_told_in_words() -> None:
    slower = {"route": "chat", "concurrency": 16, "arm": "tuned", "against": "plain", "low": 0.9, "high": 0.99}
    faster = slower | {"concurrency": 1, "low": 1.01, "high": 1.2}
    undecided = [slower | {"high": None}, slower | {"high": 1.01}, slower | {"arm": "ngram:4", "high": 1.01}]
    against = slower | {"against": "suffix:8"}
    fixed = slower | {"arm": "ngram:4"}
    found = documentation.what_intervals_say({"ratios": [slower, faster, against, fixed, *undecided]}).splitlines()
    assert "* Tuned is faster than plain: `chat` at 1." in found
    assert "* Tuned is slower than plain: `chat` at 16." in found
    assert "* Tuned is slower than fixed arms: `chat` at 16 (suffix:8)." in found
    assert "* Fixed arms are slower than plain: `chat` at 16 (ngram:4)." in found
    assert documentation.what_intervals_say({"ratios": undecided}).count("nowhere") == 4


def test_a_figure_without_spread_has_no_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documentation, "RESULTS", tmp_path)
    shared = {"bar": 50.0, "at_least": False, "verdict": "holds"}
    counted = shared | {"name": "counted", "measured": {"estimate": 25, "low": 25, "high": 25}}
    once = shared | {"name": "once", "measured": {"estimate": 25.0, "low": None, "high": None}}
    spread = shared | {"name": "spread", "measured": {"estimate": 25.0, "low": 24.0, "high": 26.0}}
    (tmp_path / "replay.json").write_text(json.dumps({"bars": [counted, once, spread]}))
    lines = documentation.replay_bars_table().splitlines()
    assert "| counted | at most 50 | 25.00 | holds |" in lines
    assert "| once | at most 50 | 25.00 | holds, within its interval |" in lines
    assert "| spread | at most 50 | 25.00 (24.00 to 26.00) | holds |" in lines


def test_the_table_of_controllers_tells_what_each_takes_over_the_copying_oracle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documentation, "RESULTS", tmp_path)
    row = {"controller": "paceline", "mean": 1.5, "low": 1.0, "high": 2.0, "over_ours": None}
    row |= {"over_copying": {"estimate": 8.8, "low": 8.0, "high": 9.6}}
    row |= {"worst_window_percent": -9.0, "window_share": 0.0, "neighbour_share": 0.1}
    run = {"overall": [row], "seeds": [1000, 1001], "processes": 2, "wall_seconds": 600.0, "date": "2026-01-02"}
    (tmp_path / "replay.json").write_text(json.dumps(run))
    header, _, line, _, took = documentation.replay_table().splitlines()
    assert took == "2 seeds; 10 minutes on 2 cores (2026-01-02)."
    assert header.split(" | ")[2] == "Time over oracle-copying, %"
    assert line.split(" | ")[2] == "8.80 (8.00 to 9.60)"


def test_a_bar_inside_a_cell_does_not_end_it() -> None:
    assert documentation.markdown(("a",), [("x|y",)]) == "| a |\n| --- |\n| x\\|y |\n"


def test_the_checks_see_an_unknown_target() -> None:
    text = "Run `make demo`.\n```\nmake test ARGS=x\nmake dinner\n```\nmake no-code"
    assert documentation.unknown_targets(text, "demo: x\ntest:\n") == ["dinner"]


def test_the_checks_see_an_unknown_command() -> None:
    text = "`paceline serve`, `bin/paceline pin x`\n```\n$ paceline model fetch\npaceline model burn\npaceline fly\n```"
    assert documentation.unknown_commands(text, {"serve", "pin", "model fetch"}) == ["fly", "model burn"]


def test_the_checks_see_a_broken_link(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# One Heading: here\n")
    document = tmp_path / "x.md"
    document.write_text(
        "# Top\n[a](other.md) [b](other.md#one-heading-here) [c](#top) [d](https://example.org)"
        " [e](gone.md) [f](other.md#two) [g](../outside.md)"
    )
    assert documentation.broken_links(document, tmp_path) == ["gone.md", "other.md#two", "../outside.md"]


def test_the_checks_see_a_room_that_nobody_told_of(tmp_path: Path) -> None:
    (tmp_path / "attic").mkdir()
    (tmp_path / "attic/__init__.py").write_text('"""Holds what\nis old. And more."""')
    assert documentation.rooms(tmp_path) == {"attic": "Holds what is old.", "tests": "Mirrors the rooms."}
