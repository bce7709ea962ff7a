"""TensorRT-LLM: the section ``speculative_config`` of its YAML.

Read in ``tensorrt_llm/llmapi/llm_args.py`` and ``_torch/speculative/utils.py`` (2026-08) and at 1.2: a key of
``draft_len_schedule`` is the largest batch that its length holds for, and beyond the last key it is 0; before #10860
(2026-03-13) it was the smallest. In both the lowest key has the longest length.
"""

import yaml

from tuner.fleet.render.account import account
from tuner.fleet.render.launch import Launch, LaunchFile
from tuner.fleet.render.merging import Merged
from tuner.fleet.render.spellings import spelling_of, weights_note
from tuner.fleet.versions import is_before

_UPPER_KEYS_SINCE = "1.3.0rc0"
_FILE = "paceline-tensorrt-llm.yaml"


def render(merged: Merged, version: str, file: str) -> Launch:
    """A YAML file, and the flag that names it."""
    name, spelling = spelling_of(merged.drafter)
    notes: list[str] = []
    if spelling.tensorrt_llm is None:
        merged = merged.at([0] * len(merged.steps))
        notes.append(f"TensorRT-LLM has no drafter {name}.")
    first = merged.steps[0].block_length
    if any(step.block_length > first for step in merged.steps):
        merged = merged.at([min(step.block_length, first) for step in merged.steps])
        notes.append(f"TensorRT-LLM takes no length above that of the smallest batch, which is {first}: cut to it.")
    if not merged.longest or spelling.tensorrt_llm is None:
        return Launch(False, (), None, (*account(merged), *notes, "Launch without speculative_config."))
    upper = is_before(version, _UPPER_KEYS_SINCE) is not True
    section: dict[str, object] = {"decoding_type": spelling.tensorrt_llm, "max_draft_len": merged.longest}
    if spelling.weights:
        section["speculative_model"] = "WEIGHTS"
        notes.append(weights_note(merged.drafter, "speculative_model"))
    if len(merged.ranges) > 1:
        last_low, _, last = merged.ranges[-1]
        section["draft_len_schedule"] = {
            (high if upper else low): length
            for low, high, length in merged.ranges
            if not upper or length or low < last_low
        }
        if upper:
            notes.append(
                "A key is the largest batch that its length holds for; before #10860 (2026-03-13) it was the smallest, "
                "so for an older version give --engine-version."
            )
            if spelling.weights and not last:
                notes.append("Later versions may draft 1 token where the schedule says 0 (#16888): compare with plain.")
    notes += [
        "Set no acceptance_rate_threshold: its gate closes for good (#7283, #12905).",
        "min_p, penalties and log-probabilities are refused or need their own settings under speculation.",
    ]
    file = file or _FILE
    content = yaml.safe_dump({"speculative_config": section}, sort_keys=False)
    flag = "--config" if upper else "--extra_llm_api_options"
    return Launch(True, (flag, file), LaunchFile(file, content, True), (*account(merged), *notes))
