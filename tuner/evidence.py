"""What a policy rests on, and one sentence that says it to people."""

from collections.abc import Sequence

from policies.types import Arm, Evidence, Interval
from tuner.acceptance import Curve
from tuner.baseline import Gain
from tuner.choice import Menu


def evidence(curve: Curve | None, gain: Gain, cap: int, predicted: Sequence[tuple[int, float]], note: str) -> Evidence:
    """The evidence of a policy whose block length is at most `cap`; without a curve where there is no drafter."""
    return Evidence(
        cycles=round(curve.blocks) if curve is not None else 0,
        requests=gain.requests,
        survival=tuple(round(value, 4) for value in curve.unconditioned[:cap]) if curve is not None else (),
        speedup=gain.speedup,
        predicted_speedup=tuple((load, round(value, 3)) for load, value in predicted),
        note=note,
    )


def note_learned(
    arm: Arm, curve: Curve, gain: Gain, menu: Menu, predicted: Sequence[tuple[int, float]], load: int
) -> str:
    """Why speculation is on or off: acceptance, what the schedule is worth, what others would be, what was measured.

    A gain that a copier before the drafter is part of is told so, with what the copier would do alone.
    """
    drafter, steps = arm.drafter, arm.schedule
    kept = f"{drafter}'s first token is kept {curve.unconditioned[0]:.0%} of the time over {round(curve.blocks)} blocks"
    used = [step for step in steps if step.block_length]
    best_load, best = max(predicted, key=lambda pair: pair[1], default=(1, 1.0))
    if used:
        several = len({step.drafter for step in used}) > 1
        lengths = ", ".join(
            f"{step.block_length} {f'of {step.drafter} ' * several}at load {step.loads}" for step in used
        )
        silent = [step for step in steps if not step.block_length]
        plain = f", plain at load {', '.join(step.loads for step in silent)}" if silent else ""
        verdict = f"a block of {lengths}{plain}: predicted {best:.2f}x plain at load {best_load}"
    elif best > 1.005:
        verdict = (
            f"no fixed block length beats plain, so it verifies only what it is confident of: "
            f"predicted {best:.2f}x plain at load {best_load}"
        )
    else:
        verdict = "no block length is predicted to beat plain, so it serves plain"
    first = menu.first.get(arm.drafter_at(best_load))
    if first is not None and best > 1.005:
        verdict += f", of which {first}, which proposes first, would do {menu.gain(first, best_load):.2f}x alone"
    others = [
        name
        + (f" after {menu.first[name]}" if name in menu.first else " alone" * bool(menu.first))
        + f" {menu.gain(name, load):.2f}x"
        for name in menu.options
        if name != drafter
    ]
    if others:
        verdict += f"; at load {load} others would do {', '.join(others)}"
    return f"{kept}; {verdict}; {measured(gain.speedup)}."


def note_learning(drafter: str, curve: Curve, needed: int) -> str:
    """What is missing before anything is claimed."""
    return (
        f"{drafter} was seen in {round(curve.blocks)} of the {needed} blocks that a verdict needs; "
        f"until then each cycle relies on similar traffic."
    )


def measured(speedup: Interval | None) -> str:
    """The measured gain in words."""
    if speedup is None:
        return "the gain over plain, which is measured again since the server started, is not known yet"
    judgement = "faster" if speedup.low > 1.0 else "slower" if speedup.high < 1.0 else "not told from plain"
    return (
        f"measured {speedup.estimate:.2f}x plain at equal load, neighbours' blocks included "
        f"(95 % interval {speedup.low:.2f} to {speedup.high:.2f}): {judgement}"
    )
