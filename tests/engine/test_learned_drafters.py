"""Feature heads and draft models in C: against a plain twin, in any chunking, and at their own limits."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from engine.blocks import BLOCK_TOKENS
from engine.decoder import Decoder
from engine.draft_model import load_model_as_drafter
from engine.drafter import NOT_READY, SILENT, Proposal
from engine.drafter_files import DrafterKind, check_model_fits, read_drafter
from engine.drafter_plan import CATCH_UP_TOKENS
from engine.learned_drafter import LearnedDrafter, proposal_of
from engine.learned_weights import load_learned
from engine.messages import Sampling, Submit
from engine.request import RunningSequence
from engine.rows import Rows
from engine.weights import load_decoder
from kernels.native_draft import Drafted
from kernels.native_threads import NativeThreads
from kernels.sampling import Verifier
from policies.cycle_policy import NO_KNOBS, Knobs
from policies.types import Context, Decision, Reason
from tests.engine.decoder_runs import random_tokens
from tests.engine.tiny_drafter import Twin, make_tiny_drafter
from tests.engine.tiny_model import make_tiny_model

BLOCKS = 40
CONTEXT = 256
KINDS = tuple(DrafterKind)
GREEDY = Sampling(temperature=0.0)
POISON = 333
"""A token that no text holds unless a test puts it there."""


@pytest.fixture(scope="module")
def target(tiny_model: Path, native: NativeThreads) -> Decoder:
    return load_decoder(tiny_model, "float32", blocks=BLOCKS, capacity=CONTEXT, features=True, native=native)


@pytest.fixture(scope="module")
def folders(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[DrafterKind, Path]:
    parent = tmp_path_factory.mktemp("drafters")
    return {
        kind: make_tiny_drafter(parent / kind.value, tiny_model, kind, layers=1 + (kind is DrafterKind.DRAFT_MODEL))
        for kind in KINDS
    }


def load(folder: Path, target: Decoder, stop: float = 0.0) -> LearnedDrafter:
    return load_learned(read_drafter(folder), target, memory_bytes=0, stop=stop)


def running(
    target: Decoder, token_ids: Sequence[int], *, key: int = 1, blocks: Sequence[int] = (), sampling: Sampling = GREEDY
) -> RunningSequence:
    """A sequence whose text is in the target's cache but for the last token, as in every cycle."""
    decision = Decision("d", Context("m", "r", "en"), "d", 16, True, Reason.ENGINE_DEFAULT, 0)
    sequence = RunningSequence(Submit(key, tuple(token_ids), sampling, CONTEXT, (), (), decision, 0.0), CONTEXT)
    sequence.blocks = list(blocks) or list(range(CONTEXT // BLOCK_TOKENS))
    read(target, sequence, 0)
    return sequence


def read(target: Decoder, sequence: RunningSequence, start: int) -> None:
    """The target reads the text from position `start` on, but for its last token."""
    if len(sequence.tokens) - 1 > start:
        target.forward([Rows(sequence.tokens[start:-1], start, sequence.blocks, 1)])


def features_of(target: Decoder, sequence: RunningSequence) -> Tensor:
    assert target.features is not None
    places = [
        sequence.blocks[position // BLOCK_TOKENS] * BLOCK_TOKENS + position % BLOCK_TOKENS
        for position in range(len(sequence.tokens))
    ]
    return target.features[places].float()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [1, 2, 16, 17, 40])
def test_greedy_drafts_are_those_of_the_twin(
    kind: DrafterKind, length: int, target: Decoder, folders: dict[DrafterKind, Path], tiny_model: Path
) -> None:
    sequence = running(target, random_tokens(384, length, seed=length), blocks=[7, 3, 11, 5])
    proposal = load(folders[kind], target).propose([sequence], [6])[0]
    twin = Twin.of(folders[kind], tiny_model)
    logits = twin.logits(sequence.tokens, features_of(target, sequence), proposal.tokens[:-1])
    assert list(proposal.tokens) == twin.output_tokens[logits.argmax(1)].tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_draft_probs_at_every_step_are_those_of_the_twin(
    kind: DrafterKind, target: Decoder, folders: dict[DrafterKind, Path], tiny_model: Path
) -> None:
    sampling = Sampling(temperature=0.8, seed=5, verifier=Verifier.REJECTION)
    sequence = running(target, random_tokens(384, 30), blocks=[2, 9, 4], sampling=sampling)
    proposal = load(folders[kind], target).propose([sequence], [8])[0]
    twin = Twin.of(folders[kind], tiny_model)
    logits = twin.logits(sequence.tokens, features_of(target, sequence), proposal.tokens[:-1])
    assert proposal.draft_probs is not None
    for row, token, probs in zip(logits, proposal.tokens, proposal.draft_probs, strict=True):
        assert probs is not None
        assert token in probs.token_ids
        assert (probs.token_ids[1:] > probs.token_ids[:-1]).all()
        assert float(probs.probs.sum()) == pytest.approx(1.0, abs=1e-5)
        expected = torch.zeros(384)
        expected[twin.output_tokens] = torch.softmax(row / 0.8, 0)
        found = torch.zeros(384)
        found[torch.from_numpy(probs.token_ids)] = torch.from_numpy(probs.probs)
        torch.testing.assert_close(found, expected, rtol=0.02, atol=2e-3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_catching_up_in_any_chunking_gives_the_same_drafts(
    kind: DrafterKind, dtype: str, tiny_model: Path, native: NativeThreads, folders: dict[DrafterKind, Path]
) -> None:
    target = load_decoder(tiny_model, dtype, blocks=BLOCKS, capacity=CONTEXT, features=True, native=native)
    text = random_tokens(384, 120)
    for sampling in (GREEDY, Sampling(temperature=0.9, seed=3)):
        expected = load(folders[kind], target).propose([running(target, text, sampling=sampling)], [7])
        for cuts in ([1, 2, 3, 50, 51, 119, 120], [17, 80, 120], [119, 120]):
            drafter = load(folders[kind], target)
            sequence = running(target, text, sampling=sampling)
            for cut in cuts:
                sequence.tokens = text[:cut]
                proposals = drafter.propose([sequence], [7])
            assert proposals == expected


@pytest.mark.parametrize("kind", KINDS)
def test_sequences_drafted_together_draft_as_alone(
    kind: DrafterKind, target: Decoder, folders: dict[DrafterKind, Path]
) -> None:
    tables = [[0, 1, 2, 3], [20, 10, 30], [5, 6, 7]]
    samplings = [GREEDY, Sampling(temperature=1.0, seed=9), Sampling(temperature=0.7, seed=2, top_p=0.9)]
    texts = [random_tokens(384, length, seed=length) for length in (50, 33, 9)]
    sequences = [
        running(target, text, key=key, blocks=table, sampling=sampling)
        for key, (text, table, sampling) in enumerate(zip(texts, tables, samplings, strict=True))
    ]
    together = load(folders[kind], target).propose(sequences, [9, 3, 16])
    alone = [
        load(folders[kind], target).propose([sequence], [length])[0]
        for sequence, length in zip(sequences, [9, 3, 16], strict=True)
    ]
    assert together == alone


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("accepted", [0, 1, 3, 6])
def test_report_39_the_bonus_position_is_caught_up_after_a_full_accept(
    kind: DrafterKind, accepted: int, target: Decoder, folders: dict[DrafterKind, Path]
) -> None:
    """Whatever was accepted, the next drafts are those of a drafter that reads the text for the first time."""
    drafter = load(folders[kind], target)
    sequence = running(target, random_tokens(384, 21))
    for cycle in range(4):
        before = len(sequence.tokens)
        drafts = drafter.propose([sequence], [6])[0].tokens
        assert len(drafts) == 6
        # Accepted drafts, then the recovered or the bonus token; the target reads them all in its next pass.
        sequence.tokens += [*drafts[:accepted], (drafts[min(accepted, 5)] + 1 + cycle) % 384]
        read(target, sequence, before - 1)
        assert drafter.propose([sequence], [6]) == load(folders[kind], target).propose([sequence], [6])


@pytest.mark.parametrize("kind", KINDS)
def test_cycles_without_the_drafter_are_caught_up_with(
    kind: DrafterKind, target: Decoder, folders: dict[DrafterKind, Path]
) -> None:
    drafter = load(folders[kind], target)
    sequence = running(target, random_tokens(384, 20))
    drafter.propose([sequence], [4])
    for token in random_tokens(384, 25, seed=7):
        sequence.tokens.append(token)
        drafter.observe(sequence, [token])
        read(target, sequence, len(sequence.tokens) - 2)
    assert drafter.propose([sequence], [4]) == load(folders[kind], target).propose([sequence], [4])


@pytest.mark.parametrize("kind", KINDS)
def test_other_blocks_are_filled_anew(kind: DrafterKind, target: Decoder, folders: dict[DrafterKind, Path]) -> None:
    """A preempted sequence comes back under other blocks; what is written in them is not its own."""
    drafter = load(folders[kind], target)
    text = random_tokens(384, 40)
    sequence = running(target, text, blocks=[0, 1, 2, 3])
    first = drafter.propose([sequence], [5])
    sequence.blocks = [0, 12, 13, 14]
    read(target, sequence, 0)
    assert drafter.propose([sequence], [5]) == first


@pytest.mark.parametrize("kind", KINDS)
def test_report_36_its_own_context_limit_shortens_k_and_ends_it(
    kind: DrafterKind, target: Decoder, tiny_model: Path, tmp_path: Path
) -> None:
    """Draft context 64, target context 256."""
    limited = load(make_tiny_drafter(tmp_path / "limited", tiny_model, kind, context_limit=64), target)
    free = load(make_tiny_drafter(tmp_path / "free", tiny_model, kind), target)
    assert (limited.context_limit, free.context_limit) == (64, CONTEXT)
    text = random_tokens(384, 255)
    lengths = {}
    for count in (*range(55, 70), 128, 200, 255):
        sequence = running(target, text[:count])
        found = limited.propose([sequence], [8])[0].tokens
        lengths[count] = len(found)
        assert found == free.propose([sequence], [8])[0].tokens[: len(found)]
        limited.release(1)
        free.release(1)
    assert lengths[57] == 8
    assert [lengths[count] for count in range(58, 66)] == [7, 6, 5, 4, 3, 2, 1, 0]
    assert all(lengths[count] == 0 for count in (66, 69, 128, 200, 255))


@pytest.mark.parametrize("kind", KINDS)
def test_drafts_have_places_in_the_block_table(
    kind: DrafterKind, target: Decoder, folders: dict[DrafterKind, Path]
) -> None:
    drafter = load(folders[kind], target)
    for count, expected in ((28, 5), (29, 4), (31, 2), (32, 1), (17, 8)):
        sequence = running(target, random_tokens(384, count), blocks=[4, 8], key=count)
        assert len(drafter.propose([sequence], [8])[0].tokens) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_a_long_prompt_is_read_over_several_calls(
    kind: DrafterKind, tiny_model: Path, native: NativeThreads, folders: dict[DrafterKind, Path]
) -> None:
    target = load_decoder(tiny_model, "float32", blocks=64, capacity=1024, features=True, native=native)
    text = random_tokens(384, 2 * CATCH_UP_TOKENS + 10)
    decision = Decision("d", Context("m", "r", "en"), "d", 16, True, Reason.ENGINE_DEFAULT, 0)
    sequence = RunningSequence(Submit(1, tuple(text), GREEDY, 64, (), (), decision, 0.0), 1024)
    sequence.blocks = list(range(64))
    read(target, sequence, 0)
    drafter = load(folders[kind], target)
    found = [drafter.propose([sequence], [3])[0] for _ in range(4)]
    assert found[:2] == [NOT_READY, NOT_READY]
    assert [(len(proposal.tokens), proposal.ready) for proposal in found[2:]] == [(3, True), (3, True)]
    assert [proposal.read for proposal in found] == [CATCH_UP_TOKENS, CATCH_UP_TOKENS, 10, 1]


def test_report_7_drafting_stops_at_low_confidence(target: Decoder, tiny_model: Path, tmp_path: Path) -> None:
    """llama.cpp's p_min of 0 let hopeless drafts be verified: here a draft ends when its product of probabilities
    falls under draft_stop, and may be empty."""
    folder = make_tiny_drafter(tmp_path / "d", tiny_model, DrafterKind.DRAFT_MODEL, outputs=384)
    twin = Twin.of(folder, tiny_model)
    sequence = running(target, random_tokens(384, 20))
    full = load(folder, target, stop=0.0).propose([sequence], [8])[0].tokens
    logits = twin.logits(sequence.tokens, features_of(target, sequence), full[:-1])
    sure = torch.softmax(logits, 1).amax(1).cumprod(0).tolist()
    assert len(full) == 8
    for shorter, (before, after) in enumerate(pairwise(sure), start=1):
        stopped = load(folder, target, stop=(before * after) ** 0.5).propose([sequence], [8])[0]
        assert stopped.tokens == full[:shorter]
    assert load(folder, target, stop=1.0).propose([sequence], [8])[0] == SILENT


def test_each_sequence_drafts_with_its_own_stop_and_temperature(
    target: Decoder, tiny_model: Path, tmp_path: Path
) -> None:
    """In one call for all of them, and each as it would alone in an engine started so."""
    folder = make_tiny_drafter(tmp_path / "d", tiny_model, DrafterKind.DRAFT_MODEL, outputs=384)
    drafter = load(folder, target, stop=0.0)
    knobs = [NO_KNOBS, Knobs(draft_stop=0.005), Knobs(draft_stop=1.0), Knobs(draft_temperature=8.0)]
    sequences = []
    for key, one in enumerate(knobs):
        blocks = range(4 * key, 4 * key + 4)
        sequences.append(
            running(target, random_tokens(384, 20), key=key, blocks=blocks, sampling=Sampling(temperature=0.9, seed=3))
        )
        sequences[-1].knobs = one
    found = drafter.propose(sequences, [8] * 4)
    alone = [load(folder, target, stop=one.draft_stop or 0.0) for one in knobs]
    for key in (0, 1, 2):
        sequences[key].knobs = NO_KNOBS
        assert found[key] == alone[key].propose([sequences[key]], [8])[0]
    assert len(found[0].tokens) == 8
    assert 0 < len(found[1].tokens) < 8
    assert found[2] == SILENT
    hotter = running(target, random_tokens(384, 20), key=9, sampling=Sampling(temperature=0.9 * 8.0, seed=3))
    assert found[3] == load(folder, target).propose([hotter], [8])[0]
    assert found[3].tokens != found[0].tokens


def test_report_7_a_draw_with_its_own_noise_is_never_dropped_for_what_came_of_it(
    target: Decoder, tiny_model: Path, tmp_path: Path
) -> None:
    """Under rejection the length of a draft is the same for every draw: it rests on what was known before."""
    folder = make_tiny_drafter(tmp_path / "d", tiny_model, DrafterKind.DRAFT_MODEL, outputs=384)
    drafter = load(folder, target, stop=0.01)
    text = random_tokens(384, 20)
    proposals = []
    for seed in range(40):
        sampling = Sampling(temperature=1.0, seed=seed, verifier=Verifier.REJECTION)
        proposals.append(drafter.propose([running(target, text, sampling=sampling, key=seed)], [8])[0])
    assert len({proposal.tokens for proposal in proposals}) > 30
    assert {(len(proposal.tokens), proposal.confidence) for proposal in proposals} == {
        (len(proposals[0].tokens), proposals[0].confidence)
    }
    assert 1 <= len(proposals[0].tokens) < 8


def test_a_whole_model_drafts_what_it_would_say_itself(
    target: Decoder, tiny_model: Path, native: NativeThreads, tmp_path: Path
) -> None:
    folder = make_tiny_model(tmp_path / "small", seed=4, layers=1, heads=6, kv_heads=3, tied=False)
    config = check_model_fits(folder, tiny_model)
    drafter = load_model_as_drafter(folder, "small", config, target, memory_bytes=1, stop=0.0)
    model = load_decoder(folder, "float32", blocks=BLOCKS, capacity=CONTEXT, native=native)
    sequence = running(target, random_tokens(384, 40))
    proposal = drafter.propose([sequence], [8])[0]
    text = list(sequence.tokens)
    for token in proposal.tokens:
        assert int(model.forward([Rows(text, 0, range(BLOCKS), 1)])[0].argmax()) == token
        text.append(token)


def test_the_target_as_its_own_draft_model_is_always_right(target: Decoder, tiny_model: Path) -> None:
    """In the same dtype and with the same noise: every draft is the target's own choice."""
    from kernels.sampling import Block
    from kernels.verify import verify

    drafter = load_model_as_drafter(
        tiny_model, "self", check_model_fits(tiny_model, tiny_model), target, memory_bytes=1, stop=0.0
    )
    for seed, base in enumerate((GREEDY, Sampling(temperature=1.0), Sampling(temperature=0.8, top_p=0.8, top_k=40))):
        sampling = replace(base, seed=seed)
        sequence = running(target, random_tokens(384, 25), sampling=sampling, key=seed)
        drafts = drafter.propose([sequence], [10])[0].tokens
        logits = target.forward([Rows([sequence.tokens[-1], *drafts], 24, sequence.blocks, 11)])
        block = Block(first_row=0, drafts=drafts, sampling=sampling, position=0)
        assert len(verify(logits, [block])[0].tokens) == 11


@pytest.mark.parametrize(
    "sampling", [GREEDY, Sampling(temperature=1.0), Sampling(temperature=1.0, verifier=Verifier.BLOCK)]
)
@pytest.mark.parametrize("kind", KINDS)
def test_logits_that_are_no_numbers_silence_it_for_their_sequence_alone(
    kind: DrafterKind,
    sampling: Sampling,
    tiny_model: Path,
    native: NativeThreads,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    target = load_decoder(tiny_model, "float32", blocks=BLOCKS, capacity=CONTEXT, features=True, native=native)
    # Outputs that fill the lanes of a vector, and outputs that do not, take different paths in C.
    for outputs in (192, 200):
        folder = make_tiny_drafter(tmp_path / f"{kind.value}-{outputs}", tiny_model, kind, outputs=outputs)
        drafter = load(folder, target)
        texts = [[token % 300 for token in random_tokens(384, 20, seed=seed)] for seed in range(3)]
        texts[1][7] = POISON
        tables = [[0, 1], [2, 3], [4, 5]]
        sequences = [
            running(target, text, key=key, blocks=table, sampling=sampling)
            for key, (text, table) in enumerate(zip(texts, tables, strict=True))
        ]
        expected = drafter.propose(sequences, [5, 5, 5])
        for key in range(3):
            drafter.release(key)
        poisoned = load_file(tiny_model / "model.safetensors")["model.embed_tokens.weight"].clone()
        poisoned[POISON] = torch.nan
        target.model.embedding = poisoned.data_ptr()
        caplog.clear()
        for _ in range(2):
            found = drafter.propose(sequences, [5, 5, 5])
            assert found[1] == SILENT
            for place in (0, 2):
                assert (found[place].tokens, found[place].confidence) == (
                    expected[place].tokens,
                    expected[place].confidence,
                )
        [record] = caplog.records
        assert f"drafting with {folder.name}" in record.getMessage()
        assert "NoNumbersError" in record.getMessage()
        target.model.embedding = None
        assert drafter.propose([sequences[1]], [5]) == [SILENT], "this sequence's cache is no more looked at"
        drafter.release(1)
        again = drafter.propose([sequences[1]], [5])[0]
        assert (again.tokens, again.confidence) == (expected[1].tokens, expected[1].confidence)
        assert len(again.tokens) == 5


def test_confidence_is_the_bucket_of_the_first_probability() -> None:
    assert proposal_of(Drafted((), (0.0,), None)) == SILENT
    buckets = [proposal_of(Drafted((1,), (sure,), None)).confidence for sure in (0.1, 0.3, 0.5, 0.7, 0.85, 0.95, 1.0)]
    assert buckets == [1, 2, 3, 4, 5, 6, 6]
    assert proposal_of(Drafted((4, 5), (0.6, 0.9), None)) == Proposal((4, 5), 3)


def test_an_impossible_stop_is_refused_in_one_sentence(target: Decoder, folders: dict[DrafterKind, Path]) -> None:
    with pytest.raises(ValueError, match=r"draft_stop is 1\.5; give 0 to 1"):
        load(folders[DrafterKind.DRAFT_MODEL], target, stop=1.5)
