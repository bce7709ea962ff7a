"""The sockets and servers that the service listens on."""

import asyncio
import contextlib
import errno
import logging
import socket
import traceback
from collections.abc import AsyncIterator, Iterator
from ipaddress import IPv6Address, ip_address

import uvicorn
from fastapi import FastAPI

from tuner.connections import ImpatientProtocol

KEEP_ALIVE_SECONDS = 75
"""Of an idle connection. Clients let go of theirs sooner (httpx after 5 s, most proxies after 60 s): who closes first
must not be the server, or a request now and then meets a closed connection."""
GRACE_SECONDS = 5
"""What requests in progress get to end when the server stops."""


class StartError(Exception):
    """The service cannot start; the message is one sentence for people."""


class HttpServer(uvicorn.Server):
    """A server on a socket that is bound already; signals are the service's business."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listen(host: str, port: int, group: str) -> socket.socket:
    """Listen where the settings ``host`` and ``port`` of `group` say. StartError names the one at fault."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(1024)
    except (OSError, TypeError, UnicodeError) as error:  # no OSError: what the address has for a name can be none
        listener.close()
        if isinstance(error, OSError) and error.errno in (errno.EADDRINUSE, errno.EACCES, errno.EPERM):
            raise StartError(
                f"{group}.port: cannot listen on {host}:{port} ({error.strerror}); choose another."
            ) from error
        reason = error.strerror if isinstance(error, OSError) else "not a host name"
        raise StartError(
            f"{group}.host is {host!r}, where nothing can listen ({reason}); give an address of this machine."
        ) from error
    return listener


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def reaches(host: str, port: int, listener: socket.socket) -> bool:
    """Whether a connection to `host` and `port` may be one to `listener`. Asks for the addresses of `host` only where
    the port is the listener's; False where it has none."""
    own_host, own_port = listener.getsockname()[:2]
    if port != own_port:
        return False
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # no OSError: what the address has for a name can be none
        return False
    own = ip_address(own_host)
    for family, _, _, _, address in found:
        given = ip_address(str(address[0]).partition("%")[0])
        given = (given.ipv4_mapped if isinstance(given, IPv6Address) else None) or given
        if given.is_unspecified:  # connects to this machine
            given = ip_address("::1" if given.version == 6 else "127.0.0.1")
        if given == own or (own.is_unspecified and _is_here(family, str(given))):
            return True
    return False


def _is_here(family: int, address: str) -> bool:
    """Whether `address` is one of this machine's: only to those a socket can be bound."""
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def log_no_messages(record: logging.LogRecord) -> bool:
    """A filter for uvicorn's log: no cancellation, and of every other exception where it came from but not its
    message, which may quote a prompt."""
    if not record.exc_info or record.exc_info[1] is None:
        return True
    error = record.exc_info[1]
    if isinstance(error, asyncio.CancelledError):
        return False
    where = "".join(traceback.format_tb(error.__traceback__))
    record.msg, record.args = "%s\n%s%s", (record.getMessage().strip(), where, type(error).__name__)
    record.exc_info = record.exc_text = None
    return True


@contextlib.asynccontextmanager
async def serving(app: FastAPI, listener: socket.socket) -> AsyncIterator[None]:
    """Serve `app` on `listener` while the context is open; requests in progress get a few seconds to end."""
    config = uvicorn.Config(
        app,
        http=ImpatientProtocol,
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=GRACE_SECONDS,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
    )
    # A stream that is cut off when the seconds are over is told by one line, and no fault with a traceback.
    logging.getLogger("uvicorn.error").addFilter(log_no_messages)
    server = HttpServer(config)
    serving = asyncio.create_task(server.serve([listener]))
    try:
        yield
    finally:
        server.should_exit = True
        await serving
        # Requests that were cut off still have to end, so that telemetry counts them before it is folded for good.
        await asyncio.gather(*server.server_state.tasks, return_exceptions=True)
