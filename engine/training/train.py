"""`train_drafter`: text from the target, distillation from it, the acceptance curve, and the drafter's folder."""

import fcntl
import hashlib
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from engine.blocks import BLOCK_TOKENS
from engine.checkpoint import Checkpoint
from engine.drafter_files import DrafterKind
from engine.model_config import ModelConfig, read_config
from engine.training.acceptance_curve import TargetRows, acceptance_curves
from engine.training.chat_format import ChatFormat, load_chat_format
from engine.training.dataset import (
    TextSequence,
    data_hash,
    frequent_tokens,
    read_shard,
    shard_paths,
    write_shard,
    written_tokens,
)
from engine.training.distillation import DistillationProgress, DistillationSettings, distil
from engine.training.drafter_export import TrainedDrafter, TrainingRecord, earlier_runs, export_drafter
from engine.training.exclusion import Exclusion
from engine.training.generation import (
    MAX_TOKENS,
    GenerationProgress,
    TextWriter,
    generate_text,
    read_files,
    shard_seed,
)
from engine.training.initial_weights import start_from_target
from engine.training.networks import NETWORKS, Drafter, NetworkShape
from engine.training.prompts import training_prompts
from engine.weights import load_decoder, native_threads

OUTPUT_TOKENS = 4096
"""The default size of a drafter's output vocabulary. In the default target's text it holds 92 % of the tokens; 8,192
would hold 98 %, read a third more bytes for every drafted token, and raised S_1 from 0.421 to 0.423 in a trial: the
rare tokens are seldom drafted right."""
GENERATION_SLOTS = 128
"""Sequences that are written at once."""
DRAFT_MODEL_LAYERS, DRAFT_MODEL_FEED_FORWARD = 2, 768
_FILES_SHARD = "files.safetensors"


class Phase(StrEnum):
    LOAD = "load the model"
    GENERATE = "generate"
    READ_FILES = "read files"
    PREPARE = "prepare the training"
    TRAIN = "train"
    MEASURE = "measure"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """What to train, for which target, on what."""

    target_path: Path
    """Folder of the target."""
    kind: DrafterKind
    name: str
    output_folder: Path
    """The drafter's folder is made in it, by its name."""
    work_folder: Path
    """Text and checkpoints; what a stopped run left here is taken up."""
    tokens: int
    """To have the target write; 0 for none."""
    files: tuple[Path, ...] = ()
    """The user's own texts."""
    excluded: tuple[str, ...] = ()
    """Texts of prompts that must not be trained on, nor anything near them."""
    kinds: tuple[str, ...] = ()
    """Kinds of text to train on; empty for all."""
    start_from: Path | None = None
    """A trained drafter of the same shape to go on from."""
    output_tokens: int = OUTPUT_TOKENS
    distillation: DistillationSettings = field(default_factory=DistillationSettings)
    threads: int = 1
    seed: int = 0
    command: str = "paceline draft train"
    """For the model card."""


@dataclass(frozen=True, slots=True)
class TrainingProgress:
    phase: Phase
    done: int
    total: int
    """Tokens when generating and reading, steps when training, sequences when measuring; 0 where it is not known."""
    tokens_per_second: float
    loss: float | None = None
    """Running cross entropy of the first position, when training."""
    first_survival: float | None = None
    """S_1: a running estimate on the training text when training, of the held-out text when done."""


def train_drafter(options: TrainingOptions, progress: Callable[[TrainingProgress], None]) -> TrainedDrafter:
    """Make a drafter for a target. Call it again with the same options after an interruption.

    Raises:
        ModelError: the target cannot be read or served, or has no chat template.
        ValueError: there is no text to train on, or another training works in the same folder.
    """
    with _alone(options.work_folder):
        return _train(options, progress)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the lock of a work folder: two that write the same shards would mix them. The system frees it with us."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "train.lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(
                f"another training works in {folder}: wait until it has ended, or give --work another folder"
            ) from error
        yield


def _train(options: TrainingOptions, progress: Callable[[TrainingProgress], None]) -> TrainedDrafter:
    torch.set_num_threads(options.threads)
    target = read_config(options.target_path)
    chat = load_chat_format(options.target_path)
    text_folder = options.work_folder / "text"
    text_folder.mkdir(parents=True, exist_ok=True)
    _prepare_text(options, chat, text_folder, progress)
    paths = shard_paths(text_folder)
    progress(TrainingProgress(Phase.PREPARE, 0, 0, 0.0))
    text = [each for path in paths for each in read_shard(path) if not options.kinds or each.kind in options.kinds]
    training = [each for each in text if not each.held_out]
    if not training:
        raise ValueError(f"there is no text in {text_folder}; ask for tokens to generate, or give text files")
    tokens, coverage = frequent_tokens(training, options.output_tokens, target.vocab_size, chat.stop_tokens)
    rows, drafter = _target_rows(options.target_path, target, tokens), _new_drafter(options, target)
    checkpoint = options.work_folder / f"{options.name}-{_fingerprint(options, paths)}.checkpoint"
    if not checkpoint.is_file():
        _set_start(options, target, drafter, training, rows)

    def trained(now: DistillationProgress) -> None:
        rate = now.tokens / max(now.seconds, 1e-9)
        progress(TrainingProgress(Phase.TRAIN, now.step, now.steps, rate, now.loss, now.agreement))

    last = distil(drafter, training, rows, options.distillation, checkpoint, trained)
    held_out = [each for each in text if each.held_out]
    progress(TrainingProgress(Phase.MEASURE, 0, len(held_out), 0.0))
    curves = acceptance_curves(drafter, held_out, rows)
    record = TrainingRecord(
        tokens=sum(len(each.tokens) for each in training),
        tokens_seen=last.tokens,
        sequences=len(training),
        seconds=round(last.seconds, 1),
        steps=last.steps,
        data_sha256=data_hash(paths),
        command=options.command,
        machine=_machine(options.threads),
        date=datetime.now(UTC).date().isoformat(),
        output_coverage=round(coverage, 4),
        kinds=options.kinds,
        started_from=() if options.start_from is None else earlier_runs(options.start_from),
    )
    folder = options.output_folder / options.name
    made = export_drafter(
        drafter, options.kind, options.name, folder, tokens, options.target_path, target, record, curves
    )
    first = curves["all"][0] if "all" in curves else None
    progress(TrainingProgress(Phase.DONE, last.steps, last.steps, 0.0, last.loss, first))
    return made


