"""The chooser of the data path: that of the pools, or that of vLLM's plug-in, as the control process says."""

from policies.language_detection import LanguageDetector
from tuner.fleet.pools.chooser import PoolChooser
from tuner.fleet.pools.snapshot import FleetSnapshot
from tuner.fleet.types import Asked, Choice
from tuner.fleet.vllm.chooser import PluginChooser, PluginSnapshot


class SwitchingChooser:
    """A `tuner.fleet.types.Chooser`; for one thread. Before the first `swap` everything is passed on as it comes."""

    def __init__(self) -> None:
        self._detector = LanguageDetector()
        self._chooser: PoolChooser | PluginChooser = PoolChooser(self._detector)

    def swap(self, snapshot: FleetSnapshot | PluginSnapshot) -> None:
        """Choose by `snapshot` from the next request on. Sessions are remembered, unless a plug-in came or went."""
        if isinstance(snapshot, PluginSnapshot):
            if not isinstance(self._chooser, PluginChooser):
                self._chooser = PluginChooser(snapshot, self._detector)
            self._chooser.snapshot = snapshot
        else:
            if not isinstance(self._chooser, PoolChooser):
                self._chooser = PoolChooser(self._detector)
            self._chooser.swap(snapshot)

    def reads(self, path: str, route: str | None) -> bool:
        """See `Chooser.reads`."""
        return self._chooser.reads(path, route)

    def choose(self, asked: Asked) -> Choice:
        """See `Chooser.choose`."""
        return self._chooser.choose(asked)
