"""The first promise, on the real model: the same token ids, plain or speculating, alone or in a batch."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from engine.decoder import Pass
from engine.target import DecoderTarget
from engine.weights import choose_dtype, load_decoder
from kernels.sampling import Block
from tests.system.text_run import (
    CONTEXT_LIMIT,
    GREEDY,
    SAMPLED,
    Prompt,
    Run,
    differences,
    read_prompts,
    run,
    shortest_of_each_route,
)

pytestmark = pytest.mark.model

BATCH = 8
BLOCK_LENGTHS = (1, 2, 4, 8, 16)
MIXED = (0, 1, 2, 4, 8, 16, 3, 16)
"""Block lengths of a batch, by place."""
WRONG_TOKEN = 1000
NATIVE = str(choose_dtype("auto")).removeprefix("torch.")


def load(model_path: Path, dtype: str) -> DecoderTarget:
    return DecoderTarget(load_decoder(model_path, dtype, slots=BATCH, capacity=CONTEXT_LIMIT))


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Two threads that wait for each other are slow beside anything else that runs on the machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def target(default_model: Path) -> DecoderTarget:
    """In bfloat16 where the CPU multiplies it, as the model is served."""
    return load(default_model, NATIVE)


@pytest.fixture(scope="module")
def prompts(default_model: Path, target: DecoderTarget) -> list[Prompt]:
    """Six of each route."""
    return read_prompts(default_model, target.decoder.config.vocab_size, per_route=6)


def mixed(count: int) -> list[int]:
    return [MIXED[place % len(MIXED)] for place in range(count)]


def test_one_prompt_of_each_route_gives_the_same_text_however_it_is_decoded(
    target: DecoderTarget, prompts: list[Prompt]
) -> None:
    """Greedy and sampled with everything on; the batch of eight holds both, with mixed block lengths."""
    chosen = [prompt for prompt in shortest_of_each_route(prompts) for _ in range(2)]
    samplings = [GREEDY, SAMPLED] * 4
    plain = run(target, chosen, samplings, [0] * 8, slots=1)
    drafted = run(target, chosen, samplings, [4, 16] * 4, slots=1)
    batch = run(target, chosen, samplings, mixed(8), slots=BATCH)
    assert differences(plain, drafted) == []
    assert differences(plain, batch) == []
    assert_worth_comparing(plain, drafted)
    assert_worth_comparing(plain, batch)
    assert max(stats.load for stats in batch.cycles) == BATCH


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_every_block_length_gives_the_same_text_alone_and_in_a_batch(
    default_model: Path, prompts: list[Prompt], dtype: str, sampling: object
) -> None:
    """24 prompts in bfloat16; in float32 one of each route, which the batch holds twice."""
    assert sampling is GREEDY or sampling is SAMPLED
    if dtype == "bfloat16" and dtype != NATIVE:
        pytest.skip("this CPU does not multiply bfloat16 natively")
    target = load(default_model, dtype)
    chosen = prompts if dtype == "bfloat16" else shortest_of_each_route(prompts)
    samplings = [sampling] * len(chosen)
    plain = run(target, chosen, samplings, [0] * len(chosen), slots=1)
    assert plain.accepted == 0
    for block_length in BLOCK_LENGTHS:
        drafted = run(target, chosen, samplings, [block_length] * len(chosen), slots=1)
        assert differences(plain, drafted) == [], f"K = {block_length}"
        assert_worth_comparing(plain, drafted)
    batch = run(target, chosen * 2, samplings * 2, mixed(2 * len(chosen)), slots=BATCH)
    assert differences(Run(plain.texts * 2, plain.cycles), batch) == []
    assert_worth_comparing(plain, batch)
    assert max(stats.load for stats in batch.cycles) == BATCH


class Careless(DecoderTarget):
    """A mutant: after each pass with drafts, the cache holds another token in the place of a block's first row."""

    def verify(
        self, token_ids: list[int], slots: list[int], positions: list[int], blocks: list[Block]
    ) -> list[list[int]]:
        emitted = super().verify(token_ids, slots, positions, blocks)
        for block in blocks:
            if block.drafts:
                row = block.first_row
                self.decoder.forward(Pass([WRONG_TOKEN], [slots[row]], [positions[row]], []))
        return emitted


def test_one_wrong_row_in_the_cache_is_noticed(target: DecoderTarget, prompts: list[Prompt]) -> None:
    chosen = shortest_of_each_route(prompts)
    plain = run(target, chosen, [GREEDY] * 4, [0] * 4, slots=4, output_tokens=16)
    careless = run(Careless(target.decoder), chosen, [GREEDY] * 4, [8] * 4, slots=4, output_tokens=16)
    assert careless.rejected > 0
    assert differences(plain, careless) != []


def assert_worth_comparing(plain: Run, drafted: Run) -> None:
    """Drafts were kept and drafts were rejected, in texts that are not all the same."""
    assert drafted.accepted > 0
    assert drafted.rejected > 0
    assert len(set(plain.texts)) > 1
