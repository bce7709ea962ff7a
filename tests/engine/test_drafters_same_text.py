"""Every drafter in the real loop, over the real decoder: the text is that of plain decoding, whatever is drafted."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.blocks import BLOCK_TOKENS, Blocks
from engine.decoder import Decoder
from engine.drafter import Proposal
from engine.drafter_files import WEIGHTS, DrafterKind
from engine.drafter_plan import DraftedTarget
from engine.drafter_set import DrafterSet
from engine.loop import EngineLoop
from engine.messages import (
    CycleDone,
    DraftersAre,
    LoadDrafter,
    Sampling,
    SetCyclePolicy,
    Submit,
    ToEngine,
    UnloadDrafter,
)
from engine.request import RunningSequence
from engine.target import DecoderTarget
from engine.vocabulary import read_vocabulary
from engine.weights import load_decoder
from kernels.native_threads import NativeThreads
from kernels.sampling import Verifier
from policies.cycle_policy import INITIAL_CYCLE_POLICY, Copier, Knobs, Outlook, PassCost, Survival
from policies.stats import BlockEnd, SequenceStats
from policies.types import MAX_BLOCK_LENGTH, PLAIN
from tests.engine.decoder_runs import random_tokens
from tests.engine.scripted import Delivered, decision, submit
from tests.engine.tiny_drafter import make_tiny_drafter
from tests.engine.tiny_model import make_tiny_model

CONTEXT = 160
KV_BLOCKS = 48
SAMPLINGS = (
    Sampling(temperature=0.0),
    Sampling(temperature=0.8, top_p=0.9, seed=11),
    Sampling(temperature=1.0, seed=12, repetition_penalty=1.2),
    Sampling(temperature=0.0, frequency_penalty=0.3),
)


@pytest.fixture(scope="module")
def sources(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What to load, by the name that it has then: every kind, and models that are right always and sometimes."""
    parent = tmp_path_factory.mktemp("drafters")
    named = {"ngram": "ngram", "suffix": "suffix", "head": "", "small": "", "twin": "", "near": ""}
    named["head"] = str(make_tiny_drafter(parent / "head", tiny_model, DrafterKind.FEATURE_HEAD))
    named["small"] = str(make_tiny_drafter(parent / "small", tiny_model, DrafterKind.DRAFT_MODEL, layers=2))
    for name, noise in (("twin", 0.0), ("near", 0.02)):
        folder = make_tiny_model(parent / name)
        tensors = load_file(folder / "model.safetensors")
        generator = torch.Generator().manual_seed(1)
        for tensor in tensors.values():
            tensor += noise * tensor.std() * torch.randn(tensor.shape, generator=generator)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        named[name] = str(folder)
    return named


@pytest.fixture(scope="module")
def decoder(tiny_model: Path, native: NativeThreads) -> Decoder:
    return load_decoder(tiny_model, "float32", blocks=KV_BLOCKS, capacity=CONTEXT, features=True, native=native)


class Engine:
    """A loop over a decoder with some drafters."""

    def __init__(self, decoder: Decoder, model_path: Path, sources: Sequence[str], blocks: int = KV_BLOCKS) -> None:
        target = DraftedTarget(
            path=model_path,
            config=decoder.config,
            vocabulary=read_vocabulary(model_path),
            dtype="float32",
            blocks=decoder.blocks,
            context_limit=CONTEXT,
            suffix_shared_routes=("chat",),
        )
        self.drafters = DrafterSet(decoder, target, ngram_match=(1, 8), stop=0.0)
        for source in sources:
            self.drafters.load(source)
        self.delivered = Delivered()
        self.blocks = Blocks(4, blocks)
        self.loop = EngineLoop(
            target=DecoderTarget(decoder),
            drafters=self.drafters.loaded,
            blocks=self.blocks,
            context_limit=CONTEXT,
            prefill_chunk=24,
            token_bytes=list,
            deliver=self.delivered,
            loaded=self.drafters,
        )

    def run(
        self, messages: Sequence[Submit], between: Callable[[int], None] = lambda step: None
    ) -> dict[int, list[int]]:
        self.loop.step(messages)
        for step in range(3000):
            if self.loop.idle:
                break
            between(step)
            self.loop.step(())
        assert self.loop.idle
        self.loop.scheduler.check()
        assert not self.delivered.failures
        return self.delivered.tokens

    @property
    def blocks_verified(self) -> list[SequenceStats]:
        return [item for stats in self.delivered.stats for item in stats.sequences if item.verified]