def _prepare_text(
    options: TrainingOptions, chat: ChatFormat, folder: Path, progress: Callable[[TrainingProgress], None]
) -> None:
    """What the target has still to write, and the user's files."""
    begin = time.monotonic()

    def generated(now: GenerationProgress) -> None:
        progress(TrainingProgress(Phase.GENERATE, now.tokens, now.wanted, now.tokens_per_second))

    def read(tokens: int) -> None:
        progress(TrainingProgress(Phase.READ_FILES, tokens, tokens, tokens / (time.monotonic() - begin)))

    files_shard = folder / _FILES_SHARD
    missing_files = bool(options.files) and not files_shard.is_file()
    written = written_tokens(folder)
    if written >= options.tokens and not missing_files:
        return
    progress(TrainingProgress(Phase.LOAD, 0, 0, 0.0))
    blocks_per_slot = -(-MAX_TOKENS // BLOCK_TOKENS)
    decoder = load_decoder(
        options.target_path,
        blocks=GENERATION_SLOTS * blocks_per_slot,
        capacity=MAX_TOKENS,
        features=True,
        native=native_threads(options.threads),
    )
    if written < options.tokens:
        exclusion = Exclusion(options.excluded)
        seed = shard_seed(options.seed, folder)
        prompts = training_prompts(seed, exclusion)
        writer = TextWriter(decoder, chat, exclusion, prompts, GENERATION_SLOTS, seed)
        generate_text(writer, folder, options.tokens, generated)
    if missing_files:
        write_shard(files_shard, read_files(decoder, chat, options.files, read))


def _fingerprint(options: TrainingOptions, paths: Sequence[Path]) -> str:
    """What the weights follow from: a checkpoint of other text or settings is not taken up."""
    said = (
        data_hash(paths),
        options.kind,
        options.kinds,
        str(options.start_from),
        options.output_tokens,
        options.distillation,
        options.seed,
    )
    return hashlib.sha256(repr(said).encode()).hexdigest()[:12]


def _target_rows(path: Path, target: ModelConfig, tokens: Tensor) -> TargetRows:
    embedding = _read(path, "model.embed_tokens.weight").to(torch.bfloat16)
    head = embedding if target.tied_head else _read(path, "lm_head.weight").to(torch.bfloat16)
    return TargetRows(embedding, tokens.long(), head[tokens.long()].contiguous())


def _read(path: Path, name: str) -> Tensor:
    for file in sorted(path.glob("*.safetensors")):
        with safe_open(file, "pt") as opened:
            if name in opened.keys():  # noqa: SIM118 - it is no mapping
                tensor: Tensor = opened.get_tensor(name)
                return tensor
    raise ValueError(f"{path} has no tensor {name}")


def _new_drafter(options: TrainingOptions, target: ModelConfig) -> Drafter:
    head = options.kind == DrafterKind.FEATURE_HEAD
    torch.manual_seed(options.seed)
    return NETWORKS[options.kind](
        NetworkShape(
            hidden_size=target.hidden_size,
            num_layers=1 if head else DRAFT_MODEL_LAYERS,
            num_heads=target.num_heads,
            num_kv_heads=target.num_kv_heads,
            head_dim=target.head_dim,
            feed_forward_size=target.feed_forward_size if head else DRAFT_MODEL_FEED_FORWARD,
            rope_theta=target.rope_theta,
            norm_epsilon=target.norm_epsilon,
        )
    )


def _set_start(
    options: TrainingOptions, target: ModelConfig, drafter: Drafter, text: Sequence[TextSequence], rows: TargetRows
) -> None:
    if options.start_from is not None:
        checkpoint = Checkpoint(options.start_from)
        weights = drafter.state_dict()
        drafter.load_state_dict({name: checkpoint.take(name, *weights[name].shape).float() for name in weights})
        return
    count = drafter.shape.num_layers
    # a head takes the target's last layer, a draft model its first one and its last
    chosen = [target.num_layers - 1] if count == 1 else [0] * (count - 1) + [target.num_layers - 1]
    copied = []
    for layer in chosen:
        prefix = f"model.layers.{layer}."
        names = drafter.layers[0].state_dict()
        copied.append({name: _read(options.target_path, prefix + name).float() for name in names})
    final_norm = _read(options.target_path, "model.norm.weight").float()
    start_from_target(drafter, text, rows.embedding, final_norm, copied)


def _machine(threads: int) -> str:
    return f"{threads} thread(s), {platform.machine()}, torch {torch.__version__.partition('+')[0]}"
