"""`paceline sidecar` before a real vLLM: passed through, and steered by the plug-in."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from typer.testing import CliRunner

from tests.tuner.fleet.running_sidecar import RunningSidecar, start_sidecar
from tests.tuner.fleet.tape import taped
from tests.vllm.launches import BLOCK_LENGTH, NGRAM
from tests.vllm.test_vllm import REPEAT, SECONDS, body, text
from tuner.bench.vllm_server import MODEL_NAME, VllmServer, free_port, running_vllm
from tuner.cli import app
from tuner.fleet.vllm.publishing import ORDERS_PATH
from tuner.fleet.vllm.writing import write_plugin

CHAT = "/v1/chat/completions"
HEADERS = {"x-paceline-route": "code-edit", "x-paceline-language": "code"}


@pytest.fixture(scope="module")
def steered(
    vllm_folder: Path, vllm_plain: VllmServer, default_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningSidecar]:
    """A sidecar in `auto` before a vLLM with the plug-in, and one that decodes plain."""
    folder = tmp_path_factory.mktemp("steered")
    write_plugin(folder)
    admin, reports = free_port(), free_port()
    orders = f"http://127.0.0.1:{admin}{ORDERS_PATH}"
    launch = NGRAM.with_plugin(folder, f"127.0.0.1:{reports}", orders)
    ports = ("--admin-port", str(admin), "--plugin-port", str(reports))
    with running_vllm(vllm_folder, default_model, launch) as server:
        upstreams = {"steered": server.url, "plain": vllm_plain.url}
        with start_sidecar(folder, upstreams, "auto", arguments=ports) as sidecar:
            sidecar.wait_for(orders)
            yield sidecar


def ask(sidecar: RunningSidecar, headers: dict[str, str], **fields: Any) -> httpx.Response:
    return httpx.post(f"{sidecar.url}{CHAT}", json=body(**fields), headers=headers, timeout=SECONDS)


def pin(sidecar: RunningSidecar, length: int) -> None:
    drafter = "ngram" if length else "none"
    command = ["pin", "code-edit", "--language", "code", "--drafter", drafter, "--block-length", str(length)]
    command += ["--for", "1h", "--reason", "a test", "--exempt-from-switchback", "--server", sidecar.admin_url]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_observe_leaves_every_byte_of_both_directions(vllm_ngram: VllmServer, tmp_path: Path, stream: bool) -> None:
    with taped(vllm_ngram.url) as tape, start_sidecar(tmp_path, {"a": tape.url}, "observe") as sidecar:
        through, direct = tape.compare(sidecar.url, CHAT, body(stream=stream))
    assert through == direct
    assert b"HTTP/1.1 200" in through.answer


def test_a_pin_is_the_block_length_of_the_next_request_and_the_text_stays(
    steered: RunningSidecar, vllm_plain: VllmServer
) -> None:
    expected = text(httpx.post(f"{vllm_plain.url}{CHAT}", json=body(), timeout=SECONDS).json())
    for length in (BLOCK_LENGTH, 2, 0, BLOCK_LENGTH):
        pin(steered, length)
        steered.wait_for_decision(rf"-{length}\.PINNED\.", HEADERS)
        answer = ask(steered, HEADERS)
        assert text(answer.json()) == expected
        assert "PINNED" in answer.headers["x-paceline-decision"]
        told = (answer.json().get("metrics") or {}).get("speculative_decoding") or {}
        assert told.get("num_draft_tokens", 0) <= length * told.get("num_spec_steps", 0)
        assert (told.get("num_draft_tokens", 0) > 0) == (length > 0)


def test_a_client_that_wants_none_is_not_drafted_for(steered: RunningSidecar) -> None:
    answer = ask(steered, HEADERS | {"x-paceline-mode": "off", "x-paceline-route": "chat"}).json()
    assert not ((answer.get("metrics") or {}).get("speculative_decoding") or {}).get("num_draft_tokens")


def test_report_22_what_vllm_refuses_under_speculation_is_served_by_the_plain_pool(steered: RunningSidecar) -> None:
    answer = ask(steered, HEADERS | {"x-paceline-debug": "true"}, min_p=0.1, temperature=0.7)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-paceline-lane"] == "plain"


def test_the_official_client_streams_through_the_sidecar(steered: RunningSidecar, vllm_plain: VllmServer) -> None:
    with openai.OpenAI(base_url=f"{steered.url}/v1", api_key="none", max_retries=0) as client:
        stream = client.chat.completions.create(
            model=MODEL_NAME, messages=[{"role": "user", "content": REPEAT}], max_tokens=24, temperature=0, stream=True
        )
        said = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    direct = httpx.post(f"{vllm_plain.url}{CHAT}", json=body(max_tokens=24), timeout=SECONDS).json()
    assert said == text(direct)