def requests(drafter: str, block_length: int, verifier: Verifier = Verifier.COUPLED) -> list[Submit]:
    lengths = (1, 15, 16, 40, 90, CONTEXT - 1, CONTEXT - 5)
    repeated = random_tokens(384, 20, seed=3)
    return [
        submit(
            key,
            (repeated * 8)[:length] if key % 2 else random_tokens(384, length, seed=key),
            max_tokens=60,
            sampling=replace(SAMPLINGS[key % len(SAMPLINGS)], verifier=verifier),
            chosen=decision(drafter, block_length),
        )
        for key, length in enumerate(lengths, start=1)
    ]


@pytest.fixture(scope="module")
def plain(decoder: Decoder, tiny_model: Path) -> dict[int, list[int]]:
    return Engine(decoder, tiny_model, []).run(requests(PLAIN, 0))


@pytest.mark.parametrize("drafter", ["ngram", "suffix", "head", "small", "twin", "near"])
@pytest.mark.parametrize("block_length", [1, 2, 3, 5, 8, 13, 16])
def test_the_text_is_that_of_plain_decoding(
    drafter: str,
    block_length: int,
    decoder: Decoder,
    tiny_model: Path,
    sources: dict[str, str],
    plain: dict[int, list[int]],
) -> None:
    engine = Engine(decoder, tiny_model, [sources[drafter]])
    assert engine.run(requests(drafter, block_length)) == plain
    assert engine.blocks_verified, "something was drafted"
    ends = {item.end for item in engine.blocks_verified}
    if drafter == "twin":
        assert BlockEnd.FULL in ends
        assert max(item.accepted for item in engine.blocks_verified) == block_length
    if drafter == "near":
        assert {BlockEnd.FULL, BlockEnd.REJECTED} <= ends


