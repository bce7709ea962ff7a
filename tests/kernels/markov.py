"""A target small enough to know: its exact distribution, drafters for it, a decode loop, and checks of a verifier.

The checks raise `CheckFailed`, so that a test can ask them both to accept the verifier and to reject a broken one.
"""

import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats

from kernels.philox import gumbel_noise
from kernels.sampling import Block, Sampling
from tests.kernels.verify_cases import Verify

VOCABULARY = 8
POSITIONS = 4
PROMPT = frozenset({1, 6})
SMALLEST_P_VALUE = 1e-4
SMALLEST_CELL = 5.0
"""Expected count below which chi-square pools cells."""

Prefix = tuple[int, ...]
Drafter = Callable[[Prefix, Sampling, int], Prefix]
"""(output so far, sampling, block length) to at most as many drafts."""


class CheckFailed(AssertionError):
    """A verifier broke its contract."""


@functools.cache
def logits_table(seed: int) -> torch.Tensor:
    """Logits by the last two tokens, [9, 9, 8]; index 8 stands before the output. Peaked, as real ones are."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(VOCABULARY + 1, VOCABULARY + 1, VOCABULARY, generator=generator) * 1.5


TARGET_TABLE = logits_table(1)
DRAFT_TABLE = TARGET_TABLE + 0.6 * logits_table(2)


def logits_after(table: torch.Tensor, prefix: Prefix) -> torch.Tensor:
    last, before = (prefix[-1] if prefix else 8), (prefix[-2] if len(prefix) > 1 else 8)
    return table[before, last]


def exact_probs(prefix: Prefix, sampling: Sampling) -> NDArray[np.float64]:
    """target_probs [8] after `prefix` in float64, straight from the definition of each setting."""
    logits = logits_after(TARGET_TABLE, prefix).double().numpy().copy()
    for token, bias in sampling.logit_bias:
        logits[token] += bias
    for token in PROMPT | set(prefix):
        logits[token] *= 1 / sampling.repetition_penalty if logits[token] > 0 else sampling.repetition_penalty
    for token, count in Counter(prefix).items():
        logits[token] -= sampling.presence_penalty + sampling.frequency_penalty * count
    logits /= sampling.temperature
    order = sorted(range(VOCABULARY), key=lambda token: -logits[token])
    kept = order[: sampling.top_k or VOCABULARY]
    weights = {token: math.exp(logits[token] - logits[order[0]]) for token in kept}
    nucleus: list[int] = []
    mass = 0.0
    for token in kept:
        if nucleus and mass >= sampling.top_p * sum(weights.values()):
            break
        nucleus.append(token)
        mass += weights[token]
    probs: NDArray[np.float64] = np.zeros(VOCABULARY)
    for token in nucleus:
        if weights[token] >= sampling.min_p:
            probs[token] = weights[token]
    probs /= probs.sum()
    return probs


def exact_distribution(sampling: Sampling) -> dict[Prefix, float]:
    """The probability of each of the 8^4 outputs."""
    conditional = functools.cache(lambda prefix: exact_probs(prefix, sampling))
    return {
        sequence: math.prod(float(conditional(sequence[:index])[token]) for index, token in enumerate(sequence))
        for sequence in itertools.product(range(VOCABULARY), repeat=POSITIONS)
    }


@functools.cache
def noise_at(seed: int, choice: int, position: int) -> torch.Tensor:
    return gumbel_noise(seed, choice, position, vocabulary=VOCABULARY)


def coupled_drafter(prefix: Prefix, sampling: Sampling, block_length: int) -> Prefix:
    """Samples its own distribution with the very noise that the target will use."""
    output = prefix
    for _ in range(block_length):
        scores = logits_after(DRAFT_TABLE, output) / max(sampling.temperature, 0.1)
        output += (int((scores + noise_at(sampling.seed, sampling.choice, len(output))).argmax()),)
    return output[len(prefix) :]


def greedy_drafter(prefix: Prefix, sampling: Sampling, block_length: int) -> Prefix:
    """Proposes its most likely token, whatever the target samples with."""
    output = prefix
    for _ in range(block_length):
        output += (int(logits_after(DRAFT_TABLE, output).argmax()),)
    return output[len(prefix) :]


def copying_drafter(prefix: Prefix, sampling: Sampling, block_length: int) -> Prefix:
    """What followed the last token when it last occurred, as n-gram lookup does; else the token's successor."""
    if not prefix:
        return (0, 1, 2, 3)[:block_length]
    earlier = [index for index, token in enumerate(prefix[:-1]) if token == prefix[-1]]
    found = prefix[earlier[-1] + 1 :] if earlier else ()
    return (*found, *range(prefix[-1], VOCABULARY))[:block_length]


DRAFTERS: Mapping[str, Drafter] = {"coupled": coupled_drafter, "greedy": greedy_drafter, "copying": copying_drafter}


