"""Text that a tiny target writes: turns, stops, features, exclusion, shards and the user's files."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from engine.decoder import Decoder
from engine.model_config import ModelError
from engine.rows import Rows
from engine.training import generation
from engine.training.chat_format import ChatFormat, load_chat_format
from engine.training.dataset import TextSequence, read_shard, shard_paths, written_tokens
from engine.training.exclusion import Exclusion
from engine.training.generation import (
    GenerationProgress,
    TextWriter,
    generate_text,
    loops,
    read_files,
    run_pass,
    shard_seed,
)
from engine.training.prompts import TrainingPrompt
from engine.weights import load_decoder
from kernels.native_threads import NativeThreads
from tests.engine.tiny_model import IM_END, make_tiny_model

SLOTS = 3


@pytest.fixture(scope="module")
def chat(tiny_model: Path) -> ChatFormat:
    return load_chat_format(tiny_model)


@pytest.fixture(scope="module")
def decoder(tiny_model: Path, native: NativeThreads) -> Decoder:
    return load_decoder(tiny_model, blocks=SLOTS * 8, capacity=128, features=True, native=native)


@pytest.fixture(autouse=True)
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation, "MAX_TOKENS", 128)
    monkeypatch.setattr(generation, "MAX_PROMPT", 80)
    monkeypatch.setattr(generation, "MAX_ANSWER", 12)
    monkeypatch.setattr(generation, "MAX_USER_TURN", 6)


def prompts(*, open_turn: bool, temperature: float = 0.0, turns: int = 1) -> Iterator[TrainingPrompt]:
    for number in itertools.count():
        messages = ({"role": "user", "content": f"item {number}"},)
        yield TrainingPrompt("chat", "en", messages, open_turn, temperature, turns)


def write(decoder: Decoder, chat: ChatFormat, source: Iterator[TrainingPrompt], count: int) -> list[TextSequence]:
    writer = TextWriter(decoder, chat, Exclusion([]), source, SLOTS, seed=1)
    finished = itertools.chain.from_iterable(sequences for _, sequences in writer.sequences())
    return list(itertools.islice(finished, count))


def test_a_conversation_is_the_templates_text(chat: ChatFormat) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is the harbour?"}]
    whole = chat.tokenizer.decode(chat.conversation(messages, open_turn=False))
    assert whole == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhat is the harbour?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    begun = chat.tokenizer.decode(chat.conversation(messages, open_turn=True))
    assert whole.startswith(begun)
    assert begun.endswith("What is the harbour?")
    assert chat.tokenizer.decode(chat.to_answer) == "<|im_end|>\n<|im_start|>assistant\n"
    assert chat.tokenizer.decode(chat.to_user) == "<|im_end|>\n<|im_start|>user\n"
    assert chat.stop_tokens == {IM_END}


def test_a_model_without_a_chat_template_is_refused(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "plain")
    settings = folder / "tokenizer_config.json"
    settings.write_text(settings.read_text().replace("chat_template", "no_template"))
    with pytest.raises(ModelError, match="has no chat template"):
        load_chat_format(folder)


def test_a_greedy_answer_is_the_targets_own_with_its_features(decoder: Decoder, chat: ChatFormat) -> None:
    for each in write(decoder, chat, prompts(open_turn=False), 4):
        ((start, stop),) = each.answers
        assert stop == len(each.tokens)
        prompt = chat.tokenizer.decode(each.tokens[:start].tolist())
        assert prompt.endswith("<|im_start|>assistant\n")
        logits, features = run_pass(decoder, [Rows(each.tokens.tolist(), 0, range(8), len(each.tokens))])
        assert logits[start - 1 : stop - 1].argmax(-1).tolist() == each.tokens[start:stop].tolist()
        assert torch.equal(features[0], each.features[-1])
        assert decoder.features is not None
        assert torch.equal(decoder.features[: len(each.tokens)], each.features)
        assert stop - start <= 12


def test_the_target_writes_an_open_turn_and_a_second_turn_itself(decoder: Decoder, chat: ChatFormat) -> None:
    for each in write(decoder, chat, prompts(open_turn=True, temperature=1.0), 4):
        text = chat.tokenizer.decode(each.tokens[: each.answers[0][0]].tolist())
        assert text.endswith("<|im_end|>\n<|im_start|>assistant\n")
        assert "<|im_start|>user\nitem" in text
        assert each.temperature == 1.0


def test_sampling_follows_the_seed_and_stays_among_the_likely() -> None:
    logits = torch.randn(64, 200, generator=torch.Generator().manual_seed(0)) * 4
    temperatures = torch.tensor([0.0, 1.0] * 32)
    first = generation._choose(logits, temperatures, torch.Generator().manual_seed(2))
    assert first == generation._choose(logits, temperatures, torch.Generator().manual_seed(2))
    assert first[::2] == logits[::2].argmax(-1).tolist()
    assert first[1::2] != logits[1::2].argmax(-1).tolist()
    order = logits.argsort(-1, descending=True)
    for row, token in enumerate(first):
        rank = order[row].tolist().index(token)
        before = torch.softmax(logits[row][order[row][:64]], -1)[:rank].sum()
        assert float(before) <= 0.95


@pytest.mark.parametrize("period", [1, 8, 13, 32])
def test_three_repeats_are_a_loop_and_two_are_not(period: int) -> None:
    unit = list(range(period))
    repeats = max(3, -(-24 // period))
    assert loops([99, 98, *unit * repeats])
    assert not loops([99, 98, *unit * (repeats - 1)])
    assert not loops([*unit * repeats, 99])


def test_a_prompt_that_is_excluded_is_not_kept(decoder: Decoder, chat: ChatFormat) -> None:
    """The target continues each turn of item 0, 1, ...: excluding what it wrote leaves others."""
    written = write(decoder, chat, prompts(open_turn=True), 3)

    def user_turn(each: TextSequence) -> str:
        text: str = chat.tokenizer.decode(each.tokens[: each.answers[0][0]].tolist())
        return text.partition("user\n")[2].partition("<|im_end|>")[0]

    banned = user_turn(written[0])
    turn_start = len(chat.conversation([{"role": "user", "content": "item 0"}], open_turn=True))
    own_words = chat.tokenizer.decode(written[0].tokens[turn_start:].tolist()).partition("<|im_end|>")[0]
    writer = TextWriter(decoder, chat, Exclusion([own_words]), prompts(open_turn=True), SLOTS, seed=1)
    finished = itertools.chain.from_iterable(sequences for _, sequences in writer.sequences())
    assert banned not in [user_turn(each) for each in itertools.islice(finished, 3)]


def test_shards_hold_the_tokens_wanted_and_a_later_run_adds_the_rest(
    decoder: Decoder, chat: ChatFormat, tmp_path: Path
) -> None:
    seen: list[GenerationProgress] = []
    seeds = []
    for wanted in (150, 400):
        seeds.append(shard_seed(0, tmp_path))
        writer = TextWriter(decoder, chat, Exclusion([]), prompts(open_turn=False), SLOTS, seeds[-1])
        generate_text(writer, tmp_path, wanted, seen.append)
        stored = sum(len(each.tokens) for path in shard_paths(tmp_path) for each in read_shard(path))
        assert wanted <= stored == seen[-1].tokens < wanted + 300
    assert seeds[0] != seeds[1]
    assert len(shard_paths(tmp_path)) == 2


def test_an_interruption_before_the_first_end_keeps_what_is_written(
    decoder: Decoder, chat: ChatFormat, tmp_path: Path
) -> None:
    seen: list[GenerationProgress] = []

    def interrupt(now: GenerationProgress) -> None:
        seen.append(now)
        first = next(iter(writer._running))
        if first.fed - first.turn_start == 6:
            raise KeyboardInterrupt

    writer = TextWriter(decoder, chat, Exclusion([]), prompts(open_turn=False), SLOTS, seed=1)
    with pytest.raises(KeyboardInterrupt):
        generate_text(writer, tmp_path, 400, interrupt)
    assert seen[-1].tokens == 0  # nothing had come to its end
    (shard,) = shard_paths(tmp_path)
    kept = read_shard(shard)
    assert len(kept) == SLOTS
    assert written_tokens(tmp_path) == sum(len(each.tokens) for each in kept)
    whole = {tuple(each.tokens.tolist()) for each in write(decoder, chat, prompts(open_turn=False), SLOTS)}
    for each in kept:
        ((start, stop),) = each.answers
        assert stop - start >= 4
        assert any(tuple(each.tokens.tolist()) == full[:stop] for full in whole)


def test_finished_text_is_on_the_disk_within_seconds(
    decoder: Decoder, chat: ChatFormat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generation, "SHARD_SECONDS", 0.0)

    def look(now: GenerationProgress) -> None:
        assert written_tokens(tmp_path) == now.tokens

    writer = TextWriter(decoder, chat, Exclusion([]), prompts(open_turn=False), SLOTS, seed=1)
    generate_text(writer, tmp_path, 300, look)
    assert len(shard_paths(tmp_path)) > 1


def test_the_users_files_are_read_whole_with_the_targets_features(
    decoder: Decoder, chat: ChatFormat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generation, "_PIECE_TOKENS", 40)
    file = tmp_path / "notes.txt"
    file.write_text("What is the fastest way to get from the station to the harbour? " * 5)
    pieces = read_files(decoder, chat, [file], lambda _: None)
    assert chat.tokenizer.decode(torch.cat([each.tokens for each in pieces]).tolist()) == file.read_text()
    for each in pieces:
        assert each.answers == ((1, len(each.tokens)),)
        run_pass(decoder, [Rows(each.tokens.tolist(), 0, range(8), 0)])
        assert decoder.features is not None
        assert torch.equal(decoder.features[: len(each.tokens)], each.features)
