"""Goodput control: the block length with the most predicted tokens per second.

`TurboSpec`: SmartSpec, later TurboSpec (arXiv 2406.14066); formulae and constants as in vllm-project/vllm
``vllm/v1/spec_decode/auto_tuner.py``. With a share `m` of the batch that proposes and the mean acceptance `a` of a
window of up to 10,000 steps, ``tokens = m * (1 - a^(k+1)) / (1 - a) + (batch - m)`` over ``c_kv * kv_tokens +
c_computation * tokens in the pass + c_overhead``; decided every 100 steps, and kept in between whatever the load. That
file's draft time is 0 with a remark that it should be modelled; its sum over the batch is one sequence's. Here both are
right, as in the paper: generous. Its constants are placeholders; ours are fitted to the calibration. Until the first
decision the best fixed length in hindsight is used.

`VllmGoodput`: the first manager of vLLM's dynamic speculative decoding (PR 32374), ``vllm/v1/spec_decode/dynamic/
manager.py``: ``(1 + a_1 + ... + a_k) / seconds(batch, k)`` over k from 0, with accepted over drafted counts of each
position since the start, updated in every step after 10, before that a profiled acceptance. A position that was never
drafted counts as never accepted, so it does not go beyond what it has tried. Its profile is the truth of the whole
trace here, and its grid of seconds is that of `profiled` for every batch size: generous.

Neither chooses a drafter: they get the best single one in hindsight. Where they decide for no drafts they measure no
acceptance any more, as published, and come back only with another load.
"""

from collections import deque

import numpy as np

from policies.types import MAX_BLOCK_LENGTH
from tuner.replay.baselines.batchwise import Batchwise, profiled
from tuner.replay.player import Running, World

TURBO_INTERVAL = 100
TURBO_WINDOW = 10_000
VLLM_WARM_UP = 10


class TurboSpec(Batchwise):
    """The formula of `AutoTuner`."""

    name = "goodput-turbospec"

    def begin(self, world: World) -> None:
        """Fit the batch latency model to the calibration."""
        costs, each = world.calibrated, self.single.kv_tokens
        self._draft = costs.drafters[self.single.drafter]
        points = [
            (load * each * size, load * (length + 1), load)
            for load in range(1, world.slots + 1)
            for length in range(0, MAX_BLOCK_LENGTH + 1, 2)
            for size in (0.5, 1.0, 1.5)
        ]
        seconds = [costs.target.seconds(tokens, load, round(kv_tokens)) for kv_tokens, tokens, load in points]
        design = np.array([(kv_tokens, tokens, 1.0) for kv_tokens, tokens, _ in points])
        # Relative errors count, or small batches would not.
        weight = 1.0 / np.array(seconds)
        fitted = np.linalg.lstsq(design * weight[:, None], np.ones(len(points)), rcond=None)[0]
        self._kv_load, self._computation, self._overhead = fitted.tolist()
        self._acceptance: deque[float] = deque(maxlen=TURBO_WINDOW)
        self._matching: deque[float] = deque(maxlen=TURBO_WINDOW)
        self._acceptance_sum = self._matching_sum = 0.0
        self._steps = 0
        self.chosen = self.single.block_length

    def length(self, load: int) -> int:
        """Decided every 100 steps."""
        if self._steps and self._steps % TURBO_INTERVAL == 0 and self._acceptance:
            acceptance = self._acceptance_sum / len(self._acceptance)
            matching = load * self._matching_sum / len(self._matching)
            self.chosen = self.decide(load, matching, load * self.single.kv_tokens, acceptance)
        return self.chosen

    def decide(self, load: int, matching: float, kv_tokens: float, acceptance: float) -> int:
        """The length with the most goodput, when so many of the batch propose."""
        best, best_goodput = 0, 0.0
        for length in range(MAX_BLOCK_LENGTH + 1):
            emitted = length + 1.0 if acceptance >= 1.0 else (1.0 - acceptance ** (length + 1)) / (1.0 - acceptance)
            tokens = matching * (length + 1) + load - matching
            seconds = self._kv_load * kv_tokens + self._computation * tokens + self._overhead
            if length:
                seconds += self._draft.seconds(load, length, matching * length)
            goodput = (matching * emitted + load - matching) / seconds
            if goodput > best_goodput:
                best, best_goodput = length, goodput
        return best

    def learn(self, running: list[Running], seconds: float) -> None:
        """One acceptance rate and one share of proposals for each step that drafted."""
        self._steps += 1
        proposed = accepted = matching = 0
        for one in running:
            proposed += one.proposed
            accepted += one.accepted
            matching += one.proposed > 0
        if self.chosen:
            self._matching_sum += _append(self._matching, matching / len(running))
        if proposed:
            self._acceptance_sum += _append(self._acceptance, accepted / proposed)


def _append(window: deque[float], value: float) -> float:
    """Append, and return by how much the window's sum grows."""
    lost = window[0] if len(window) == window.maxlen else 0.0
    window.append(value)
    return value - lost


class VllmGoodput(Batchwise):
    """`DynamicSpeculativeDecodingManager`."""

    name = "goodput-vllm"

    def begin(self, world: World) -> None:
        """Profiles of acceptance and of seconds."""
        self._seconds = profiled(world.calibrated, self.single, world.slots)
        self.acceptance = list(self.single.survival)
        # By how many were proposed and accepted: a block of 3 drafted positions 1, 2 and 3.
        self._drafted = [0] * (MAX_BLOCK_LENGTH + 1)
        self._accepted = [0] * (MAX_BLOCK_LENGTH + 1)
        self._steps = 0

    def length(self, load: int) -> int:
        """The most goodput at this batch size."""
        best, best_goodput = 0, -1.0
        emitted = 1.0
        for length, seconds in enumerate(self._seconds[load - 1]):
            if length:
                emitted += self.acceptance[length - 1]
            if emitted / seconds > best_goodput:
                best, best_goodput = length, emitted / seconds
        return best

    def learn(self, running: list[Running], seconds: float) -> None:
        """Counts by position."""
        self._steps += 1
        drafted, accepted = self._drafted, self._accepted
        for one in running:
            drafted[one.proposed] += 1
            accepted[one.accepted] += 1
        if self._steps > VLLM_WARM_UP:
            reached = kept = 0
            for position in range(MAX_BLOCK_LENGTH, 0, -1):
                reached += drafted[position]
                kept += accepted[position]
                self.acceptance[position - 1] = kept / reached if reached else 0.0
