"""vLLM: one JSON object, with a table of batch sizes.

Read in 0.32.0: ``vllm/config/speculative.py``, ``vllm/config/vllm.py`` and ``vllm/v1/spec_decode/dynamic/utils.py``.
Ranges start at 1 and do not overlap, and the last one's block length holds for every larger batch, so that a table has
to end with 0 where plain is meant.
"""

import json
from typing import Any

from tuner.fleet.render.account import account
from tuner.fleet.render.launch import Launch, LaunchFile
from tuner.fleet.render.merging import Merged
from tuner.fleet.render.spellings import spelling_of, weights_note
from tuner.fleet.versions import is_before

_TABLE_SINCE = "0.24.0"
"""The first version with a table (vllm#32374; vllm-metal#463)."""
_GRAPHS_WITH_TABLE = ("eagle", "eagle3", "mtp", "dflash", "dspark")
"""What the second model runner serves, which keeps whole CUDA graphs when the block length changes."""


def render(merged: Merged, version: str, file: str) -> Launch:
    """``--speculative-config`` with its JSON; with a `file`, YAML for ``--config``."""
    name, spelling = spelling_of(merged.drafter)
    notes: list[str] = []
    if spelling.vllm is None:
        merged = merged.at([0] * len(merged.steps))
        notes.append(f"vLLM has no drafter {name}.")
    if is_before(version, _TABLE_SINCE):
        merged = merged.single()
        notes.append(
            f"vLLM {version} has no table by batch size ({_TABLE_SINCE} and later do): one block length for all."
        )
    if not merged.longest:
        return Launch(False, (), None, (*account(merged), *notes, "Launch without --speculative-config."))
    config: dict[str, Any] = {"method": spelling.vllm}
    if spelling.weights:
        config["model"] = "WEIGHTS"
        notes.append(weights_note(merged.drafter, '"model"'))
    elif name == "suffix":
        notes.append("vLLM needs the package arctic-inference for it.")
    config["num_speculative_tokens"] = merged.longest
    if len(merged.ranges) > 1:
        config["num_speculative_tokens_per_batch_size"] = [list(step) for step in merged.ranges]
        notes.append(
            "With --data-parallel-size above 1 vLLM drops the table and drafts "
            f"{merged.longest} at every load: then launch without it, or plain."
        )
        notes.append(
            "Without VLLM_USE_V2_MODEL_RUNNER=1 the table costs whole CUDA graphs (they become piecewise)"
            + ("." if name in _GRAPHS_WITH_TABLE else f", and that runner has no {spelling.vllm}: compare with plain.")
        )
        notes.append(
            "A load that swings around an edge of the table has cost throughput (vllm#49548): watch it there, or join "
            "the ranges."
        )
    notes.append("Requests with min_p or logit_bias are answered with 400 by a server that drafts: keep a plain one.")
    told = json.dumps(config)
    sentences = (*account(merged), *notes)
    if not file:
        return Launch(True, ("--speculative-config", told), None, sentences)
    return Launch(True, ("--config", file), LaunchFile(file, f"speculative-config: '{told}'\n", True), sentences)
