"""`paceline export`: leave with what was learned, as launch settings of another engine."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import TypeAdapter, ValidationError

from policies.quoting import shown
from policies.types import Policy
from tuner import output_file
from tuner.cli.admin_client import AdminClient
from tuner.cli.failures import USAGE, CommandError
from tuner.cli.operator import DEFAULT_SERVER, Server, Token
from tuner.fleet.render import Engine, Known, Launch, NothingLearnedError, merge, render
from tuner.fleet.render.launch import commented
from tuner.fleet.versions import is_before

NEGATIVE_VERDICT = 3
_A_RELEASE, _A_BUILD = "0.1.0", "b100"
"""A version of either kind: between the two kinds there is no order."""
_POLICY = TypeAdapter(Policy)


def export(
    engine: Annotated[Engine, typer.Option("--engine", help="For whom.", show_default=False)],
    engine_version: Annotated[
        str,
        typer.Option(
            "--engine-version", help="As the engine tells it, such as 0.32.0 or b10573; spellings depend on it."
        ),
    ] = "",
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Write the engine's configuration file here; without it it is printed."),
    ] = None,
    server: Server = DEFAULT_SERVER,
    token: Token = None,
) -> None:
    """Print launch settings that hold what was learned, with the evidence, so that an engine can go on without us.

    Exits with 3 where it prints the plain launch: that was learned, or the engine has no such drafter.
    """
    if engine_version and is_before(engine_version, _A_BUILD if engine is Engine.LLAMA_SERVER else _A_RELEASE) is None:
        example = "b10573" if engine is Engine.LLAMA_SERVER else "0.32.0"
        raise CommandError(
            f"--engine-version is {shown(engine_version)}, which is no version of {engine.value}: give it as the "
            f"engine tells it, such as {example}, or leave it out.",
            USAGE,
        )
    if out is not None:
        output_file.check(out)
    known = _known(AdminClient(server, token))
    try:
        merged = merge(known)
    except NothingLearnedError as error:
        raise CommandError(f"{server} has nothing to export: {error}.") from error
    launch = render(engine, merged, engine_version, "" if out is None else str(out))
    when = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    told = (
        f"For {engine.value}, from what was learned of {merged.model} at {server} by {when}.",
        "It holds for the engines and machines behind that server: elsewhere measure again.",
        *launch.notes,
    )
    typer.echo(commented(told) + launch.line)
    if out is None and launch.file is not None:
        typer.echo(f"\n# {launch.file.name}:\n{launch.file.content}", nl=False)
    elif out is not None:
        _write(out, launch, told)
    if not launch.speculates:
        raise typer.Exit(NEGATIVE_VERDICT)


def _known(client: AdminClient) -> list[Known]:
    found = []
    for line in client.get("policies")["policies"]:
        view = client.get("policies", line["route"], line["language"])
        if view["policy"] is not None:
            found.append(Known(_policy(view["policy"]), line["requests"]))
    return found


def _policy(found: dict[str, Any]) -> Policy:
    try:
        return _POLICY.validate_python(found)
    except ValidationError as error:
        where = ".".join(str(part) for part in error.errors()[0]["loc"])
        raise CommandError(
            f"A policy of the server has a {where} that this version cannot read: install the server's version."
        ) from error


def _write(out: Path, launch: Launch, told: tuple[str, ...]) -> None:
    if launch.file is None:
        typer.echo(f"{out} was not written: these settings need no file.", err=True)
    elif launch.file.comments:
        output_file.write(out, "--out", (commented(told) + launch.file.content).encode())
    else:
        output_file.write(out, "--out", launch.file.content.encode())
        beside = out.with_name(f"{out.name}.md")
        output_file.write(beside, "--out", "".join(f"* {sentence}\n" for sentence in told).encode())
