"""A target small enough to know: its exact distribution, drafters for it, a decode loop, and checks of a verifier.

The checks raise `CheckFailed`, so that a test can ask them both to accept the verifier and to reject a broken one.
"""

import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats

from kernels.philox import Stream, draft_stream, gumbel_from_bits, philox_4x32
from kernels.sampling import Block, DraftProbs, Sampling
from tests.kernels.verify_cases import Verify

VOCABULARY = 8
POSITIONS = 4
NOISE_POSITIONS = 2 * POSITIONS
"""The last block may draft beyond the output."""
PROMPT = (6, 1)
SMALLEST_P_VALUE = 1e-4
SMALLEST_CELL = 5.0
"""Expected count below which chi-square pools cells."""

Prefix = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Drafted:
    """What a drafter offers, and where it does not say from what it was sampled: a one-hot."""

    tokens: Prefix
    draft_probs: tuple[DraftProbs | None, ...] | None = None


Drafter = Callable[[Prefix, Sampling, int], Drafted]
"""(output so far, sampling, block length) to at most as many drafts."""
Grammar = Callable[[Prefix], int]
"""Output so far to a mask: bit t is set where token t may come."""


class CheckFailed(AssertionError):
    """A verifier broke its contract."""


@functools.cache
def logits_table(seed: int) -> torch.Tensor:
    """Logits by the last two tokens, [9, 9, 8]; index 8 stands before the output. Peaked, as real ones are."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(VOCABULARY + 1, VOCABULARY + 1, VOCABULARY, generator=generator) * 1.5


TARGET_TABLE = logits_table(1)
DRAFT_TABLE = TARGET_TABLE + 0.6 * logits_table(2)


def near_table() -> torch.Tensor:
    """A drafter that has learned its target."""
    return DRAFT_TABLE


def far_table() -> torch.Tensor:
    """A drafter that has not: most of its drafts are rejected, which is where mistakes show."""
    return logits_table(3)


Table = Callable[[], torch.Tensor]


def logits_after(table: torch.Tensor, prefix: Prefix) -> torch.Tensor:
    last, before = (prefix[-1] if prefix else 8), (prefix[-2] if len(prefix) > 1 else 8)
    return table[before, last]


def any_token(prefix: Prefix) -> int:
    return 0xFF


def no_neighbours(prefix: Prefix) -> int:
    """Neither the last token's successor nor the token before the last one."""
    forbidden = {(prefix[-1] + 1) % VOCABULARY, *prefix[-2:-1]} if prefix else set()
    return sum(1 << token for token in range(VOCABULARY) if token not in forbidden)


def exact_probs(prefix: Prefix, sampling: Sampling, grammar: Grammar = any_token) -> NDArray[np.float64]:
    """target_probs [8] after `prefix` in float64, straight from the definition of each setting."""
    if len(prefix) < len(sampling.forced_prefix):
        forced: NDArray[np.float64] = np.eye(VOCABULARY)[sampling.forced_prefix[len(prefix)]]
        return forced
    logits = logits_after(TARGET_TABLE, prefix).double().numpy().copy()
    for token, bias in sampling.logit_bias:
        logits[token] += bias
    for token in {*PROMPT, *prefix}:
        logits[token] *= 1 / sampling.repetition_penalty if logits[token] > 0 else sampling.repetition_penalty
    for token, count in Counter(prefix).items():
        logits[token] -= sampling.presence_penalty + sampling.frequency_penalty * count
    for token in range(VOCABULARY):
        spelled = any((*prefix, token)[-len(word) :] == word for word in sampling.bad_words)
        early = len(prefix) < sampling.min_tokens and token in sampling.end_tokens
        absent = bool(sampling.allowed_tokens) and token not in sampling.allowed_tokens
        if spelled or early or absent or not grammar(prefix) >> token & 1:
            logits[token] = -math.inf
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


