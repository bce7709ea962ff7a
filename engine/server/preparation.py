"""From a checked request to the sequences that the engine runs for it."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass

from starlette.datastructures import Headers

from engine.messages import Submit
from engine.server.encoding import OutputTokens, output_tokens
from engine.server.errors import ApiError, invalid, unavailable
from engine.server.headers import read_steering
from engine.server.options import ServerOptions
from engine.server.resolve import Resolver
from engine.server.schema import SamplingFields
from engine.server.sequence import EngineHandle, Job
from engine.server.tokenizer import Tokenizer
from engine.server.tools import Tools
from kernels.sampling import Sampling
from policies.features import request_features
from policies.types import Context, Decision


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, with what had to be waited for."""

    headers: Headers
    received_at: float
    fields: SamplingFields
    prompts: list[list[int]]
    detect: Callable[[], str]
    """The language, where the client did not name it."""
    field: str
    """Where the prompt stands in the body."""
    grammar: str | None
    tools: Tools | None = None


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that can be run: one job for each choice, in the order of the choices."""

    jobs: tuple[Job, ...]
    prompt_tokens: int
    decision: Decision
    debug: bool


class Preparation:
    """Resolves decisions and lays out sequences."""

    def __init__(
        self,
        client: EngineHandle,
        tokenizer: Tokenizer,
        resolver: Resolver,
        options: ServerOptions,
        clock: Callable[[], float],
    ) -> None:
        self._client = client
        self._tokenizer = tokenizer
        self._resolver = resolver
        self._options = options
        self._clock = clock

    def prepare(self, asked: Asked) -> Prepared:
        """Raises `ApiError`; nothing has been submitted yet."""
        fields, prompts = asked.fields, asked.prompts
        steering = read_steering(asked.headers, self._options.routes, self._options.trust_headers)
        self._check_prompts(asked)
        ends = self._ends(asked)
        rooms = [self._room(fields, len(prompt)) for prompt in prompts]
        output = self._output_tokens(fields, min(rooms))
        language = steering.language or asked.detect()
        context = Context(self._options.model, steering.route, language)
        features = [
            request_features(fields.temperature, len(prompt), room, steering.opt_out, asked.grammar is not None)
            for prompt, room in zip(prompts, rooms, strict=True)
        ]
        decision = self._resolver.decide(context, features[0])
        structured = fields.controls.structured
        grammar_field = structured.field if structured is not None else "tools"
        jobs: list[Job] = []
        for prompt, room, of_prompt in zip(prompts, rooms, features, strict=True):
            # Without a seed, equal prompts in one request differ, as they would in separate requests.
            seed = secrets.randbits(64) if fields.seed is None else fields.seed & ((1 << 64) - 1)
            for choice in range(fields.choices):
                submit = Submit(
                    request_key=self._client.next_key(),
                    prompt=tuple(prompt),
                    sampling=self._sampling(fields, output, ends, seed, choice),
                    max_tokens=room,
                    stop_token_ids=ends,
                    stops=fields.stops,
                    decision=decision,
                    submitted_at=self._clock(),
                    top_logprobs=fields.controls.top_logprobs,
                    grammar=asked.grammar,
                )
                detected = steering.language is None
                jobs.append(Job(submit, of_prompt, asked.received_at, detected, asked.tools, grammar_field, structured))
        return Prepared(tuple(jobs), sum(len(prompt) for prompt in prompts), decision, steering.debug)

    def _check_prompts(self, asked: Asked) -> None:
        limit = self._options.context_limit
        longest = max(len(prompt) for prompt in asked.prompts)
        if longest >= limit:
            raise ApiError(
                f"{asked.field} has {longest} tokens and the context holds {limit}, output included; "
                f"give at most {limit - 1}.",
                param=asked.field,
                code="context_length_exceeded",
            )
        vocabulary = self._client.info.vocabulary
        for prompt in asked.prompts:
            if max(prompt, default=0) >= vocabulary:
                raise ApiError(
                    f"{asked.field} holds the token {max(prompt)}, but the model knows 0 to {vocabulary - 1}; "
                    "leave out its text.",
                    param=asked.field,
                    code="invalid_value",
                )
        if not self._client.alive:
            raise unavailable("The engine is not running; send the request again later.")

    def _room(self, fields: SamplingFields, prompt_tokens: int) -> int:
        """How many tokens the output may have."""
        limit = self._options.context_limit
        left = limit - prompt_tokens
        if fields.max_tokens is None:
            return left
        if fields.limited_by is not None and fields.max_tokens > left:
            raise ApiError(
                f"{fields.limited_by} is {fields.max_tokens}, but the context holds {limit} tokens and the prompt has "
                f"{prompt_tokens} of them; give at most {left}, or a shorter prompt.",
                param=fields.limited_by,
                code="context_length_exceeded",
            )
        return min(fields.max_tokens, left)

    def _output_tokens(self, fields: SamplingFields, room: int) -> OutputTokens:
        """`room` is how many tokens the output may have."""
        controls = fields.controls
        if controls.watermark is not None and self._options.watermark is not None:
            raise ApiError(
                "watermark is given, but this server puts its own on every output; leave it out.",
                param="watermark",
                code="invalid_value",
            )
        if controls.min_tokens > room:
            raise invalid("min_tokens", controls.min_tokens, f"at most {room}, what the context has left")
        return output_tokens(controls, self._tokenizer, room, self._client.info.vocabulary)

    def _ends(self, asked: Asked) -> tuple[int, ...]:
        """The tokens that end an output. A grammar says itself where that is, and needs the model's ends to say it."""
        controls = asked.fields.controls
        own = () if controls.ignore_eos else self._tokenizer.stop_token_ids
        if asked.grammar is not None and (controls.ignore_eos or controls.stop_token_ids):
            field = "ignore_eos" if controls.ignore_eos else "stop_token_ids"
            raise ApiError(
                f"{field} is given beside a form that says itself where the output ends; give only one of the two.",
                param=field,
                code="conflict",
            )
        return tuple(sorted({*own, *controls.stop_token_ids}))

    def _sampling(
        self, fields: SamplingFields, output: OutputTokens, ends: tuple[int, ...], seed: int, choice: int
    ) -> Sampling:
        return Sampling(
            temperature=fields.temperature,
            top_k=fields.top_k,
            top_p=fields.top_p,
            min_p=fields.min_p,
            repetition_penalty=fields.repetition_penalty,
            presence_penalty=fields.presence_penalty,
            frequency_penalty=fields.frequency_penalty,
            logit_bias=fields.logit_bias,
            seed=seed,
            choice=choice,
            verifier=fields.controls.verifier or self._options.verifier,
            min_tokens=fields.controls.min_tokens,
            end_tokens=ends if fields.controls.min_tokens else (),
            bad_words=output.bad_words,
            allowed_tokens=fields.controls.allowed_tokens,
            forced_prefix=output.forced_prefix,
            watermark=fields.controls.watermark or self._options.watermark,
        )
