"""The drafter and block length of every running sequence that give a composition the most tokens per second.

A composition is what runs together: one cell (context and phase) for each sequence. With what a block of each drafter
and length emits and proposes in a cell known, a choice for every sequence is worth

    sum of emitted / (E[target's pass] + sum over drafters in use of their drafting)

in the long run, a ratio of means. Proposals vary, a pass has steps and a drafter's sequential steps are those of its
longest proposal, so expectations are taken over proposals, not at their means. With few sequences these are exact;
with many the sum of their proposals counts as normal.

The search starts from what sequences choose by themselves at a price for a row of the pass, over a grid of prices and
of drafters whose steps may be paid, and goes up the hill from there: it moves one sequence, all of a cell, all users of
a drafter, or everybody, to whichever option gains most, until nothing does. Random restarts found nothing better by
more than 0.1 % in the mean, or 1 % at the most, for up to 12 sequences of two scenarios.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from policies.types import MAX_BLOCK_LENGTH
from tuner.replay.reblock import LENGTHS, BlockTables, Bools, Floats, Ints
from tuner.replay.trace import Costs

EXACT_LOAD = 8
"""The most sequences for which the distribution of all proposals together is worked out."""

EXACT_PASSES = 4
"""The most times that each sequence is moved with it."""

STARTS = 2
"""Places to start from for each set of drafters whose drafting takes steps."""

NEAR = 0.96
"""Of the rate of the best place, by normal sums, that the others must reach."""

_DEVIATIONS = 64
"""Standard deviations of the sum of proposals for which the pass is smoothed: 0..63 rows."""
_ROW_PRICES = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.5, 4.0)
"""In mean seconds of a row of the target's pass."""
_CAPS = (1, 2, 3, 5, 8, MAX_BLOCK_LENGTH)
"""How far a drafter whose steps are paid may go."""
_GAIN = 1.5
"""What tokens per second are over plain ones, roughly, where a sequence chooses by itself."""
_BUCKET = 1.15
"""They are told apart by this factor there."""
_TINY = 1e-9
"""Relative: less than this is no gain."""

Choice = tuple[int, int]
"""(drafter's place, block length); length 0 is plain."""


@dataclass(frozen=True, slots=True)
class _Grid:
    """G prices."""

    group: Ints
    """(G,): the set of steppers, from 0 in rising order."""
    row_seconds: Floats
    """(G,): price of a row of the target's pass."""
    barred: Bools
    """(G, options): what may not be chosen."""