def decode(
    samplings: Sequence[Sampling], drafter: Drafter, block_length: int, verify: Verify, together: int = 64
) -> list[Prefix]:
    """Each sampling's output of four tokens, `together` sequences in a batch; checks each block's contract."""
    outputs: list[Prefix] = []
    for start in range(0, len(samplings), together):
        batch = samplings[start : start + together]
        running: dict[int, Prefix] = dict.fromkeys(range(len(batch)), ())
        while waiting := {index: prefix for index, prefix in running.items() if len(prefix) < POSITIONS}:
            blocks: list[Block] = []
            rows: list[torch.Tensor] = []
            for index, prefix in waiting.items():
                drafts = drafter(prefix, batch[index], block_length)
                blocks.append(Block(len(rows), drafts, batch[index], len(prefix), PROMPT, Counter(prefix)))
                rows += [logits_after(TARGET_TABLE, prefix + drafts[:count]) for count in range(len(drafts) + 1)]
            emitted = verify(torch.stack(rows), blocks)
            for index, block, tokens in zip(waiting, blocks, emitted, strict=True):
                check_block(block, tokens)
                running[index] += tuple(tokens)
        outputs += [prefix[:POSITIONS] for prefix in running.values()]
    return outputs


def check_block(block: Block, tokens: list[int]) -> None:
    """A prefix of the drafts, then one token: one that differs from the next draft, or the bonus."""
    accepted = len(tokens) - 1
    if not 0 <= accepted <= len(block.drafts) or tuple(tokens[:accepted]) != block.drafts[:accepted]:
        raise CheckFailed(f"a block of {len(block.drafts)} drafts emitted {len(tokens)} tokens that do not extend them")
    if accepted < len(block.drafts) and tokens[-1] == block.drafts[accepted]:
        raise CheckFailed(f"a block ended on its draft {accepted + 1} of {len(block.drafts)} without another token")


def seeded(sampling: Sampling, first_seed: int, count: int) -> list[Sampling]:
    """`count` sequences with seeds of 64 bits of their own."""
    seeds = torch.randint(2**62, (count,), generator=torch.Generator().manual_seed(first_seed)).tolist()
    return [replace(sampling, seed=seed) for seed in seeds]


def chi_square_p_value(observed: Mapping[Prefix, float], expected: Mapping[Prefix, float]) -> float:
    """Pearson's test of counts against probabilities; cells expected below `SMALLEST_CELL` are pooled into one."""
    total = sum(observed.values())
    impossible = [cell for cell, count in observed.items() if count and expected[cell] == 0.0]
    if impossible:
        return 0.0
    large = [cell for cell, prob in expected.items() if prob * total >= SMALLEST_CELL]
    observed_counts = [observed.get(cell, 0) for cell in large]
    expected_counts = [expected[cell] * total for cell in large]
    rest = total - sum(expected_counts)
    if rest >= SMALLEST_CELL:
        observed_counts.append(total - sum(observed_counts))
        expected_counts.append(rest)
    statistic = sum((seen - due) ** 2 / due for seen, due in zip(observed_counts, expected_counts, strict=True))
    return float(stats.chi2.sf(statistic, len(expected_counts) - 1))


def marginal(distribution: Mapping[Prefix, float], first: int, last: int) -> dict[Prefix, float]:
    """Of positions `first` to `last`, both counted."""
    sums: dict[Prefix, float] = {}
    for sequence, weight in distribution.items():
        cell = sequence[first : last + 1]
        sums[cell] = sums.get(cell, 0) + weight
    return sums


def check_distribution(
    verify: Verify, sampling: Sampling, drafter: Drafter, block_length: int, first_seed: int, sequences: int = 2000
) -> None:
    """The outputs follow the exact distribution: whole, and each pair of neighbours."""
    observed = Counter(decode(seeded(sampling, first_seed, sequences), drafter, block_length, verify))
    expected = exact_distribution(sampling)
    for first, last in ((0, 3), (0, 1), (1, 2), (2, 3)):
        p_value = chi_square_p_value(marginal(observed, first, last), marginal(expected, first, last))
        if p_value < SMALLEST_P_VALUE:
            raise CheckFailed(f"positions {first} to {last}: chi-square p-value {p_value:.1e} over {sequences} outputs")


def check_same_text(verify: Verify, sampling: Sampling, first_seed: int, sequences: int = 100) -> None:
    """Every drafter and block length gives the text of plain decoding."""
    samplings = seeded(sampling, first_seed, sequences)
    plain = decode(samplings, copying_drafter, 0, verify)
    for name, drafter in DRAFTERS.items():
        for block_length in (1, 2, 3, 4):
            outputs = decode(samplings, drafter, block_length, verify, together=8 * block_length)
            differing = sum(ours != theirs for ours, theirs in zip(outputs, plain, strict=True))
            if differing:
                raise CheckFailed(f"{name} drafter, block length {block_length}: {differing} of {sequences} differ")
