"""A real llama.cpp server in a process of its own, from the wheel `xllamacpp`, with the default model's GGUF.

`with start_llama(gguf) as server:` gives its URL; `drafting` says what it speculates with. It listens on the loopback
address, on a port that the system chose or on the one that is asked for, and is killed at the end.

What this file is run as, by itself, is the server.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO

MODEL = "SmolLM2-135M-Instruct"
SLOTS = 4
CONTEXT = 1024
"""Tokens of one slot."""
THREADS = 1
"""Threads spin while they wait for each other: two, on two cores that others use too, take seconds for a token."""
BLOCK_LENGTH = 8
"""The longest block of a server that drafts."""
MATCH_LENGTH = 3
"""Tokens that the n-gram drafter looks for; llama.cpp's own 12 seldom finds anything in a short text."""
READY = "ready "


class Drafting(StrEnum):
    """What a server speculates with, as llama.cpp's ``--spec-type`` spells it."""

    NONE = "none"
    NGRAM = "ngram-simple"
    SELF = "draft-simple"
    """The model is its own drafter: nearly every token is accepted, and nothing is gained."""


@dataclass(frozen=True, slots=True)
class LlamaServer:
    """A server that runs."""

    url: str
    """Without ``/v1`` and without a slash at its end."""
    process: "subprocess.Popen[str]"
    output: Path
    """What it wrote to standard error."""

    def kill(self) -> None:
        """End it at once, as a machine that fails would."""
        self.process.kill()
        self.process.wait()


@contextmanager
def start_llama(
    gguf: Path, drafting: Drafting = Drafting.NONE, port: int = 0, alias: str = MODEL, slots: int = SLOTS
) -> Iterator[LlamaServer]:
    """A server that answers; it is killed when the block ends.

    Args:
        gguf: the model's file.
        drafting: what it speculates with.
        port: 0 for one that the system chooses.
        alias: the name that ``/v1/models`` tells.
        slots: requests that run together; more wait.
    """
    order = json.dumps({"gguf": str(gguf), "drafting": drafting, "port": port, "alias": alias, "slots": slots})
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "llama.txt"
        with (
            output.open("w") as errors,
            # The server ends by itself when its standard input does, so that a killed test run leaves none behind.
            subprocess.Popen(
                [sys.executable, __file__, order],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            ) as process,
        ):
            try:
                assert process.stdout is not None
                yield LlamaServer(_url(process.stdout, output), process, output)
            finally:
                process.kill()


def _url(lines: IO[str], output: Path) -> str:
    for line in lines:
        if line.startswith(READY):
            return line.removeprefix(READY).strip()
    raise AssertionError(f"llama.cpp did not start: {output.read_text()[-2000:]}")


def serve(order: dict[str, str | int]) -> None:
    """Serve in this process until standard input ends."""
    import xllamacpp  # only here: the tests' own process never loads it

    params = xllamacpp.CommonParams()
    params.model.path = order["gguf"]
    params.model_alias = {order["alias"]}
    params.port = order["port"]
    params.n_parallel = order["slots"]
    params.n_ctx = CONTEXT * int(order["slots"])
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = THREADS
    params.n_gpu_layers = 0
    params.fit_params = False  # it would try memory layouts first
    params.warmup = False
    params.endpoint_metrics = True
    kinds = xllamacpp.common_speculative_type
    if order["drafting"] == Drafting.NGRAM:
        params.speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
        params.speculative.ngram_simple.size_n = MATCH_LENGTH
        params.speculative.ngram_simple.size_m = BLOCK_LENGTH
    elif order["drafting"] == Drafting.SELF:
        params.speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
        params.speculative.draft.mparams.path = order["gguf"]
        params.speculative.draft.n_max = BLOCK_LENGTH
        params.speculative.draft.cpuparams.n_threads = THREADS
    server = xllamacpp.Server(params)
    sys.stdout.write(f"{READY}{server.listening_address}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    serve(json.loads(sys.argv[1]))
