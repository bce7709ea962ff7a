"""How long other threads wait for the interpreter while something works."""

import threading
import time
from collections.abc import Callable


def longest_wait(work: Callable[[], object]) -> float:
    """Seconds that this thread had to wait at a time while `work` ran in another, a millisecond of its own included."""
    done = threading.Event()

    def run() -> None:
        work()
        done.set()

    worker = threading.Thread(target=run)
    longest, last = 0.0, time.perf_counter()
    worker.start()
    while not done.wait(0.001):
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    worker.join()
    return longest
