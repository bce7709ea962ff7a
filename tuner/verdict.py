"""The next policy of one context: the same version with fresher evidence, or a new version when something changed."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from policies.types import PLAIN_ARM, Arm, Context, Evidence, KillSwitch, Mode, Pin, Policy, PolicyState, Reason
from tuner import evidence
from tuner.acceptance import Curve
from tuner.baseline import Gain
from tuner.choice import Menu, choose


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits that every context shares."""

    cap: int
    """Largest block length."""
    margin: float
    learning_blocks: int


@dataclass(frozen=True, slots=True)
class Findings:
    """What is known of one context at one moment."""

    curves: Mapping[str, Curve]
    """By drafter; empty when the engine has none."""
    menu: Menu | None
    """None without a cost."""
    load: int
    """Sequences that run together now."""
    gain: Gain
    mode: Mode
    default: Arm
    """What serves where nothing is learned, or may be."""
    pin: Pin | None
    kill: KillSwitch | None


def judge(context: Context, found: Findings, bounds: Bounds, previous: Policy | None, learned: Arm | None) -> Policy:
    """The policy that `found` calls for.

    `previous` is the one in force and `learned` the arm last learned here, which a pin or kill may have covered. The
    version is that of `previous`, or one more if arm, state or reason differ; `created_at` is then for the caller to
    set. Drafters and block lengths have hysteresis (`tuner.choice`), so noise makes no versions.
    """
    arm, state, reason, basis = _verdict(found, bounds, previous, learned)
    if previous is None:
        return Policy(context, 1, arm, state, reason, basis, 0.0)
    if (previous.arm, previous.state, previous.reason) == (arm, state, reason):
        return replace(previous, evidence=basis)
    return Policy(context, previous.version + 1, arm, state, reason, basis, 0.0)


def _verdict(
    found: Findings, bounds: Bounds, previous: Policy | None, learned: Arm | None
) -> tuple[Arm, PolicyState, Reason, Evidence]:
    if found.kill is not None:
        return PLAIN_ARM, PolicyState.KILLED, Reason.KILL_SWITCH, _bare(found, bounds, _who(found.kill, "killed"))
    if found.pin is not None:
        arm = Arm.fixed(found.pin.drafter, found.pin.block_length)
        note = f"{_who(found.pin, 'pinned')}; {evidence.measured(found.gain.speedup)}."
        return arm, PolicyState.PINNED, Reason.PINNED, _bare(found, bounds, note)
    if found.mode not in (Mode.AUTO, Mode.CANARY):
        arm = PLAIN_ARM if found.mode is Mode.OFF else found.default
        state = PolicyState.ON if arm.cap else PolicyState.OFF
        note = f"The route's mode is {found.mode.value}, so its configured arm serves."
        return arm, state, Reason.ROUTE_DEFAULT, _bare(found, bounds, note)
    if found.menu is None or not found.curves:
        missing = "calibration of the cost of a cycle" if found.menu is None else "drafter"
        note = f"There is no {missing}, so nothing is learned and plain serves."
        return PLAIN_ARM, PolicyState.OFF, Reason.ENGINE_DEFAULT, _bare(found, bounds, note)

    menu = found.menu
    arm = choose(menu, learned, found.load, bounds.margin)
    curve = found.curves[arm.drafter]
    judged = previous is not None and previous.reason is Reason.LEARNED
    if not judged and max(each.blocks for each in found.curves.values()) < bounds.learning_blocks:
        # Until the verdict the schedule is a guess from relatives: it is shown as it first was.
        learning = previous is not None and previous.state is PolicyState.LEARNING
        arm = previous.arm if previous is not None and learning else arm
        note = evidence.note_learning(arm.drafter, found.curves.get(arm.drafter, curve), bounds.learning_blocks)
        return arm, PolicyState.LEARNING, Reason.EXPLORE, _bare(found, bounds, note)
    predicted = tuple((load, menu.gain(arm.drafter_at(load), load)) for load in menu.loads)
    note = evidence.note_learned(arm, curve, found.gain, menu, predicted, found.load)
    basis = evidence.evidence(curve, found.gain, bounds.cap, predicted, note)
    state = PolicyState.ON if arm.cap else PolicyState.OFF
    return arm, state, Reason.LEARNED, basis


def _bare(found: Findings, bounds: Bounds, note: str) -> Evidence:
    """Without a prediction; the curve is that of the drafter of which most is known."""
    curve = max(found.curves.values(), key=lambda each: each.blocks, default=None)
    return evidence.evidence(curve, found.gain, bounds.cap, (), note)


def _who(order: Pin | KillSwitch, verb: str) -> str:
    return f"{order.actor} {verb} this: {order.reason}"