class Composer:
    """The best choices for compositions of the cells of `tables`, at `costs`, for up to `slots` sequences."""

    def __init__(self, tables: BlockTables, costs: Costs, drafters: Sequence[str], slots: int) -> None:
        cells, count = tables.blocks.shape[:2]
        self._drafters = count
        chances = tables.chances
        rows = np.arange(LENGTHS)
        self._emitted = tables.emitted.reshape(cells, -1)
        self._mean = (chances @ rows).reshape(cells, -1)
        self._variance = (chances @ rows**2).reshape(cells, -1) - self._mean**2
        self._chances = chances.reshape(cells, count * LENGTHS, LENGTHS)
        # log P(a full-length proposal has at most j drafts), j = 0..15; a shorter request only cuts it.
        below = chances[:, :, MAX_BLOCK_LENGTH, :].cumsum(axis=-1)[..., :MAX_BLOCK_LENGTH]
        self._log_below = np.log(np.clip(below, 1e-30, 1.0))
        exact = chances.cumsum(axis=-1)[..., :MAX_BLOCK_LENGTH]
        self._below = np.clip(exact, 1e-30, 1.0).reshape(cells, count * LENGTHS, MAX_BLOCK_LENGTH)
        priced = [costs.drafters[drafter] for drafter in drafters]
        self._call = np.array([cost.call_seconds for cost in priced])
        self._sequence = np.array([cost.sequence_seconds for cost in priced])
        self._step = np.array([cost.step_seconds for cost in priced])
        self._row = np.array([cost.row_seconds for cost in priced])
        self._target = costs.target
        self._pass = np.array([costs.target.seconds(tokens, 0, 0) for tokens in range(slots * LENGTHS + 2)])
        self._smooth: dict[int, Floats] = {}
        self._steppers = np.flatnonzero(self._step > 0.0)
        self._grid = self._price_grid(slots)
        self._priced: dict[tuple[int, int], tuple[Ints, Floats]] = {}

    def choose(self, cells: Sequence[int], kv_tokens: int) -> tuple[Choice, ...]:
        """The choice of each sequence, in the order of `cells`."""
        at, load = np.array(cells), len(cells)
        fixed = self._target.sequence_seconds * load + self._target.kv_token_seconds * kv_tokens
        starts = self._starts(cells, fixed)
        if load <= EXACT_LOAD and len(starts) > 1:
            starts.sort(key=lambda options: self._exact_rate(at, options, fixed), reverse=True)
        best = self._climb(at, starts[0], fixed)
        if load <= EXACT_LOAD:
            best = self._polish(at, best, fixed)
        return tuple(divmod(option, LENGTHS) for option in best.tolist())

    def _price_grid(self, slots: int) -> _Grid:
        """Prices of a row, and which steppers may be used how far: what each sequence can choose by itself under."""
        slope = (self._pass[-1] - self._pass[1]) / (len(self._pass) - 2)
        steppers = self._steppers.tolist()
        sets = [(), *((one,) for one in steppers)] + ([tuple(steppers)] if len(steppers) > 1 else [])
        groups, prices, caps = [], [], []
        for group, allowed in enumerate(sets):
            for cap in _CAPS if allowed else (MAX_BLOCK_LENGTH,):
                for factor in _ROW_PRICES:
                    lengths = [
                        (cap if place in allowed else 0) if place in steppers else MAX_BLOCK_LENGTH
                        for place in range(self._drafters)
                    ]
                    groups.append(group)
                    prices.append(slope * factor)
                    caps.append(lengths)
        barred = np.arange(LENGTHS) > np.array(caps)[:, :, None]
        return _Grid(np.array(groups), np.array(prices), barred.reshape(len(groups), -1))

    def _prices(self, cell: int, bucket: int) -> tuple[Ints, Floats]:
        """Under each price of the grid, what a sequence of `cell` chooses, (G,), and what it adds to sums:
        emitted, mean and variance of its drafts, uses and drafts by drafter, log P(at most j drafts) by stepper."""
        found = self._priced.get((cell, bucket))
        if found is None:
            grid, count = self._grid, self._drafters
            seconds = _BUCKET**-bucket  # of one token
            emitted, mean = self._emitted[cell], self._mean[cell]
            own = (self._sequence.repeat(LENGTHS) + self._row.repeat(LENGTHS) * mean) * (
                np.arange(len(mean)) % LENGTHS > 0
            )
            worth = emitted * seconds - own - grid.row_seconds[:, None] * mean
            worth[grid.barred] = -np.inf
            option = worth.argmax(axis=1)
            uses = (option[:, None] // LENGTHS == np.arange(count)) & (option[:, None] % LENGTHS > 0)
            logs = np.log(self._below[cell, option])[:, None, :] * uses[:, self._steppers, None]
            columns = (
                emitted[option, None],
                mean[option, None],
                self._variance[cell, option, None],
                uses,
                uses * mean[option, None],
                logs.reshape(len(option), -1),
            )
            found = self._priced[cell, bucket] = option, np.concatenate(columns, axis=1)
        return found

    def _starts(self, cells: Sequence[int], fixed: float) -> list[Ints]:
        """Where to climb from: the choices under the best prices of each set of steppers, the best first."""
        load, count = len(cells), self._drafters
        rate = _GAIN * load / (self._pass[load] + fixed)
        bucket = round(np.log(rate) / np.log(_BUCKET))
        chosen = [self._prices(cell, bucket) for cell in cells]
        total = np.add.reduce([columns for _, columns in chosen])
        uses, rows = total[:, 3 : 3 + count], total[:, 3 + count : 3 + 2 * count]
        below = np.exp(total[:, 3 + 2 * count :]).reshape(len(total), len(self._steppers), MAX_BLOCK_LENGTH)
        draft = (uses > 0.5) @ self._call + uses @ self._sequence + rows @ self._row
        draft += (1.0 - below).sum(axis=2) @ self._step[self._steppers]
        rates = total[:, 0] / (self._expected_pass(load, total[:, 1], total[:, 2]) + fixed + draft)
        taken = np.zeros(self._grid.group[-1] + 1, dtype=np.int64)
        starts: list[Ints] = []
        seen: set[float] = set()
        for place in np.argsort(-rates):
            group = self._grid.group[place]
            if rates[place] < NEAR * rates.max():
                break
            if taken[group] < STARTS and float(rates[place]) not in seen:
                taken[group] += 1
                seen.add(float(rates[place]))
                starts.append(np.array([option[place] for option, _ in chosen]))
        return starts

    def _exact_rate(self, at: Ints, options: Ints, fixed: float) -> float:
        """Tokens per second, with the exact distribution of all proposals together."""
        load, length = len(at), options % LENGTHS
        drafts = np.ones(1)
        for cell, option, most in zip(at, options, length, strict=True):
            if most:
                drafts = np.convolve(drafts, self._chances[cell, option, : most + 1])
        uses = np.zeros((load, self._drafters))
        uses[np.arange(load), options // LENGTHS] = length > 0
        below = np.exp(uses.T @ np.log(self._below[at, options]))
        using = uses.sum(axis=0)
        draft = (
            self._call * (using > 0.5)
            + self._sequence * using
            + self._row * (uses.T @ self._mean[at, options])
            + self._step * (1.0 - below).sum(axis=1)
        )
        seconds = drafts @ self._pass[load : load + len(drafts)] + fixed + draft.sum()
        return float(self._emitted[at, options].sum() / seconds)

    def _expected_pass(self, load: int, mean: Floats, variance: Floats) -> Floats:
        """The target's pass for a normal number of drafts, between the whole means and deviations."""
        smooth = self._smoothed(load)
        middle = np.clip(mean, 0.0, smooth.shape[1] - 2)
        spread = np.sqrt(np.clip(variance, 0.0, (_DEVIATIONS - 1e-6) ** 2))
        low, narrow = middle.astype(np.int64), spread.astype(np.int64)
        part = middle - low
        lower = smooth[narrow, low] * (1.0 - part) + smooth[narrow, low + 1] * part
        upper = smooth[narrow + 1, low] * (1.0 - part) + smooth[narrow + 1, low + 1] * part
        expected: Floats = lower + (upper - lower) * (spread - narrow)
        return expected

    def _smoothed(self, load: int) -> Floats:
        """(64, rows): the pass of `load` sequences and a normal number of drafts, by its deviation and its mean."""
        found = self._smooth.get(load)
        if found is None:
            most = load * MAX_BLOCK_LENGTH + 1
            means, drafts = np.arange(most + 1), np.arange(-3 * _DEVIATIONS, most + 3 * _DEVIATIONS + 1)
            clipped = self._pass[load + np.clip(drafts, 0, most)]
            found = np.empty((_DEVIATIONS + 1, most + 1))
            found[0] = self._pass[load + means]
            for deviation in range(1, _DEVIATIONS + 1):
                reach = np.arange(-3 * deviation, 3 * deviation + 1)
                weight = np.exp(-0.5 * (reach / deviation) ** 2)
                smooth = np.convolve(clipped, weight / weight.sum(), mode="valid")
                offset = 3 * (_DEVIATIONS - deviation)
                found[deviation] = smooth[offset : offset + most + 1]
            self._smooth[load] = found
        return found

    def _climb(self, at: Ints, options: Ints, fixed: float) -> Ints:
        """Moves of one sequence or many, with normal sums."""
        load, count = len(at), self._drafters
        emitted, mean, variance = self._emitted[at], self._mean[at], self._variance[at]
        log_below = self._log_below[at]
        everyone = np.arange(load)
        same = np.array([at == cell for cell in set(at.tolist()) if (at == cell).sum() > 1]).reshape(-1, load)
        positions = np.arange(MAX_BLOCK_LENGTH)
        for _ in range(4 * load + 4):
            used, length = np.divmod(options, LENGTHS)
            using = (used[:, None] == np.arange(count)) & (length > 0)[:, None]
            members = np.concatenate((np.eye(load), same, using.T[using.any(axis=0)], np.ones((1, load))))
            sizes = members.sum(axis=1)
            now_emitted, now_mean = emitted[everyone, options], mean[everyone, options]
            rows_by = using * now_mean[:, None]
            logs = log_below * (using[:, :, None] & (positions < length[:, None, None]))
            # What is left of the present choice without the members of each set.
            rest_emitted = now_emitted.sum() - members @ now_emitted
            rest_mean = now_mean.sum() - members @ now_mean
            rest_variance = variance[everyone, options].sum() - members @ variance[everyone, options]
            rest_using = using.sum(axis=0) - members @ using
            rest_rows = rows_by.sum(axis=0) - members @ rows_by
            flat = logs.reshape(load, -1)
            rest_below = np.exp(np.minimum(flat.sum(axis=0) - members @ flat, 0.0)).reshape(-1, count, MAX_BLOCK_LENGTH)
            rest_longer = 1.0 - rest_below
            rest_draft = (
                self._call * (rest_using > 0.5)
                + self._sequence * rest_using
                + self._step * rest_longer.sum(axis=2)
                + self._row * rest_rows
            )
            # What each option adds to it.
            set_below = np.exp(members @ log_below.reshape(load, -1)).reshape(rest_below.shape)
            longer = (1.0 - rest_below * set_below).cumsum(axis=2) + (
                rest_longer.sum(axis=2, keepdims=True) - rest_longer.cumsum(axis=2)
            )
            set_mean = (members @ mean).reshape(-1, count, LENGTHS)
            own = (
                (self._call + self._sequence * (rest_using + sizes[:, None]))[:, :, None]
                + self._step[:, None] * longer
                + self._row[:, None] * (rest_rows[:, :, None] + set_mean[:, :, 1:])
            )
            total = rest_draft.sum(axis=1)
            draft = np.empty(set_mean.shape)
            draft[:, :, 0] = total[:, None]
            draft[:, :, 1:] = (total[:, None] - rest_draft)[:, :, None] + own
            means = rest_mean[:, None] + set_mean.reshape(len(sizes), -1)
            passes = self._expected_pass(load, means, rest_variance[:, None] + members @ variance)
            seconds = passes + fixed + draft.reshape(len(sizes), -1)
            rates = (rest_emitted[:, None] + members @ emitted) / seconds
            present = float(rates[0, options[0]])
            move, option = np.unravel_index(int(rates.argmax()), rates.shape)
            best = float(rates[move, option])
            if best <= present * (1.0 + _TINY):
                break
            options = np.where(members[move] > 0.0, option, options)
        return options

    def _polish(self, at: Ints, options: Ints, fixed: float) -> Ints:
        """Moves of one sequence, with the exact distribution of the others' proposals."""
        load, count = len(at), self._drafters
        options = options.copy()
        emitted, mean = self._emitted[at], self._mean[at]
        chances, below = self._chances[at], self._below[at]
        everyone = np.arange(load)
        # Sums over all sequences of their present choice; an option of length 0 is no use of its drafter.
        uses = np.zeros((load, count))
        uses[everyone, options // LENGTHS] = options % LENGTHS > 0
        rows = uses * mean[everyone, options][:, None]
        logs = np.log(below[everyone, options])[:, None, :] * uses[:, :, None]
        using, rows_by, log_by = uses.sum(axis=0), rows.sum(axis=0), logs.sum(axis=0)
        tokens = float(emitted[everyone, options].sum())
        for _ in range(EXACT_PASSES):
            moved = False
            after = [np.ones(1)]
            for index in range(load - 1, 0, -1):
                after.append(np.convolve(after[-1], chances[index, options[index]]))
            before = np.ones(1)
            for index in range(load):
                option = options[index]
                drafts = np.convolve(before, after.pop())
                others = tokens - emitted[index, option]
                rest_using = using - uses[index]
                rest_rows = rows_by - rows[index]
                rest_below = np.exp(np.minimum(log_by - logs[index], 0.0))
                rest = (
                    self._call * (rest_using > 0.5)
                    + self._sequence * rest_using
                    + self._step * (1.0 - rest_below).sum(axis=1)
                    + self._row * rest_rows
                )
                total = rest.sum()
                longest = MAX_BLOCK_LENGTH - (rest_below[:, None, :] * below[index].reshape(count, LENGTHS, -1)).sum(
                    axis=2
                )
                draft = (total - rest + self._call + self._sequence * (rest_using + 1.0) + self._row * rest_rows)[
                    :, None
                ] + (self._step[:, None] * longest + self._row[:, None] * mean[index].reshape(count, LENGTHS))
                draft[:, 0] = total
                passes = np.correlate(self._pass[load : load + len(drafts) + MAX_BLOCK_LENGTH], drafts, mode="valid")
                rates = (others + emitted[index]) / (chances[index] @ passes + fixed + draft.ravel())
                best = int(rates.argmax())
                rate = float(rates[best])
                if rate > rates[option] * (1.0 + _TINY):
                    moved = True
                    options[index] = best
                    tokens = others + emitted[index, best]
                    uses[index] = 0.0
                    uses[index, best // LENGTHS] = best % LENGTHS > 0
                    rows[index] = uses[index] * mean[index, best]
                    logs[index] = np.log(below[index, best]) * uses[index][:, None]
                    using, rows_by, log_by = rest_using + uses[index], rest_rows + rows[index], logs.sum(axis=0)
                before = np.convolve(before, chances[index, options[index]])
            if not moved:
                break
        return options
