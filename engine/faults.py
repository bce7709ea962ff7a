"""Faults that end one sequence and not the engine: what its client is told, and what the log tells."""

import logging
import traceback

from kernels.sampling import Failure

NO_CHOICE = Failure("The model's output for this sequence is not a number, so that no token can be chosen.", fault=True)
FAULT = Failure("The engine met an error of its own in this sequence; its log tells where.", fault=True)

_log = logging.getLogger(__name__)


def log_fault(what: str, error: Exception) -> None:
    """Log the kind of the error and where it came from; not its message, which may hold tokens of somebody's text."""
    where = "".join(traceback.format_tb(error.__traceback__))
    _log.error("%s failed with %s\n%s", what, type(error).__name__, where)
