"""A trained drafter as a folder: model.safetensors in bfloat16, drafter.json, and a model card."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from engine.drafter_files import DESCRIPTION, FORMAT, OUTPUT_TOKENS, WEIGHTS
from engine.model_config import ModelConfig
from engine.training.networks import Drafter
from engine.vocabulary import read_vocabulary

CARD = "README.md"
_KINDS = {"feature_head": "feature head", "draft_model": "draft model"}


@dataclass(frozen=True, slots=True)
class TrainingRecord:
    """How a drafter came to be."""

    tokens: int
    """Of the text, held-out prompts aside."""
    tokens_seen: int
    """In all epochs together."""
    sequences: int
    seconds: float
    """Of training, generation aside."""
    steps: int
    data_sha256: str
    """Over the token ids of the text."""
    command: str
    machine: str
    date: str
    """ISO 8601."""
    output_coverage: float
    """Share of the answers' tokens that are output tokens."""
    kinds: tuple[str, ...] = ()
    """Of text that it was trained on; empty for all."""
    started_from: tuple[Mapping[str, Any], ...] = ()
    """The runs before this one, oldest first: name, tokens, tokens_seen, steps and seconds of each."""


@dataclass(frozen=True, slots=True)
class TrainedDrafter:
    """What training gave."""

    name: str
    folder: Path
    held_out: Mapping[str, tuple[float, ...]]
    """S_1..S_8 by kind and language, and of `all`."""
    record: TrainingRecord
    weight_bytes: int


def weights_hash(model_path: Path) -> str:
    """sha256 over the weight files of a model, in order of name."""
    digest = hashlib.sha256()
    for file in sorted(model_path.glob("*.safetensors")):
        with file.open("rb") as opened:
            while chunk := opened.read(1 << 20):
                digest.update(chunk)
    return digest.hexdigest()


def earlier_runs(folder: Path) -> tuple[dict[str, Any], ...]:
    """What made the drafter in `folder`, for one that goes on from it."""
    said = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
    training = said["training"]
    last = {name: training[name] for name in ("tokens", "tokens_seen", "steps", "seconds")}
    return (*training.get("started_from", ()), {"name": said["name"], **last})


def export_drafter(
    drafter: Drafter,
    kind: str,
    name: str,
    folder: Path,
    output_tokens: Tensor,
    target_path: Path,
    target: ModelConfig,
    record: TrainingRecord,
    held_out: Mapping[str, tuple[float, ...]],
) -> TrainedDrafter:
    """Write the folder; files of an earlier training in it are replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {key: value.to(torch.bfloat16).contiguous() for key, value in drafter.state_dict().items()}
    tensors[OUTPUT_TOKENS] = output_tokens.to(torch.int32)
    save_file(tensors, folder / WEIGHTS)
    vocabulary = read_vocabulary(target_path)
    shape = drafter.shape
    described: dict[str, Any] = {
        "format": FORMAT,
        "name": name,
        "kind": kind,
        "weights_sha256": weights_hash(folder),
        "target": {
            "model": target_path.name,
            "hidden_size": target.hidden_size,
            "vocab_size": target.vocab_size,
            "vocabulary_sha256": vocabulary.sha256,
            "special_tokens": vocabulary.special_tokens,
            "weights_sha256": weights_hash(target_path),
        },
        "config": {
            "num_layers": shape.num_layers,
            "num_heads": shape.num_heads,
            "num_kv_heads": shape.num_kv_heads,
            "head_dim": shape.head_dim,
            "feed_forward_size": shape.feed_forward_size,
            "rope_theta": shape.rope_theta,
            "norm_epsilon": shape.norm_epsilon,
            "context_limit": target.max_position,
        },
        "training": asdict(record),
        "held_out": {key: list(curve) for key, curve in held_out.items()},
    }
    (folder / DESCRIPTION).write_text(json.dumps(described, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / CARD).write_text(model_card(described, int(output_tokens.numel())), encoding="utf-8")
    return TrainedDrafter(name, folder, held_out, record, (folder / WEIGHTS).stat().st_size)


def model_card(described: Mapping[str, Any], output_tokens: int) -> str:
    """The card of a drafter, from its drafter.json."""
    target, training, config = described["target"], described["training"], described["config"]
    start = _start(described["kind"], training["started_from"])
    curves = "\n".join(_row(key, curve) for key, curve in described["held_out"].items())
    return f"""# {described["name"]}

A {_KINDS[described["kind"]]} that drafts for {target["model"]}, made by `paceline draft train`. It changes no text:
what is emitted is the target's own choice, with it and without it.

* **Shape**: {config["num_layers"]} layer(s) of {config["num_heads"]} heads, feed-forward size \
{config["feed_forward_size"]}; embedding and head are the target's own; it chooses from {output_tokens} output tokens,
the most frequent ones of the target's text ({training["output_coverage"]:.1%} of the answers' tokens).
* **Data**: {training["tokens"]:,} tokens in {training["sequences"]:,} sequences that the target wrote itself, from
drawn prompts and from prompts that it wrote too; none of the workload's prompts, nor anything near them. sha256 of the
token ids: `{training["data_sha256"]}`.{_kinds(training["kinds"])}
* **Training**: {training["steps"]:,} steps over {training["tokens_seen"]:,} tokens, {training["seconds"]:.0f} s on \
{training["machine"]}, {training["date"]}, by `{training["command"]}`, from {start}.
* **Target**: weights sha256 `{target["weights_sha256"]}`, vocabulary sha256 `{target["vocabulary_sha256"]}`.

Held-out prompts, greedy: the share of drafts whose first k tokens are all the target's own (S_k). They were drawn as
the others were, so that other people's prompts come out lower: `paceline bench` measures it on the workload.

| text | S_1 | S_2 | S_3 | S_4 | S_5 | S_6 | S_7 | S_8 |
|---|---|---|---|---|---|---|---|---|
{curves}
"""


def _kinds(kinds: Sequence[str]) -> str:
    return f" Of it, only {', '.join(kinds)}." if kinds else ""


def _start(kind: str, runs: Sequence[Mapping[str, Any]]) -> str:
    """The runs before the last one, in words."""
    if not runs and kind == "feature_head":
        return "the target's own last layer and a linear regression"
    if not runs:
        return "random numbers and the norms and attention of the target's first and last layer"
    earlier = [f"{run['name']} ({run['steps']:,} steps over {run['tokens_seen']:,} tokens, {run['seconds']:.0f} s)"
               for run in runs]  # fmt: skip
    return "what earlier runs had made: " + ", then ".join(earlier)


def _row(key: str, curve: Sequence[float]) -> str:
    return "| " + " | ".join([key, *(f"{share:.3f}" for share in curve)]) + " |"
