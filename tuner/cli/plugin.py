"""``paceline plugin``: what is put into an engine's own environment."""

import shlex
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from tuner.cli.failures import CommandError
from tuner.cli.output import make_console
from tuner.fleet.vllm.publishing import ORDERS_PATH
from tuner.fleet.vllm.writing import PACKAGE, ForeignFolder, write_plugin


class Engine(StrEnum):
    VLLM = "vllm"


def write(
    engine: Annotated[Engine, typer.Argument(help="The engine that it is for.", show_default=False)],
    out: Annotated[Path, typer.Option(help="Folder to write the package into; it is put on PYTHONPATH.")],
) -> None:
    """Write the package that lets Paceline steer vLLM from inside, for an environment without Paceline."""
    assert engine is Engine.VLLM
    try:
        folder = write_plugin(out)
    except ForeignFolder as error:
        raise CommandError(str(error)) from error
    except OSError as error:
        raise CommandError(f"{out} cannot be written: {error.strerror or error}") from error
    console = make_console()
    where = shlex.quote(str(out.resolve()))
    for line in (
        f"{folder} is written. Start the sidecar, and vLLM with what its environment calls python:",
        "  paceline sidecar --upstream http://127.0.0.1:8080 --plugin-port 8002 --mode auto",
        f"  PYTHONPATH={where} PACELINE_POLICY=http://127.0.0.1:8001{ORDERS_PATH} PACELINE_TELEMETRY=127.0.0.1:8002 \\",
        "  python -m vllm.entrypoints.openai.api_server --model MODEL --port 8080 \\",
        '    --speculative-config \'{"method": "ngram", "num_speculative_tokens": 5}\' \\',
        f"    --scheduler-cls {PACKAGE}.PolicyScheduler --no-async-scheduling",
        "For what vLLM schedules asynchronously, such as draft_model or eagle3 on a GPU, the last line is",
        f"    --scheduler-cls {PACKAGE}.AsyncPolicyScheduler --async-scheduling",
        "Clients talk to port 8000. In the modes observe and advise nothing is steered.",
    ):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
