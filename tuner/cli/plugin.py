"""``paceline plugin``: what is put into an engine's own environment."""

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
    for line in (
        f"{folder} is written. Start vLLM with",
        f"  PYTHONPATH={out.resolve()} PACELINE_POLICY=http://127.0.0.1:8001{ORDERS_PATH} "
        "PACELINE_TELEMETRY=127.0.0.1:8002 \\",
        '  vllm serve MODEL --speculative-config \'{"method": "ngram", "num_speculative_tokens": 5}\' \\',
        f"  --scheduler-cls {PACKAGE}.PolicyScheduler",
        f"or {PACKAGE}.AsyncPolicyScheduler where vLLM schedules asynchronously, as for draft_model or eagle3; and",
        "  paceline sidecar --upstream http://127.0.0.1:8080 --admin-port 8001 --plugin-port 8002",
    ):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
