"""`paceline export` against a real admin port."""

import json
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from policies.types import Policy, PolicyState, Reason
from tests.tuner.fleet.render.learned import EDIT, STORY
from tests.tuner.test_cli import Admin, run
from tuner.settings import RouteSettings, Settings


@pytest.fixture
def admin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Admin]:
    started = Admin(tmp_path, Settings(routes={"edit": RouteSettings(), "story": RouteSettings()}))
    monkeypatch.setenv("PACELINE_SERVER", started.url)
    yield started
    started.close()


def learned(admin: Admin, *policies: Policy) -> None:
    """Put `policies` in force, with 100 requests each."""
    by = {(policy.context.route, policy.context.language): policy for policy in policies}
    snapshot = admin.steering.snapshot
    admin.steering.snapshot = replace(snapshot, policies=by, requests=dict.fromkeys(by, 100))


def test_what_is_printed_is_comments_and_flags_that_a_shell_takes_as_they_are(admin: Admin) -> None:
    learned(admin, EDIT.policy)
    result = run("export", "--engine", "vllm", "--engine-version", "0.32.0")
    assert result.exit_code == 0
    *comments, line = result.stdout.splitlines()
    assert all(comment.startswith("# ") for comment in comments)
    assert f"# For vllm, from what was learned of smol at {admin.url} by " in comments[0]
    assert "measured 2.40x plain (2.20 to 2.60)" in result.stdout
    flag, value = shlex.split(line)
    assert flag == "--speculative-config"
    assert json.loads(value)["num_speculative_tokens_per_batch_size"] == [[1, 3, 8], [4, 7, 4], [8, 65536, 0]]


def test_plain_is_exported_with_its_reason_and_exit_3_where_the_evidence_says_not_to_speculate(
    admin: Admin, tmp_path: Path
) -> None:
    learned(admin, STORY.policy)
    result = run("export", "--engine", "vllm", "--out", str(tmp_path / "spec.yaml"))
    assert result.exit_code == 3
    assert "# Plain at every load." in result.stdout
    assert "It was compared with plain." in result.stdout
    assert "# Launch without --speculative-config." in result.stdout
    assert "spec.yaml was not written: these settings need no file." in result.stderr
    assert not (tmp_path / "spec.yaml").exists()


def test_without_a_verdict_there_is_nothing_to_export_and_it_is_no_negative_verdict(admin: Admin) -> None:
    learned(admin, replace(EDIT.policy, reason=Reason.EXPLORE, state=PolicyState.LEARNING))
    result = run("export", "--engine", "sglang")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr == (
        f"{admin.url} has nothing to export: none of 1 context has a verdict, 1 still learning: serve more traffic.\n"
    )


def test_a_file_with_comments_holds_the_evidence_itself(admin: Admin, tmp_path: Path) -> None:
    learned(admin, EDIT.policy)
    out = tmp_path / "trt.yaml"
    result = run("export", "--engine", "tensorrt-llm", "--out", str(out))
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == f"--config {out}"
    text = out.read_text(encoding="utf-8")
    assert "# edit/code (100 requests, 100% of the traffic): measured 2.40x plain" in text
    assert yaml.safe_load(text)["speculative_config"]["draft_len_schedule"] == {3: 8, 7: 4}


def test_json_has_no_comments_so_the_evidence_stands_beside_it(admin: Admin, tmp_path: Path) -> None:
    policy = EDIT.policy
    steps = tuple(replace(step, drafter="eagle3") for step in policy.arm.schedule)
    learned(admin, replace(policy, arm=replace(policy.arm, drafter="eagle3", schedule=steps)))
    out = tmp_path / "adaptive.json"
    result = run("export", "--engine", "sglang", "--out", str(out))
    assert result.exit_code == 0
    assert f"--speculative-adaptive-config {out}" in result.stdout
    assert sorted(json.loads(out.read_text(encoding="utf-8"))) == ["1", "4", "8"]
    assert "* edit/code (100 requests" in (tmp_path / "adaptive.json.md").read_text(encoding="utf-8")


def test_without_out_the_file_is_printed_behind_its_name(admin: Admin) -> None:
    learned(admin, EDIT.policy)
    shown = run("export", "--engine", "llama-server", "--engine-version", "b10573").stdout
    assert "\n--spec-type ngram-simple --spec-ngram-simple-size-m 4\n\n# paceline-presets.ini:\nversion = 1\n" in shown
    assert "[smol-8]\n" in shown


def test_a_file_that_cannot_be_written_is_told_before_the_server_is_asked(tmp_path: Path) -> None:
    out = tmp_path / "none" / "spec.yaml"
    result = run("export", "--engine", "vllm", "--out", str(out), "--server", "http://127.0.0.1:1")
    assert result.exit_code == 1
    assert f"there is no folder {out.parent}" in result.stderr


def test_an_engine_that_is_not_known_is_refused_by_name() -> None:
    result = run("export", "--engine", "tgi")
    assert result.exit_code == 2
    assert "tgi" in result.stderr


@pytest.mark.parametrize(
    ("engine", "version", "example"),
    [("vllm", "banana", "0.32.0"), ("vllm", "b10573", "0.32.0"), ("llama-server", "0.32.0", "b10573")],
)
def test_a_version_that_is_none_of_that_engine_is_refused(engine: str, version: str, example: str) -> None:
    result = run("export", "--engine", engine, "--engine-version", version)
    assert result.exit_code == 2
    assert result.stderr == (
        f'--engine-version is "{version}", which is no version of {engine}: give it as the engine tells it, such as '
        f"{example}, or leave it out.\n"
    )
