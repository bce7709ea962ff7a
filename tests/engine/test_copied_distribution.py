"""Copied proposals among sampled ones, under verifiers that read draft_probs: the text follows the target exactly."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from engine.drafter import Drafter, Proposal
from engine.drafting import draft
from engine.planning import plan_cycle
from engine.request import RunningSequence
from engine.suffix import SuffixDrafter
from kernels.sampling import Sampling, Verifier
from policies.cycle_policy import INITIAL_CYCLE_POLICY, Copier, DraftCost, Outlook
from tests.engine.one_cycle import FREE
from tests.engine.scripted import decision, submit
from tests.kernels.markov import PROMPT, CheckFailed, Drafted, Prefix, check_distribution, sampling_drafter
from tests.kernels.native import verify_natively as verify

FULL = (1.0, 1.0, 1.0, 1.0)
POLICY = replace(
    INITIAL_CYCLE_POLICY,
    cost=FREE,
    draft_costs={"learned": DraftCost(0.001, 0.0, 0.001, 0.0)},
    outlooks={("learned", "chat", "en"): Outlook((0.6, 0.4, 0.2, 0.1), FULL)},
    copiers={("chat", "en"): Copier("suffix", 1, (Outlook((), ()), Outlook((0.1,), (1.0,)), Outlook(FULL, FULL)))},
)
"""What the suffix drafter is sure of is taken, from bucket 2 on."""


class Learned:
    """Draws from its own distribution, and says which."""

    name = "learned"
    memory_bytes = 0
    context_limit: int | None = None

    def propose(self, sequences: Sequence[RunningSequence], lengths: Sequence[int]) -> list[Proposal]:
        proposals = []
        for sequence, length in zip(sequences, lengths, strict=True):
            drafted = sampling_drafter(tuple(sequence.tokens[sequence.prompt_length :]), sequence.sampling, length)
            proposals.append(Proposal(drafted.tokens, 1, drafted.draft_probs))
        return proposals

    def observe(self, sequence: RunningSequence, emitted: Sequence[int]) -> None:
        """Nothing is kept."""

    def release(self, request_key: int) -> None:
        """Nothing is kept."""


class Hybrid:
    """`tests.kernels.markov.Drafter`: what the engine drafts, by its own plan."""

    def __init__(self) -> None:
        self.used: Counter[str] = Counter()

    def __call__(self, prefix: Prefix, sampling: Sampling, block_length: int) -> Drafted:
        given = decision("learned", block_length, forced=False)
        # Half of the prompts have been there before, so that their first block is copied.
        prompt = (*PROMPT, 3, 4, *PROMPT) if sampling.seed % 2 else PROMPT
        sequence = RunningSequence(submit(1, prompt, max_tokens=64, sampling=sampling, chosen=given), 1000)
        sequence.append(prefix, [])
        drafters: dict[str, Drafter] = {"suffix": SuffixDrafter(), "learned": Learned()}
        planned = plan_cycle(drafters, [sequence], POLICY)
        (one,), _ = draft(drafters, [sequence], planned.requested, planned.copies)
        self.used[one.drafter] += 1
        return Drafted(one.proposal.tokens, one.proposal.draft_probs)


@pytest.mark.parametrize("block_length", [1, 2, 4])
@pytest.mark.parametrize("verifier", Verifier)
def test_copied_blocks_among_sampled_ones_leave_the_target_unbiased(verifier: Verifier, block_length: int) -> None:
    hybrid = Hybrid()
    check_distribution(verify, Sampling(verifier=verifier), hybrid, block_length, first_seed=3000 + block_length)
    assert min(hybrid.used["suffix"], hybrid.used["learned"]) > 500, "both are among the blocks"


def test_a_choice_that_looked_at_what_was_drafted_would_be_found_out() -> None:
    """The check above can fail: an unlikely draft gives way to a copy, and that it was drawn is forgotten."""

    def looking(prefix: Prefix, sampling: Sampling, block_length: int) -> Drafted:
        drawn = sampling_drafter(prefix, sampling, block_length)
        assert drawn.draft_probs is not None
        first = drawn.draft_probs[0]
        assert first is not None
        return drawn if first.probs[drawn.tokens[0]] > 0.3 else Drafted((0,))

    with pytest.raises(CheckFailed, match="chi-square"):
        check_distribution(verify, Sampling(verifier=Verifier.REJECTION), looking, 2, first_seed=3010)
