"""The configuration's group ``fleet``: the upstreams of `paceline sidecar`, and how they are spoken to."""

import re
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from policies.types import PLAIN, Mode
from tuner.setting_types import BlockLength, DrafterLabel, Group, Key, Port, RouteMode, RouteName, Text

_URL = re.compile(r"[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=%]+")
"""The characters of a URL (RFC 3986, section 2): others would break the line or the header that it stands in."""


def server_url(value: str) -> str:
    """The URL of a server, without a slash or ``/v1`` at its end.

    Raises:
        ValueError: it is none; the text is the remedy.
    """
    try:
        parts = urlsplit(value)
        good = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        good = False
    if not good or not _URL.fullmatch(value) or parts.query or parts.fragment or "@" in parts.netloc:
        raise ValueError("give http://HOST:PORT or https://HOST in ASCII, without spaces, a query or a user")
    return value.rstrip("/").removesuffix("/v1").rstrip("/")


def _model(value: str) -> str:
    if not value.isprintable():
        raise ValueError("a model's name has printable characters only")
    return value


def _together(drafter: str, block_length: int) -> None:
    if (drafter == PLAIN) != (block_length == 0):
        raise ValueError(
            f"drafter is {drafter!r} and block_length is {block_length}: drafter {PLAIN!r} goes with 0 "
            "and every other drafter with 1 or more"
        )


class AliasSettings(Group):
    """A model of a router that differs from its others in speculation only."""

    drafter: DrafterLabel = PLAIN
    """What it drafts with, by the name that pins and policies shall have for it; none: it decodes plain."""
    block_length: BlockLength = 0
    """The most tokens that it proposes in a cycle."""

    @model_validator(mode="after")
    def _drafter_with_length(self) -> Self:
        _together(self.drafter, self.block_length)
        return self


class UpstreamSettings(Group):
    """One upstream."""

    url: Annotated[Text, AfterValidator(server_url)]
    """Where it answers, without /v1, such as http://127.0.0.1:8080."""
    drafter: DrafterLabel | None = None
    """What it was launched to draft with, by the name that pins and policies shall have for it; none: it decodes plain.
    Without it probing finds out whether it drafts."""
    block_length: BlockLength | None = None
    """The most tokens that it was launched to propose in a cycle; without it what its metrics tell."""

    api_key: Key | None = None
    """Bearer token for what Paceline itself asks of it; clients' requests keep their own."""
    aliases: dict[Annotated[Text, AfterValidator(_model)], AliasSettings] = Field(default_factory=dict)
    """By model, those of a llama.cpp router that are the same model with other settings of speculation."""

    @property
    def headers(self) -> dict[str, str]:
        """What Paceline's own requests to it carry."""
        return {} if self.api_key is None else {"authorization": f"Bearer {self.api_key.get_secret_value()}"}

    @model_validator(mode="after")
    def _drafter_with_length(self) -> Self:
        if self.block_length is not None and self.drafter is not None:
            _together(self.drafter, self.block_length)
        return self


class FleetSettings(Group):
    """`paceline sidecar`: the servers behind it, and what may be done to requests on their way."""

    upstreams: dict[RouteName, UpstreamSettings] = Field(default_factory=dict)
    """The servers of the fleet, by name."""
    mode: RouteMode = Mode.OBSERVE
    """What Paceline may do on routes that have no mode of their own: off, observe, advise, canary or auto."""
    add_usage: bool = True
    """From advise on: ask streams for their usage, and take it out again where the client did not ask."""
    plain_share_start: Annotated[float, Field(ge=0.0, le=0.5)] = 0.2
    """Share of sessions that the plain pool serves at first, as the live baseline; 0 measures none."""
    plain_share_floor: Annotated[float, Field(ge=0.0, le=0.5)] = 0.02
    """Share of sessions that the plain pool serves once the gain is known well."""
    max_body_bytes: Annotated[int, Field(ge=1024)] = 1 << 25
    """Longest body of a request that is taken, in bytes."""
    connect_seconds: Annotated[float, Field(gt=0.0)] = 5.0
    """How long an upstream may take to accept a connection."""
    first_byte_seconds: Annotated[float, Field(ge=0.0)] = 600.0
    """How long an upstream may take to begin its answer; 0: for ever."""
    idle_seconds: Annotated[float, Field(ge=0.0)] = 300.0
    """How long an answer may pause, and a client may take over the next piece of its request; 0: for ever."""
    keep_alive_seconds: Annotated[float, Field(ge=0.0)] = 0.0
    """From advise on: a stream that pauses for so long gets a comment line, so that nobody between takes it for dead;
    0: never."""
    poll_seconds: Annotated[float, Field(ge=0.1, le=600.0)] = 2.0
    """How often the metrics of an upstream are read."""
    plugin_port: Port | None = None
    """Where vLLM's plug-in reports its cycles, on server.host; 0 takes a free one, without it there is no plug-in."""
    corpora: dict[RouteName, Text] = Field(default_factory=dict)
    """By language, a text file that SGLang's n-gram drafters read while that language has traffic."""

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.plain_share_floor > self.plain_share_start > 0.0:
            raise ValueError(
                f"plain_share_floor is {self.plain_share_floor}, above plain_share_start, which is "
                f"{self.plain_share_start}: lower the first"
            )
        urls: dict[str, str] = {}
        for name, upstream in self.upstreams.items():
            if upstream.url in urls:
                raise ValueError(
                    f"upstreams has {upstream.url!r} as {urls[upstream.url]!r} and as {name!r}: give each URL once"
                )
            urls[upstream.url] = name
        return self
