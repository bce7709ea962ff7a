"""The first promise, on the real model: the same token ids, plain or speculating, alone or in a batch.

Numbers in names are those of collected field reports.
"""

import dataclasses
import random
from pathlib import Path

import pytest

from engine.blocks import BLOCK_TOKENS, blocks_for
from engine.drafter_shelf import fitting_drafters
from engine.rows import Rows
from engine.target import DecoderTarget
from engine.weights import choose_dtype
from kernels.sampling import Block, Chosen
from tests.system.text_run import (
    GREEDY,
    SAMPLED,
    Prompt,
    Run,
    Served,
    differences,
    load,
    read_prompts,
    run,
    shortest_of_each_route,
)

pytestmark = pytest.mark.model

BATCH = 8
BLOCKS = 512
BLOCK_LENGTHS = (1, 2, 3, 4, 8, 16)
MIXED = (0, 1, 2, 4, 8, 16, 3, 16)
"""Block lengths of a batch, by place."""
WRONG_TOKEN = 1000
NATIVE = str(choose_dtype("auto")).removeprefix("torch.")


@pytest.fixture(scope="module")
def served(default_model: Path) -> Served:
    """In bfloat16 where the CPU multiplies it, as the model is served; with every drafter that it has."""
    return load(default_model, NATIVE, blocks=BLOCKS, drafters=fitting_drafters(default_model, pytest.fail))


@pytest.fixture(scope="module")
def prompts(default_model: Path, served: Served) -> list[Prompt]:
    """Six of each route."""
    return read_prompts(default_model, served.vocabulary, per_route=6)


def mixed(count: int) -> list[int]:
    return [MIXED[place % len(MIXED)] for place in range(count)]


