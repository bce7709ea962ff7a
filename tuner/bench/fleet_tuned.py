"""vLLM with Paceline's plug-in behind `paceline sidecar`, as a user starts them: two programs."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tuner.bench.vllm_server import free_port, ngram_launch, running_vllm, wait_for
from tuner.fleet.vllm.writing import write_plugin

BLOCK_LENGTH = 5
STOP_SECONDS = 20.0


@contextlib.contextmanager
def running_tuned(environment: Path, model: Path, folder: Path) -> Iterator[str]:
    """The sidecar's URL, once it passes requests on to a vLLM with the plug-in.

    Args:
        environment: where vLLM is installed; nothing of ours comes into it.
        model: its folder.
        folder: takes the plug-in and the sidecar's database, from which the next one goes on.

    Raises:
        VllmError: vLLM or the sidecar did not start.
    """
    write_plugin(folder)
    reports, port, upstream = free_port(), free_port(), free_port()
    launch = ngram_launch(BLOCK_LENGTH).with_plugin(folder, f"127.0.0.1:{reports}")
    output = folder / "sidecar.txt"
    command = [sys.executable, "-c", "from tuner.entry import main; main()", "sidecar", "--mode", "auto"]
    command += ["--upstream", f"vllm=http://127.0.0.1:{upstream}", "--port", str(port), "--admin-port", "0"]
    command += ["--plugin-port", str(reports)]
    variables = os.environ | {"PACELINE_DATABASE__URL": f"sqlite:///{folder / 'fleet.db'}"}
    with output.open("wb") as sink:
        process = subprocess.Popen(
            command, cwd=folder, env=variables, stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT
        )
    try:
        with running_vllm(environment, model, launch, upstream):
            url = f"http://127.0.0.1:{port}"
            wait_for(f"{url}/v1/models", process, output, "the sidecar")
            yield url
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
