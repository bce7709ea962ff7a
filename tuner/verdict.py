"""The next policy of one context: the same version with fresher evidence, or a new version when something changed."""

from dataclasses import dataclass, replace

from policies.cycle_policy import PassCost
from policies.types import PLAIN, PLAIN_ARM, Arm, Context, Evidence, KillSwitch, Mode, Pin, Policy, PolicyState, Reason
from tuner import evidence, schedule
from tuner.acceptance import Curve
from tuner.baseline import Gain


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits that every context shares."""

    slots: int
    cap: int
    """Largest block length."""
    margin: float
    learning_blocks: int


@dataclass(frozen=True, slots=True)
class Findings:
    """What is known of one context at one moment."""

    drafter: str
    """The drafter that is learned here; `PLAIN` when the engine has none."""
    curve: Curve
    cost: PassCost | None
    kv_each: float
    """Mean context of a sequence, in tokens."""
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
    set. Block lengths have hysteresis (`schedule.block_lengths`), so noise makes no versions.
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
    if found.cost is None or found.drafter == PLAIN:
        missing = "calibration of the cost of a cycle" if found.cost is None else "drafter"
        note = f"There is no {missing}, so nothing is learned and plain serves."
        return PLAIN_ARM, PolicyState.OFF, Reason.ENGINE_DEFAULT, _bare(found, bounds, note)

    cap, margin = bounds.cap, bounds.margin
    lengths = schedule.block_lengths(found.curve, found.cost, bounds.slots, found.kv_each, cap, margin, learned)
    steps = schedule.merged(found.drafter, lengths)
    if found.curve.blocks < bounds.learning_blocks:
        # Until the verdict the schedule is a guess from relatives: it is shown as it first was.
        learning = previous is not None and previous.state is PolicyState.LEARNING
        arm = previous.arm if previous is not None and learning else Arm(found.drafter, steps)
        note = evidence.note_learning(found.drafter, found.curve, bounds.learning_blocks)
        return arm, PolicyState.LEARNING, Reason.EXPLORE, _bare(found, bounds, note)
    predicted = tuple(
        (load, schedule.predicted_gain(found.curve, found.cost, load, found.kv_each, cap, margin))
        for load in schedule.representative_loads(bounds.slots)
    )
    note = evidence.note_learned(found.drafter, found.curve, found.gain, steps, predicted)
    basis = evidence.evidence(found.curve, found.gain, cap, predicted, note)
    state = PolicyState.ON if any(lengths) else PolicyState.OFF
    return Arm(found.drafter, steps), state, Reason.LEARNED, basis


def _bare(found: Findings, bounds: Bounds, note: str) -> Evidence:
    return evidence.evidence(found.curve, found.gain, bounds.cap, (), note)


def _who(order: Pin | KillSwitch, verb: str) -> str:
    return f"{order.actor} {verb} this: {order.reason}"
