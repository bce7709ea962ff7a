"""Builds the engine from its options, inside the engine process."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from engine.blocks import BLOCK_TOKENS, Blocks, blocks_for
from engine.calibration import LOADS, calibrate, choose_threads
from engine.checkpoint import Checkpoint
from engine.decoder import Decoder
from engine.drafter_files import DrafterError
from engine.drafter_plan import DraftedTarget, plan_drafter
from engine.drafter_set import DrafterSet
from engine.drafter_shelf import fitting_drafters
from engine.fingerprint import of_engine, of_target, of_tokenizer
from engine.grammar import GrammarError, Grammars
from engine.loop import EngineLoop
from engine.machine_memory import machine_bytes
from engine.memory import plan_memory, refusal, words
from engine.messages import EngineOptions, FromEngine, Progress
from engine.model_config import ModelConfig, ModelError, read_config
from engine.target import DecoderTarget
from engine.token_bytes import load_token_bytes
from engine.vocabulary import read_vocabulary
from engine.weights import load_decoder, model_dtype, native_threads
from policies.stats import CycleStats, EngineInfo


class EngineBuildError(Exception):
    """The engine cannot be built from these options; the message is one sentence for people."""


def build_engine(options: EngineOptions, deliver: Callable[[FromEngine], None]) -> tuple[EngineLoop, EngineInfo]:
    """Load the model, choose the threads, calibrate, load the drafters, and join the parts.

    Raises EngineBuildError with one sentence.
    """
    model_path = Path(options.model_path)
    cores = len(os.sched_getaffinity(0))
    block_count = options.kv_blocks or options.slots * blocks_for(options.context_limit)
    # No sequence can be longer than the whole cache: what clients are told of the context says so.
    context_limit = min(options.context_limit, block_count * BLOCK_TOKENS)
    deliver(Progress(f"loading {options.model_name}"))
    try:
        config = read_config(model_path)
        if not 1 < options.context_limit <= config.max_position:
            raise EngineBuildError(
                f"engine.context_limit is {options.context_limit}; give 2 to {config.max_position}, the most that the "
                "model reads."
            )
        dtype = str(model_dtype(config, Checkpoint(model_path), options.dtype)).removeprefix("torch.")
        drafted = _drafted_target(options, config, dtype, block_count, context_limit)
        sources = options.drafters or fitting_drafters(model_path, lambda text: deliver(Progress(text)))
        memory = plan_memory(
            config,
            dtype,
            blocks=block_count,
            context_limit=context_limit,
            slots=options.slots,
            prefill_chunk=options.prefill_chunk,
            drafters=[plan_drafter(source, drafted) for source in sources],
        )
        deliver(Progress(words(memory)))
        problem = refusal(memory, machine_bytes())
        if problem is not None:
            raise EngineBuildError(problem)
        deliver(Progress("preparing the kernels, which the first start compiles"))
        native = native_threads(options.threads or cores)
        deliver(Progress("reading and packing the weights"))
        decoder = load_decoder(
            model_path,
            options.dtype,
            blocks=block_count,
            capacity=context_limit,
            features=True,
            native=native,
        )
        drafters = _load_drafters(options, sources, decoder, drafted, deliver)
    except (ModelError, DrafterError, ValueError) as error:
        raise EngineBuildError(str(error)) from error
    target = DecoderTarget(decoder)
    threads = options.threads
    if not threads:
        deliver(Progress("choosing the number of threads"))
        threads = choose_threads(target, cores)
        deliver(Progress(f"threads of the engine: {threads}, the fastest of 1 to {cores}; model.threads sets them"))
    calibration: tuple[CycleStats, ...] = ()
    if options.calibrate:
        calibration = calibrate(target, options.slots, options.seed, lambda text: deliver(Progress(text)))
    draft_calibration = drafters.time(drafters.loaded, lambda text: deliver(Progress(text)))
    deliver(Progress("timing the linear layers alone"))
    loads = [load for load in LOADS if load <= options.slots] if options.calibrate else [1]
    linear_seconds_by_load = tuple((load, decoder.linear_seconds(load)) for load in loads)
    deliver(Progress("reading the vocabulary for grammars"))
    blocks = Blocks(options.slots, block_count, reuse=options.prefix_reuse)
    loop = EngineLoop(
        target=target,
        drafters=drafters.loaded,
        blocks=blocks,
        context_limit=context_limit,
        prefill_chunk=options.prefill_chunk,
        token_bytes=lambda: load_token_bytes(model_path, config.vocab_size),
        deliver=deliver,
        grammars=_grammars(model_path, config.vocab_size, deliver),
        loaded=drafters,
    )
    info = EngineInfo(
        model=options.model_name,
        drafters=drafters.names,
        dtype=str(decoder.dtype).removeprefix("torch."),
        device="cpu",
        threads=threads,
        slots=options.slots,
        blocks=blocks.blocks,
        context_limit=context_limit,
        vocabulary=config.vocab_size,
        linear_seconds=linear_seconds_by_load[0][1],
        calibration=calibration,
        linear_seconds_by_load=linear_seconds_by_load,
        memory_bytes=memory.total,
        draft_calibration=draft_calibration,
        versions={
            "target": of_target(model_path),
            "tokenizer": of_tokenizer(model_path),
            "engine": of_engine(native.library, dtype),
            **drafters.versions,
        },
        resident_bytes=drafters.resident_bytes,
        resident_seconds=drafters.resident_seconds(),
    )
    return loop, info


def _drafted_target(
    options: EngineOptions, config: ModelConfig, dtype: str, blocks: int, context_limit: int
) -> DraftedTarget:
    model_path = Path(options.model_path)
    return DraftedTarget(
        path=model_path,
        config=config,
        vocabulary=read_vocabulary(model_path),
        dtype=dtype,
        blocks=blocks,
        context_limit=context_limit,
        suffix_shared_routes=options.suffix_shared_routes,
    )


def _load_drafters(
    options: EngineOptions,
    sources: Sequence[str],
    decoder: Decoder,
    target: DraftedTarget,
    deliver: Callable[[FromEngine], None],
) -> DrafterSet:
    """Raises DrafterError or ModelError."""
    drafters = DrafterSet(
        decoder,
        target,
        ngram_match=(options.ngram_min_match, options.ngram_max_match),
        stop=options.draft_stop,
        slots=options.slots if options.calibrate else 0,
        seed=options.seed,
    )
    for source in sources:
        deliver(Progress(f"loading the drafter {source}"))
        drafters.load(source)
    return drafters


def _grammars(model_path: Path, vocabulary: int, deliver: Callable[[FromEngine], None]) -> Grammars | None:
    """None for a tokenizer that llguidance cannot use: then requests with a grammar are refused."""
    try:
        return Grammars(model_path, vocabulary)
    except GrammarError as error:
        deliver(Progress(f"serving without grammars: {error}"))
        return None
