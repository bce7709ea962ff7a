"""The loop over the real decoder with a scarce cache: what is left behind in a block never reaches another sequence."""

import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.blocks import BLOCK_TOKENS, Blocks
from engine.decoder import Decoder
from engine.drafter_files import DrafterKind
from engine.drafter_plan import DraftedTarget
from engine.drafter_set import DrafterSet
from engine.loop import EngineLoop
from engine.messages import Cancel, Sampling, Submit, ToEngine
from engine.target import DecoderTarget
from engine.vocabulary import read_vocabulary
from engine.weights import load_decoder
from kernels.native_threads import NativeThreads
from policies.types import MAX_BLOCK_LENGTH
from tests.engine.scripted import Delivered, decision, submit
from tests.engine.tiny_drafter import make_tiny_drafter
from tests.engine.tiny_model import make_tiny_model

CONTEXT_LIMIT = 160
WHOLE = CONTEXT_LIMIT // BLOCK_TOKENS
POISON = 383
"""A token whose embedding is not a number in the poisoned model."""


class Served:
    """A tiny model with its drafters, and a loop that is made anew over them for each run."""

    def __init__(self, model_path: Path, native: NativeThreads, sources: tuple[str, ...], blocks: int) -> None:
        self.decoder = load_decoder(
            model_path, "float32", blocks=blocks, capacity=CONTEXT_LIMIT, features=True, native=native
        )
        target = DraftedTarget(
            path=model_path,
            config=self.decoder.config,
            vocabulary=read_vocabulary(model_path),
            dtype="float32",
            blocks=blocks,
            context_limit=CONTEXT_LIMIT,
        )
        self.drafters = DrafterSet(self.decoder, target, ngram_match=(1, 8), stop=0.0)
        for source in sources:
            self.drafters.load(source)
        fill_with_garbage(self.decoder)

    def loop(self, slots: int, blocks: int) -> tuple[EngineLoop, Delivered]:
        delivered = Delivered()
        loop = EngineLoop(
            target=DecoderTarget(self.decoder),
            drafters=self.drafters.loaded,
            blocks=Blocks(slots, blocks),
            context_limit=CONTEXT_LIMIT,
            prefill_chunk=100,
            token_bytes=list,
            deliver=delivered,
        )
        return loop, delivered

    def alone(self, message: Submit) -> list[int]:
        """The plain text of a request that has the cache for itself."""
        loop, delivered = self.loop(1, WHOLE)
        finish(loop, message)
        return delivered.tokens[message.request_key]


@torch.inference_mode()
def fill_with_garbage(decoder: Decoder) -> None:
    """Whatever is in a block before it is written, nobody may read it."""
    assert decoder.features is not None
    for tensor in (decoder.features, decoder._cache.keys, decoder._cache.values):
        tensor.fill_(1e30)


def finish(loop: EngineLoop, *messages: ToEngine) -> None:
    """Step to the end, where everything is free again."""
    loop.step(messages)
    for _ in range(5000):
        if loop.idle:
            break
        loop.step(())
        loop.scheduler.check()
    assert loop.idle
    blocks = loop.scheduler.blocks
    assert (blocks.free_slots, blocks.free_blocks) == (blocks.slots, blocks.blocks)


def prompt_of(key: int, length: int) -> list[int]:
    lot = random.Random(key)
    return [lot.randrange(3, POISON) for _ in range(length)]


