"""What is rendered: flags, a configuration file where the engine has one, and the evidence as comments."""

import shlex
import textwrap
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from tuner.fleet.render.merging import Merged

_WIDTH = 110


class Engine(StrEnum):
    """For whom."""

    VLLM = "vllm"
    SGLANG = "sglang"
    TENSORRT_LLM = "tensorrt-llm"
    LLAMA_SERVER = "llama-server"


@dataclass(frozen=True, slots=True)
class LaunchFile:
    """A file that the flags name."""

    name: str
    content: str
    """Without comments."""
    comments: bool
    """Whether lines after a ``#`` are comments in it."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Launch settings in an engine's own format."""

    speculates: bool
    """False where the evidence says not to: then the flags are those of the plain launch."""
    flags: tuple[str, ...]
    """To add to the command line, unquoted."""
    file: LaunchFile | None
    notes: tuple[str, ...]
    """Sentences: how the engine takes this, and what it cannot do."""

    @property
    def line(self) -> str:
        """The flags, quoted for a shell; empty where there are none."""
        return shlex.join(self.flags)


class Renderer(Protocol):
    """One engine's."""

    def __call__(self, merged: Merged, version: str, file: str) -> Launch: ...


def commented(sentences: tuple[str, ...]) -> str:
    """`sentences` as lines of comments, each beginning its own."""
    lines = []
    for sentence in sentences:
        lines += textwrap.wrap(
            sentence,
            _WIDTH,
            initial_indent="# ",
            subsequent_indent="#   ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    return "".join(f"{line}\n" for line in lines)
