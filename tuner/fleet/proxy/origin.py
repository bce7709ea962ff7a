"""Where an upstream is reached."""

import re
import ssl
from dataclasses import dataclass
from urllib.parse import urlsplit

from policies.quoting import shown

_VISIBLE = re.compile(r"[\x21-\x7e]+")
_PORTS = {"http": 80, "https": 443}


class OriginError(ValueError):
    """A URL under which nothing can be reached."""


@dataclass(frozen=True, slots=True)
class Origin:
    """An upstream's URL in parts."""

    host: str
    port: int
    authority: bytes
    """The value of ``Host``."""
    prefix: bytes
    """Put before every path; empty, or with a slash in front and none behind."""
    tls: ssl.SSLContext | None = None


def parse_origin(url: str) -> Origin:
    """Raises: OriginError: in one sentence, what is wrong with `url`."""
    if _VISIBLE.fullmatch(url) is None:  # urlsplit would leave some of it out silently
        raise OriginError(
            f"The upstream {shown(url)} has a blank, a control character or a letter outside ASCII; write it as it is "
            "sent, such as %20 for a blank."
        )
    try:
        parts = urlsplit(url)
        port = parts.port
        (parts.hostname or "").encode("idna")  # as looking its address up would
    except ValueError as error:
        raise OriginError(f"The upstream {shown(url)} is no URL: {error}.") from None
    if parts.scheme not in _PORTS or not parts.hostname:
        raise OriginError(f"The upstream {shown(url)} is no URL; give one such as http://127.0.0.1:8000.")
    if parts.query or parts.fragment or parts.username is not None:
        raise OriginError(f"The upstream {shown(url)} has more than host, port and path; leave the rest out.")
    tls = ssl.create_default_context() if parts.scheme == "https" else None
    authority, prefix = parts.netloc.encode("ascii"), parts.path.rstrip("/").encode("ascii")
    return Origin(parts.hostname, port or _PORTS[parts.scheme], authority, prefix, tls)