@pytest.fixture(scope="module")
def served(tiny_model: Path, native: NativeThreads, tmp_path_factory: pytest.TempPathFactory) -> Served:
    folder = tmp_path_factory.mktemp("drafters")
    head = make_tiny_drafter(folder / "head", tiny_model, DrafterKind.FEATURE_HEAD)
    twin = make_tiny_model(folder / "twin")
    return Served(tiny_model, native, ("ngram", "suffix", str(head), str(twin)), 64 * WHOLE // 4)


def test_report_64_requests_in_a_quarter_of_the_cache_half_of_them_cancelled_end_as_they_do_alone(
    served: Served,
) -> None:
    """With every kind of drafter; prompts of limit - 1, limit - 2, ... limit - 17 tokens are among them."""
    lot = random.Random(64)
    drafters = tuple(served.drafters.loaded)
    messages = []
    for key in range(1, 65):
        length = lot.randrange(1, 30) if key <= 47 else CONTEXT_LIMIT + 47 - key
        sampling = Sampling(
            temperature=0.0 if key % 3 else 0.9, seed=key, repetition_penalty=1.0 if key % 4 else 1.3, top_p=0.95
        )
        chosen = decision(drafters[key % len(drafters)], lot.choice((0, 1, 1, 2, 3, MAX_BLOCK_LENGTH)))
        prompt = prompt_of(key if key <= 47 else key % 5, length)
        messages.append(submit(key, prompt, max_tokens=140, sampling=sampling, chosen=chosen))
    # A few leave at once, the others when the cache has become too small for all.
    leaving = {
        key: lot.randrange(1, 20) if key % 4 == 0 else lot.randrange(60, 90) for key in lot.sample(range(1, 65), 32)
    }
    stay = [message for message in messages if message.request_key not in leaving]
    loop, delivered = served.loop(64, 64 * WHOLE // 4)
    loop.step(messages)
    for step in range(90):
        loop.step([Cancel(key) for key, when in leaving.items() if when == step])
        loop.scheduler.check()
    finish(loop)
    assert not delivered.failures
    assert loop.scheduler.preemptions > 0
    assert loop.status().reused_tokens > 0
    for message in stay:
        assert delivered.tokens[message.request_key] == served.alone(message)
        assert message.request_key in delivered.finished
    assert {item.drafter for stats in delivered.stats for item in stats.sequences if item.accepted} >= {"twin", "ngram"}


@pytest.mark.parametrize("away", [1, 2, 3, 8, 15, 16, 17])
@pytest.mark.parametrize("drafter", ["ngram", "suffix", "head", "twin"])
def test_report_35_a_prompt_close_to_the_context_limit_gets_its_last_tokens(
    served: Served, drafter: str, away: int
) -> None:
    prompt = (prompt_of(1, 12) * 20)[: CONTEXT_LIMIT - away]
    message = submit(1, prompt, max_tokens=100, sampling=Sampling(temperature=0.0))
    alone = served.alone(message)
    assert len(alone) == away
    loop, delivered = served.loop(2, WHOLE)
    finish(loop, submit(1, prompt, max_tokens=100, sampling=Sampling(temperature=0.0), chosen=decision(drafter, 16)))
    assert delivered.tokens[1] == alone


@pytest.fixture(scope="module")
def poisoned(native: NativeThreads, tmp_path_factory: pytest.TempPathFactory) -> Served:
    """A model that answers every text with `POISON` in it by logits that are not numbers."""
    folder = make_tiny_model(tmp_path_factory.mktemp("poisoned"), tied=False)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.embed_tokens.weight"][POISON] = torch.nan
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return Served(folder, native, ("ngram", "suffix"), 4 * WHOLE)


@pytest.mark.parametrize("drafter", ["none", "ngram"])
def test_logits_that_are_not_numbers_fail_their_request_alone_and_its_blocks_serve_others(
    poisoned: Served, drafter: str
) -> None:
    chosen = decision(drafter, 4) if drafter != "none" else decision()
    healthy = [
        submit(
            key,
            prompt_of(key, 40),
            max_tokens=50,
            sampling=Sampling(temperature=0.7, seed=key, logit_bias=((POISON, -100.0),)),
            chosen=chosen,
        )
        for key in (1, 2, 3)
    ]
    loop, delivered = poisoned.loop(2, 2 * WHOLE)
    sick = submit(9, [*prompt_of(9, 30), POISON, *prompt_of(9, 30)], max_tokens=50, chosen=chosen)
    finish(loop, healthy[0], sick, healthy[1])
    assert delivered.failures.keys() == {9}
    assert "logits have the maximum nan" in delivered.failures[9]
    finish(loop, healthy[2])
    for message in healthy:
        assert delivered.tokens[message.request_key] == poisoned.alone(message)
    assert loop.status().running == 0
