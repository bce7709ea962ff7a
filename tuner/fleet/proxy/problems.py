"""Answers of our own, in the shape that OpenAI clients read."""

import json
from http import HTTPStatus

_TYPES = {
    413: "request_too_large",
    502: "upstream_error",
    503: "upstream_error",
    504: "upstream_error",
}


def problem(status: int, sentence: str, code: str, keep_alive: bool = False) -> bytes:
    """A whole answer with ``{"error": ...}`` as its body."""
    kind = _TYPES.get(status, "invalid_request_error")
    error = {"message": sentence, "type": kind, "param": None, "code": code}
    body = json.dumps({"error": error}, ensure_ascii=False).encode()
    close = "" if keep_alive else "Connection: close\r\n"
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n{close}\r\n"
    )
    return head.encode() + body
