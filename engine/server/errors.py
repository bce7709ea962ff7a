"""What a client reads when something is wrong: OpenAI's error shape, one sentence, field and remedy named."""

import logging
from http import HTTPStatus

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import Scope

from engine.server.reading import RepeatedKeyError
from policies.quoting import clipped, shown

_log = logging.getLogger(__name__)
_PARAM_LENGTH = 512
_OF_READING = {413: "body_too_large", 408: "body_timeout"}
"""Codes of the failures of `engine.server.reading`, whose details are sentences."""
_ADMIN_PATHS = ("/metrics", "/livez", "/readyz", "/api/")


class ApiError(Exception):
    """A failure with its HTTP status; `message` is one sentence for people."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        param: str | None = None,
        code: str | None = None,
        kind: str = "invalid_request_error",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.param = param
        self.code = code
        self.kind = kind

    def body(self) -> dict[str, dict[str, str | None]]:
        """The JSON that a client gets, as a response or inside a stream that has already begun."""
        param = None if self.param is None else self.param[:_PARAM_LENGTH]
        return {"error": {"message": self.message, "type": self.kind, "param": param, "code": self.code}}

    def response(self) -> JSONResponse:
        return JSONResponse(self.body(), status_code=self.status)


def invalid(field: str, value: object, remedy: str) -> ApiError:
    """A 400 for a value that a supported field cannot take."""
    return ApiError(f"{field} is {shown(value)}; give {remedy}.", param=field, code="invalid_value")


def unsupported(field: str, value: object, remedy: str) -> ApiError:
    """A 400 for a field of the OpenAI interface that this server cannot honour."""
    return ApiError(
        f"{field} is {shown(value)}, which this server does not support; {remedy}.",
        param=field,
        code="unsupported_parameter",
    )


def missing(field: str, remedy: str) -> ApiError:
    return ApiError(f"{field} is missing; give {remedy}.", param=field, code="missing_required_parameter")


def repeated(field: str, error: RepeatedKeyError) -> ApiError:
    """A 400 for JSON in `field` that says one thing twice, of which readers take one or the other."""
    return ApiError(f"{field} names {shown(error.key)} twice in one object; give it once.", code="repeated_key")


def unavailable(message: str) -> ApiError:
    return ApiError(message, status=503, code="unavailable", kind="server_error")


def log_failure(error: ApiError, scope: Scope) -> None:
    """One line for a failure that is the server's: its sentences say nothing of any prompt."""
    if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        _log.error("%s %s answered %d: %s", scope["method"], scope["path"], error.status, error.message)


def install(app: FastAPI, admin_url: str | None) -> None:
    """Give every failure of `app`, its router's own included, the OpenAI shape; what is at `admin_url` is said so."""

    async def api_error(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, ApiError)
        log_failure(error, request.scope)
        return error.response()

    async def http_error(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        method, path = clipped(request.method), clipped(request.url.path)
        where = f"{method} {path}"
        if error.status_code == 404 and admin_url is not None and request.url.path.startswith(_ADMIN_PATHS):
            message, code = f"{path} is on the admin port: {admin_url}{path}.", "not_found"
        elif error.status_code == 404:
            known = "/v1/chat/completions, /v1/completions, /v1/models, /tokenize, /detokenize, /health, /version"
            message, code = f"There is no {where}; see {known}.", "not_found"
        elif error.status_code == 405:
            allowed = (error.headers or {}).get("Allow", "another method")
            message, code = f"{where} is not allowed; use {allowed}.", "method_not_allowed"
        elif error.status_code in _OF_READING:
            message, code = f"{error.detail}.", _OF_READING[error.status_code]
        else:
            message, code = f"{where} failed: {HTTPStatus(error.status_code).phrase}.", None
        response = ApiError(message, status=error.status_code, code=code).response()
        response.headers.update(error.headers or {})
        return response

    async def unexpected(request: Request, error: Exception) -> JSONResponse:
        # The message of an arbitrary exception may quote the prompt: only its type is logged.
        _log.error("%s %s failed with %s", request.method, request.url.path, type(error).__name__)
        return ApiError(
            "The server failed in an unexpected way; its log names the error.", status=500, kind="server_error"
        ).response()

    app.add_exception_handler(ApiError, api_error)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(Exception, unexpected)
