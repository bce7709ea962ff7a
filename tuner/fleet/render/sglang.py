"""SGLang: flags, and for EAGLE a JSON file with candidate steps by batch size.

Read in ``sglang/srt/speculative/adaptive_spec_params.py`` and ``adaptive_step_router.py`` (2026-08): a slot holds from
its batch size on up to the next one's, batch sizes are padded to those of CUDA graphs first, and within a slot a moving
mean of the accepted length chooses among the candidates. With 0 beside others it would try the next one again after
every few batches, so 0 stands alone.
"""

import json
from typing import Any

from tuner.fleet.render.account import account
from tuner.fleet.render.launch import Launch, LaunchFile
from tuner.fleet.render.merging import Merged
from tuner.fleet.render.spellings import spelling_of, weights_note

_ADAPTIVE = ("EAGLE", "EAGLE3", "NEXTN")
_CHAINS = (*_ADAPTIVE, "STANDALONE")
_FILE = "paceline-adaptive.json"


def render(merged: Merged, version: str, file: str) -> Launch:
    """``--speculative-*``; a schedule where the drafter can follow one, else the single block length that does best."""
    name, spelling = spelling_of(merged.drafter)
    algorithm = spelling.sglang
    notes: list[str] = []
    if algorithm is None:
        merged = merged.at([0] * len(merged.steps))
        notes.append(f"SGLang has no drafter {name}.")
    elif algorithm not in _ADAPTIVE and len(merged.ranges) > 1:
        merged = merged.single()
        notes.append(f"SGLang follows no schedule with {algorithm}: one block length for every load.")
    if not merged.longest or algorithm is None:
        return Launch(False, (), None, (*account(merged), *notes, "Launch without --speculative-algorithm."))
    flags = ["--speculative-algorithm", algorithm]
    if spelling.weights:
        flags += ["--speculative-draft-model-path", "WEIGHTS"]
        notes.append(weights_note(merged.drafter, "--speculative-draft-model-path"))
    if algorithm in _CHAINS:
        flags += ["--speculative-num-steps", str(merged.longest), "--speculative-eagle-topk", "1"]
    # The root of a block is a token that needs no draft, so N drafts are verified as N + 1 tokens.
    flags += ["--speculative-num-draft-tokens", str(merged.longest + 1)]
    written = None
    if len(merged.ranges) > 1:
        file = file or _FILE
        flags += ["--speculative-adaptive", "--speculative-adaptive-config", file]
        written = LaunchFile(file, json.dumps(_slots(merged), indent=2) + "\n", False)
        notes += [
            "Adaptive steps need EAGLE or EAGLE3 with topk 1, and fall back to the static ones with attention DP, "
            "multi-layer EAGLE, two-batch overlap or pdmux. The file is read once, at the start.",
            "A batch counts as large as the CUDA graph that it is padded to, so an edge may come earlier.",
            "Within a slot SGLang chooses by accepted length, not by cost: the candidates are what routes ask for.",
        ]
    notes += [
        "With a drafter max-running-requests is 48 unless it is set, and chunked prefill is not mixed with decoding.",
        "Leave --speculative-accept-threshold-single and -acc at 1.0: below that the output is another one.",
        "min_p and custom processors are not applied under speculation, and penalties only roughly: keep a plain one.",
    ]
    return Launch(True, tuple(flags), written, (*account(merged), *notes))


def _slots(merged: Merged) -> dict[str, Any]:
    slots: dict[str, Any] = {}
    previous: list[int] | None = None
    for step in merged.steps:
        steps = sorted({*step.asked, step.block_length}) if step.block_length else [0]
        # A route may ask for more than the mix can pay; the mean of what is accepted would follow its bursts.
        steps = [one for one in steps if one <= step.block_length]
        if steps != previous:
            slots[str(step.load_low)] = {
                "candidate_steps": steps,
                "up_hysteresis": 0.0,
                "down_hysteresis": -0.25,
                "ceiling_coeff": 0,
            }
        previous = steps
    return slots
