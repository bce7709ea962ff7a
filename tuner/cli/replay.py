"""`paceline replay`: the options. What runs, and numpy with it, is imported when it is called."""

from pathlib import Path
from typing import Annotated

import typer

from tuner.cli.service import JsonFile, can_be_written
from tuner.cli.tune import SHIPPED_TRACE


def replay(
    everything: Annotated[bool, typer.Option("--all", help="Every scenario.")] = False,
    scenarios: Annotated[
        list[str] | None, typer.Option("--scenario", help="A scenario, again for more.", show_default=False)
    ] = None,
    traces: Annotated[
        list[Path] | None,
        typer.Option(
            "--trace",
            help=f"A file of paceline trace record, or {SHIPPED_TRACE} of the package; again for more.",
            show_default=False,
            dir_okay=False,
        ),
    ] = None,
    controllers: Annotated[
        list[str] | None,
        typer.Option("--controller", help="A controller, again for more; all unless given.", show_default=False),
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="The first so many of the held-out seeds.")] = 3,
    tuning: Annotated[bool, typer.Option("--tuning", help="The seeds that controllers are tuned on instead.")] = False,
    show_list: Annotated[bool, typer.Option("--list", help="Show scenarios and controllers, and run none.")] = False,
    plot_path: Annotated[
        Path | None,
        typer.Option("--plot", help="Draw it as a PNG there.", show_default=False, callback=can_be_written),
    ] = None,
    json_path: JsonFile = None,
) -> None:
    """Run controllers over traces in which the truth is known; ends with 3 if the tuner misses one of its bars."""
    from tuner.cli.replaying import ReplayOptions, run_replay, show_scenarios

    if show_list:
        show_scenarios()
        return
    run_replay(
        ReplayOptions(
            everything=everything,
            scenarios=tuple(scenarios or ()),
            traces=tuple(traces or ()),
            controllers=tuple(controllers or ()),
            seeds=seeds,
            tuning=tuning,
            plot_path=plot_path,
            json_path=json_path,
        )
    )
