"""The engine's threads go before those of the control process."""

import os
from pathlib import Path

STEP = 10
"""Steps of niceness between the two: a thread that is 10 nicer gets a tenth of a core that both want."""


def step_back_for(engine_pid: int) -> None:
    """Make every thread of this process nicer than the engine's process; new threads inherit it.

    The engine's threads share each product, and wait for the one that the system stopped. On 2 cores, a busy control
    process of equal priority took a plain cycle of two threads from 10 ms to 20 ms, one that stepped back left it at
    10 ms. It still runs at once when it has been waiting, which is nearly all that it does.
    """
    niceness = min(19, os.getpriority(os.PRIO_PROCESS, engine_pid) + STEP)
    threads = Path("/proc/self/task")
    ids = [int(entry.name) for entry in threads.iterdir()] if threads.is_dir() else [0]
    for thread in ids:
        try:
            if os.getpriority(os.PRIO_PROCESS, thread) < niceness:
                os.setpriority(os.PRIO_PROCESS, thread, niceness)
        except ProcessLookupError:
            continue  # a thread that has ended since it was listed
