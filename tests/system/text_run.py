"""Runs prompts of the workload through the engine's loop in this process, with a block length for each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.blocks import Blocks
from engine.drafter_plan import DraftedTarget
from engine.drafter_set import DrafterSet
from engine.loop import EngineLoop
from engine.messages import Cancel, CycleDone, FromEngine, Sampling, Submit
from engine.server.tokenizer import load_tokenizer
from engine.server.tools import Message
from engine.target import DecoderTarget
from engine.vocabulary import read_vocabulary
from engine.weights import load_decoder
from policies.stats import CycleStats
from policies.types import PLAIN, Context, Decision, Reason
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
    finished: tuple[bool, ...]
    """False for those that were cancelled before their end."""

    @property
    def accepted(self) -> int:
        return sum(sequence.accepted for stats in self.cycles for sequence in stats.sequences)

    @property
    def rejected(self) -> int:
        return sum(sequence.verified - sequence.accepted for stats in self.cycles for sequence in stats.sequences)

    @property
    def preemptions(self) -> int:
        return sum(stats.preemptions for stats in self.cycles)

    @property
    def reused_tokens(self) -> int:
        return sum(stats.reused_tokens for stats in self.cycles)


@dataclass(frozen=True, slots=True)
class Served:
    """A model with its drafters, as `engine.build` joins them."""

    target: DecoderTarget
    drafters: DrafterSet

    @property
    def vocabulary(self) -> int:
        return self.target.decoder.config.vocab_size


def load(model_path: Path, dtype: str, *, blocks: int, drafters: Sequence[str] = ()) -> Served:
    """One thread: two that wait for each other are slow beside anything else that runs on the machine."""
    decoder = load_decoder(model_path, dtype, blocks=blocks, capacity=CONTEXT_LIMIT, features=True)
    drafted = DraftedTarget(
        path=model_path,
        config=decoder.config,
        vocabulary=read_vocabulary(model_path),
        dtype=str(decoder.dtype).removeprefix("torch."),
        blocks=blocks,
        context_limit=CONTEXT_LIMIT,
    )
    loaded = DrafterSet(decoder, drafted, ngram_match=(2, 16))
    for source in drafters:
        loaded.load(source)
    return Served(DecoderTarget(decoder), loaded)


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
    served: Served,
    prompts: Sequence[Prompt],
    samplings: Sequence[Sampling],
    block_lengths: Sequence[int],
    *,
    slots: int,
    drafters: Sequence[str] = ("ngram",),
    output_tokens: int = OUTPUT_TOKENS,
    context_limit: int = CONTEXT_LIMIT,
    blocks: int = 0,
    cancel_at: Mapping[int, int] | None = None,
) -> Run:
    """Every prompt once, with the sampling and the forced block length of its place; `slots` of them together.

    The drafters take turns. `blocks` of the cache are used, all of them for 0. `cancel_at`: the step before which the
    prompt of a place is cancelled. Everything that was held is free again at the end.
    """
    done: list[CycleDone] = []

    def deliver(message: FromEngine) -> None:
        assert isinstance(message, CycleDone), message
        done.append(message)

    def no_stop_strings() -> list[bytes]:
        raise AssertionError("no sequence has a stop string")

    cache = Blocks(slots, blocks or served.target.decoder.blocks)
    loop = EngineLoop(
        target=served.target,
        drafters=served.drafters.loaded,
        blocks=cache,
        context_limit=context_limit,
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
                drafters[key % len(drafters)] if block_length else PLAIN,
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
    leaving = dict(cancel_at or {})
    step = 0
    while not loop.idle:
        step += 1
        due = [key for key, when in leaving.items() if when <= step]
        loop.step([Cancel(key) for key in due])
        for key in due:
            del leaving[key]
        loop.scheduler.check()
    assert (cache.free_slots, cache.free_blocks) == (cache.slots, cache.blocks)
    texts: list[list[int]] = [[] for _ in prompts]
    finished = [False] * len(prompts)
    for message in done:
        for item in message.tokens:
            texts[item.request_key].extend(item.token_ids)
            finished[item.request_key] = item.finished is not None
    return Run(tuple(map(tuple, texts)), tuple(message.stats for message in done), tuple(finished))


def differences(plain: Run, other: Run) -> list[str]:
    """Where texts part: place of the prompt and output position. Empty when every token id is the same.

    What a cancelled prompt had emitted by then is compared.
    """
    found = []
    for place, (whole, text) in enumerate(zip(plain.texts, other.texts, strict=True)):
        expected = whole if other.finished[place] else whole[: len(text)]
        if expected != text:
            pairs = zip(expected, text, strict=False)
            position = next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(expected), len(text)))
            found.append(f"prompt {place} differs at output position {position} of {len(expected)}")
    return found
