"""The official client against a real server: HTTP, the engine's process and the tiny model, nothing in between."""

import json
import re
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from policies.stats import FinishReason
from tests.engine.server.live import CONTEXT_LIMIT, SLOTS, LiveServer, serve
from tests.engine.tiny_model import make_tiny_model

MODEL = "paceline/tiny"
NO_END: dict[str, int] = {"0": -100, "2": -100}
"""Keeps the random model from ending by chance."""


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with serve(make_tiny_model(tmp_path_factory.mktemp("model")), MODEL) as server:
        yield server


@pytest.fixture(scope="module")
def client(live: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=live.url, api_key="unused", max_retries=0) as opened:
        yield opened


def chat(client: openai.OpenAI, **fields: Any) -> Any:
    messages = [{"role": "user", "content": "Who pulls at the front?"}]
    settings = {"max_tokens": 24, "seed": 11, "logit_bias": NO_END, "messages": messages, **fields}
    return client.chat.completions.create(model=MODEL, **settings)


def test_streamed_and_whole_answers_are_the_same(client: openai.OpenAI) -> None:
    whole = chat(client)
    chunks = list(chat(client, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content for chunk in chunks[:-1])
    assert text == whole.choices[0].message.content != ""
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason == "length"
    first, again = whole.usage, chunks[-1].usage
    assert first is not None
    assert again is not None
    for usage, cached in ((first, 0), (again, (again.prompt_tokens - 1) // 16 * 16)):
        assert usage.prompt_tokens_details is not None
        assert usage.prompt_tokens_details.cached_tokens == cached
    assert again.model_copy(update={"prompt_tokens_details": None}) == first.model_copy(
        update={"prompt_tokens_details": None}
    )
    assert whole.usage.completion_tokens == 24
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + 24


@pytest.mark.parametrize("settings", [{"temperature": 0}, {"temperature": 0.8, "top_p": 0.95, "presence_penalty": 0.5}])
def test_speculation_changes_nothing_in_the_text(client: openai.OpenAI, settings: dict[str, float]) -> None:
    prompt = "one two three one two three one two three"
    fields: dict[str, Any] = {"max_tokens": 64, "seed": -3, "logit_bias": NO_END, **settings}
    drafted = client.completions.create(model=MODEL, prompt=prompt, **fields)
    plain = client.completions.create(model=MODEL, prompt=prompt, extra_headers={"x-paceline-mode": "off"}, **fields)
    assert drafted.choices[0].text == plain.choices[0].text
    assert drafted.usage is not None
    assert plain.usage is not None
    assert drafted.usage.completion_tokens == plain.usage.completion_tokens


def test_choices_are_reproducible_and_differ(client: openai.OpenAI) -> None:
    both, again, alone = chat(client, n=2), chat(client, n=2), chat(client)
    texts = [choice.message.content for choice in both.choices]
    assert texts == [choice.message.content for choice in again.choices]
    assert texts[0] != texts[1]
    assert alone.choices[0].message.content == texts[0]
    assert both.usage.completion_tokens == 48


def test_a_stop_string_ends_the_text_before_it(client: openai.OpenAI) -> None:
    text = chat(client).choices[0].message.content
    stop = text[len(text) // 2 : len(text) // 2 + 3]
    for stream in (False, True):
        answer = chat(client, stop=[stop, "never said"], stream=stream)
        if stream:
            chunks = list(answer)
            written, finish = "".join(c.choices[0].delta.content for c in chunks), chunks[-1].choices[0].finish_reason
        else:
            written, finish = answer.choices[0].message.content, answer.choices[0].finish_reason
        assert written == text[: text.index(stop)]
        assert finish == "stop"


def test_prompts_may_be_texts_or_token_ids(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"max_tokens": 8, "seed": 5, "logit_bias": NO_END}
    listed = client.completions.create(model=MODEL, prompt=["The riders", "somebody"], **fields)
    alone = client.completions.create(model=MODEL, prompt="somebody", **fields)
    assert listed.choices[1].text == alone.choices[0].text
    assert listed.choices[1].index == 1
    ids = client.completions.create(model=MODEL, prompt=[5, 6, 7], **fields)
    assert ids.usage is not None
    assert ids.usage.prompt_tokens == 3


def test_models_are_listed_and_retrieved(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4")


def test_refusals_reach_the_client_as_its_own_exceptions(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature") as caught:
        chat(client, temperature=-1)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.BadRequestError, match="messages"):
        chat(client, messages=[])
    with pytest.raises(openai.BadRequestError, match="context"):
        client.completions.create(model=MODEL, prompt=[9] * CONTEXT_LIMIT)


def test_the_decision_is_readable_through_the_client(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL,
        messages=[{"role": "user", "content": "hi"}],
        max_tokens=2,
        extra_headers={"x-paceline-debug": "true", "x-request-id": "mine-1", "x-paceline-route": "chat"},
    )
    assert raw.headers["x-paceline-drafter"] == "ngram"
    assert raw.headers["x-paceline-cap"] == "4"
    assert raw.headers["x-paceline-route"] == "chat"
    assert raw.headers["x-request-id"] == "mine-1"


def test_leaving_a_stream_frees_the_engine(client: openai.OpenAI, live: LiveServer) -> None:
    before = live.status()
    reported = len(live.sink.requests)
    streams = [chat(client, stream=True, max_tokens=CONTEXT_LIMIT - 60, seed=seed) for seed in range(2 * SLOTS)]
    for stream in streams:
        stream.close()
    while (status := live.status()).running or status.waiting or len(live.sink.requests) < reported + len(streams):
        pass  # each reading waits for the engine's next cycle
    assert (status.free_slots, status.free_blocks) == (before.free_slots, before.free_blocks)
    finishes = [stats.finish for stats in live.sink.requests[reported:]]
    assert FinishReason.CANCELLED in finishes
    assert chat(client, max_tokens=4).usage.completion_tokens == 4


def test_every_request_was_reported_with_its_counts(client: openai.OpenAI, live: LiveServer) -> None:
    reported = len(live.sink.requests)
    chat(client, n=2, max_tokens=16, temperature=0)
    first, second = live.sink.requests[reported:]
    assert first.output_tokens == second.output_tokens == 16
    assert first.finish is second.finish is FinishReason.LENGTH
    assert first.cycles > 0
    assert first.proposed >= first.verified >= first.accepted
    assert first.ttft_seconds > 0
    assert first.decision.context.route == "other"


PERSON = {
    "type": "object",
    "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 120}, "kind": {"enum": ["rider", "coach"]}},
    "required": ["age", "kind"],
    "additionalProperties": False,
}
PERSON_TOOL: Any = {"type": "function", "function": {"name": "note", "description": "Notes.", "parameters": PERSON}}


@pytest.mark.parametrize("verifier", ["coupled", "rejection", "block"])
def test_json_schema_gives_json_that_validates_streamed_and_whole(client: openai.OpenAI, verifier: str) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
    fields: dict[str, Any] = {"max_tokens": 150, "response_format": form, "logit_bias": {}}
    fields["extra_body"] = {"verifier": verifier}
    whole = chat(client, **fields)
    found = json.loads(whole.choices[0].message.content)
    assert set(found) == {"age", "kind"}
    assert 0 <= found["age"] <= 120
    chunks = list(chat(client, stream=True, **fields))
    assert "".join(chunk.choices[0].delta.content for chunk in chunks) == whole.choices[0].message.content
    assert whole.choices[0].finish_reason == "stop"


def test_report_24_25_logprobs_are_the_same_with_and_without_speculation(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"logprobs": True, "top_logprobs": 3, "max_tokens": 48, "temperature": 0.7}
    drafted = chat(client, **fields).choices[0]
    plain = chat(client, extra_headers={"x-paceline-mode": "off"}, **fields).choices[0]
    streamed = [entry for chunk in chat(client, stream=True, **fields) for entry in chunk.choices[0].logprobs.content]
    assert len(drafted.logprobs.content) == 48
    assert streamed == drafted.logprobs.content
    assert (
        b"".join(bytes(entry.bytes or []) for entry in streamed)
        .decode(errors="replace")
        .startswith(drafted.message.content)
    )
    for ours, theirs in zip(drafted.logprobs.content, plain.logprobs.content, strict=True):
        assert ours.token == theirs.token
        assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-3)
        assert len(ours.top_logprobs) == 3


def test_a_tool_that_is_required_is_called_with_arguments_that_validate(client: openai.OpenAI) -> None:
    named: Any = {"type": "function", "function": {"name": "note"}}
    for choice in ("required", named):
        settings: dict[str, Any] = {"tools": [PERSON_TOOL], "tool_choice": choice, "parallel_tool_calls": False}
        answer = chat(client, max_tokens=150, logit_bias={}, **settings).choices[0]
        assert answer.finish_reason == "tool_calls"
        assert answer.message.content is None
        (call,) = answer.message.tool_calls
        assert call.function.name == "note"
        assert json.loads(call.function.arguments)["kind"] in ("rider", "coach")


def test_vllms_own_fields_are_taken_as_they_are(client: openai.OpenAI) -> None:
    regex = chat(client, logit_bias={}, extra_body={"guided_regex": "[a-c]{4}"}).choices[0]
    assert re.fullmatch("[a-c]{4}", regex.message.content)
    choice = client.completions.create(
        model=MODEL, prompt="x", extra_body={"structured_outputs": {"choice": ["yes", "no"]}}
    )
    assert choice.choices[0].text in ("yes", "no")
    forced = client.completions.create(
        model=MODEL, prompt="x", max_tokens=20, seed=3, logit_bias=NO_END, extra_body={"forced_prefix": "The riders"}
    )
    assert forced.choices[0].text.startswith("The riders")


def test_an_invalid_schema_is_a_400_that_says_what_is_wrong_with_it(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="strin"):
        chat(client, extra_body={"guided_json": {"type": "strin"}})
