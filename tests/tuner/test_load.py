"""The load: every prompt once, so many at a time, and every failure kept."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace

import httpx

from tuner.load import Outcome, run_closed_loop, send, stream
from tuner.workload import Prompt, load_workload

PROMPTS = load_workload(["chat"])[:6]


def answer(text: str, tokens: int = 3, looped: str = "false") -> httpx.Response:
    body = {"usage": {"completion_tokens": tokens}, "choices": [{"message": {"content": text}}]}
    return httpx.Response(200, json=body, headers={"x-paceline-looped": looped})


def one(prompt: Prompt, handler: Callable[[httpx.Request], httpx.Response], max_tokens: int = 16) -> Outcome:
    async def ask() -> Outcome:
        async with httpx.AsyncClient(transport=httpx.MockTransport(handler), base_url="http://paceline") as client:
            return await send(client, "tiny", prompt, max_tokens)

    return asyncio.run(ask())


def test_a_prompt_is_sent_as_people_send_it_with_a_seed_of_its_own() -> None:
    sent: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        return answer("hello")

    outcome = one(PROMPTS[0], handler)
    one(PROMPTS[0], handler)
    one(PROMPTS[1], handler)
    bodies = [json.loads(request.content) for request in sent]
    assert bodies[0]["messages"] == [dict(message) for message in PROMPTS[0].messages]
    assert bodies[0]["temperature"] == PROMPTS[0].sampling["temperature"]
    assert bodies[0]["seed"] == bodies[1]["seed"] != bodies[2]["seed"]
    assert sent[0].headers["x-paceline-route"] == "chat"
    assert (outcome.status, outcome.completion_tokens, outcome.text, outcome.looped) == (200, 3, "hello", False)


def test_a_stream_names_its_language_so_that_it_keeps_the_decision_that_it_is_known_by() -> None:
    sent: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        piece = {"choices": [{"delta": {"content": "hello"}}]}
        return httpx.Response(200, text=f"data: {json.dumps(piece)}\n\n", headers={"x-paceline-decision": "one"})

    async def ask() -> tuple[str, int]:
        async with httpx.AsyncClient(transport=httpx.MockTransport(handler), base_url="http://paceline") as client:
            streamed = await stream(client, "tiny", PROMPTS[0], 16)
            return streamed.decision_id, len(streamed.arrivals)

    assert asyncio.run(ask()) == ("one", 1)
    assert sent[0].headers["x-paceline-language"] == PROMPTS[0].language


def test_the_shorter_of_two_limits_counts() -> None:
    limits: list[int] = []

    def handler(request: httpx.Request) -> httpx.Response:
        limits.append(json.loads(request.content)["max_tokens"])
        return answer("")

    one(replace(PROMPTS[0], max_tokens=9), handler)
    one(replace(PROMPTS[0], max_tokens=90), handler)
    assert limits == [9, 16]


def test_a_looped_output_is_marked() -> None:
    assert one(PROMPTS[0], lambda request: answer("", looped="true")).looped


def test_a_refusal_and_a_lost_connection_are_outcomes() -> None:
    def lost(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("nobody listens")

    refused = one(PROMPTS[0], lambda request: httpx.Response(503, text="later"))
    assert (refused.status, refused.error, refused.text) == (503, "later", "")
    gone = one(PROMPTS[0], lost)
    assert (gone.status, gone.error) == (0, "ConnectError: nobody listens")


def test_each_prompt_is_sent_once_and_the_concurrency_is_kept() -> None:
    running, most = 0, 0

    async def handler(request: httpx.Request) -> httpx.Response:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)  # lets every other client begin
        running -= 1
        return answer(json.loads(request.content)["messages"][-1]["content"])

    async def drive() -> tuple[list[Outcome], float]:
        async with httpx.AsyncClient(transport=httpx.MockTransport(handler), base_url="http://paceline") as client:
            return await run_closed_loop(client, "tiny", PROMPTS, 3, 16)

    outcomes, seconds = asyncio.run(drive())
    assert [outcome.prompt for outcome in outcomes] == list(PROMPTS)
    assert [outcome.text for outcome in outcomes] == [prompt.messages[-1]["content"] for prompt in PROMPTS]
    assert most == 3
    assert seconds > 0
