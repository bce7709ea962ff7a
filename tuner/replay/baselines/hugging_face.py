"""Hugging Face transformers, ``src/transformers/generation/candidate_generator.py``, `AssistedCandidateGenerator`.

Published: the schedule ``heuristic`` adds 2 to ``num_assistant_tokens`` where every candidate matched, and takes 1
away, down to 1, where not; the value lives on the assistant and so goes on from one call to the next. With
``assistant_confidence_threshold`` the assistant stops once a token's probability is under the threshold, that token
included; after each block the threshold becomes the one that minimises ``fpr + 3 * fnr`` on the ROC curve of all
tokens' probabilities against whether they matched, once there are more than 5 of them and both kinds. Assisted
generation serves one sequence and knows no load.

What the simulator forces: each running sequence has a value of its own; a new request takes over the last one that
ended. The cap is 16 (theirs starts at 5 and has none; with a threshold it is 20). They do not choose a drafter: they
get the best single one in hindsight, which is generous. A block in which nothing was proposed changes nothing, also
generous: theirs would count it as matched, or as not, by version. Confidence is a bucket here, of the block's first
token: the threshold moves over buckets, and every token counts with its block's.
"""

from math import ceil
from typing import Any

from policies.types import MAX_BLOCK_LENGTH
from tuner.replay.hindsight import Single
from tuner.replay.player import Running, World

FIRST_TOKENS = 5
FIRST_THRESHOLD = 0.4
"""``assistant_confidence_threshold``, a probability."""
LEAST_SAMPLES = 6


class Heuristic:
    """``num_assistant_tokens_schedule="heuristic"``."""

    name = "hf-heuristic"

    def __init__(self, single: Single) -> None:
        self._drafter = single.drafter
        self._tokens = FIRST_TOKENS

    def start(self, world: World, memory: Any) -> None:
        """The assistant is loaded anew."""
        self._tokens = FIRST_TOKENS

    def save(self) -> Any:
        """Nothing is kept."""
        return None

    def admit(self, one: Running, load: int) -> None:
        """It goes on where the last call ended."""
        one.drafter, one.cap = self._drafter, self._tokens

    def plan(self, running: list[Running]) -> None:
        """Each sequence's own value."""
        for one in running:
            one.requested = one.cap

    def observe(self, running: list[Running], seconds: float, now: float) -> None:
        """Two more, or one less."""
        for one in running:
            if one.proposed:
                one.cap = min(one.cap + 2, MAX_BLOCK_LENGTH) if one.accepted == one.proposed else max(1, one.cap - 1)

    def finish(self, one: Running) -> None:
        """The value stays on the assistant."""
        self._tokens = one.cap


class ConfidenceThreshold:
    """``num_assistant_tokens_schedule="constant"`` with ``assistant_confidence_threshold``.

    The drafter stops while it drafts, so the confidence of the block that starts now is known to it, and is looked at
    before the block is asked for.
    """

    name = "hf-confidence"

    def __init__(self, single: Single) -> None:
        self._drafter = single.drafter
        self._largest = 1
        self.threshold = 1
        """The least bucket in which drafting goes on."""

    def start(self, world: World, memory: Any) -> None:
        """The threshold that is configured."""
        self._largest = world.confidence_buckets[self._drafter]
        self.threshold = max(1, ceil(FIRST_THRESHOLD * self._largest))

    def save(self) -> Any:
        """Nothing is kept."""
        return None

    def admit(self, one: Running, load: int) -> None:
        """Probabilities and matches are kept for one call; the threshold outlives it."""
        one.drafter = self._drafter
        one.notes = [0] * (self._largest + 1), [0] * (self._largest + 1)

    def plan(self, running: list[Running]) -> None:
        """To the end, or no further than the token that ends it."""
        for one in running:
            bucket = one.request.drafts[self._drafter].confidence[one.position]
            one.requested = MAX_BLOCK_LENGTH if bucket >= self.threshold else 1

    def observe(self, running: list[Running], seconds: float, now: float) -> None:
        """The least of ``fpr + 3 * fnr``."""
        for one in running:
            if one.proposed:
                matched, missed = one.notes
                matched[one.confidence] += one.accepted
                if one.accepted < one.proposed:
                    missed[one.confidence] += 1
                self.threshold = best_threshold(matched, missed, self.threshold)

    def finish(self, one: Running) -> None:
        """The threshold stays on the assistant."""


def best_threshold(matched: list[int], missed: list[int], present: int) -> int:
    """The bucket from which on to go on drafting, for counts of tokens by bucket; `present` where there are too few.
    Of equal ones the highest, since the curve is gone along from there; above all of them means never."""
    positives, negatives = sum(matched), sum(missed)
    if positives + negatives < LEAST_SAMPLES or not positives or not negatives:
        return present
    best, best_cost = len(matched), 3.0
    true, false = 0, 0
    for bucket in range(len(matched) - 1, -1, -1):
        if matched[bucket] or missed[bucket]:
            true += matched[bucket]
            false += missed[bucket]
            cost = false / negatives + 3.0 * (1.0 - true / positives)
            if cost < best_cost:
                best, best_cost = bucket, cost
    return best
