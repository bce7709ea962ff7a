"""The drafter and block length of every running sequence that give a composition the most tokens per second.

A composition is what runs together: one cell (context and phase) for each sequence. With what a block of each drafter
and length emits and proposes in a cell known, a choice for every sequence is worth

    sum of emitted / (E[target's pass] + sum over drafters in use of their drafting)

in the long run, a ratio of means. Proposals vary, a pass has steps and a drafter's sequential steps are those of its
longest proposal, so expectations are taken over proposals, not at their means. With few sequences these are exact;
with many the sum of their proposals counts as normal.

The search starts from what sequences choose by themselves at a price for a row of the pass, over a grid of prices and
of drafters whose steps may be paid, and goes up the hill from there, one move at a time, the one that gains most: of
one sequence to any option; and of all of a drafter's together to a shorter length or a longer, since steps are paid for
the longest. With many sequences it moves one, all of a cell, all users of a drafter, or everybody to one option.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from policies.types import MAX_BLOCK_LENGTH
from tuner.replay.reblock import LENGTHS, BlockTables, Bools, Complexes, Floats, Ints
from tuner.replay.trace import Costs

EXACT_LOAD = 8
"""The most sequences for which the distribution of all proposals together is worked out."""

STARTS = 2
"""Places to start from for each set of drafters whose drafting takes steps."""

NEAR = 0.96
"""Of the rate of the best place, by normal sums, that the others must reach."""

_EXACT_SIZE = EXACT_LOAD * MAX_BLOCK_LENGTH + 1
"""So many values can the sum of all their proposals take."""
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

    group: list[int]
    """G: the set of steppers, from 0 in rising order."""
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
        self._spectra: Complexes = np.fft.rfft(chances.reshape(cells, -1, LENGTHS), _EXACT_SIZE, axis=2)
        self._weight: dict[int, Complexes] = {}
        # log P(a full-length proposal has at most j drafts), j = 0..15; a shorter request only cuts it.
        below = chances[:, :, MAX_BLOCK_LENGTH, :].cumsum(axis=-1)[..., :MAX_BLOCK_LENGTH]
        self._log_full = np.log(np.clip(below, 1e-30, 1.0))
        exact = chances.cumsum(axis=-1)[..., :MAX_BLOCK_LENGTH]
        self._below = np.clip(exact, 1e-30, 1.0).reshape(cells, count * LENGTHS, MAX_BLOCK_LENGTH)
        self._log_below = np.log(self._below)
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
        if load > EXACT_LOAD:
            best = self._climb(at, starts[0], fixed)
        else:
            best = starts[int(self._exact_rates(at, np.array(starts), fixed).argmax())]
            best = self._climb_exactly(at, best, fixed)
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
        return _Grid(groups, np.array(prices), barred.reshape(len(groups), -1))

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
            logs = self._log_below[cell, option][:, None, :] * uses[:, self._steppers, None]
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
        total = chosen[0][1].copy()
        for _, columns in chosen[1:]:
            total += columns
        uses, rows = total[:, 3 : 3 + count], total[:, 3 + count : 3 + 2 * count]
        below = np.exp(total[:, 3 + 2 * count :]).reshape(len(total), len(self._steppers), MAX_BLOCK_LENGTH)
        draft = (uses > 0.5) @ self._call + uses @ self._sequence + rows @ self._row
        draft += (1.0 - below).sum(axis=2) @ self._step[self._steppers]
        rates = total[:, 0] / (self._expected_pass(load, total[:, 1], total[:, 2]) + fixed + draft)
        group, worth = self._grid.group, rates.tolist()
        taken = [0] * (group[-1] + 1)
        starts: list[Ints] = []
        seen: set[float] = set()
        near = NEAR * max(worth)
        for place in np.argsort(-rates).tolist():
            rate = worth[place]
            if rate < near:
                break
            if taken[group[place]] < STARTS and rate not in seen:
                taken[group[place]] += 1
                seen.add(rate)
                starts.append(np.array([option[place] for option, _ in chosen]))
        return starts

    def _exact_rates(self, at: Ints, starts: Ints, fixed: float) -> Floats:
        """(S,): tokens per second of each of `starts`, (S, load), with the exact distribution of all proposals."""
        load = len(at)
        uses = (starts[:, :, None] // LENGTHS == np.arange(self._drafters)) & (starts[:, :, None] % LENGTHS > 0)
        logs = self._log_below[at, starts][:, :, None, :] * uses[:, :, self._steppers, None]
        using = uses.sum(axis=1)
        rows = (uses * self._mean[at, starts][:, :, None]).sum(axis=1)
        draft = (using > 0) @ self._call + using @ self._sequence + rows @ self._row
        draft += (1.0 - np.exp(logs.sum(axis=1))).sum(axis=2) @ self._step[self._steppers]
        passes = (self._spectra[at, starts].prod(axis=1) @ self._pass_weight(load)).real
        found: Floats = self._emitted[at, starts].sum(axis=1) / (passes + fixed + draft)
        return found

    def _pass_weight(self, load: int) -> Complexes:
        """(F,): times the spectrum of a distribution of drafts, the real part of whose sum is the mean of the pass."""
        found = self._weight.get(load)
        if found is None:
            found = np.fft.rfft(self._pass[load : load + _EXACT_SIZE], _EXACT_SIZE).conj() / _EXACT_SIZE
            # The size is odd, so that each frequency but 0 stands for two.
            found[1:] *= 2.0
            self._weight[load] = found
        return found

    def _expected_pass(self, load: int, mean: Floats, variance: Floats) -> Floats:
        """The target's pass for a normal number of drafts, between the whole means and deviations."""
        smooth = self._smoothed(load)
        middle = np.clip(mean, 0.0, smooth.shape[1] - 2)
        spread = np.sqrt(np.clip(variance, 0.0, (_DEVIATIONS - 1e-6) ** 2))
        low, narrow = middle.astype(np.int64), spread.astype(np.int64)
        part = middle - low
        width, flat = smooth.shape[1], smooth.ravel()
        at = narrow * width + low
        lower = flat.take(at) * (1.0 - part) + flat.take(at + 1) * part
        upper = flat.take(at + width) * (1.0 - part) + flat.take(at + width + 1) * part
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
        log_below = self._log_full[at]
        everyone = np.arange(load)
        same = np.array([at == cell for cell in set(at.tolist()) if (at == cell).sum() > 1]).reshape(-1, load)
        positions = np.arange(MAX_BLOCK_LENGTH)
        for _ in range(4 * load + 4):
            used, length = np.divmod(options, LENGTHS)
            using = (used[:, None] == np.arange(count)) & (length > 0)[:, None]
            # Sequences of one cell with one option are worth the same to move.
            _, first = np.unique(at * emitted.shape[1] + options, return_index=True)
            singles = everyone == np.sort(first)[:, None]
            members = np.concatenate((singles, same, using.T[using.any(axis=0)], np.ones((1, load))))
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

    def _climb_exactly(self, at: Ints, options: Ints, fixed: float) -> Ints:
        """Moves of one sequence, with the exact distribution of all proposals together."""
        load, count, steppers = len(at), self._drafters, self._steppers
        options = options.copy()
        everyone = np.arange(load)
        emitted, mean = self._emitted[at], self._mean[at]
        spectra = self._spectra[at]
        below = self._below[at].reshape(load, count, LENGTHS, MAX_BLOCK_LENGTH)[:, steppers]
        log_below = self._log_below[at]
        weight = self._pass_weight(load)
        own_rows = self._row[:, None] * mean.reshape(load, count, LENGTHS)
        step = self._step[steppers]
        for _ in range(4 * load + 4):
            uses = (options[:, None] // LENGTHS == np.arange(count)) & (options[:, None] % LENGTHS > 0)
            rows = uses * mean[everyone, options][:, None]
            logs = log_below[everyone, options][:, None, :] * uses[:, steppers, None]
            # Of each sequence's others: the spectrum of their drafts, and what their drafting takes by drafter.
            present = spectra[everyone, options]
            others = np.tile(weight, (load, 1))
            others[1:] *= present[:-1].cumprod(axis=0)
            others[:-1] *= present[:0:-1].cumprod(axis=0)[::-1]
            using = uses.sum(axis=0) - uses
            called = self._sequence * using + self._row * (rows.sum(axis=0) - rows)
            rest_below = np.exp(np.minimum(logs.sum(axis=0) - logs, 0.0))
            rest = self._call * (using > 0) + called
            rest[:, steppers] += step * (1.0 - rest_below).sum(axis=2)
            total = rest.sum(axis=1)[:, None]
            draft = (total - rest + self._call + self._sequence + called)[:, :, None] + own_rows
            draft[:, steppers] += step[:, None] * (MAX_BLOCK_LENGTH - (below @ rest_below[..., None])[..., 0])
            draft[:, :, 0] = total
            # The real part of the product alone, as one of real numbers.
            passes = (spectra.view(np.float64) @ others.conj().view(np.float64)[:, :, None])[:, :, 0]
            tokens = emitted[everyone, options]
            rates = ((tokens.sum() - tokens)[:, None] + emitted) / (passes + fixed + draft.reshape(load, -1))
            index, option = divmod(int(rates.argmax()), count * LENGTHS)
            present_rate = float(rates[0, options[0]])
            if rates[index, option] > present_rate * (1.0 + _TINY):
                options[index] = option
                continue
            together = self._moved_together(options)
            if not len(together):
                break
            tried = self._exact_rates(at, together, fixed)
            if tried.max() <= present_rate * (1.0 + _TINY):
                break
            options = together[int(tried.argmax())]
        return options

    def _moved_together(self, options: Ints) -> Ints:
        """(S, load): all users of a drafter that takes steps go no further than a length, or its longest by one more:
        what one of them alone would not gain by, since it is the longest that is paid."""
        used, length = np.divmod(options, LENGTHS)
        found = []
        for stepper in self._steppers.tolist():
            mine = np.where(used == stepper, length, 0)
            longest = int(mine.max())
            for cap in range(longest):
                found.append(options - np.maximum(mine - cap, 0))
            if 0 < longest < MAX_BLOCK_LENGTH:
                found.append(options + (mine == longest))
        return np.array(found, dtype=np.int64)
