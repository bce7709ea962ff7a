"""Another engine in a process of its own, asked over its standard input and output."""

import asyncio
import contextlib
import json
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LINE_LIMIT = 1 << 24


class WorkerError(Exception):
    """The other engine does not run; one sentence for people."""


@dataclass(frozen=True, slots=True)
class Served:
    """What another engine made of some prompts."""

    seconds: float
    tokens: int
    prompt_tokens: tuple[int, ...]
    texts: tuple[str, ...]

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds


class Worker:
    """See `running_worker`."""

    def __init__(self, process: asyncio.subprocess.Process, name: str, log: Path) -> None:
        self._process = process
        self._name = name
        self._log = log
        self.version = ""

    async def set_up(self, setup: Mapping[str, object]) -> None:
        """Load the model. Raises WorkerError."""
        self.version = str((await self._ask(setup))["version"])

    async def serve(
        self, arm: str, prompts: Sequence[Sequence[Mapping[str, str]]], new_tokens: Sequence[int], load: int = 1
    ) -> Served:
        """Generate exactly `new_tokens` for each prompt. Raises WorkerError."""
        messages = [[dict(message) for message in prompt] for prompt in prompts]
        answer = await self._ask({"arm": arm, "prompts": messages, "new_tokens": list(new_tokens), "load": load})
        return Served(answer["seconds"], answer["tokens"], tuple(answer["prompt_tokens"]), tuple(answer["texts"]))

    async def _ask(self, message: Mapping[str, object]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            await self._process.stdin.drain()
        except ConnectionError:
            pass  # it has ended: the missing answer says so below
        line = await self._process.stdout.readline()
        if not line:
            code = await self._process.wait()
            said = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            raise WorkerError(f"{self._name} ended with code {code}: {said[-1] if said else 'it said nothing'}")
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextlib.asynccontextmanager
async def running_worker(name: str, python: str, script: Path) -> AsyncIterator[Worker]:
    """`script` under `python`, yet to be set up; it ends with the context. Raises WorkerError."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("wb") as said:
            try:
                process = await asyncio.create_subprocess_exec(
                    python, str(script),
                    stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=said, limit=LINE_LIMIT,
                )  # fmt: skip
            except OSError as error:
                raise WorkerError(f"{name} does not start ({error.strerror}): {python}") from error
        worker = Worker(process, name, log)
        try:
            yield worker
        finally:
            if process.returncode is None:
                process.kill()
            await process.communicate()
