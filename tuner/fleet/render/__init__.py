"""Launch settings of other engines, made from what was learned, so that a user can leave with it.

`merge` makes one table for all routes, since an engine takes one; `render` writes it in an engine's own format.
"""

from collections.abc import Mapping

from tuner.fleet.render import llama_server, sglang, tensorrt_llm, vllm
from tuner.fleet.render.launch import Engine, Launch, Renderer
from tuner.fleet.render.lossy import lossy
from tuner.fleet.render.merging import Known, Merged, NothingLearnedError, merge

__all__ = ["Engine", "Known", "Launch", "Merged", "NothingLearnedError", "lossy", "merge", "render"]

_RENDERERS: Mapping[Engine, Renderer] = {
    Engine.VLLM: vllm.render,
    Engine.SGLANG: sglang.render,
    Engine.TENSORRT_LLM: tensorrt_llm.render,
    Engine.LLAMA_SERVER: llama_server.render,
}


def render(engine: Engine, merged: Merged, version: str = "", file: str = "") -> Launch:
    """`merged` in the engine's own format.

    `version` is as the engine tells it; spellings and the meaning of keys depend on it, and where it is empty or cannot
    be read the newest that was read is taken, which the notes say. `file` is the name under which the flags find the
    engine's configuration file.
    """
    return _RENDERERS[engine](merged, version, file)