@functools.cache
def exact_distribution(sampling: Sampling, grammar: Grammar = any_token) -> Mapping[Prefix, float]:
    """The probability of each of the 8^4 outputs."""
    conditional = functools.cache(lambda prefix: exact_probs(prefix, sampling, grammar))

    def prob(sequence: Prefix) -> float:
        total = 1.0
        for index, token in enumerate(sequence):
            total *= float(conditional(sequence[:index])[token])
            if total == 0.0:  # what cannot happen has no next token
                return 0.0
        return total

    return {sequence: prob(sequence) for sequence in itertools.product(range(VOCABULARY), repeat=POSITIONS)}


@functools.cache
def noise_of_seed(seed: int, choice: int) -> Mapping[int, NDArray[np.float32]]:
    """By stream, the noise [8, 8] of every position and token: made in one call, since a call costs more than noise."""
    streams = (Stream.COUPLED, Stream.RECOVERED, *map(draft_stream, range(POSITIONS)))
    counters = list(itertools.product(streams, range(NOISE_POSITIONS), range(VOCABULARY // 4)))
    counter = np.array([(block, position, choice, stream) for stream, position, block in counters], dtype=np.uint64).T
    words = philox_4x32(counter, (seed & 0xFFFFFFFF, seed >> 32))
    noise = gumbel_from_bits(words.T >> np.uint64(8)).reshape(len(streams), NOISE_POSITIONS, VOCABULARY)
    return dict(zip(streams, noise, strict=True))


def noise_at(seed: int, choice: int, position: int, stream: int = Stream.COUPLED) -> NDArray[np.float32]:
    noise: NDArray[np.float32] = noise_of_seed(seed, choice)[stream][position]
    return noise


@functools.cache
def draft_point(before: Prefix, temperature: float, table: Table) -> tuple[NDArray[np.float32], DraftProbs]:
    """The drafter's scores after its last two tokens, and their softmax."""
    scores = logits_after(table(), before) / max(temperature, 0.1)
    values: NDArray[np.float32] = scores.numpy()
    return values, DraftProbs(np.arange(VOCABULARY), scores.softmax(0).numpy())


def coupled_drafter(prefix: Prefix, sampling: Sampling, block_length: int) -> Drafted:
    """Samples its own distribution with the very noise that the target will use."""
    output = prefix
    for _ in range(block_length):
        scores, _ = draft_point(output[-2:], sampling.temperature, near_table)
        output += (int((scores + noise_at(sampling.seed, sampling.choice, len(output))).argmax()),)
    return Drafted(output[len(prefix) :])


def own_noise(prefix: Prefix, index: int) -> tuple[int, int]:
    """Position and stream of the noise of draft `index`, as rejection and block verification want it."""
    return len(prefix), draft_stream(index)


def sampling_drafter(
    prefix: Prefix,
    sampling: Sampling,
    block_length: int,
    table: Table = near_table,
    noise_of: Callable[[Prefix, int], tuple[int, int]] = own_noise,
) -> Drafted:
    """Samples its own distribution, and says which."""
    output = prefix
    draft_probs = []
    for index in range(block_length):
        scores, probs = draft_point(output[-2:], sampling.temperature, table)
        draft_probs.append(probs)
        noise = noise_at(sampling.seed, sampling.choice, *noise_of(prefix, index))
        output += (int((scores + noise).argmax()),)
    return Drafted(output[len(prefix) :], tuple(draft_probs))


def greedy_drafter(prefix: Prefix, sampling: Sampling, block_length: int) -> Drafted:
    """Proposes its most likely token, whatever the target samples with."""
    output = prefix
    for _ in range(block_length):
        output += (int(logits_after(DRAFT_TABLE, output).argmax()),)
    return Drafted(output[len(prefix) :])


def copying_drafter(prefix: Prefix, sampling: Sampling, block_length: int) -> Drafted:
    """What followed the last token when it last occurred, as n-gram lookup does; else the token's successor."""
    if not prefix:
        return Drafted((0, 1, 2, 3)[:block_length])
    earlier = [index for index, token in enumerate(prefix[:-1]) if token == prefix[-1]]
    found = prefix[earlier[-1] + 1 :] if earlier else ()
    return Drafted((*found, *range(prefix[-1], VOCABULARY))[:block_length])


DRAFTERS: Mapping[str, Drafter] = {
    "coupled": coupled_drafter,
    "sampling": sampling_drafter,
    "greedy": greedy_drafter,
    "copying": copying_drafter,
}


def block_after(
    prefix: Prefix, sampling: Sampling, drafted: Drafted, first_row: int = 0, grammar: Grammar = any_token
) -> tuple[Block, list[torch.Tensor]]:
    """The block of `drafted` behind `prefix`, and its rows."""
    prefixes = [prefix + drafted.tokens[:count] for count in range(len(drafted.tokens) + 1)]
    masks = None
    if grammar is not any_token:
        masks = tuple(np.array([grammar(one)], dtype=np.int32) for one in prefixes)
    block = Block(
        first_row,
        drafted.tokens,
        sampling,
        len(prefix),
        frozenset(PROMPT),
        Counter(prefix),
        tail=(*PROMPT, *prefix),
        masks=masks,
        draft_probs=drafted.draft_probs,
    )
    return block, [logits_after(TARGET_TABLE, one) for one in prefixes]


def decode(
    samplings: Sequence[Sampling],
    drafter: Drafter,
    block_length: int,
    verify: Verify,
    together: int = 64,
    grammar: Grammar = any_token,
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
                drafted = drafter(prefix, batch[index], block_length)
                block, its_rows = block_after(prefix, batch[index], drafted, len(rows), grammar)
                blocks.append(block)
                rows += its_rows
            emitted = verify(torch.stack(rows), blocks)
            for index, block, chosen in zip(waiting, blocks, emitted, strict=True):
                check_block(block, chosen.tokens)
                running[index] += chosen.tokens
        outputs += [prefix[:POSITIONS] for prefix in running.values()]
    return outputs


def check_block(block: Block, tokens: Prefix) -> None:
    """A prefix of the drafts, then one token: one that differs from the next draft, or the bonus."""
    accepted = len(tokens) - 1
    if not 0 <= accepted <= len(block.drafts) or tokens[:accepted] != block.drafts[:accepted]:
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
    verify: Verify,
    sampling: Sampling,
    drafter: Drafter,
    block_length: int,
    first_seed: int,
    sequences: int = 1500,
    grammar: Grammar = any_token,
) -> None:
    """The outputs follow the exact distribution: whole, and each pair of neighbours."""
    samplings = seeded(sampling, first_seed, sequences)
    observed = Counter(decode(samplings, drafter, block_length, verify, grammar=grammar))
    expected = exact_distribution(sampling, grammar)
    for first, last in ((0, 3), (0, 1), (1, 2), (2, 3)):
        p_value = chi_square_p_value(marginal(observed, first, last), marginal(expected, first, last))
        if p_value < SMALLEST_P_VALUE:
            raise CheckFailed(f"positions {first} to {last}: chi-square p-value {p_value:.1e} over {sequences} outputs")


def check_same_text(
    verify: Verify,
    sampling: Sampling,
    first_seed: int,
    sequences: int = 100,
    drafters: Mapping[str, Drafter] = DRAFTERS,
) -> None:
    """Every drafter and block length gives the text of plain decoding."""
    samplings = seeded(sampling, first_seed, sequences)
    plain = decode(samplings, copying_drafter, 0, verify)
    for name, drafter in drafters.items():
        for block_length in (1, 2, 3, 4):
            outputs = decode(samplings, drafter, block_length, verify, together=8 * block_length)
            differing = sum(ours != theirs for ours, theirs in zip(outputs, plain, strict=True))
            if differing:
                raise CheckFailed(f"{name} drafter, block length {block_length}: {differing} of {sequences} differ")
