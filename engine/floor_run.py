"""How close a plain cycle comes to what the machine allows, measured beside it in the same process.

The floor of a plain cycle is the seconds of the model's linear layers alone, for as many rows as sequences run, and the
bytes of keys and values that the cycle reads over the measured memory bandwidth. Floor and cycle are timed in turn,
the order reversed from round to round, so that what slows the machine for a while slows both.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path

import torch

from engine.blocks import Blocks, blocks_for
from engine.calibration import choose_threads
from engine.decoder import Decoder
from engine.floor import BLOCK_LENGTH, CONTEXT, LOADS, Floor, LoadFloor
from engine.loop import EngineLoop
from engine.messages import Cancel, CycleDone, EngineOptions, FromEngine, Submit
from engine.rows import Rows
from engine.target import DecoderTarget
from engine.weights import load_decoder, native_threads
from kernels.sampling import Block, Sampling
from policies.types import PLAIN, Context, Decision, Reason

WARM_UP = 3
BANDWIDTH_BYTES = 1 << 28
"""Far more than any cache of a processor holds."""

GREEDY = Sampling(temperature=0.0)
_DECISION = Decision("floor", Context("floor", "floor", "und"), PLAIN, 0, True, Reason.ENGINE_DEFAULT, 0)


def measure_floor(options: EngineOptions, repeats: int, progress: Callable[[str], None]) -> Floor:
    """Load the model and measure. Raises ModelError."""
    cores = len(os.sched_getaffinity(0))
    room = CONTEXT + repeats + WARM_UP + BLOCK_LENGTH + 2
    needed = max(LOADS) * blocks_for(room)
    progress(f"loading {options.model_name}")
    native = native_threads(options.threads or cores)
    decoder = load_decoder(Path(options.model_path), options.dtype, blocks=needed, capacity=room, native=native)
    threads = options.threads or choose_threads(DecoderTarget(decoder), cores)
    native.resize(threads)
    with torch.inference_mode():
        progress("measuring the memory")
        bandwidth = read_bandwidth(threads)
        loads = []
        for load in LOADS:
            progress(f"plain cycles at load {load}")
            loads.append(_load_floor(decoder, load, room, needed, repeats, bandwidth))
        progress(f"blocks of {BLOCK_LENGTH}")
        single, block = _block_seconds(DecoderTarget(decoder), room, repeats)
    return Floor(str(decoder.dtype).removeprefix("torch."), threads, bandwidth, tuple(loads), single, block)


def read_bandwidth(threads: int, repeats: int = 5) -> float:
    """Bytes a second that `threads` threads read from memory: the best of several sums over a large array."""
    torch.set_num_threads(threads)
    memory = torch.ones(BANDWIDTH_BYTES // 4, dtype=torch.float32)
    best = float("inf")
    for _ in range(repeats):
        started = time.perf_counter()
        torch.dot(memory, memory)  # of an array with itself: it is read once
        halfway = time.perf_counter()
        torch.sum(memory)
        best = min(best, halfway - started, time.perf_counter() - halfway)
    return BANDWIDTH_BYTES / best


def kv_token_bytes(decoder: Decoder) -> int:
    """Bytes of keys and values of one position."""
    config = decoder.config
    return 2 * config.num_layers * config.num_kv_heads * config.head_dim * decoder.dtype.itemsize


def _load_floor(decoder: Decoder, load: int, room: int, blocks: int, repeats: int, bandwidth: float) -> LoadFloor:
    delivered: list[CycleDone] = []

    def deliver(message: FromEngine) -> None:
        if isinstance(message, CycleDone):
            delivered.append(message)

    loop = EngineLoop(
        target=DecoderTarget(decoder),
        drafters={},
        blocks=Blocks(max(LOADS), blocks),
        context_limit=room,
        prefill_chunk=CONTEXT,
        token_bytes=list,
        deliver=deliver,
    )
    loop.step([_submit(key, decoder.config.vocab_size, room) for key in range(load)])
    while len(loop.scheduler.decoding) < load:
        loop.step([])
    for _ in range(WARM_UP):
        loop.step([])
        decoder.linear_seconds(load, repeats=1)

    linear: list[float] = []
    cycles: list[float] = []
    kv_bytes: list[int] = []

    def plain_cycle() -> None:
        started = time.perf_counter()
        loop.step([])
        cycles.append(time.perf_counter() - started)
        kv_bytes.append(delivered[-1].stats.kv_tokens * kv_token_bytes(decoder))

    def floor() -> None:
        linear.append(decoder.linear_seconds(load, repeats=1))

    for repeat in range(repeats):
        for measure in (plain_cycle, floor) if repeat % 2 == 0 else (floor, plain_cycle):
            measure()
    loop.step([Cancel(key) for key in range(load)])
    kv_seconds = tuple(count / bandwidth for count in kv_bytes)
    return LoadFloor(load, tuple(linear), tuple(kv_bytes), kv_seconds, tuple(cycles))


def _submit(key: int, vocabulary: int, room: int) -> Submit:
    # Texts that begin differently share nothing.
    prompt = tuple((7919 * key + 104729 * index + 11) % vocabulary for index in range(CONTEXT))
    return Submit(
        request_key=key,
        prompt=prompt,
        sampling=GREEDY,
        max_tokens=room - CONTEXT,
        stop_token_ids=(),
        stops=(),
        decision=_DECISION,
        submitted_at=time.monotonic(),
    )


def _block_seconds(target: DecoderTarget, room: int, repeats: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    table = list(range(blocks_for(room)))
    drafts = tuple(range(100, 100 + BLOCK_LENGTH))

    def seconds(drafted: tuple[int, ...]) -> float:
        tokens = (99, *drafted)
        part = Rows(tokens, CONTEXT, table, len(tokens))
        block = Block(first_row=0, drafts=drafted, sampling=GREEDY, position=0)
        started = time.perf_counter()
        target.verify([part], [block])
        return time.perf_counter() - started

    for drafted in ((), drafts) * WARM_UP:
        seconds(drafted)
    single: list[float] = []
    block: list[float] = []
    for repeat in range(repeats):
        for drafted in ((), drafts) if repeat % 2 == 0 else (drafts, ()):
            (block if drafted else single).append(seconds(drafted))
    return tuple(single), tuple(block)
