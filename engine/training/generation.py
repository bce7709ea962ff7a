"""The target writes the training text: many conversations at once, one token of each in every pass.

A prompt's tokens go through the same passes as those that are written, one by one: a pass of many sequences is bound
by arithmetic, so that nothing is lost by it, and every pass has the same number of rows.
"""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from engine.blocks import BLOCK_TOKENS
from engine.decoder import Decoder
from engine.rows import Rows
from engine.training.chat_format import ChatFormat
from engine.training.dataset import FILE_KIND, TextSequence, shard_paths, write_shard, written_tokens
from engine.training.exclusion import Exclusion
from engine.training.prompts import TrainingPrompt

MAX_TOKENS = 640
"""Of a sequence, prompt and answers."""
MAX_ANSWER, MAX_USER_TURN, MAX_PROMPT = 256, 140, 380
SHARD_SEQUENCES = 200
SHARD_SECONDS = 20.0
"""A shard is written when it is full or so old: what a power cut can take."""
_MIN_ANSWER = 4
_LOOP_TOKENS, _LOOP_REPEATS, _LOOP_PERIOD = 24, 3, 32
_TOP_K, _TOP_P = 64, 0.95
_EXCLUSION_EVERY = 8
_PIECE_TOKENS = 512
"""Of the user's own texts."""


@dataclass(frozen=True, slots=True)
class GenerationProgress:
    tokens: int
    """In finished shards and sequences."""
    wanted: int
    tokens_per_second: float
    """Rows of the passes of this run."""


