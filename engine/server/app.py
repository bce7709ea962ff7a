"""The data path: OpenAI's chat/completions, completions and models in front of one engine."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial
from importlib.metadata import version as installed_version
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.requests import ClientDisconnect

from engine.server import errors
from engine.server.answers import AnswerShape, Choice, Delta, Usage
from engine.server.cutoff import CutOffMiddleware
from engine.server.errors import ApiError, repeated
from engine.server.headers import RequestIdMiddleware, decision_headers, looped_header
from engine.server.logprobs import TokenNames
from engine.server.options import ServerOptions as ServerOptions
from engine.server.preparation import Asked, Preparation, Prepared
from engine.server.reading import ReadLimits, RepeatedKeyError, parse_json
from engine.server.resolve import Resolver
from engine.server.schema import ChatRequest, CompletionRequest, SamplingFields, parse_chat, parse_completion
from engine.server.sequence import EngineHandle, SequenceRunner
from engine.server.streaming import EventStream, event, merge, unless_disconnected
from engine.server.token_endpoints import TokenEndpoints
from engine.server.tokenizer import Tokenizer
from engine.server.tools import Tools
from policies.language_detection import LanguageDetector
from policies.protocols import DecisionSource, TelemetrySink
from policies.quoting import shown

_LONG_BODY_BYTES = 64 << 10
"""Longer bodies are parsed in a thread, so that no stream waits for them."""
_LONG_PROMPT_CHARACTERS = 8_000
"""Longer prompts are tokenised in a thread, so that no stream waits for them."""
_TURN_CHARACTERS = 32
"""About what a chat template writes around a message: a body of 4 MiB holds 100,000 empty ones."""


def create_app(
    client: EngineHandle,
    tokenizer: Tokenizer,
    decisions: DecisionSource,
    sink: TelemetrySink,
    options: ServerOptions,
    clock: Callable[[], float] = time.monotonic,
) -> FastAPI:
    """The OpenAI-compatible server. `clock` gives `time.monotonic` seconds, as the engine's messages do."""
    app = FastAPI(title="Paceline", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    server = _Server(client, tokenizer, decisions, sink, options, clock)
    app.add_api_route("/v1/chat/completions", server.chat, methods=["POST"])
    app.add_api_route("/v1/completions", server.completions, methods=["POST"])
    app.add_api_route("/v1/models", server.models, methods=["GET"])
    app.add_api_route("/v1/models/{model:path}", server.model, methods=["GET"])
    app.add_api_route("/health", server.health, methods=["GET"])
    app.add_api_route("/ping", server.health, methods=["GET"])
    app.add_api_route("/ping", server.health, methods=["POST"])
    for probe in ("/health", "/ping"):
        app.add_api_route(probe, server.health, methods=["HEAD"], include_in_schema=False)
    app.add_api_route("/version", server.version, methods=["GET"])
    app.add_api_route("/tokenize", server.tokenize, methods=["POST"])
    app.add_api_route("/detokenize", server.detokenize, methods=["POST"])
    app.add_middleware(ReadLimits)
    app.add_middleware(CutOffMiddleware)
    app.add_middleware(RequestIdMiddleware)
    errors.install(app, options.admin_url)
    return app


class _Server:
    def __init__(
        self,
        client: EngineHandle,
        tokenizer: Tokenizer,
        decisions: DecisionSource,
        sink: TelemetrySink,
        options: ServerOptions,
        clock: Callable[[], float],
    ) -> None:
        self._client = client
        self._tokenizer = tokenizer
        self._options = options
        self._clock = clock
        self._detector = LanguageDetector()
        resolver = Resolver(decisions, lambda: client.info.drafters)
        self._tokens = TokenEndpoints(tokenizer, options.model, options.context_limit, client.info.vocabulary)
        self._preparation = Preparation(client, tokenizer, resolver, options, clock)
        names = TokenNames(tokenizer.token_bytes, tokenizer.special_tokens)
        self._runner = SequenceRunner(client, tokenizer.token_bytes, names, self._detector, resolver, sink, clock)
        self._created = int(time.time())
        self._version = installed_version("paceline")

    async def models(self) -> dict[str, Any]:
        return {"object": "list", "data": [self._model_body()]}

    async def model(self, model: str) -> dict[str, Any]:
        if model != self._options.model:
            raise ApiError(
                f"There is no model {shown(model)} here; the one served is {self._options.model!r}.",
                status=404,
                param="model",
                code="model_not_found",
            )
        return self._model_body()

    def _model_body(self) -> dict[str, Any]:
        return {
            "id": self._options.model,
            "object": "model",
            "created": self._created,
            "owned_by": "paceline",
            "max_model_len": self._options.context_limit,
        }

    async def health(self) -> Response:
        """As vLLM answers: an empty 200 while requests can be served."""
        if not self._client.alive:
            raise errors.unavailable("The engine is not running; the server's log says why.")
        return Response()

    async def version(self) -> dict[str, str]:
        return {"version": self._version}

    async def tokenize(self, request: Request) -> dict[str, Any]:
        return await self._tokens.tokenize(await _json(request))

    async def detokenize(self, request: Request) -> dict[str, str]:
        return await self._tokens.detokenize(await _json(request))

    async def chat(self, request: Request) -> Response:
        received_at = self._clock()
        parsed = parse_chat(await _json(request), self._options.model, self._client.info.vocabulary)
        prompt = await self._encode_chat(parsed)
        language = partial(self._detector.detect_chat, parsed.messages)
        grammar = await self._grammar(parsed.fields, parsed.tools)
        prepared = self._preparation.prepare(
            Asked(request.headers, received_at, parsed.fields, [prompt], language, "messages", grammar, parsed.tools)
        )
        return await self._answer(request, prepared, parsed.fields, chat=True)

    async def completions(self, request: Request) -> Response:
        received_at = self._clock()
        parsed = parse_completion(await _json(request), self._options.model, self._client.info.vocabulary)
        prompts = await self._encode_prompts(parsed)
        text = "\n".join(prompt for prompt in parsed.prompts if isinstance(prompt, str))
        language = partial(self._detector.detect, text)
        grammar = await self._grammar(parsed.fields, None)
        prepared = self._preparation.prepare(
            Asked(request.headers, received_at, parsed.fields, prompts, language, "prompt", grammar)
        )
        return await self._answer(request, prepared, parsed.fields, chat=False)

    async def _encode_chat(self, parsed: ChatRequest) -> list[int]:
        arguments = (parsed.messages, parsed.tools, parsed.template_arguments)
        characters = sum(len(message.content) + _TURN_CHARACTERS for message in parsed.messages)
        if parsed.tools is not None or parsed.template_arguments or characters > _LONG_PROMPT_CHARACTERS:
            return await asyncio.to_thread(self._tokenizer.encode_chat, *arguments)
        return self._tokenizer.encode_chat(*arguments)

    async def _grammar(self, fields: SamplingFields, tools: Tools | None) -> str | None:
        """What the output must follow. Made in a thread: a schema may be large."""
        if fields.controls.structured is not None:
            return await asyncio.to_thread(fields.controls.structured.grammar)
        return await asyncio.to_thread(tools.grammar) if tools is not None else None

    async def _encode_prompts(self, parsed: CompletionRequest) -> list[list[int]]:
        def encode() -> list[list[int]]:
            return [
                self._tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt) for prompt in parsed.prompts
            ]

        if sum(len(prompt) for prompt in parsed.prompts) > _LONG_PROMPT_CHARACTERS:
            return await asyncio.to_thread(encode)
        return encode()

    async def _answer(self, request: Request, prepared: Prepared, fields: SamplingFields, chat: bool) -> Response:
        shape = AnswerShape.new(chat, self._options.model, fields.controls.top_logprobs, fields.request_id)
        headers = decision_headers(prepared.decision, prepared.debug)
        deltas = merge([self._runner.run(job) for job in prepared.jobs])
        if fields.stream:
            return EventStream(_events(deltas, prepared, shape, fields), headers)
        choices = await unless_disconnected(_whole(deltas, prepared), request.receive)
        if choices is None:
            # The client has left: nobody reads this answer, but the interface asks for one.
            return Response(status_code=499)
        tokens, cached = sum(choice.tokens for choice in choices), sum(choice.cached_tokens for choice in choices)
        if prepared.debug:
            headers |= looped_header(any(choice.looped for choice in choices))
        return JSONResponse(shape.whole(choices, Usage(prepared.prompt_tokens, tokens, cached)), headers=headers)


