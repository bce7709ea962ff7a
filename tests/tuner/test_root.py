"""What the composition root lets into the log."""

import asyncio
import logging
import sys

from tuner.root.http import log_no_messages


def record_of(error: BaseException) -> logging.LogRecord:
    try:
        raise error
    except BaseException:  # noqa: BLE001  logged, as uvicorn would
        fault = sys.exc_info()
    return logging.LogRecord("uvicorn.error", logging.ERROR, __file__, 1, "Exception in ASGI application\n", (), fault)


def test_a_fault_is_logged_with_its_place_and_without_its_message() -> None:
    record = record_of(KeyError("what the prompt said"))
    assert log_no_messages(record)
    text = logging.Formatter().format(record)
    assert text.startswith("Exception in ASGI application\n")
    assert "in record_of" in text
    assert text.endswith("KeyError")
    assert "prompt" not in text


def test_a_cancelled_request_is_no_fault_and_other_lines_stay() -> None:
    assert not log_no_messages(record_of(asyncio.CancelledError()))
    line = logging.LogRecord("uvicorn.error", logging.WARNING, __file__, 1, "%d left", (3,), None)
    assert log_no_messages(line)
    assert line.getMessage() == "3 left"