@pytest.mark.parametrize("drafter", ["suffix", "head", "near"])
def test_the_text_is_the_same_while_sequences_are_preempted(
    drafter: str, decoder: Decoder, tiny_model: Path, sources: dict[str, str], plain: dict[int, list[int]]
) -> None:
    engine = Engine(decoder, tiny_model, [sources[drafter]], blocks=CONTEXT // BLOCK_TOKENS + 3)
    assert engine.run(requests(drafter, 6)) == plain
    assert engine.loop.scheduler.preemptions > 0


def test_the_text_is_the_same_with_another_drafter_for_every_sequence(
    decoder: Decoder, tiny_model: Path, sources: dict[str, str], plain: dict[int, list[int]]
) -> None:
    engine = Engine(decoder, tiny_model, list(sources.values()))
    names = list(sources)
    messages = [
        replace(message, decision=decision(names[index % len(names)], 3 + index))
        for index, message in enumerate(requests(PLAIN, 0))
    ]
    assert engine.run(messages) == plain


@pytest.mark.parametrize("verifier", [Verifier.REJECTION, Verifier.BLOCK])
@pytest.mark.parametrize("drafter", ["head", "small", "twin"])
def test_other_verifiers_take_the_draft_probs_and_accept_a_drafter_that_is_the_target(
    verifier: Verifier, drafter: str, decoder: Decoder, tiny_model: Path, sources: dict[str, str]
) -> None:
    engine = Engine(decoder, tiny_model, [sources[drafter]])
    messages = [
        replace(message, sampling=Sampling(temperature=1.0, seed=message.request_key, verifier=verifier))
        for message in requests(drafter, 5, verifier)
    ]
    engine.run(messages)
    drafted = sum(item.verified for item in engine.blocks_verified)
    accepted = sum(item.accepted for item in engine.blocks_verified)
    assert drafted > 100
    if drafter == "twin":
        assert accepted > 0.9 * drafted
    else:
        assert accepted < 0.9 * drafted


@pytest.mark.parametrize("verifier", list(Verifier))
@pytest.mark.parametrize("drafter", ["none", "ngram", "near"])
def test_the_text_is_the_same_whatever_proposes_beside_the_requests(
    verifier: Verifier, drafter: str, decoder: Decoder, tiny_model: Path, sources: dict[str, str]
) -> None:
    texts = []
    for shadows in ((), ("ngram", "suffix", "head", "twin", "near", "none", "nobody")):
        engine = Engine(decoder, tiny_model, list(sources.values()))
        texts.append(
            engine.run(
                [
                    replace(message, decision=decision(drafter, 4, shadows=shadows))
                    for message in requests(PLAIN, 0, verifier)
                ]
            )
        )
    assert texts[0] == texts[1]
    told = [shadow for stats in engine.delivered.stats for shadow in stats.shadows]
    assert {shadow.drafter for shadow in told} == {"ngram", "suffix", "head", "twin", "near"} - {drafter}
    assert sum(stats.shadow_seconds for stats in engine.delivered.stats) > 0.0
    if verifier is Verifier.COUPLED:
        unpenalised = [key for key in range(1, 8) if not SAMPLINGS[key % len(SAMPLINGS)].penalised]
        twin = [one for one in told if one.drafter == "twin" and one.proposed and one.request_key in unpenalised]
        assert twin
        assert all(one.matched == one.proposed or one.censored for one in twin), "it is the target"


def test_a_drafter_is_unloaded_and_loaded_while_sequences_run_with_it(
    decoder: Decoder, tiny_model: Path, sources: dict[str, str], plain: dict[int, list[int]]
) -> None:
    engine = Engine(decoder, tiny_model, ["ngram", sources["twin"], sources["head"]])
    orders: dict[int, ToEngine] = {
        8: UnloadDrafter(1, "twin"),
        9: UnloadDrafter(2, "twin"),
        20: LoadDrafter(3, sources["twin"]),
        21: LoadDrafter(4, sources["twin"]),
        22: UnloadDrafter(5, "head"),
    }

    def between(step: int) -> None:
        if step in orders:
            engine.loop.step([orders[step]])

    memory = engine.drafters.memory_bytes
    assert engine.run(requests("twin", 4), between) == plain
    changes = [message for message in engine.delivered.messages if isinstance(message, DraftersAre)]
    assert [change.drafters for change in changes] == [
        ("none", "ngram", "head"),
        ("none", "ngram", "head"),
        ("none", "ngram", "head", "twin"),
        ("none", "ngram", "head", "twin"),
        ("none", "ngram", "twin"),
    ]
    assert [change.problem is None for change in changes] == [True, False, True, False, True]
    assert "no drafter 'twin' to unload; loaded are ngram, head" in str(changes[1].problem)
    assert "a drafter 'twin' already" in str(changes[3].problem)
    assert changes[2].memory_bytes == memory
    assert changes[4].memory_bytes == engine.drafters.memory_bytes < memory
    used = [stats.sequences for stats in engine.delivered.stats]
    assert any(item.drafter == "twin" for item in used[0])
    drafters = [{item.drafter for item in sequences} for sequences in used]
    assert {"twin"} in drafters[:8]
    assert {PLAIN} in drafters[8:20], "what ran with it goes on plain"


def test_a_decision_that_names_an_unloaded_drafter_runs_plain(
    decoder: Decoder, tiny_model: Path, sources: dict[str, str], plain: dict[int, list[int]]
) -> None:
    engine = Engine(decoder, tiny_model, [sources["twin"]])
    engine.loop.step([UnloadDrafter(1, "twin")])
    assert engine.run(requests("twin", 4)) == plain
    assert not engine.blocks_verified


CERTAIN = (1.0,) * MAX_BLOCK_LENGTH
LEARNED = ("head", "near", "twin")
WEIGHED = replace(
    INITIAL_CYCLE_POLICY,
    version=1,
    cost=PassCost((1, 100), (1.0, 1.1), 0.0, 0.0),
    default_survivals={
        name: Survival(((), *[(0.9, 0.8, 0.7, 0.6, 0.5, 0.4)] * 5)) for name in ("head", "near", "twin")
    },
    default_outlooks={name: Outlook((0.9, 0.8, 0.7, 0.6), CERTAIN[:4]) for name in LEARNED},
)
SURE = 3
"""The copier's bucket from which on its proposals are taken."""


@pytest.mark.parametrize("verifier", list(Verifier))
@pytest.mark.parametrize("copier", ["ngram", "suffix"])
@pytest.mark.parametrize("learned", LEARNED)
@pytest.mark.parametrize("block_length", [1, 4, 16])
def test_copied_proposals_in_place_of_learned_ones_change_no_text(
    learned: str,
    copier: str,
    block_length: int,
    verifier: Verifier,
    decoder: Decoder,
    tiny_model: Path,
    sources: dict[str, str],
    plain: dict[int, list[int]],
) -> None:
    engine = Engine(decoder, tiny_model, [copier, sources[learned]])
    outlooks = (Outlook((), ()),) * SURE + (Outlook(CERTAIN, CERTAIN),)
    engine.loop.step([SetCyclePolicy(replace(WEIGHED, copiers={("chat", "en"): Copier(copier, 4, outlooks)}))])
    weighed = decision(learned, block_length, forced=False)
    texts = engine.run([replace(message, decision=weighed) for message in requests(PLAIN, 0, verifier)])
    if verifier is Verifier.COUPLED:
        assert texts == plain
    greedy = [key for key in texts if SAMPLINGS[key % len(SAMPLINGS)].temperature == 0.0]
    assert {key: texts[key] for key in greedy} == {key: plain[key] for key in greedy}, "whatever the verifier"
    assert {item.drafter for item in engine.blocks_verified} == {copier, learned}
    copied = [item for item in engine.blocks_verified if item.drafter == copier]
    assert min(item.confidence for item in copied) >= SURE
    left = [one for stats in engine.delivered.stats for one in stats.shadows if one.drafter == copier]
    assert any(one.confidence < SURE for one in left)
    assert any(stats.copying_seconds > 0.0 for stats in engine.delivered.stats)


def test_a_drafter_that_fails_costs_drafts_and_no_text(
    decoder: Decoder,
    tiny_model: Path,
    sources: dict[str, str],
    plain: dict[int, list[int]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = Engine(decoder, tiny_model, [sources["twin"], "ngram"])

    def fail(sequences: Sequence[RunningSequence], lengths: Sequence[int]) -> list[Proposal]:
        raise MemoryError(f"no memory for drafting over {len(sequences)} rows")

    monkeypatch.setattr(engine.drafters.loaded["twin"], "propose", fail)
    messages = requests("twin", 4)
    assert engine.run([*messages[:5], *requests("ngram", 4)[5:]]) == plain
    assert "drafting with twin" in caplog.text
    assert {item.drafter for item in engine.blocks_verified} <= {"ngram"}


@pytest.mark.parametrize("kind", DrafterKind)
@pytest.mark.parametrize("verifier", [Verifier.COUPLED, Verifier.REJECTION])
def test_a_drafter_of_damaged_weights_proposes_nothing_and_costs_no_text(
    kind: DrafterKind,
    verifier: Verifier,
    decoder: Decoder,
    tiny_model: Path,
    plain: dict[int, list[int]],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder = make_tiny_drafter(tmp_path / "damaged", tiny_model, kind, outputs=192)
    tensors = load_file(folder / WEIGHTS)
    tensors["layers.0.mlp.down_proj.weight"][3, 5] = torch.nan
    save_file(tensors, folder / WEIGHTS)
    engine = Engine(decoder, tiny_model, [str(folder)])
    found = engine.run(requests("damaged", 4, verifier))
    if verifier is Verifier.COUPLED:
        assert found == plain
    else:
        assert found == Engine(decoder, tiny_model, []).run(requests(PLAIN, 0, verifier))
    assert not [item for stats in engine.delivered.stats for item in stats.sequences if item.proposed]
    assert caplog.text.count("drafting with damaged") == 1


CHANGING_KNOBS = (
    Knobs(ngram_min_match=3, suffix_min_score=0.9, draft_stop=0.5, draft_temperature=0.2, prefill_chunk=1),
    Knobs(ngram_min_match=1, ngram_max_match=1, suffix_min_score=0.01, draft_stop=0.0, draft_temperature=3.0),
    Knobs(draft_stop=1.0, prefill_chunk=10_000),
    Knobs(ngram_min_match=16, ngram_max_match=2, draft_temperature=1e-6, prefill_chunk=7),
)


@pytest.mark.parametrize("drafter", ["ngram", "suffix", "head", "small", "twin", "near"])
def test_knobs_that_change_in_every_cycle_change_no_text(
    drafter: str, decoder: Decoder, tiny_model: Path, sources: dict[str, str], plain: dict[int, list[int]]
) -> None:
    engine = Engine(decoder, tiny_model, [sources[drafter]])

    def between(step: int) -> None:
        knobs = {"*": CHANGING_KNOBS[step % 4], "story": CHANGING_KNOBS[step // 4 % 4]}
        engine.loop.step([SetCyclePolicy(replace(INITIAL_CYCLE_POLICY, version=step + 1, knobs=knobs))])

    messages = [
        replace(message, decision=decision(drafter, 6, route="chat" if message.request_key % 2 else "story"))
        for message in requests(drafter, 6)
    ]
    assert engine.run(messages, between) == plain
    assert engine.blocks_verified
    steps = {message.stats.prefill_tokens for message in engine.delivered.messages if isinstance(message, CycleDone)}
    assert 1 in steps, "a chunk of one token was in force"
    assert max(steps) > 24, "and one above what the engine was started with"


@pytest.mark.parametrize("verifier", [Verifier.REJECTION, Verifier.BLOCK])
@pytest.mark.parametrize("drafter", ["head", "small", "twin"])
def test_other_verifiers_take_the_draft_probs_of_a_tempered_drafter(
    verifier: Verifier, drafter: str, decoder: Decoder, tiny_model: Path, sources: dict[str, str]
) -> None:
    """A draft that its own draft_probs make impossible would be an error, and its sequence would end."""
    accepted = {}
    for temperature in (1.0, 0.3, 1e-7):
        engine = Engine(decoder, tiny_model, [sources[drafter]])
        knobs = {"*": Knobs(draft_temperature=temperature)}
        engine.loop.step([SetCyclePolicy(replace(INITIAL_CYCLE_POLICY, version=1, knobs=knobs))])
        engine.run(
            [
                replace(message, sampling=Sampling(temperature=1.0, seed=message.request_key, verifier=verifier))
                for message in requests(drafter, 5, verifier)
            ]
        )
        verified = sum(item.verified for item in engine.blocks_verified)
        accepted[temperature] = sum(item.accepted for item in engine.blocks_verified) / verified
    if drafter == "twin":
        assert accepted[0.3] < accepted[1.0], "the drafter is the target, but for its temperature"