async def _events(
    deltas: AsyncGenerator[tuple[int, Delta], None], prepared: Prepared, shape: AnswerShape, fields: SamplingFields
) -> AsyncGenerator[bytes, None]:
    called: dict[int, int] = {}
    tokens = cached = 0
    async with aclosing(deltas):
        async for index, delta in deltas:
            tokens += delta.tokens
            cached += delta.cached_tokens
            if index in called and delta.silent:
                continue  # its text is held back
            chunk = shape.chunk(index, delta, first=index not in called, called=called.get(index, 0))
            called[index] = called.get(index, 0) + len(delta.calls)
            if fields.include_usage:
                so_far = Usage(prepared.prompt_tokens, tokens, cached).body() if fields.continuous_usage else None
                chunk["usage"] = so_far
            yield event(chunk)
    if fields.include_usage:
        yield event(shape.usage_chunk(Usage(prepared.prompt_tokens, tokens, cached)))
    yield b"data: [DONE]\n\n"


async def _whole(deltas: AsyncGenerator[tuple[int, Delta], None], prepared: Prepared) -> list[Choice]:
    choices = [Choice() for _ in prepared.jobs]
    async with aclosing(deltas):
        async for index, delta in deltas:
            choice = choices[index]
            choice.text += delta.text
            choice.tokens += delta.tokens
            choice.cached_tokens += delta.cached_tokens
            choice.finish = delta.finish
            choice.looped = delta.looped
            choice.logprobs += delta.logprobs
            choice.calls += delta.calls
    return choices


async def _json(request: Request) -> object:
    """The body of a request as JSON. Raises `ApiError`."""
    try:
        body = await request.body()
    except ClientDisconnect as error:
        raise ApiError("The client left before its request was complete; send it again.") from error
    try:
        return await asyncio.to_thread(parse_json, body) if len(body) > _LONG_BODY_BYTES else parse_json(body)
    except RepeatedKeyError as error:
        raise repeated("The body", error) from error
    except ValueError as error:
        raise ApiError(f"The body is not JSON ({error}); send one JSON object.", code="invalid_json") from error
