"""The text of the target with its features, in shards on the disk, and how it is cut into batches."""

import hashlib
import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

FILE_KIND = "file"
"""Of text that a user gave; every other kind the target has written."""
HELD_OUT_SHARE = 0.02
"""Share of the prompts that are kept for the acceptance curve."""


@dataclass(frozen=True, slots=True)
class TextSequence:
    """Tokens that ran through the target."""

    tokens: Tensor
    """[n] int32."""
    features: Tensor
    """[n, hidden], the target's hidden state after its final norm at each token, in the target's dtype."""
    answers: tuple[tuple[int, int], ...]
    """Ranges of `tokens` that the target is drafted for."""
    kind: str
    language: str
    temperature: float
    """Of the answers; 0 is greedy; text that a user gave counts as sampled, 1."""

    @property
    def held_out(self) -> bool:
        """By a hash of the prompt, so that answers to one prompt are all on one side."""
        prompt = self.tokens[: self.answers[0][0]].to(torch.int32).numpy().tobytes()
        return hashlib.sha256(prompt).digest()[0] < 256 * HELD_OUT_SHARE


@dataclass(frozen=True, slots=True)
class _Described:
    """What a shard's header says of a sequence."""

    tokens: int
    answers: list[list[int]]
    kind: str
    language: str
    temperature: float


def write_shard(path: Path, sequences: Sequence[TextSequence]) -> None:
    """Write sequences to one file; it appears whole or not at all."""
    described = [
        _Described(len(each.tokens), [list(span) for span in each.answers], each.kind, each.language, each.temperature)
        for each in sequences
    ]
    tensors = {
        "tokens": torch.cat([each.tokens.to(torch.int32) for each in sequences]),
        "features": torch.cat([each.features for each in sequences]),
    }
    unfinished = path.with_suffix(".unfinished")
    save_file(tensors, unfinished, metadata={"sequences": json.dumps([asdict(each) for each in described])})
    unfinished.replace(path)


def read_shard(path: Path) -> list[TextSequence]:
    with safe_open(path, "pt") as shard:
        tokens, features = shard.get_tensor("tokens"), shard.get_tensor("features")
        described = json.loads(shard.metadata()["sequences"])
    sequences, begin = [], 0
    for each in described:
        end = begin + each["tokens"]
        answers = tuple((int(start), int(stop)) for start, stop in each["answers"])
        sequences.append(
            TextSequence(
                tokens[begin:end], features[begin:end], answers, each["kind"], each["language"], each["temperature"]
            )
        )
        begin = end
    return sequences


def written_tokens(folder: Path) -> int:
    """Tokens that the target has written into the shards of `folder`, read off their headers."""
    written = 0
    for path in shard_paths(folder):
        with safe_open(path, "pt") as shard:
            described = json.loads(shard.metadata()["sequences"])
        written += sum(each["tokens"] for each in described if each["kind"] != FILE_KIND)
    return written


def shard_paths(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def data_hash(paths: Sequence[Path]) -> str:
    """sha256 over the token ids of the shards in order: the same text gives the same hash."""
    digest = hashlib.sha256()
    for path in paths:
        with safe_open(path, "pt") as shard:
            digest.update(shard.get_tensor("tokens").numpy().tobytes())
    return digest.hexdigest()


def frequent_tokens(
    sequences: Sequence[TextSequence], count: int, vocab_size: int, always: Iterable[int]
) -> tuple[Tensor, float]:
    """The `count` most frequent tokens of the answers and those of `always` among them, rising, int32; and the share
    of the answers' tokens that they are. Tokens that end an answer are not stored in it: give them in `always`.
    """
    seen = torch.zeros(vocab_size, dtype=torch.int64)
    for each in sequences:
        for start, stop in each.answers:
            seen += torch.bincount(each.tokens[start:stop].long(), minlength=vocab_size)
    order = seen.clone()
    order[list(always)] = seen.sum() + 1
    chosen = torch.argsort(order, descending=True, stable=True)[:count].sort().values
    return chosen.to(torch.int32), float(seen[chosen].sum() / seen.sum().clamp(min=1))


@dataclass(frozen=True, slots=True)
class Batch:
    """Sequences of like length, padded at the end."""

    tokens: Tensor
    """[batch, bases] int64."""
    features: Tensor
    """[batch, bases, hidden]."""
    drafted: Tensor
    """[batch, bases] bool: the positions whose feature a drafter is asked for."""


def make_batch(sequences: Sequence[TextSequence]) -> Batch:
    """Position i is drafted if the token after it, which its feature chose, is an answer's."""
    longest = max(len(each.tokens) for each in sequences)
    hidden = sequences[0].features.shape[1]
    tokens = torch.zeros(len(sequences), longest, dtype=torch.int64)
    features = torch.zeros(len(sequences), longest, hidden, dtype=sequences[0].features.dtype)
    drafted = torch.zeros(len(sequences), longest, dtype=torch.bool)
    for row, each in enumerate(sequences):
        tokens[row, : len(each.tokens)] = each.tokens
        features[row, : len(each.tokens)] = each.features
        for start, stop in each.answers:
            drafted[row, start:stop] = True
        drafted[row, len(each.tokens) :] = False
    return Batch(tokens, features, drafted)


def batches(lengths: Sequence[int], batch_tokens: int, draw: random.Random) -> Iterator[list[int]]:
    """Indices of `lengths`, each once, in batches of like length and at most `batch_tokens` padded tokens."""
    order = sorted(range(len(lengths)), key=lambda index: (lengths[index], draw.random()))
    groups: list[list[int]] = []
    for index in order:
        if groups and (len(groups[-1]) + 1) * lengths[index] <= batch_tokens:
            groups[-1].append(index)
        else:
            groups.append([index])
    draw.shuffle(groups)
    yield from groups
