"""Why a context or a request is served as it is, in words: the ladder, the reason, the evidence."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from policies.ladder import ANY, Resolution, Situation, kill_for, pin_for, resolve
from policies.types import (
    MAX_BLOCK_LENGTH,
    PLAIN,
    Arm,
    Evidence,
    Interval,
    KillSwitch,
    Mode,
    Pin,
    Policy,
    PolicyState,
    Reason,
)
from tuner.api.durations import describe_duration
from tuner.guardrails import REASONS, TRIED_SHARE, Check, GuardrailState, Standing, guard_of
from tuner.known_contexts import Key
from tuner.settings import RouteSettings
from tuner.snapshot import PolicySnapshot
from tuner.wording import counted, length_words

REASON_SENTENCES = {
    Reason.KILL_SWITCH: "A kill switch holds speculation off.",
    Reason.PINNED: "An operator pinned the drafter and the block length.",
    Reason.GUARDRAIL_LATENCY: "A guardrail on time per output token tripped.",
    Reason.GUARDRAIL_TTFT: "A guardrail on the time to the first token tripped.",
    Reason.GUARDRAIL_ERRORS: "A guardrail on errors tripped.",
    Reason.GUARDRAIL_VALIDITY: "A guardrail on the validity of outputs tripped.",
    Reason.GUARDRAIL_MEMORY: "A guardrail on memory tripped.",
    Reason.CLIENT_OPT_OUT: "The client asked for no speculation.",
    Reason.FREEZE: "An operator froze the policy as it was.",
    Reason.SWITCHBACK: "Held plain to measure the baseline: the whole engine in a window, or in a fleet this session.",
    Reason.EXPLORE: "Too little is known here yet, so speculation is tried and watched.",
    Reason.CANARY: "The request was drawn for the share that tries the learned policy.",
    Reason.LEARNED: "Learned from the acceptance and the cost that were measured here.",
    Reason.ROUTE_DEFAULT: "The route's own configuration decides.",
    Reason.ENGINE_DEFAULT: "Nothing else decides: an engine serves plain, a fleet as it would without Paceline.",
    Reason.FEATURE_UNSUPPORTED: "The request asks for something that no drafter may be combined with.",
    Reason.SHORT_OUTPUT: "The output is too short for speculation to pay.",
    Reason.TELEMETRY_MISSING: "Without telemetry nothing is claimed, so nothing is changed.",
    Reason.STALE_POLICY: "The policy is too old to be trusted.",
    Reason.STORE_UNAVAILABLE: "The store could not be read.",
    Reason.ERROR: "The decision failed, so the request was served plain.",
}
"""Every `Reason` in a sentence."""

LADDER = (
    "kill switch",
    "switchback",
    "pin",
    "guardrail",
    "client opt-out",
    "learned",
    "route default",
    "engine default",
)
"""The rungs, from the strongest. Freezing, which `policies.ladder` has a place for, comes to it once something gives
it."""

_RUNG_OF_REASON = {
    Reason.KILL_SWITCH: "kill switch",
    Reason.SWITCHBACK: "switchback",
    Reason.PINNED: "pin",
    **dict.fromkeys(REASONS.values(), "guardrail"),
    Reason.CLIENT_OPT_OUT: "client opt-out",
    Reason.ROUTE_DEFAULT: "route default",
    Reason.ENGINE_DEFAULT: "engine default",
}


@dataclass(frozen=True, slots=True)
class Rung:
    """One rung of the ladder for one context."""

    name: str
    standing: str
    """``decides``, ``above`` (would override, does not apply now) or ``below`` (overridden)."""
    note: str


@dataclass(frozen=True, slots=True)
class DrafterCurve:
    """What is known of a drafter in a context."""

    drafter: str
    blocks: float
    """Blocks that this rests on, faded ones counted in part, without what was borrowed from relatives."""
    survival: tuple[float, ...]
    """The share of blocks of which at least 1, 2 and so on drafted tokens are kept."""
    low: tuple[float, ...]
    """Lower ends of their 95 % intervals."""
    high: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """Everything that `paceline explain` prints."""

    drafter: str
    """Of the deciding rung, for a request that comes now and does not opt out."""
    forced: bool
    """Whether cycles use the block length as it stands instead of weighing it."""
    reason: Reason
    sentence: str
    ladder: tuple[Rung, ...]
    evidence: tuple[str, ...]
    """Sentences, in the order in which people read them."""
    guardrails: tuple[GuardrailState, ...] = ()
    """Of the route, and those that hold for every route."""
    drafters: tuple[DrafterCurve, ...] = ()
    """What is known of each drafter here, whether it serves or not."""


def explain(
    snapshot: PolicySnapshot, route: str, language: str, configured: RouteSettings, drafter: str, now: float
) -> Explanation:
    """The ladder for a request of (`route`, `language`) that comes at `now` (Unix seconds); `drafter` is learned."""
    policy = snapshot.policies.get((route, language))
    pin = pin_for(snapshot.pins, route, language, now)
    kill = kill_for(snapshot.kill_switches, route, now)
    guard = guard_of(snapshot.guards, route)
    arm = configured.default_arm
    situation = Situation(
        killed=kill is not None,
        switchback=snapshot.cycle_policy.window.plain,
        pin=pin,
        guardrail=None if guard is None else guard.reason,
        mode=configured.mode,
        learned=None if _nothing_to_choose(policy) else policy,
        learned_cap=MAX_BLOCK_LENGTH,
        explored_drafter=None if drafter == PLAIN or _nothing_to_choose(policy) else drafter,
        route_default=None if arm is None else Arm.fixed(arm.drafter, arm.block_length),
    )
    resolution = resolve(situation)
    guardrail_note = _guardrail_note(snapshot, route, now)
    default = "as without Paceline" if snapshot.plain_sessions else "plain"
    evidence: tuple[str, ...] = ()
    if policy is not None:
        seen = _evidence_sentences(policy.evidence, snapshot.plain_sessions)
        evidence = (*seen, *_copier_sentences(snapshot, (route, language)))
    return Explanation(
        drafter=resolution.drafter,
        forced=resolution.forced,
        reason=resolution.reason,
        sentence=REASON_SENTENCES[resolution.reason],
        ladder=_rungs(resolution, situation, policy, pin, kill, guardrail_note, configured, now, default),
        evidence=evidence,
        guardrails=tuple(state for state in snapshot.guardrails if state.route in (route, ANY)),
        drafters=tuple(_curves(snapshot, (route, language))),
    )


def _nothing_to_choose(policy: Policy | None) -> bool:
    return policy is not None and policy.reason is Reason.ENGINE_DEFAULT


def _copier_sentences(snapshot: PolicySnapshot, key: Key) -> Iterator[str]:
    copier = snapshot.cycle_policy.copiers.get(key)
    if copier is not None:
        yield (
            f"Up to load {copier.most_load}, {copier.drafter} proposes first, and its proposal takes the place of the "
            "drafter's where it promises more: a cycle may so yield more than the block length says, and the gains, "
            "predicted and measured, include it. Pins are left as they are."
        )


def _curves(snapshot: PolicySnapshot, key: Key) -> Iterator[DrafterCurve]:
    for drafter, by_context in sorted(snapshot.curves.items()):
        curve = by_context.get(key)
        if curve is not None and curve.blocks > 0.0:
            shares = (curve.unconditioned, curve.low, curve.high)
            yield DrafterCurve(drafter, curve.blocks, *(tuple(round(value, 4) for value in each) for each in shares))


def _rungs(
    resolution: Resolution,
    situation: Situation,
    policy: Policy | None,
    pin: Pin | None,
    kill: KillSwitch | None,
    guardrail: str,
    configured: RouteSettings,
    now: float,
    default: str,
) -> tuple[Rung, ...]:
    notes = {
        "kill switch": _kill_note(kill, now),
        "switchback": "a plain window is open" if situation.switchback else "no plain window is open",
        "pin": _pin_note(pin, now),
        "guardrail": guardrail,
        "client opt-out": "a request may send x-paceline-mode: off",
        "learned": _learned_note(policy, configured.mode),
        "route default": _route_note(configured),
        "engine default": default,
    }
    decides = LADDER.index(_RUNG_OF_REASON.get(resolution.reason, "learned"))
    standings = ["above" if place < decides else "below" for place in range(len(LADDER))]
    standings[decides] = "decides"
    return tuple(Rung(name, standing, notes[name]) for name, standing in zip(LADDER, standings, strict=True))


def _kill_note(kill: KillSwitch | None, now: float) -> str:
    if kill is None:
        return "none; `paceline off` sets one, which stops speculation"
    until = "until it is taken back" if kill.expires_at is None else f"for {describe_duration(kill.expires_at - now)}"
    where, target = ("everywhere", "--all") if kill.route == "*" else ("on this route", kill.route)
    return f"set {where} {until}, by {kill.actor}: {kill.reason}; `paceline on {target}` takes it back"


def _pin_note(pin: Pin | None, now: float) -> str:
    if pin is None:
        return "none; `paceline pin` sets one"
    arm = "plain" if pin.block_length == 0 else f"{pin.drafter} at {pin.block_length}"
    left = describe_duration(pin.expires_at - now)
    languages = "every language" if pin.language == "*" else pin.language
    back = f"`paceline unpin {pin.route} --language {_quoted(pin.language)}` takes it back"
    return f"{arm} for {languages}, {left} left, by {pin.actor}: {pin.reason}; {back}"


def _guardrail_note(snapshot: PolicySnapshot, route: str, now: float) -> str:
    states = [state for state in snapshot.guardrails if state.route in (route, ANY)]
    held = [state for state in states if state.standing is not Standing.WATCHING]
    if held:
        return "; ".join(guardrail_words(state, now) for state in held)
    if not states:
        return "nothing is watched" if not snapshot.guardrails else "no traffic yet"
    found = [f"{state.check.value}{' everywhere' * (state.route == ANY)} {state.verdict.value}" for state in states]
    return f"none tripped; {', '.join(found)}"


def guardrail_words(state: GuardrailState, now: float) -> str:
    """A check that holds its route, e.g. ``errors: 20 % (10 % to 37 %) of 30 requests, at most 2 %; plain for 4m``."""
    bar = f"at {'least' if state.check in (Check.GAIN, Check.MEMORY) else 'most'} "
    measured = "" if state.share is None else _measured(state, state.share) + ", "
    bar += f"{state.bar:.2f}x plain" if state.check is Check.GAIN else f"{state.bar:.0%}"
    if state.until is None:
        return f"{state.check.value}: {measured}{bar}; {TRIED_SHARE:.0%} of the requests try again, others are plain"
    return f"{state.check.value}: {measured}{bar}; plain for {describe_duration(max(0.0, state.until - now))} more"


def _measured(state: GuardrailState, found: Interval) -> str:
    match state.check:
        case Check.MEMORY:
            return f"{found.estimate:.1%} left"
        case Check.GAIN:
            return f"{found.estimate:.2f}x plain ({found.low:.2f} to {found.high:.2f})"
        case _:
            bad = f"{found.estimate:.0%} ({found.low:.0%} to {found.high:.0%})"
            return f"{bad} of {counted(state.requests, 'request')}"


def _quoted(language: str) -> str:
    """For a shell, to which a bare asterisk means files."""
    return "'*'" if language == "*" else language


def _learned_note(policy: Policy | None, mode: Mode) -> str:
    if mode not in (Mode.AUTO, Mode.CANARY):
        return f"the route's mode is {mode.value}, so what is learned is not used"
    if policy is None:
        return "no traffic seen yet"
    if policy.state is PolicyState.LEARNING:
        return f"still learning (version {policy.version})"
    if policy.state in (PolicyState.PINNED, PolicyState.KILLED):
        return "goes on learning; its arm comes back when nothing stronger holds"
    return f"{schedule_words(policy.arm)} (version {policy.version})"


def _route_note(configured: RouteSettings) -> str:
    arm = configured.default_arm
    if configured.mode is Mode.OFF:
        return "mode off: plain"
    if arm is None:
        return "none configured"
    return "plain" if arm.block_length == 0 else f"{arm.drafter} at {arm.block_length}"


def schedule_words(arm: Arm) -> str:
    """An arm in words: ``ngram, K=8 at load 1-2, K=4 at load 3-8``, or where several drafters serve, with each step's:
    ``head K=8 at load 1-2, ngram K=4 at load 3-8``."""
    if arm.cap == 0:
        return "plain at every load"
    if arm == Arm.fixed(arm.drafter, arm.cap):
        return f"{arm.drafter}, K={length_words(arm.cap)} at every load"
    several = len(arm.drafters) > 1
    steps = [
        (f"{step.drafter} " * several + f"K={length_words(step.block_length)}" if step.block_length else "plain")
        + f" at load {step.loads}"
        for step in arm.schedule
    ]
    return ", ".join(steps) if several else f"{arm.drafters[0]}, {', '.join(steps)}"


def _evidence_sentences(evidence: Evidence, pools: bool) -> list[str]:
    """`pools`: of a fleet, where nobody sees cycles, and plain sessions are what is measured against."""
    cycles = "" if pools else f" and {counted(evidence.cycles, 'cycle')}"
    sentences = [f"Seen: {counted(evidence.requests, 'request')}{cycles}."]
    if evidence.survival and evidence.cycles:  # before the first cycle the curve is only what related contexts suggest
        kept = ", ".join(f"{length}: {share:.0%}" for length, share in _thinned(evidence.survival))
        sentences.append(f"Blocks of which at least so many drafted tokens are kept: {kept}.")
    if evidence.predicted_speedup:
        gains = ", ".join(f"{gain - 1.0:+.0%} at load {load}" for load, gain in evidence.predicted_speedup)
        sentences.append(f"Predicted gain over plain: {gains}.")
    if evidence.speedup is None and pools:
        sentences.append("Measured speedup: unknown.")
    elif evidence.speedup is None:
        sentences.append(
            "Measured speedup: not known yet. It is measured again since the server started, and plain windows have "
            "not met this context often enough."
        )
    elif evidence.speedup is not None:
        found = evidence.speedup
        sentences.append(
            f"Measured: {found.estimate:.2f}x plain, 95 % interval {found.low:.2f} to {found.high:.2f}; seconds per "
            "token of measured plain over those served, at equal load and not at equal arrivals."
        )
        if found.high < min((gain for _, gain in evidence.predicted_speedup), default=0.0):
            sentences.append(
                "That is less than predicted. A prediction is of this context alone, by what is known now; the measure "
                "counts the neighbours' blocks too, and what was served while less was known."
            )
    if evidence.note:
        sentences.append(evidence.note)
    return sentences


def _thinned(survival: Sequence[float]) -> list[tuple[int, float]]:
    return [(length, survival[length - 1]) for length in (1, 2, 3, 4, 6, 8, 12, 16) if length <= len(survival)]
