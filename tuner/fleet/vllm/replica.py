"""One start of vLLM with the plug-in, as its reports tell of it."""

from collections.abc import Callable

from policies.stats import CycleStats
from tuner.fleet.vllm.plugin.messages import Hello, State


class Replica:
    """One start of a plug-in, as it told of itself."""

    def __init__(self, hello: Hello) -> None:
        self.hello = hello
        self.state: State | None = None
        """The last one; None before the first."""
        self.connected = True
        self.cycles = 0
        """Reported, those of calibrations among them."""
        self.collect: Callable[[CycleStats], None] | None = None
        """Takes the cycles of a calibration while there is one."""
