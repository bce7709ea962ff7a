"""The command line's side of the admin API."""

import getpass
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import httpx

from tuner.cli.failures import ERROR, USAGE, CommandError
from tuner.setting_types import goes_in_a_header

TIMEOUT_SECONDS = 10.0
LOAD_TIMEOUT_SECONDS = 300.0
"""For what reads weights from a disk."""
_PROBLEM = "application/problem+json"
"""What the admin API's errors are (`tuner.api.problems`); others' have a ``detail`` too, which says nothing to do."""
USAGE_STATUSES = (400, 404, 409, 422)
"""Answers that mean that the command asked for something that cannot be."""


class AdminClient:
    """One server; every failure is a `CommandError` with one sentence."""

    def __init__(self, server: str, token: str | None) -> None:
        """`server` is the admin port's URL, `token` that of the setting admin.token."""
        if token and not goes_in_a_header(token):  # httpx would quote it in its error
            raise CommandError(
                "The token has characters that no header takes: give the setting admin.token as it is.", USAGE
            )
        headers = {"x-paceline-actor": _actor()}
        if token:
            headers["authorization"] = f"Bearer {token}"
        self._server = server.rstrip("/")
        self._headers = headers

    def get(self, *path: str) -> dict[str, Any]:
        """The resource at ``/api/v1`` and `path`, whose parts need no escapes."""
        return self._ask("GET", path, None)

    def put(self, *path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Replace a resource."""
        return self._ask("PUT", path, body)

    def post(self, *path: str, body: Mapping[str, Any], timeout: float = TIMEOUT_SECONDS) -> dict[str, Any]:
        """Call for an action, and wait `timeout` seconds for it."""
        return self._ask("POST", path, body, timeout=timeout)

    def delete(self, *path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Take a resource back."""
        return self._ask("DELETE", path, None, query)

    def _ask(
        self,
        method: str,
        path: tuple[str, ...],
        body: Mapping[str, Any] | None,
        query: Mapping[str, str] | None = None,
        timeout: float = TIMEOUT_SECONDS,
    ) -> dict[str, Any]:
        if not {"", ".", ".."}.isdisjoint(path):
            raise CommandError("A route, a language or an id is empty or dots alone: give its name.", USAGE)
        try:
            url = "/".join((self._server, "api", "v1", *(quote(part, safe="*") for part in path)))
            # The environment's proxies are for the world outside, and an admin port is inside.
            with httpx.Client(timeout=httpx.Timeout(timeout, connect=TIMEOUT_SECONDS), trust_env=False) as http:
                response = http.request(method, url, json=body, params=query, headers=self._headers)
        except (httpx.ReadTimeout, httpx.WriteTimeout) as error:  # it listens, so it is there
            raise CommandError(
                f"{self._server} did not answer within {timeout:g} s; it may still be doing it: `paceline status`."
            ) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise CommandError(
                f"No admin API answers at {self._server} ({error}): start `paceline serve` or `paceline sidecar`, "
                "or give --server URL."
            ) from error
        except UnicodeError as error:
            raise CommandError(
                "An argument holds bytes that cannot be sent: write arguments in UTF-8.",
                USAGE,
            ) from error
        try:
            answer = response.json()
        except ValueError:
            answer = None
        if isinstance(answer, dict) and response.is_success:
            return answer
        problem = response.headers.get("content-type", "").startswith(_PROBLEM)
        if problem and isinstance(answer, dict) and isinstance(answer.get("detail"), str):
            raise CommandError(answer["detail"], USAGE if response.status_code in USAGE_STATUSES else ERROR)
        raise CommandError(
            f"{self._server} answered {response.status_code} and is no admin API: give --server the admin port's URL."
        )


def _actor() -> str:
    """The user's name, as the audit will show it."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a container's user need not have a name
        name = "unknown"
    return re.sub(r"[^\w.@+-]", "-", name, flags=re.ASCII)[:64] or "unknown"
