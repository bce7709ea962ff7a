"""From the start of the process to the first token, each time in a new process."""

import asyncio
import contextlib
import os
import re
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import yaml
from rich.console import Console

from policies.stats import EngineInfo
from tuner.bench.options import BenchOptions
from tuner.bench.report import Report
from tuner.load import LoadError, send
from tuner.paired import percentile
from tuner.root import engine_start_phases
from tuner.settings import ENV_PREFIX, Settings
from tuner.wording import counted
from tuner.workload import load_workload

_SERVES = re.compile(r"serving \S+ at (http://\S+)/v1")
_STAGES = {
    "starting the engine process": "control process: Python, imports and settings",
    "reading the tokenizer": "engine process: started, and waited for",
    "opening the store": "control process: tokenizer and its library",
    " at http": "control process: store, policies and servers",
}
"""What `paceline serve` says when the stage in words has ended, in the order of a start."""
_PROGRAM = "from tuner.cli import main; main()"


async def run_cold(settings: Settings, options: BenchOptions, console: Console) -> tuple[EngineInfo, Report]:
    """Start `paceline serve` anew ``options.repeats`` times, and the engine alone as often."""
    phases: dict[str, list[float]] = {}
    marks: dict[str, list[float]] = {}
    ready: list[float] = []
    first: list[float] = []
    info: EngineInfo | None = None
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "paceline.yaml"
        config.write_text(_config(settings, Path(folder)), encoding="utf-8")
        for number in range(options.repeats):
            console.log(f"start {number + 1} of {options.repeats}: the service")
            started = time.perf_counter()
            async with _served(config) as (url, stages):
                ready.append(time.perf_counter() - started)
                for name, seconds in stages.items():
                    marks.setdefault(name, []).append(seconds)
                async with httpx.AsyncClient(base_url=url, timeout=None) as http:
                    model = (await http.get("/v1/models")).json()["data"][0]["id"]
                    outcome = await send(http, model, load_workload(options.routes)[0], 1)
                if outcome.status != 200:
                    raise LoadError(f"The first request failed: {outcome.status} {outcome.error}")
                first.append(time.perf_counter() - started)
            console.log(f"start {number + 1} of {options.repeats}: the engine process alone")
            info, found = await engine_start_phases(settings)
            for name, seconds in found.items():
                phases.setdefault(name, []).append(seconds)
    assert info is not None  # repeats is at least 1
    rows: dict[str, list[float]] = {"process start to ready": ready}
    rows |= {f"of it, {name}": times for name, times in marks.items()}
    rows |= {"process start to first token": first}
    rows |= {f"engine process alone: {name}": times for name, times in phases.items()}
    console.print(f"medians of {counted(options.repeats, 'start')} (least to most)", highlight=False)
    for name, times in rows.items():
        console.print(f"{name}: {percentile(times, 0.5):.2f} s ({min(times):.2f} to {max(times):.2f})", highlight=False)
    return info, Report({"seconds": rows})


def _config(settings: Settings, folder: Path) -> str:
    """The settings as a file, on free ports and a store of their own."""
    values = settings.model_dump(mode="json", exclude_none=True)
    values["server"] |= {"port": 0}
    values["admin"] = {"host": "127.0.0.1", "port": 0}
    values["database"] = {"url": f"sqlite:///{folder / 'paceline.db'}"}
    return yaml.safe_dump(values)


@contextlib.asynccontextmanager
async def _served(config: Path) -> AsyncIterator[tuple[str, dict[str, float]]]:
    """`paceline serve` in a process of its own; once it serves, the data port's URL and the seconds of each stage."""
    environment = {name: value for name, value in os.environ.items() if not name.upper().startswith(ENV_PREFIX)}
    environment |= {name: os.environ[name] for name in ("PACELINE_CACHE",) if name in os.environ}
    begun = time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _PROGRAM, "serve", "--config", str(config),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, env=environment | {"COLUMNS": "500"},
    )  # fmt: skip
    assert process.stdout is not None
    try:
        said: list[str] = []
        stages: dict[str, float] = {}
        while line := (await process.stdout.readline()).decode(errors="replace"):
            said.append(line.strip())
            for text, name in _STAGES.items():
                if text in line:
                    now = time.perf_counter()
                    stages[name], begun = now - begun, now
            if found := _SERVES.search(line):
                yield found[1], stages
                return
        raise LoadError(f"`paceline serve` ended before it served: {said[-1] if said else 'it said nothing'}")
    finally:
        if process.returncode is None:
            process.terminate()
            await process.communicate()
