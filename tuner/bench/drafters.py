"""Every drafter on every route and language, greedy, one sequence at a time, on prompts that none was trained on.

First each drafter runs once at each block length. That gives its survival curve (at the longest) and the block length
that suits a context. Then, on rounds of their own, every drafter at that length is measured against plain, paired and
in reversed order, so that choosing among lengths flatters no figure.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import Progress, TaskID
from rich.table import Table

from policies import Arm, Interval
from policies.stats import EngineInfo
from policies.types import PLAIN, PLAIN_ARM
from tuner.acceptance import observed_length, product_limit
from tuner.bench.options import BenchOptions
from tuner.bench.report import Bar, Report, interval_row, interval_text
from tuner.bench.rounds import Round, Session, greedy, open_session, progress_bar, turns
from tuner.cli.output import print_table
from tuner.paired import paired_ratio
from tuner.settings import Settings, SettingsError
from tuner.workload import Prompt, load_workload

WITHOUT_WEIGHTS = ("ngram", "suffix")
"""Drafters that learned nothing: they copy from the text."""
LEARNED_BARS = {"chat": 1.3, "story": 1.3}
"""Least ratio to plain of the best learned drafter on a route."""
BEST_BARS = {"code-edit": 2.2}
"""Least ratio to plain of the best drafter on a route."""
CURVE_LENGTH = 8

Context = tuple[str, str]


@dataclass(slots=True)
class _Measured:
    """One context."""

    prompts: list[Prompt]
    looped: int
    survival: dict[str, tuple[float, ...]] = field(default_factory=dict)
    lengths: dict[str, int] = field(default_factory=dict)
    """The block length that suits a drafter here."""
    rounds: dict[str, list[Round]] = field(default_factory=dict)
    """By drafter, `PLAIN` included."""

    def ratio(self, drafter: str) -> Interval:
        return _ratio([self], drafter)


async def run_drafters(settings: Settings, options: BenchOptions, console: Console) -> tuple[EngineInfo, Report]:
    """The matrix of drafters.

    Raises:
        SettingsError: a drafter is not loaded, a block length is out of range, or no prompt is in a language; all of
            it is known before anything starts.
    """
    longest = settings.engine.max_block_length
    for length in options.lengths:
        if not 1 <= length <= longest:
            raise SettingsError(f"--lengths has {length}; give 1 to {longest}, which is engine.max_block_length.")
    known = settings.engine.drafter_names[1:]
    for name in options.drafters:
        if name not in known:
            raise SettingsError(
                f"--drafters names {name!r}; loaded are {', '.join(known)}: add it to engine.drafters, or leave it out."
            )
    contexts = _contexts(options)
    measured: dict[Context, _Measured] = {}
    skipped: list[str] = []
    async with open_session(settings, console) as session:
        info = session.service.client.info
        loaded = [name for name in info.drafters if name != PLAIN]
        drafters = [name for name in loaded if name in options.drafters or not options.drafters]
        with progress_bar(console) as progress:
            task = progress.add_task("bench", total=len(contexts))
            for context, candidates in contexts.items():
                progress.update(task, description="/".join(context))
                try:
                    prompts, looped = await session.screen(candidates, options.prompts, options.tokens, plain=True)
                except SettingsError:  # every one looped: said below, and no figure for this context
                    skipped.append("/".join(context))
                else:
                    measured[context] = one = _Measured(prompts, looped)
                    await _measure(session, one, drafters, options, progress, task)
                progress.advance(task)
    if not measured:
        raise SettingsError("Every prompt looped on this model; there is nothing to measure.")
    _print(console, measured, drafters, skipped)
    routes = {
        route: {
            drafter: _ratio([one for (r, _), one in measured.items() if r == route], drafter) for drafter in drafters
        }
        for route in dict.fromkeys(route for route, _ in measured)
    }
    for route, ratios in routes.items():
        console.print(
            f"{route}, all languages: " + ", ".join(f"{name} {interval_text(found)}" for name, found in ratios.items()),
            highlight=False,
        )
    best = {context: max(drafters, key=lambda name: one.ratio(name).estimate) for context, one in measured.items()}
    console.print(f"The best of some context: {', '.join(sorted(set(best.values())))}.", highlight=False)
    different = sum(_texts_that_differ(one) for one in measured.values())
    faults = []
    if different and settings.engine.verifier == "coupled":
        faults.append(f"{different} outputs differ between drafters; coupled verification gives all the same text.")
    body = {
        "contexts": [_row(context, one, drafters, best[context]) for context, one in measured.items()],
        "routes": {
            route: {name: interval_row(found) for name, found in ratios.items()} for route, ratios in routes.items()
        },
        "contexts_whose_prompts_all_loop": skipped,
    }
    return info, Report(body, _bars(routes), faults)


def _contexts(options: BenchOptions) -> dict[Context, list[Prompt]]:
    there = sorted({prompt.language for prompt in load_workload()})
    for language in options.languages:
        if language not in (*there, "all"):
            raise SettingsError(f"--languages has {language!r}; the workload has {', '.join(there)}, or give all.")
    by_context: dict[Context, list[Prompt]] = {}
    for route in options.routes:
        for prompt in greedy(load_workload([route])):
            if prompt.language in options.languages or "all" in options.languages:
                by_context.setdefault((route, prompt.language), []).append(prompt)
    if not by_context:
        raise SettingsError(f"--languages is {','.join(options.languages)}; the routes have prompts in none of them.")
    return by_context


async def _measure(
    session: Session, one: _Measured, drafters: Sequence[str], options: BenchOptions, progress: Progress, task: TaskID
) -> None:
    async def run(drafter: str, length: int) -> Round:
        arm = PLAIN_ARM if drafter == PLAIN else Arm.fixed(drafter, length)
        return await session.round(session.source(arm), one.prompts, 1, options.tokens)

    for drafter in drafters:
        tried: dict[int, Round] = {}
        for length in sorted(set(options.lengths), reverse=True):
            tried[length] = await run(drafter, length)
        one.survival[drafter] = _survival(tried[max(tried)], drafter)
        one.lengths[drafter] = max(tried, key=lambda length: tried[length].tokens_per_second)
    one.lengths[PLAIN] = 0
    for repeat in range(options.repeats):
        for drafter in turns([PLAIN, *drafters], repeat):
            one.rounds.setdefault(drafter, []).append(await run(drafter, one.lengths[drafter]))


def _survival(done: Round, drafter: str) -> tuple[float, ...]:
    blocks = [
        (observed_length(sequence), sequence.accepted)
        for cycle in done.collected.cycles
        for sequence in cycle.sequences
        if sequence.drafter == drafter and observed_length(sequence)
    ]
    return product_limit(blocks, CURVE_LENGTH)


def _ratio(contexts: Sequence[_Measured], drafter: str) -> Interval:
    """Tokens per second over those of plain, over all of `contexts`, paired by round."""

    def rates(name: str) -> list[float]:
        rounds = zip(*(one.rounds[name] for one in contexts), strict=True)
        return [sum(done.tokens for done in row) / sum(done.seconds for done in row) for row in rounds]

    return paired_ratio(rates(drafter), rates(PLAIN))


def _bars(routes: Mapping[str, Mapping[str, Interval]]) -> list[Bar]:
    bars = []
    for bar_routes, words in ((LEARNED_BARS, "best learned drafter"), (BEST_BARS, "best drafter")):
        for route, least in bar_routes.items():
            if route not in routes:
                continue
            names = [name for name in routes[route] if words == "best drafter" or name not in WITHOUT_WEIGHTS]
            best = max(names, key=lambda name: routes[route][name].estimate, default=None)
            measured = None if best is None else routes[route][best]
            bars.append(Bar(f"{route}: {words}{'' if best is None else f' ({best})'}, times plain", measured, least))
    return bars


def _texts_that_differ(one: _Measured) -> int:
    texts = [done.texts for rounds in one.rounds.values() for done in rounds]
    return sum(len(set(found)) > 1 for found in zip(*texts, strict=True))


def _row(context: Context, one: _Measured, drafters: Sequence[str], best: str) -> dict[str, object]:
    return {
        "route": context[0],
        "language": context[1],
        "prompts": len(one.prompts),
        "looped_prompts_left_out": one.looped,
        "plain_tokens_per_second": _median_rate(one, PLAIN),
        "best": best,
        "drafters": {
            name: {
                "block_length": one.lengths[name],
                "tokens_per_second": _median_rate(one, name),
                "ratio": interval_row(one.ratio(name)),
                "decode_ratio": interval_row(
                    paired_ratio(
                        [done.decode_tokens_per_second for done in one.rounds[name]],
                        [done.decode_tokens_per_second for done in one.rounds[PLAIN]],
                    )
                ),
                "survival": list(one.survival[name]),
            }
            for name in drafters
        },
    }


def _median_rate(one: _Measured, name: str) -> float:
    return statistics.median(done.tokens_per_second for done in one.rounds[name])


def _print(
    console: Console, measured: Mapping[Context, _Measured], drafters: Sequence[str], skipped: Sequence[str]
) -> None:
    table = Table(title="load 1, greedy: tokens per second times plain, 95 % interval; * the best of its context")
    headings = ("route", "language", "plain tok/s", "drafter", "K", "times plain", "S_1..S_8")
    for heading in headings:
        table.add_column(heading, justify="right" if heading in ("plain tok/s", "K") else "left")
    for (route, language), one in measured.items():
        ratios = {name: one.ratio(name) for name in drafters}
        best = max(ratios, key=lambda name: ratios[name].estimate)
        for index, (name, found) in enumerate(ratios.items()):
            where = (route, language, f"{_median_rate(one, PLAIN):.1f}") if index == 0 else ("", "", "")
            curve = " ".join(f"{share:.2f}" for share in one.survival[name])
            mark = " *" if name == best else ""
            table.add_row(*where, name + mark, str(one.lengths[name]), interval_text(found), curve)
        table.add_section()
    print_table(console, table)
    left_out = ", ".join(f"{'/'.join(context)} {one.looped}" for context, one in measured.items() if one.looped)
    console.print(f"prompts left out because their output loops: {left_out or 'none'}", highlight=False)
    if skipped:
        console.print(f"not measured, since every prompt loops: {', '.join(skipped)}", highlight=False)
