"""`paceline sidecar`: beside servers that others wrote. It imports no tensor library, and needs no extra."""

import string
from typing import Annotated, Any

import typer

from policies.types import Mode
from tuner.cli.failures import CommandError
from tuner.cli.service import Config, given, run_console
from tuner.settings_loader import load_settings


def sidecar(
    config: Config = None,
    upstream: Annotated[
        list[str] | None,
        typer.Option("--upstream", help="A server, as [NAME=]URL; may be given again.", show_default=False),
    ] = None,
    mode: Annotated[Mode | None, typer.Option("--mode", help="Setting fleet.mode.", show_default=False)] = None,
    host: Annotated[str | None, typer.Option("--host", help="Setting server.host.", show_default=False)] = None,
    port: Annotated[int | None, typer.Option("--port", help="Setting server.port.", show_default=False)] = None,
    admin_port: Annotated[
        int | None, typer.Option("--admin-port", help="Setting admin.port.", show_default=False)
    ] = None,
    plugin_port: Annotated[
        int | None, typer.Option("--plugin-port", help="Setting fleet.plugin_port.", show_default=False)
    ] = None,
) -> None:
    """Stand between clients and vLLM, SGLang or llama.cpp servers; observe them, or steer what they let be steered."""
    overrides: dict[str, dict[str, Any]] = given(
        {
            "server": {"host": host, "port": port},
            "admin": {"port": admin_port},
            "fleet": {"mode": mode, "plugin_port": plugin_port},
        }
    )
    if upstream:
        overrides["fleet"]["upstreams"] = named(upstream)
    settings = load_settings(config, overrides).settings
    # Beside the loop of the data path nothing else is imported into its process, so that it stays small.
    from tuner.fleet.sidecar import run_sidecar
    from tuner.http_servers import StartError

    try:
        raise typer.Exit(run_sidecar(settings, run_console()))
    except StartError as error:
        raise CommandError(str(error)) from error


def named(upstreams: list[str]) -> dict[str, dict[str, str]]:
    """Settings of upstreams that were given as ``NAME=URL`` or ``URL``; those without a name are a, b, c and so on."""
    found: dict[str, dict[str, str]] = {}
    letters = iter(string.ascii_lowercase)
    for text in upstreams:
        name, separator, url = text.partition("=")
        if not separator or "/" in name:
            name = next((letter for letter in letters if letter not in found), "")
            url = text
        if not name or name in found:
            raise typer.BadParameter(
                f"{text!r}: give each upstream a name of its own, as NAME=URL.", param_hint="--upstream"
            )
        found[name] = {"url": url}
    return found
