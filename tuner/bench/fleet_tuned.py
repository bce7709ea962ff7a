"""vLLM with Paceline's plug-in behind `paceline sidecar`, as a user starts them: two programs."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tuner.bench.vllm_server import free_port, ngram_launch, running_vllm, wait_for
from tuner.fleet.vllm.publishing import ORDERS_PATH
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
    upstream, port, admin, reports = (free_port() for _ in range(4))
    orders = f"http://127.0.0.1:{admin}{ORDERS_PATH}"
    launch = ngram_launch(BLOCK_LENGTH).with_plugin(folder, f"127.0.0.1:{reports}", orders)
    command = [sys.executable, "-c", "from tuner.entry import main; main()", "sidecar", "--mode", "auto"]
    command += ["--upstream", f"vllm=http://127.0.0.1:{upstream}", "--port", str(port)]
    command += ["--admin-port", str(admin), "--plugin-port", str(reports)]
    variables = os.environ | {"PACELINE_DATABASE__URL": f"sqlite:///{folder / 'fleet.db'}"}
    output = folder / "sidecar.txt"
    with running_vllm(environment, model, launch, upstream), output.open("ab") as sink:
        process = subprocess.Popen(
            command, cwd=folder, env=variables, stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT
        )
        try:
            # There are orders once it has found out what cycles cost.
            wait_for(orders, process, output, "the sidecar")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
