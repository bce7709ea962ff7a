"""Every error as an RFC 9457 problem: ``application/problem+json`` with one sentence that says what to do."""

import logging
from collections.abc import Mapping, Sequence
from http import HTTPStatus

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from policies.quoting import clipped
from tuner.api.faults import faults

log = logging.getLogger(__name__)

_DATA_PATHS = ("/v1/", "/health", "/version")


class ProblemError(Exception):
    """Ends a request with a problem."""

    def __init__(self, status: HTTPStatus, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = headers


def install(app: FastAPI) -> None:
    """Let `app` answer with problems only."""
    app.add_exception_handler(ProblemError, _on_problem)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(Exception, _on_fault)


async def _on_problem(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ProblemError)
    return _problem(request, error.status, error.detail, headers=error.headers)


async def _on_http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    detail = f"{clipped(request.method)} {clipped(request.url.path)}: {error.detail}."
    if error.status_code == HTTPStatus.NOT_FOUND and request.url.path.startswith(_DATA_PATHS):
        detail = f"{clipped(request.url.path)} is on the data port, that of the settings server.host and server.port."
    return _problem(request, HTTPStatus(error.status_code), detail, headers=error.headers)


async def _on_invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    found = faults(error.errors())
    detail = ". ".join(fault["message"] for fault in found) + "."
    return _problem(request, HTTPStatus.UNPROCESSABLE_ENTITY, detail, errors=found)


async def _on_fault(request: Request, error: Exception) -> JSONResponse:
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return _problem(request, HTTPStatus.INTERNAL_SERVER_ERROR, "The server made an error; its log says more.")


def _problem(
    request: Request,
    status: HTTPStatus,
    detail: str,
    headers: Mapping[str, str] | None = None,
    errors: Sequence[Mapping[str, str]] = (),
) -> JSONResponse:
    body: dict[str, object] = {
        "type": "about:blank",
        "title": status.phrase,
        "status": status.value,
        "detail": detail,
        "instance": clipped(request.url.path),
    }
    if errors:
        body["errors"] = list(errors)
    return JSONResponse(body, status.value, headers, media_type="application/problem+json")
