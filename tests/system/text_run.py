"""Runs prompts of the workload through the engine's loop in this process, with a block length for each."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.blocks import Blocks, blocks_for
from engine.loop import EngineLoop
from engine.messages import CycleDone, FromEngine, Sampling, Submit
from engine.ngram import NgramDrafter
from engine.server.tokenizer import load_tokenizer
from engine.server.tools import Message
from engine.target import DecoderTarget
from policies.types import PLAIN, Context, CycleStats, Decision, Reason
from tuner.workload import ROUTES, load_workload

OUTPUT_TOKENS = 48
CONTEXT_LIMIT = 2048
GREEDY = Sampling(temperature=0.0)
SAMPLED = Sampling(
    temperature=0.8,
    top_p=0.95,
    repetition_penalty=1.05,
    presence_penalty=0.1,
    frequency_penalty=0.05,
    logit_bias=((198, -1.5), (28, 1.0)),
    seed=20251129,
)
"""Everything at once: the biased tokens are a line break and a comma, which every text is full of."""


@dataclass(frozen=True, slots=True)
class Prompt:
    route: str
    token_ids: tuple[int, ...]
    stop_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """What came out, in the order of the prompts."""

    texts: tuple[tuple[int, ...], ...]
    cycles: tuple[CycleStats, ...]

    @property
    def accepted(self) -> int:
        return sum(sequence.accepted for stats in self.cycles for sequence in stats.sequences)

    @property
    def rejected(self) -> int:
        return sum(sequence.verified - sequence.accepted for stats in self.cycles for sequence in stats.sequences)


def read_prompts(model_path: Path, vocabulary: int, per_route: int) -> list[Prompt]:
    """The first `per_route` prompts of each route, as the chat template writes them."""
    tokenizer = load_tokenizer(model_path, vocabulary)
    prompts = []
    for route in ROUTES:
        for prompt in load_workload([route])[:per_route]:
            messages = [Message(message["role"], message["content"]) for message in prompt.messages]
            prompts.append(Prompt(route, tuple(tokenizer.encode_chat(messages)), tokenizer.stop_token_ids))
    return prompts


def shortest_of_each_route(prompts: Sequence[Prompt]) -> list[Prompt]:
    return [
        min((prompt for prompt in prompts if prompt.route == route), key=lambda prompt: len(prompt.token_ids))
        for route in ROUTES
    ]


def run(
    target: DecoderTarget,
    prompts: Sequence[Prompt],
    samplings: Sequence[Sampling],
    block_lengths: Sequence[int],
    *,
    slots: int,
    output_tokens: int = OUTPUT_TOKENS,
) -> Run:
    """Every prompt once, with the sampling and the forced block length of its place; `slots` of them together."""
    done: list[CycleDone] = []

    def deliver(message: FromEngine) -> None:
        assert isinstance(message, CycleDone), message
        done.append(message)

    def no_stop_strings() -> list[bytes]:
        raise AssertionError("no sequence has a stop string")

    drafter = NgramDrafter(2, 16)
    loop = EngineLoop(
        target=target,
        drafters={drafter.name: drafter},
        blocks=Blocks(slots, slots * blocks_for(CONTEXT_LIMIT)),
        context_limit=CONTEXT_LIMIT,
        prefill_chunk=256,
        token_bytes=no_stop_strings,
        deliver=deliver,
    )
    waiting = [
        Submit(
            request_key=key,
            prompt=prompt.token_ids,
            sampling=sampling,
            max_tokens=output_tokens,
            stop_token_ids=prompt.stop_token_ids,
            stops=(),
            decision=Decision(
                "test",
                Context("model", prompt.route, "en"),
                "ngram" if block_length else PLAIN,
                block_length,
                True,
                Reason.ENGINE_DEFAULT,
                0,
            ),
            submitted_at=0.0,
        )
        for key, (prompt, sampling, block_length) in enumerate(zip(prompts, samplings, block_lengths, strict=True))
    ]
    loop.step(waiting)
    while not loop.idle:
        loop.step(())
    texts: list[list[int]] = [[] for _ in prompts]
    for message in done:
        for item in message.tokens:
            texts[item.request_key].extend(item.token_ids)
    return Run(tuple(map(tuple, texts)), tuple(message.stats for message in done if message.stats.load))


def differences(plain: Run, other: Run) -> list[str]:
    """Where texts part: place of the prompt and output position. Empty when every token id is the same."""
    found = []
    for place, (expected, text) in enumerate(zip(plain.texts, other.texts, strict=True)):
        if expected != text:
            pairs = zip(expected, text, strict=False)
            position = next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(expected), len(text)))
            found.append(f"prompt {place} differs at output position {position} of {len(expected)}")
    return found
