"""What a real llama.cpp honours, says and refuses: the facts that the adapter, the proxy and the pools stand on.

A build that changes one of them fails here first.
"""

import json
from typing import Any

import httpx
import pytest

from tests.tuner.fleet.llama_server import BLOCK_LENGTH, MODEL, SLOTS, Drafting, LlamaServer, start_llama

CODE = """def area(width, height):
    return width * height

def perimeter(width, height):
    return 2 * (width + height)
"""
REPEAT = f"Repeat this file word for word:\n{CODE}"
STORY = "Write a story about a fox."
LENGTH = 48
UNCACHED = {"cache_prompt": False}
"""A prompt that comes from the cache has other rounding, and now and then another text: where texts are compared."""


def body(content: str = REPEAT, **fields: Any) -> dict[str, Any]:
    message = {"role": "user", "content": content}
    return {"model": MODEL, "messages": [message], "max_tokens": LENGTH, "temperature": 0} | fields


def ask(server: LlamaServer, **fields: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/chat/completions", json=body(**fields), timeout=60)


def answer(server: LlamaServer, **fields: Any) -> dict[str, Any]:
    response = ask(server, **fields)
    assert response.status_code == 200, response.text
    content: dict[str, Any] = response.json()
    return content


def text(content: dict[str, Any]) -> str:
    said: str = content["choices"][0]["message"]["content"]
    return said


def read(server: LlamaServer, path: str) -> Any:
    return httpx.get(f"{server.url}{path}", timeout=60).json()


def metrics(server: LlamaServer) -> dict[str, float]:
    lines = httpx.get(f"{server.url}/metrics", timeout=60).text.splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


def events(server: LlamaServer, **fields: Any) -> list[dict[str, Any]]:
    lines = ask(server, stream=True, **fields).text.splitlines()
    data = [line.removeprefix("data: ") for line in lines if line]
    assert data.pop() == "[DONE]"
    return [json.loads(piece) for piece in data]


def test_an_ngram_drafter_changes_no_text_and_timings_tell_of_it(
    llama_plain: LlamaServer, llama_ngram: LlamaServer
) -> None:
    plain, drafted = answer(llama_plain, **UNCACHED), answer(llama_ngram, **UNCACHED)
    assert text(plain) == text(drafted)
    assert 0 < drafted["timings"]["draft_n_accepted"] <= drafted["timings"]["draft_n"]
    assert "draft_n" not in plain["timings"]


def test_timings_say_nothing_of_drafts_where_the_drafter_stayed_silent(llama_ngram: LlamaServer) -> None:
    """So an answer without `draft_n` is no sign of a plain server."""
    assert "draft_n" not in answer(llama_ngram, content=STORY)["timings"]


def test_the_model_drafts_for_itself_and_changes_no_text(default_gguf: Any, llama_plain: LlamaServer) -> None:
    with start_llama(default_gguf, Drafting.SELF) as server:
        drafted = answer(server, content=STORY, **UNCACHED)
    assert text(drafted) == text(answer(llama_plain, content=STORY, **UNCACHED))
    assert drafted["timings"]["draft_n_accepted"] > LENGTH / 2


@pytest.mark.parametrize(
    "fields",
    [
        {"speculative.n_max": 0},
        {"speculative.n_min": BLOCK_LENGTH + 1},
        {"speculative.p_min": 1.0},
        {"speculative.type": "none"},
        {"speculative.types": "none"},
        {"speculative": {"n_max": 0}},
    ],
    ids=str,
)
def test_fields_of_a_request_are_taken_and_ignored(llama_ngram: LlamaServer, fields: dict[str, Any]) -> None:
    drafted, asked_not_to = answer(llama_ngram), answer(llama_ngram, **fields)
    assert asked_not_to["timings"]["draft_n"] == drafted["timings"]["draft_n"]


def test_slots_tell_whether_a_server_drafts_and_props_do_not(
    llama_plain: LlamaServer, llama_ngram: LlamaServer
) -> None:
    assert [slot["speculative"] for slot in read(llama_plain, "/slots")] == [False] * SLOTS
    assert [slot["speculative"] for slot in read(llama_ngram, "/slots")] == [True] * SLOTS
    for server in (llama_plain, llama_ngram):
        props = read(server, "/props")
        assert props["default_generation_settings"]["params"]["speculative.types"] == "none"
        assert props["total_slots"] == SLOTS
        assert props["build_info"]


def test_models_are_listed_by_their_alias_as_llama_cpps(llama_plain: LlamaServer) -> None:
    (model,) = read(llama_plain, "/v1/models")["data"]
    assert (model["id"], model["owned_by"]) == (MODEL, "llamacpp")


def test_metrics_count_drafts_by_position(llama_ngram: LlamaServer) -> None:
    before = metrics(llama_ngram)
    timings = answer(llama_ngram)["timings"]
    after = metrics(llama_ngram)

    def grown(name: str) -> float:
        return after[f"llamacpp:{name}"] - before.get(f"llamacpp:{name}", 0.0)

    assert grown("spec_decode_num_draft_tokens_total") == timings["draft_n"]
    assert grown("spec_decode_num_accepted_tokens_total") == timings["draft_n_accepted"]
    assert grown("tokens_predicted_total") == timings["predicted_n"]
    positions = [
        grown(f'spec_decode_num_accepted_tokens_per_pos_total{{position="{position}"}}')
        for position in range(BLOCK_LENGTH)
    ]
    assert sum(positions) == timings["draft_n_accepted"]
    assert positions == sorted(positions, reverse=True)
    assert positions[0] <= grown("spec_decode_num_drafts_total")


def test_metrics_of_a_plain_server_have_the_counters_of_drafts_at_zero(llama_plain: LlamaServer) -> None:
    answer(llama_plain)
    assert metrics(llama_plain)["llamacpp:spec_decode_num_drafts_total"] == 0.0
    assert not any("position" in name for name in metrics(llama_plain))


def test_a_stream_ends_with_usage_and_timings_when_usage_is_asked_for(llama_ngram: LlamaServer) -> None:
    *_, finish, last = events(llama_ngram, stream_options={"include_usage": True})
    assert finish["choices"][0]["finish_reason"]
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == last["timings"]["predicted_n"]
    assert last["timings"]["draft_n"] > 0


def test_a_stream_without_usage_has_its_timings_in_the_chunk_that_finishes(llama_ngram: LlamaServer) -> None:
    """So drafts of a stream are known in `observe`, without an edit of the request."""
    *others, last = events(llama_ngram)
    assert last["choices"][0]["finish_reason"]
    assert last["timings"]["draft_n"] > 0
    assert "usage" not in last
    assert not any("timings" in chunk for chunk in others)


def test_usage_counts_one_choice_of_several(llama_plain: LlamaServer) -> None:
    content = answer(llama_plain, content=STORY, n=2, max_tokens=5)
    assert len(content["choices"]) == 2
    assert content["usage"]["completion_tokens"] == 5


def test_usage_tells_of_the_prompt_that_was_cached(llama_plain: LlamaServer) -> None:
    answer(llama_plain)
    usage = answer(llama_plain)["usage"]
    assert 0 < usage["prompt_tokens_details"]["cached_tokens"] < usage["prompt_tokens"]


def test_any_model_name_is_served(llama_plain: LlamaServer) -> None:
    assert answer(llama_plain, model="nonsense", max_tokens=1)["model"] == MODEL


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"messages": "text"}, "invalid_request_error"),
        ({"max_tokens": "many"}, "invalid_request_error"),
        ({"content": "word " * 2000}, "exceed_context_size_error"),
    ],
    ids=["messages", "max_tokens", "context"],
)
def test_a_refusal_is_400_with_its_type(llama_plain: LlamaServer, fields: dict[str, Any], kind: str) -> None:
    response = ask(llama_plain, **fields)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == kind


def test_min_p_logit_bias_and_a_grammar_are_served_while_drafting(llama_ngram: LlamaServer) -> None:
    assert answer(llama_ngram, min_p=0.1, logit_bias={"504": 5})["timings"]["draft_n"] > 0
    forced = answer(llama_ngram, grammar='root ::= "yes" | "no"')
    assert text(forced) in ("yes", "no")


def test_text_is_the_same_with_a_seed_and_a_temperature(llama_plain: LlamaServer, llama_ngram: LlamaServer) -> None:
    sampling = {"temperature": 1.0, "seed": 7} | UNCACHED
    assert text(answer(llama_plain, **sampling)) == text(answer(llama_ngram, **sampling))


def test_a_server_that_is_killed_refuses_connections(default_gguf: Any) -> None:
    with start_llama(default_gguf) as server:
        server.kill()
        with pytest.raises(httpx.ConnectError):
            read(server, "/health")
