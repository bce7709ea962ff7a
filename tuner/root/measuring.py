"""What bench measures of the engine without a server."""

import time
from collections.abc import Callable

from engine.floor import Floor
from engine.process import EngineClient
from policies import EngineInfo
from tuner.root.options import engine_options
from tuner.settings import Settings
from tuner.telemetry import TelemetryQueue


def floor_of(settings: Settings, rounds: int, progress: Callable[[str], None]) -> Floor:
    """`engine.floor_run.measure_floor` of the model that is configured, in this process. Raises ModelError."""
    from engine.floor_run import measure_floor  # the tensor library, which a server leaves to its engine process

    return measure_floor(engine_options(settings), rounds, progress)


async def engine_start_phases(settings: Settings) -> tuple[EngineInfo, dict[str, float]]:
    """Start the engine alone and end it. Returns the seconds of each phase that it reports, and of the whole start.

    Raises what `running_service` does.
    """
    options = engine_options(settings)
    started = time.perf_counter()
    marks: list[tuple[str, float]] = [("start of the process", started)]

    def mark(text: str) -> None:
        name = text.partition(",")[0]
        if name != marks[-1][0] and ": " not in text:  # with a colon it tells of something found, such as memory
            marks.append((name, time.perf_counter()))

    client = await EngineClient.start(options, TelemetryQueue(), mark)
    ended = time.perf_counter()
    await client.close()
    ends = [at for _, at in marks[1:]] + [ended]
    phases = {name: end - begin for (name, begin), end in zip(marks, ends, strict=True)}
    return client.info, phases | {"whole start": ended - started}
