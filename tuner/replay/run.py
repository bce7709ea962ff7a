"""Runs controllers over traces on a few processes. What comes out does not depend on how the work was split: a job is
one trace with all controllers, every chance in it comes from the job's seed, and results are put in order."""

import gc
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from policies.types import PLAIN
from tuner.replay.baselines import controllers
from tuner.replay.compare import Run, arrival_requests, make_run
from tuner.replay.copying_oracle import CopyingOracle
from tuner.replay.fixed_play import FixedRuns
from tuner.replay.generate import generate
from tuner.replay.hindsight import StaticPlayer
from tuner.replay.oracle import Oracle, Truth
from tuner.replay.ours import Ours, Unbound
from tuner.replay.played import Outcome, account
from tuner.replay.player import Player
from tuner.replay.scenarios import shipped_scenarios
from tuner.replay.simulate import simulate
from tuner.replay.trace import Trace
from tuner.replay.trace_file import load

ORACLE = "oracle"
COPYING_ORACLE = CopyingOracle.name
"""The second reference, which looks at proposals."""
OURS = "paceline"
UNBOUND = Unbound.name
"""No baseline: a variant of ours, which nobody else is compared with."""
PLAIN_CONTROLLER = "plain"
STATIC_TABLE = "best-per-load"
GOODPUT = "goodput-turbospec"
GOODPUT_TABLE = "goodput-vllm"
FIXED = "fixed"
"""Every drafter of the trace with each of these block lengths."""
FIXED_LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16)
_THREADS = "OMP_NUM_THREADS"
_OBJECTS = 100_000
"""That a worker makes before garbage is looked for among them: next to nothing in a replay is."""


@dataclass(frozen=True, slots=True)
class Job:
    """One trace: of a scenario that is shipped, or from a file."""

    scenario: str
    """The scenario's name, or the file's without its ending."""
    seed: int
    path: Path | None
    controllers: tuple[str, ...]
    """Besides the oracle, which always runs."""
    fixed: bool
    """Whether the fixed arms run too."""


@dataclass(frozen=True, slots=True)
class Done:
    """All runs of one job."""

    job: Job
    runs: tuple[Run, ...]
    arrived: tuple[int, ...]
    """The requests of the context that arrives under way."""
    changes: tuple[int, ...]
    """Where a controller has something to recover from: changes and restarts."""
    requests: int


def run_job(job: Job) -> Done:
    """Make or read the trace, and let everybody serve it."""
    trace = load(job.path) if job.path is not None else generate(shipped_scenarios(), job.scenario, job.seed)
    truth = Truth(trace)
    started = time.perf_counter()
    oracle = simulate(trace, Oracle(truth), job.seed)
    runs = [make_run(job.scenario, ORACLE, job.seed, oracle, oracle, time.perf_counter() - started, learns=True)]
    for name, outcome, seconds in _outcomes(trace, truth, job):
        learns = name in job.controllers
        runs.append(make_run(job.scenario, name, job.seed, outcome, oracle, seconds, learns=learns))
    return Done(
        job,
        tuple(runs),
        tuple(arrival_requests(trace)),
        tuple(sorted({*trace.changes, *trace.restarts})),
        len(trace.requests),
    )


def _outcomes(trace: Trace, truth: Truth, job: Job) -> Iterator[tuple[str, Outcome, float]]:
    """(controller, outcome, seconds of this machine)."""
    fixed = FixedRuns(truth.blocks)
    arms = {PLAIN_CONTROLLER: (PLAIN, 0)}
    if job.fixed:
        arms |= {f"{drafter}:{length}": (drafter, length) for drafter in trace.drafters for length in FIXED_LENGTHS}
    for name, (drafter, length) in arms.items():
        started = time.perf_counter()
        outcome = account(trace, fixed.play(drafter, length))
        yield name, outcome, time.perf_counter() - started
    factories = all_controllers()
    for name in job.controllers:
        started = time.perf_counter()
        player = factories[name](truth)
        if isinstance(player, StaticPlayer) and not player.by_load:
            outcome = account(trace, fixed.play_arms([player.arm(one) for one in trace.requests]))
        else:
            outcome = simulate(trace, player, job.seed)
        yield name, outcome, time.perf_counter() - started


def all_controllers() -> Mapping[str, Callable[[Truth], Player]]:
    """Every controller but the oracle, plain and the fixed arms: ours first, and last what runs only when named."""
    return {OURS: lambda truth: Ours(), **controllers(), UNBOUND: lambda truth: Unbound()}


def run_jobs(jobs: Sequence[Job], processes: int, finished: Callable[[], None]) -> list[Done]:
    """All jobs, in the order given; `finished` is called after each. Raises what the first that fails raises."""
    # A fresh interpreter for each worker: what the parent had imported or opened is not in it.
    context = multiprocessing.get_context("spawn")
    workers = min(processes, len(jobs))
    with (
        one_thread_each(),
        ProcessPoolExecutor(workers, mp_context=context, initializer=gc.set_threshold, initargs=(_OBJECTS,)) as pool,
    ):
        futures = [pool.submit(run_job, job) for job in jobs]
        try:
            for future in as_completed(futures):
                future.result()
                finished()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        return [future.result() for future in futures]


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Processes that start meanwhile compute with one thread: numpy reads it when it is imported, and threads that wait
    for their small parts of work would take the cores of the other processes."""
    before = os.environ.get(_THREADS)
    os.environ[_THREADS] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_THREADS]
        else:
            os.environ[_THREADS] = before
