"""Commands that talk to a running server's admin port."""

from typing import Annotated, Any

import typer

from policies.types import MAX_BLOCK_LENGTH, PLAIN
from tuner.api.durations import parse_duration
from tuner.cli import tables
from tuner.cli.admin_client import LOAD_TIMEOUT_SECONDS, AdminClient
from tuner.cli.failures import USAGE, CommandError
from tuner.cli.output import Format, Output, make_console, print_data

DEFAULT_SERVER = "http://127.0.0.1:8001"
EVERY = "*"

Server = Annotated[str, typer.Option("--server", envvar="PACELINE_SERVER", help="URL of the admin port.")]
Token = Annotated[str | None, typer.Option("--token", envvar="PACELINE_ADMIN__TOKEN", help="The server's admin token.")]
Route = Annotated[str, typer.Argument(help="A configured route, or other.", show_default=False)]
OptionalRoute = Annotated[str | None, typer.Argument(help="A configured route, or other.", show_default=False)]
Language = Annotated[
    str, typer.Option("--language", "-l", help="A language such as da, or code, und, or * for all.", show_default=False)
]
All = Annotated[bool, typer.Option("--all", help="Every route.")]


def _known_duration(text: str | None) -> str | None:
    """Known here, so that a fault names the option and not the field of the API."""
    if text is not None:
        try:
            parse_duration(text)
        except ValueError as error:
            raise typer.BadParameter(f"{error}.") from error
    return text


Why = Annotated[str, typer.Option("--reason", help="Why; it is audited.", show_default=False)]


def status(server: Server = DEFAULT_SERVER, token: Token = None, output: Output = Format.TABLE) -> None:
    """Show what is in force: the contexts with their drafters and speedups, pins, kill switches, the store."""
    client = AdminClient(server, token)
    found, policies = client.get("status"), client.get("policies")["policies"]
    if output is Format.TABLE:
        tables.print_status(make_console(), found, policies)
    else:
        print_data(found | {"contexts": policies}, output)


def explain(
    route: OptionalRoute = None,
    language: Annotated[
        str | None, typer.Option("--language", "-l", help="A language such as da, or code or und.", show_default=False)
    ] = None,
    decision: Annotated[
        str | None, typer.Option("--decision", help="Id from the header x-paceline-decision.", show_default=False)
    ] = None,
    server: Server = DEFAULT_SERVER,
    token: Token = None,
    output: Output = Format.TABLE,
) -> None:
    """Say why a context, or one request, is served as it is: the ladder, the reason, the evidence."""
    client = AdminClient(server, token)
    if decision is not None and route is None and language is None:
        found = client.get("decisions", decision)
        _show(found, output, tables.print_decision)
    elif decision is None and route is not None and language is not None:
        found = client.get("policies", route, language)
        _show(found, output, tables.print_explanation)
    else:
        raise CommandError("Give ROUTE with --language L, or --decision ID alone.", USAGE)


def pin(
    route: Route,
    language: Language,
    drafter: Annotated[str, typer.Option("--drafter", help="The drafter; none for plain.", show_default=False)],
    duration: Annotated[
        str, typer.Option("--for", help="How long, e.g. 2h, 30m, 90s.", show_default=False, callback=_known_duration)
    ],
    reason: Why,
    block_length: Annotated[
        int | None,
        typer.Option(
            "--block-length",
            min=0,
            max=MAX_BLOCK_LENGTH,
            help="Tokens proposed in a cycle; not for none.",
            show_default=False,
        ),
    ] = None,
    exempt_from_switchback: Annotated[
        bool, typer.Option("--exempt-from-switchback", help="Hold it in plain windows too.")
    ] = False,
    server: Server = DEFAULT_SERVER,
    token: Token = None,
    output: Output = Format.TABLE,
) -> None:
    """Fix a context's drafter and block length for a while."""
    if block_length is None and drafter != PLAIN:
        raise CommandError("Give --block-length, which only --drafter none goes without.", USAGE)
    body = {
        "drafter": drafter,
        "block_length": block_length or 0,
        "reason": reason,
        "expires_in": duration,
        "exempt_from_switchback": exempt_from_switchback,
    }
    found = AdminClient(server, token).put("policies", route, language, "pin", body=body)
    _show(found, output, tables.print_pin)


def unpin(
    route: Route,
    language: Language,
    server: Server = DEFAULT_SERVER,
    token: Token = None,
    output: Output = Format.TABLE,
) -> None:
    """Take a pin back."""
    found = AdminClient(server, token).delete("policies", route, language, "pin")
    _show(found, output, tables.print_unpin)


def off(
    reason: Why,
    route: OptionalRoute = None,
    every: All = False,
    duration: Annotated[
        str | None,
        typer.Option(
            "--for", help="How long, e.g. 2h; without it until `on`.", show_default=False, callback=_known_duration
        ),
    ] = None,
    server: Server = DEFAULT_SERVER,
    token: Token = None,
    output: Output = Format.TABLE,
) -> None:
    """Switch speculation off for a route or everywhere, within one cycle."""
    body = {"route": _one(route, every), "active": True, "reason": reason, "expires_in": duration}
    _show(AdminClient(server, token).post("kill-switch", body=body), output, tables.print_switched_off)


def on(
    route: OptionalRoute = None,
    every: All = False,
    server: Server = DEFAULT_SERVER,
    token: Token = None,
    output: Output = Format.TABLE,
) -> None:
    """Take back what `off` did."""
    body = {"route": _one(route, every), "active": False}
    _show(AdminClient(server, token).post("kill-switch", body=body), output, tables.print_switched_on)


def load(
    drafter: Annotated[str, typer.Argument(help="As in engine.drafters.", show_default=False)],
    reason: Why,
    server: Server = DEFAULT_SERVER,
    token: Token = None,
    output: Output = Format.TABLE,
) -> None:
    """Load a drafter into a running server."""
    found = AdminClient(server, token).post(
        "drafters", body={"source": drafter, "reason": reason}, timeout=LOAD_TIMEOUT_SECONDS
    )
    _show(found, output, tables.print_drafters)


def unload(
    drafter: Annotated[str, typer.Argument(help="Its name; `paceline status` lists them.", show_default=False)],
    reason: Why,
    server: Server = DEFAULT_SERVER,
    token: Token = None,
    output: Output = Format.TABLE,
) -> None:
    """Let a running server's drafter go; what still runs with it goes on plain."""
    found = AdminClient(server, token).delete("drafters", drafter, query={"reason": reason})
    _show(found, output, tables.print_drafters)


def _one(route: str | None, every: bool) -> str:
    if (route is None) is not every:
        raise CommandError("Give one ROUTE, or --all.", USAGE)
    return EVERY if route is None else route


def _show(found: dict[str, Any], output: Format, printer: Any) -> None:
    if output is Format.TABLE:
        printer(make_console(), found)
    else:
        print_data(found, output)
