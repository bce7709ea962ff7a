"""What a real vLLM honours, says and refuses: the facts that the adapter, the proxy and the pools stand on."""

import json
from typing import Any

import httpx
import openai
import pytest

from tests.vllm.launches import BLOCK_LENGTH
from tuner.bench.vllm_server import MODEL_NAME, VllmServer

CODE = """def area(width, height):
    return width * height

def perimeter(width, height):
    return 2 * (width + height)
"""
REPEAT = f"Repeat this file word for word:\n{CODE}"
LENGTH = 40
SECONDS = 120.0


def body(**fields: Any) -> dict[str, Any]:
    message = {"role": "user", "content": REPEAT}
    return {"model": MODEL_NAME, "messages": [message], "max_tokens": LENGTH, "temperature": 0} | fields


def ask(server: VllmServer, **fields: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/chat/completions", json=body(**fields), timeout=SECONDS)


def answer(server: VllmServer, **fields: Any) -> dict[str, Any]:
    response = ask(server, **fields)
    assert response.status_code == 200, response.text
    content: dict[str, Any] = response.json()
    return content


def text(content: dict[str, Any]) -> str:
    said: str = content["choices"][0]["message"]["content"]
    return said


def events(server: VllmServer, **fields: Any) -> list[dict[str, Any]]:
    lines = ask(server, stream=True, **fields).text.splitlines()
    data = [line.removeprefix("data: ") for line in lines if line]
    assert data.pop() == "[DONE]"
    return [json.loads(piece) for piece in data]


def test_a_greedy_text_is_the_same_with_and_without_drafts(vllm_plain: VllmServer, vllm_ngram: VllmServer) -> None:
    assert text(answer(vllm_plain)) == text(answer(vllm_ngram))


def test_an_answer_tells_of_its_drafts_where_vllm_was_launched_to(vllm_ngram: VllmServer) -> None:
    content = answer(vllm_ngram)
    told = content["metrics"]["speculative_decoding"]
    assert told["num_spec_tokens"] == BLOCK_LENGTH
    assert 0 < told["num_accepted_draft_tokens"] <= told["num_draft_tokens"]
    # Steps without a proposal are not among them, and the prompt's own step emits a token too.
    assert told["num_spec_steps"] + told["num_accepted_draft_tokens"] <= content["usage"]["completion_tokens"]


def test_an_answer_tells_nothing_of_drafts_as_most_launch_vllm(vllm_plain: VllmServer) -> None:
    assert answer(vllm_plain).get("metrics") is None


def test_a_stream_tells_of_usage_and_drafts_in_a_chunk_of_its_own_when_usage_is_asked_for(
    vllm_ngram: VllmServer,
) -> None:
    *others, last = events(vllm_ngram, stream_options={"include_usage": True})
    assert last["choices"] == []
    assert 0 < last["usage"]["completion_tokens"] <= LENGTH
    assert last["metrics"]["speculative_decoding"]["num_draft_tokens"] > 0
    assert all(chunk.get("usage") is None and chunk["choices"] for chunk in others)


def test_a_stream_tells_of_neither_when_usage_is_not_asked_for(vllm_ngram: VllmServer) -> None:
    """So in `observe` a stream of vLLM has no count of its tokens, and nothing of its drafts."""
    for chunk in events(vllm_ngram):
        assert chunk["choices"]
        assert chunk.get("usage") is None
        assert chunk.get("metrics") is None


@pytest.mark.parametrize("fields", [{"min_p": 0.1, "temperature": 0.7}, {"logit_bias": {"504": 5}}], ids=str)
def test_report_22_min_p_and_logit_bias_are_refused_under_speculation_alone(
    vllm_plain: VllmServer, vllm_ngram: VllmServer, fields: dict[str, Any]
) -> None:
    refused = ask(vllm_ngram, **fields)
    assert refused.status_code == 400
    assert refused.json()["error"]["type"] == "BadRequestError"
    assert "speculative decoding" in refused.json()["error"]["message"]
    assert ask(vllm_plain, **fields).status_code == 200


def test_min_p_is_taken_where_it_does_nothing(vllm_ngram: VllmServer) -> None:
    assert text(answer(vllm_ngram, min_p=0.1, temperature=0)) == text(answer(vllm_ngram))


def test_unknown_fields_of_speculation_are_taken_and_ignored(vllm_ngram: VllmServer) -> None:
    fields = {"speculative": {"n_max": 0}, "num_speculative_tokens": 0, "vllm_xargs": {"num_speculative_tokens": 0}}
    assert answer(vllm_ngram, **fields)["metrics"]["speculative_decoding"]["num_draft_tokens"] > 0


def test_the_official_client_streams(vllm_ngram: VllmServer) -> None:
    with openai.OpenAI(base_url=f"{vllm_ngram.url}/v1", api_key="none", max_retries=0) as client:
        stream = client.chat.completions.create(
            model=MODEL_NAME,
            messages=[{"role": "user", "content": REPEAT}],
            max_tokens=LENGTH,
            temperature=0,
            stream=True,
        )
        said = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert said == text(answer(vllm_ngram))