def test_one_prompt_of_each_route_gives_the_same_text_however_it_is_decoded(
    served: Served, prompts: list[Prompt]
) -> None:
    """Greedy and sampled with everything on; the batch of eight holds both, with mixed block lengths and drafters."""
    chosen = [prompt for prompt in shortest_of_each_route(prompts) for _ in range(2)]
    samplings = [GREEDY, SAMPLED] * 4
    plain = run(served, chosen, samplings, [0] * 8, slots=1)
    drafted = run(served, chosen, samplings, [4, 16] * 4, slots=1, drafters=tuple(served.drafters.loaded))
    batch = run(served, chosen, samplings, mixed(8), slots=BATCH, drafters=tuple(served.drafters.loaded)[::-1])
    assert differences(plain, drafted) == []
    assert differences(plain, batch) == []
    assert_worth_comparing(plain, drafted)
    assert_worth_comparing(plain, batch)
    assert max(stats.load for stats in batch.cycles) == BATCH


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_every_block_length_gives_the_same_text_alone_and_in_a_batch(
    default_model: Path, prompts: list[Prompt], dtype: str, sampling: object
) -> None:
    """24 prompts in bfloat16; in float32 one of each route, which the batch holds twice. The drafters take turns, and
    with each block length every prompt has another one."""
    assert sampling is GREEDY or sampling is SAMPLED
    if dtype == "bfloat16" and dtype != NATIVE:
        pytest.skip("this CPU does not multiply bfloat16 natively")
    served = load(default_model, dtype, blocks=BLOCKS, drafters=fitting_drafters(default_model, pytest.fail))
    names = tuple(served.drafters.loaded)
    chosen = prompts if dtype == "bfloat16" else shortest_of_each_route(prompts)
    samplings = [sampling] * len(chosen)
    plain = run(served, chosen, samplings, [0] * len(chosen), slots=1)
    assert plain.accepted == 0
    for turn, block_length in enumerate(BLOCK_LENGTHS):
        first = turn % len(names)
        turned = (*names[first:], *names[:first])
        drafted = run(served, chosen, samplings, [block_length] * len(chosen), slots=1, drafters=turned)
        assert differences(plain, drafted) == [], f"K = {block_length}, {turned}"
        assert_worth_comparing(plain, drafted)
    batch = run(served, chosen * 2, samplings * 2, mixed(2 * len(chosen)), slots=BATCH, drafters=names)
    assert differences(twice(plain), batch) == []
    assert_worth_comparing(plain, batch)
    assert max(stats.load for stats in batch.cycles) == BATCH


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_report_39_with_the_target_itself_as_draft_model_all_is_accepted_and_the_text_is_the_same(
    default_model: Path, prompts: list[Prompt]
) -> None:
    """After a full accept the draft model has not seen its own last token: its cache must catch up."""
    served = load(default_model, NATIVE, blocks=BLOCKS, drafters=(str(default_model),))
    itself = tuple(served.drafters.loaded)
    chosen = shortest_of_each_route(prompts)
    plain = run(served, chosen, [GREEDY] * 4, [0] * 4, slots=1)
    for block_length in (1, 4, 7):
        drafted = run(served, chosen, [GREEDY] * 4, [block_length] * 4, slots=4, drafters=itself)
        assert differences(plain, drafted) == []
        assert drafted.accepted > 60
        assert drafted.rejected == 0


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_64_requests_in_a_quarter_of_the_cache_half_of_them_cancelled_end_as_they_do_alone(
    served: Served, prompts: list[Prompt]
) -> None:
    """With every drafter; prompts of limit - 1, limit - 2, ... limit - 17 tokens are among them."""
    limit, output_tokens, lot = 384, 112, random.Random(64)
    names = tuple(served.drafters.loaded)
    texts = [prompt.token_ids for prompt in prompts if len(prompt.token_ids) >= limit]
    assert texts, "a prompt that is cut to near the limit"
    chosen = []
    for place in range(64):
        prompt = prompts[place % len(prompts)]
        length = lot.randrange(16, 48) if place < 47 else limit + 46 - place
        text = prompt.token_ids if place < 47 else texts[place % len(texts)]
        chosen.append(dataclasses.replace(prompt, token_ids=text[:length], stop_token_ids=()))
    samplings = [GREEDY if place % 2 else dataclasses.replace(SAMPLED, seed=place) for place in range(64)]
    plain = run(served, chosen, samplings, [0] * 64, slots=1, output_tokens=output_tokens, context_limit=limit)
    wanted = sum(blocks_for(min(len(prompt.token_ids) + output_tokens, limit)) for prompt in chosen)
    leaving = lot.sample(range(64), 32)
    crowded = run(
        served,
        chosen,
        samplings,
        [lot.choice((0, 0, 0, 1, 2, 4, 16)) for _ in chosen],
        slots=64,
        drafters=names,
        output_tokens=output_tokens,
        context_limit=limit,
        blocks=wanted // 4,
        # A few leave at once, the others when the cache has become too small for all.
        cancel_at={key: lot.randrange(20) if key % 4 == 0 else lot.randrange(60, 130) for key in leaving},
    )
    assert differences(plain, crowded) == []
    assert 32 <= sum(crowded.finished) < 64
    assert crowded.preemptions > 0
    assert crowded.reused_tokens >= BLOCK_TOKENS
    assert_worth_comparing(plain, crowded)


class Careless(DecoderTarget):
    """A mutant: after each pass with drafts, the cache holds another token in the place of a block's first row."""

    def verify(self, parts: list[Rows], blocks: list[Block]) -> list[Chosen]:
        chosen = super().verify(parts, blocks)
        for part in parts:
            if len(part.token_ids) > 1:
                self.decoder.forward([Rows([WRONG_TOKEN], part.start, part.blocks, 0)])
        return chosen


def test_one_wrong_row_in_the_cache_is_noticed(served: Served, prompts: list[Prompt]) -> None:
    chosen = shortest_of_each_route(prompts)
    plain = run(served, chosen, [GREEDY] * 4, [0] * 4, slots=4, output_tokens=16)
    mutant = dataclasses.replace(served, target=Careless(served.target.decoder))
    careless = run(mutant, chosen, [GREEDY] * 4, [8] * 4, slots=4, output_tokens=16)
    assert careless.rejected > 0
    assert differences(plain, careless) != []


def twice(plain: Run) -> Run:
    return Run(plain.texts * 2, plain.cycles, plain.finished * 2)


def assert_worth_comparing(plain: Run, drafted: Run) -> None:
    """Drafts were kept and drafts were rejected, in texts that are not all the same."""
    assert drafted.accepted > 0
    assert drafted.rejected > 0
    assert len(set(plain.texts)) > 1
