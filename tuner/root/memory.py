"""How much of the memory is left, for the guardrail."""

import logging
from pathlib import Path

from engine.machine_memory import free_bytes, machine_bytes

log = logging.getLogger(__name__)


def free_share(root: Path = Path("/")) -> float | None:
    """What this process may still take, as a share of what it could; None where the system does not tell.

    `root` is where ``proc`` and ``sys`` are.
    """
    try:
        free, whole = free_bytes(root), machine_bytes(root)
    except (OSError, ValueError) as error:
        # The guardrail shows an error as its verdict; in the log it would come every second.
        log.debug("the memory that is left was not read: %s", error)
        return None
    return free / whole if free is not None and whole else None
