"""`paceline doctor`: whether Paceline is worth it beside a server that runs, and how."""

import asyncio
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from policies.database_url import without_password
from tuner.cli.failures import USAGE, CommandError
from tuner.cli.output import Format, Output, make_console, print_data, print_paragraph, print_table
from tuner.fleet.doctor import DOCTOR_SECONDS, Verdict, examine
from tuner.fleet.engines.fetching import FetchError
from tuner.fleet.settings import server_url
from tuner.fleet.types import EngineKind
from tuner.setting_types import goes_in_a_header
from tuner.wording import counted

NEGATIVE_VERDICT = 3
_TEXTS = {"repeating": "a text that repeats", "story": "a story"}


def doctor(
    url: Annotated[str, typer.Option("--url", help="A vLLM, llama.cpp or SGLang server, e.g. http://127.0.0.1:8000.")],
    key: Annotated[
        str | None,
        typer.Option("--key", envvar="PACELINE_UPSTREAM_KEY", help="Its API key, if it wants one.", show_default=False),
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """Find out what a server is, whether it drafts, and what it lets be steered; each lever is pulled to see.

    It sends a handful of tiny requests marked paceline-probe, changes nothing, needs no configuration and takes under
    10 seconds. The exit code is 0 where the advice is to go on, 3 where it is not to, 1 where nothing answers.
    """
    try:
        server_url(url)
    except ValueError as error:
        raise CommandError(f"--url is {without_password(repr(url))}: {error}.", USAGE) from error
    if key is not None and not goes_in_a_header(key):
        raise CommandError("--key has characters that no header takes: give the key as the server was given it.", USAGE)
    try:
        found = asyncio.run(examine(url, key=key, seconds=DOCTOR_SECONDS))
    except FetchError as error:
        raise CommandError(str(error)) from error
    if output is Format.TABLE:
        _print(make_console(), found)
    else:
        print_data(_data(found), output)
    if not found.advisable:
        raise typer.Exit(NEGATIVE_VERDICT)


def _data(found: Verdict) -> dict[str, Any]:
    data = asdict(found)
    upstream = data.pop("upstream")
    upstream.pop("name")
    speeds = [asdict(one) | {"ratio": one.ratio} for one in found.speeds]
    return _jsonable(upstream | data | {"speeds": speeds})  # type: ignore[no-any-return]


def _jsonable(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _jsonable(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(each) for each in value]
    return str(value) if isinstance(value, str) else value


def _print(console: Console, found: Verdict) -> None:
    upstream = found.upstream
    engine = "unknown" if upstream.engine is EngineKind.UNKNOWN else upstream.engine.value
    console.print(f"engine       {engine} {upstream.version or 'of a version that it does not tell'}")
    console.print(f"models       {', '.join(upstream.models) or 'none that it lists'}")
    console.print(f"speculation  {_speculation(found)}")
    console.print(f"drafting     {_drafting(found)}")
    console.print(f"traffic      {_traffic(found)}")
    for one in found.speeds:
        console.print(
            f"speed        on {_TEXTS[one.text]}: {one.drafting:.0f} tokens a second drafting, {one.plain:.0f} plain, "
            f"{one.ratio:.2f}x"
        )
    if not found.speeds:
        told = f"{found.tokens_per_second:.0f} tokens a second" if found.tokens_per_second else "unknown"
        compared = "; plain is unknown, since nothing here switches drafting off" if found.launched else ""
        console.print(f"speed        {told} on a text that repeats{compared}")
    table = Table("lever", "effect", "what was seen")
    for capability in upstream.capabilities:
        table.add_row(capability.lever.replace("_", " "), capability.effect, capability.sentence)
    print_table(console, table)
    for warning in found.warnings:
        print_paragraph(console, f"warning: {warning}")
    sent = counted(found.requests, "request")
    print_paragraph(console, f"{found.sentence} (It took {found.seconds:.1f} seconds and {sent}.)")
    console.print(f"  {found.command}", soft_wrap=True)


def _speculation(found: Verdict) -> str:
    if found.launched is None:
        return "unknown: the server does not tell whether it has a drafter"
    if not found.launched:
        return "off: it has no drafter"
    length = f", blocks of up to {found.upstream.block_length}" if found.upstream.block_length else ""
    return f"on: drafter {found.upstream.drafter}{length}"


def _drafting(found: Verdict) -> str:
    if found.drafting is None:
        return "unknown"
    if not found.drafting:
        return "no: nothing of a text that repeats"
    told = [f"{count:g} {word}" for count, word in ((found.drafted, "drafted"), (found.accepted, "accepted")) if count]
    return f"yes, of a text that repeats: {' and '.join(told) or 'an unknown number'}"


def _traffic(found: Verdict) -> str:
    if found.served_unknown:
        return f"unknown: {found.served_unknown}"
    if not found.served_drafted and found.served_tokens_per_cycle is None:
        return "no drafts since its start"
    said = []
    if found.served_acceptance is not None:
        said.append(f"{found.served_acceptance:.1%} of {found.served_drafted:,.0f} drafted tokens accepted")
    if found.served_tokens_per_cycle is not None:
        said.append(f"{found.served_tokens_per_cycle:.2f} tokens a cycle")
    return f"{', '.join(said)}, since its start"
