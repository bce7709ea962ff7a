"""The control process steps back for the engine, with every thread, and no further each time."""

import os
import subprocess
import sys

SCRIPT = """
import os, sys, threading
from engine.priority import step_back_for
done = threading.Event()
thread = threading.Thread(target=done.wait)
thread.start()
for _ in range(2):
    step_back_for(int(sys.argv[1]))
later = threading.Thread(target=lambda: print(os.getpriority(os.PRIO_PROCESS, threading.get_native_id())))
later.start()
later.join()
print(os.getpriority(os.PRIO_PROCESS, thread.native_id), os.getpriority(os.PRIO_PROCESS, 0))
done.set()
"""


def test_every_thread_is_ten_steps_nicer_than_the_engine_however_often_it_steps_back() -> None:
    engine = os.getpriority(os.PRIO_PROCESS, os.getpid())
    expected = min(19, engine + 10)
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(os.getpid())], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(expected)] * 3
