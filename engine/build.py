"""Builds the engine from its options, inside the engine process."""

import os
from collections.abc import Callable
from pathlib import Path

import torch

from engine.blocks import Blocks, blocks_for
from engine.calibration import LOADS, calibrate, choose_threads
from engine.grammar import GrammarError, Grammars
from engine.loop import EngineLoop
from engine.messages import EngineOptions, FromEngine, Progress
from engine.model_config import ModelError, read_config
from engine.ngram import NgramDrafter
from engine.target import DecoderTarget
from engine.token_bytes import load_token_bytes
from engine.weights import load_decoder
from policies.types import PLAIN, CycleStats, EngineInfo


class EngineBuildError(Exception):
    """The engine cannot be built from these options; the message is one sentence for people."""


def build_engine(options: EngineOptions, deliver: Callable[[FromEngine], None]) -> tuple[EngineLoop, EngineInfo]:
    """Load the model, choose the threads, calibrate, and join the parts.

    Raises EngineBuildError with one sentence.
    """
    model_path = Path(options.model_path)
    cores = len(os.sched_getaffinity(0))
    torch.set_num_threads(options.threads or cores)
    deliver(Progress(f"loading {options.model_name}"))
    try:
        longest = read_config(model_path).max_position
        if not 1 < options.context_limit <= longest:
            raise EngineBuildError(
                f"engine.context_limit is {options.context_limit}; give 2 to {longest}, the most that the model reads."
            )
        decoder = load_decoder(model_path, options.dtype, options.slots, options.context_limit)
        drafter = NgramDrafter(options.ngram_min_match, options.ngram_max_match)
    except (ModelError, ValueError) as error:
        raise EngineBuildError(str(error)) from error
    target = DecoderTarget(decoder)
    with torch.inference_mode():
        threads = options.threads
        if not threads:
            deliver(Progress("choosing the number of threads"))
            # One core stays for the control process. Threads of one product wait for each other, so a busy neighbour on
            # a core of theirs is felt in every product: on 2 cores a busy control process took a plain cycle of two
            # threads from 24 ms to 309 ms, and left one of a single thread at 31 ms.
            threads = choose_threads(target, max(1, cores - 1))
        calibration: tuple[CycleStats, ...] = ()
        if options.calibrate:
            calibration = calibrate(target, options.slots, options.seed, lambda text: deliver(Progress(text)))
        loads = [load for load in LOADS if load <= options.slots] if options.calibrate else [1]
        linear_seconds_by_load = tuple((load, decoder.linear_seconds(load)) for load in loads)
    blocks = Blocks(
        options.slots,
        options.kv_blocks or options.slots * blocks_for(options.context_limit),
        reuse=options.prefix_reuse,
    )
    vocabulary = decoder.config.vocab_size
    loop = EngineLoop(
        target=target,
        drafters={drafter.name: drafter},
        blocks=blocks,
        context_limit=options.context_limit,
        prefill_chunk=options.prefill_chunk,
        token_bytes=lambda: load_token_bytes(model_path, vocabulary),
        deliver=deliver,
        grammars=_grammars(model_path, vocabulary, deliver),
    )
    info = EngineInfo(
        model=options.model_name,
        drafters=(PLAIN, drafter.name),
        dtype=str(decoder.dtype).removeprefix("torch."),
        device="cpu",
        threads=threads,
        slots=options.slots,
        blocks=blocks.blocks,
        context_limit=options.context_limit,
        vocabulary=vocabulary,
        linear_seconds=linear_seconds_by_load[0][1],
        calibration=calibration,
        linear_seconds_by_load=linear_seconds_by_load,
    )
    return loop, info


def _grammars(model_path: Path, vocabulary: int, deliver: Callable[[FromEngine], None]) -> Grammars | None:
    """None for a tokenizer that llguidance cannot use: then requests with a grammar are refused."""
    try:
        return Grammars(model_path, vocabulary)
    except GrammarError as error:
        deliver(Progress(f"serving without grammars: {error}"))
        return None