def run_pass(decoder: Decoder, parts: Sequence[Rows]) -> tuple[Tensor, Tensor]:
    """Logits of the rows wanted, [n, vocabulary] float32, and the features of each part's last row, [parts, hidden].

    The logits are valid until the next pass; the features are a copy.
    """
    logits = decoder.forward(parts)
    if decoder.features is None:
        raise ValueError("the decoder keeps no features; load it with features=True")
    last = [part.start + len(part.token_ids) - 1 for part in parts]
    places = [
        part.blocks[position // BLOCK_TOKENS] * BLOCK_TOKENS + position % BLOCK_TOKENS
        for part, position in zip(parts, last, strict=True)
    ]
    return logits, decoder.features[torch.tensor(places)]


def loops(tokens: Sequence[int]) -> bool:
    """The last 24 tokens or more are three times or more the same, with a period of up to 32."""
    for period in range(1, _LOOP_PERIOD + 1):
        length = max(_LOOP_TOKENS, _LOOP_REPEATS * period)
        if len(tokens) >= length and tokens[-length:-period] == tokens[-length + period :]:
            return True
    return False


@dataclass(slots=True)
class _Conversation:
    """One that is being written. `tokens` are decided, the first `fed` of them have been through the target."""

    prompt: TrainingPrompt
    tokens: list[int]
    features: Tensor
    """[MAX_TOKENS, hidden]."""
    user_turn: bool
    turn_start: int
    fed: int = 0
    answers: list[tuple[int, int]] = field(default_factory=list)
    finished: bool = False

    @property
    def temperature(self) -> float:
        """Of the turn that is written now."""
        return 1.0 if self.user_turn else self.prompt.temperature

    def take(self, token: int, chat: ChatFormat, exclusion: Exclusion) -> None:
        """The target has chosen `token` to come next."""
        if self.user_turn:
            self._take_in_user_turn(token, chat, exclusion)
        else:
            self._take_in_answer(token, chat)
        if len(self.tokens) >= MAX_TOKENS - 1 and not self.finished:
            if not self.user_turn:
                self.answers.append((self.turn_start, len(self.tokens)))
            self.finished = True

    def _take_in_user_turn(self, token: int, chat: ChatFormat, exclusion: Exclusion) -> None:
        written = self.tokens[self.turn_start :]
        if token not in chat.stop_tokens and len(written) < MAX_USER_TURN:
            self.tokens.append(token)
            looked_at = len(self.tokens) % _EXCLUSION_EVERY == 0
            self.finished = looked_at and (loops(written) or exclusion.covers(chat.tokenizer.decode(written)))
            return
        self.finished = len(self.tokens) > MAX_PROMPT or exclusion.covers(chat.tokenizer.decode(written))
        self.tokens += chat.to_answer
        self.user_turn, self.turn_start = False, len(self.tokens)

    def _take_in_answer(self, token: int, chat: ChatFormat) -> None:
        written = self.tokens[self.turn_start :]
        ends = token in chat.stop_tokens
        if not ends and len(written) < MAX_ANSWER and not loops(written):
            self.tokens.append(token)
            return
        self.answers.append((self.turn_start, len(self.tokens)))
        if ends and len(self.answers) < self.prompt.turns and len(self.tokens) < MAX_PROMPT:
            self.tokens += chat.to_user
            self.user_turn, self.turn_start = True, len(self.tokens)
        else:
            self.finished = True

    def break_off(self) -> None:
        """End it where it is: what there is of an answer is as good as one that came to its longest."""
        if not self.user_turn and not self.finished:
            self.answers.append((self.turn_start, len(self.tokens)))
        self.finished = True

    def sequence(self) -> TextSequence | None:
        """What was written, without what has not been through the target; None if there is no answer to speak of."""
        answers = tuple((start, min(stop, self.fed)) for start, stop in self.answers if start < self.fed)
        if not answers or answers[0][1] - answers[0][0] < _MIN_ANSWER:
            return None
        return TextSequence(
            tokens=torch.tensor(self.tokens[: self.fed], dtype=torch.int32),
            features=self.features[: self.fed].clone(),
            answers=answers,
            kind=self.prompt.kind,
            language=self.prompt.language,
            temperature=self.prompt.temperature,
        )


def _choose(logits: Tensor, temperatures: Tensor, generator: torch.Generator) -> list[int]:
    """The next token of each row: the most likely one at temperature 0, else one of the 64 best within 0.95."""
    best, tokens = logits.topk(min(_TOP_K, logits.shape[1]))
    probs = torch.softmax(best / temperatures.clamp(min=1e-3)[:, None], -1)
    probs[probs.cumsum(-1) - probs > _TOP_P] = 0
    places = torch.multinomial(probs, 1, generator=generator)
    places[temperatures == 0] = 0
    return tokens.gather(1, places)[:, 0].tolist()


@dataclass(slots=True)
class TextWriter:
    """Writes sequences until there are enough. `slots` conversations run together over their own KV blocks."""

    decoder: Decoder
    chat: ChatFormat
    exclusion: Exclusion
    prompts: Iterator[TrainingPrompt]
    slots: int
    seed: int
    _running: list[_Conversation] = field(default_factory=list, init=False)

    def sequences(self) -> Iterator[tuple[int, list[TextSequence]]]:
        """Without end: the rows of each pass, and the sequences that it finished."""
        generator = torch.Generator().manual_seed(self.seed)
        per_slot = -(-MAX_TOKENS // BLOCK_TOKENS)
        tables = [range(slot * per_slot, (slot + 1) * per_slot) for slot in range(self.slots)]
        self._running = [self._begin() for _ in range(self.slots)]
        while True:
            running = self._running
            parts, due = [], []
            for each, blocks in zip(running, tables, strict=True):
                last = each.fed == len(each.tokens) - 1
                parts.append(Rows([each.tokens[each.fed]], each.fed, blocks, int(last)))
                if last:
                    due.append(each)
            logits, features = run_pass(self.decoder, parts)
            for each, feature in zip(running, features, strict=True):
                each.features[each.fed] = feature
                each.fed += 1
            if due:
                chosen = _choose(logits, torch.tensor([each.temperature for each in due]), generator)
                for each, token in zip(due, chosen, strict=True):
                    each.take(token, self.chat, self.exclusion)
            finished = [each.sequence() for each in running if each.finished]
            self._running = [self._begin() if each.finished else each for each in running]
            yield len(parts), [each for each in finished if each is not None]

    def broken_off(self) -> list[TextSequence]:
        """What the conversations that run have so far, for whoever stops here."""
        for each in self._running:
            each.break_off()
        return [sequence for each in self._running if (sequence := each.sequence()) is not None]

    def _begin(self) -> _Conversation:
        while True:
            prompt = next(self.prompts)
            tokens = self.chat.conversation(prompt.messages, open_turn=prompt.open_turn)
            if len(tokens) <= MAX_PROMPT:
                break
        features = torch.zeros(MAX_TOKENS, self.decoder.config.hidden_size, dtype=self.decoder.dtype)
        return _Conversation(prompt, tokens, features, prompt.open_turn, len(tokens))


def generate_text(
    writer: TextWriter, folder: Path, wanted_tokens: int, progress: Callable[[GenerationProgress], None]
) -> None:
    """Write shards into `folder` until they hold `wanted_tokens`; those that lie there already count.

    A run that is interrupted leaves a shard of what it has so far; give the next one other prompts (`shard_seed`).
    """
    written = written_tokens(folder)
    waiting: list[TextSequence] = []

    def store() -> None:
        if waiting:
            write_shard(folder / f"text-{writer.seed:04d}-{len(shard_paths(folder)):05d}.safetensors", waiting)
            waiting.clear()

    rows, begin = 0, time.monotonic()
    stored_at = begin
    passes = writer.sequences()
    try:
        while written < wanted_tokens:
            count, finished = next(passes)
            rows += count
            waiting += finished
            written += sum(len(each.tokens) for each in finished)
            now = time.monotonic()
            if len(waiting) >= SHARD_SEQUENCES or now - stored_at >= SHARD_SECONDS:
                store()
                stored_at = now
            progress(GenerationProgress(written, wanted_tokens, rows / (now - begin)))
    except BaseException:
        waiting += writer.broken_off()
        raise
    finally:
        store()


def shard_seed(seed: int, folder: Path) -> int:
    """A seed for the prompts and draws of a run that finds `folder` as it is."""
    return random.Random(f"{seed}/{len(shard_paths(folder))}").randrange(1 << 31)


def read_files(
    decoder: Decoder, chat: ChatFormat, files: Sequence[Path], progress: Callable[[int], None]
) -> list[TextSequence]:
    """The user's own texts, cut into pieces of up to 512 tokens, with the features that the target has on them."""
    sequences = []
    blocks = range(-(-_PIECE_TOKENS // BLOCK_TOKENS))
    for file in files:
        tokens: list[int] = chat.tokenizer.encode(file.read_text(encoding="utf-8"), add_special_tokens=False)
        for start in range(0, len(tokens) - 1, _PIECE_TOKENS):
            piece = tokens[start : start + _PIECE_TOKENS]
            run_pass(decoder, [Rows(piece, 0, blocks, 0)])
            features = decoder.features
            if len(piece) < 2 or features is None:
                continue
            sequences.append(
                TextSequence(
                    tokens=torch.tensor(piece, dtype=torch.int32),
                    features=features[: len(piece)].clone(),
                    answers=((1, len(piece)),),
                    kind=FILE_KIND,
                    language="und",
                    temperature=1.0,
                )
            )
            progress(sum(len(each.tokens) for each in sequences))
    return sequences
