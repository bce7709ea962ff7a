"""The admin API's answers as text for people."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from policies.types import ANY_LOAD, UNKNOWN_LENGTH
from tuner.api.durations import describe_duration
from tuner.cli.output import print_paragraph, print_table
from tuner.wording import counted, length_words

SHOWN_LOADS = (1, 4, 8, 16)
"""Loads whose block length is shown where a terminal has no room for whole schedules."""
_K_WORDS = ("K", "K by load")
_K_LEGEND = "K is an estimate: it moves while little is known of a context, and each cycle weighs its proposals anew."
_COPIER_LEGEND = (
    "Where a drafter comes after another, that one proposes first, by copying: a cycle may so yield more than K + 1 "
    "tokens, and the speedup includes it."
)
_CHANGES_LEGEND = (
    "changes: how often what was learned was dropped, as acceptance, the cost of a cycle or a drafter's version was no "
    "longer what it had been. Where changes of cost are many and cycles are predicted badly, look for other load on "
    "the machine."
)


def print_status(console: Console, status: Mapping[str, Any], policies: Sequence[Mapping[str, Any]]) -> None:
    """`paceline status`."""
    store = "up" if status["store"]["up"] else "DOWN"
    console.print(f"model      {status['model'] or 'no traffic yet'}, {'ready' if status['ready'] else 'NOT READY'}")
    console.print(f"drafters   {', '.join(status['drafters'])}")
    console.print(f"store      {store}, {counted(status['store']['dropped'], 'row')} dropped")
    looped = status["looped_requests"]
    console.print(f"requests   {status['requests']}" + ("" if looped is None else f", {looped} of them looped"))
    pools = status["plain_sessions"]
    if not pools:
        console.print(f"throughput {_throughput(status['throughput'])}")
    cost = status["cost_per_million_tokens"]
    if cost is not None:
        found = ", ".join(f"{name} {'unknown' if cost[name] is None else format(cost[name], '.2f')}" for name in cost)
        console.print(f"cost       {found} for a million output tokens on a busy machine")
    gain = status["gain"]
    if gain is None and pools:
        console.print("gain       unknown: no plain pool, or not enough whole answers from it and from the others")
    elif gain is None:
        console.print("gain       not known yet: plain windows have not met the traffic often enough")
    else:
        console.print(
            f"gain       {gain['estimate']:.2f}x plain at equal load, over everything "
            f"(95 % interval {gain['low']:.2f} to {gain['high']:.2f})"
        )
    window = "a plain window is open" if status["plain_window"] else "no plain window is open"
    share = f"{status['switchback_share']:.0%}"
    console.print(
        f"baseline   {share} of new sessions are held on the plain pool"
        if pools
        else f"baseline   {share} of the time in plain windows; {window}"
    )
    console.print(f"safety     {_safety(status)}")
    error = status["cost_error"]
    shadows = "" if status["shadow_share"] is None else f"; shadows took {status['shadow_share']:.1%} of the time"
    predicted = "not predicted yet" if error is None else f"predicted to within {error:.1%}"
    if not pools:
        console.print(f"cycles     {predicted}{shadows}")
    if any(status["changes_found"].values()):
        found = ", ".join(f"{name} {count}" for name, count in status["changes_found"].items() if count)
        console.print(f"changes    {found}, since the start")
    for guardrail in status["guardrails"]:
        console.print(f"guardrail  {_route(guardrail['route'])}: {_guardrail(guardrail)}")
    for kill in status["kill_switches"]:
        console.print(
            f"kill       {_route(kill['route'])}{_until(kill['expires_at'])}, by {kill['actor']}: {kill['reason']}"
        )
    for pin in status["pins"]:
        arm = "plain" if pin["block_length"] == 0 else f"{pin['drafter']} at {pin['block_length']}"
        where = f"{pin['route']}/{pin['language']}"
        console.print(f"pin        {where}: {arm}{_until(pin['expires_at'])}, by {pin['actor']}: {pin['reason']}")
    _print_unmet(console, status)
    if status["upstreams"]:
        _print_upstreams(console, status["upstreams"])
    if not policies:
        console.print("No traffic yet: send requests, then look again.")
        return
    table = Table("context", "state", "drafter", "K by load", "speedup (95 %)", "requests", "reason")
    narrow = Table(
        "context", "state", "drafter", f"K at {','.join(map(str, SHOWN_LOADS))}", "speedup (95 %)", "requests"
    )
    narrow.box, narrow.padding = None, (0, 2, 0, 0)
    for policy in policies:
        narrow.add_row(
            f"{policy['route']}/{policy['language']}",
            policy["state"],
            _drafter(policy),
            ",".join(length_words(_block_length(policy["schedule"], load)) for load in SHOWN_LOADS),
            _speedup(policy),
            str(policy["requests"]),
        )
        table.add_row(
            f"{policy['route']}/{policy['language']}",
            policy["state"],
            _drafter(policy),
            _schedule(policy["schedule"]),
            _speedup(policy),
            str(policy["requests"]),
            policy["reason"],
        )
    print_table(console, table, narrow)
    if any(policy["speedup"] is None for policy in policies):
        console.print("Speedups are measured again since the server started: unknown is not measured often enough yet.")
    print_paragraph(console, _K_LEGEND)
    if any(policy["copier"] is not None for policy in policies):
        print_paragraph(console, _COPIER_LEGEND)
    if any(status["changes_found"].values()):
        print_paragraph(console, _CHANGES_LEGEND)


def _print_upstreams(console: Console, upstreams: Sequence[Mapping[str, Any]]) -> None:
    """The servers behind a sidecar."""
    table = Table("upstream", "engine", "health", "running", "drafts", "steered by")
    narrow = Table("upstream", "engine", "health", "running", "drafts")
    narrow.box, narrow.padding = None, (0, 2, 0, 0)
    for one in upstreams:
        health = {True: "up", False: "DOWN", None: "not seen yet"}[one["healthy"]]
        length = f", up to {one['block_length']}" if one["block_length"] else ", how far is unknown"
        drafts = {True: f"{one['drafter']}{length}", False: "plain", None: "not known"}[one["speculates"]]
        works = [found["lever"] for found in one["capabilities"] if found["effect"] == "works"]
        engine = f"{one['engine']} {one['version']}".strip()
        cells = (one["name"], engine, health, str(one["in_flight"]), drafts)
        table.add_row(*cells, ", ".join(["choice of server", *works]))
        narrow.add_row(*cells)
    print_table(console, table, narrow)
    for one in upstreams:
        if one["sentence"]:
            console.print(f"{one['name']} is down: {one['sentence']}")


def print_explanation(console: Console, view: Mapping[str, Any]) -> None:
    """`paceline explain ROUTE --language L`."""
    explanation, policy = view["explanation"], view["policy"]
    console.print(f"{view['route']}/{view['language']} (mode {view['mode']})")
    if policy is None:
        console.print("policy     none yet: no traffic of this kind was seen")
    else:
        arm = policy["arm"]
        schedule = _schedule(arm["schedule"])
        drafters = " and ".join(_drafters(arm["schedule"])) or arm["drafter"]
        arm_words = schedule if schedule == "plain" else f"{drafters}, {_K_WORDS[':' in schedule]} {schedule}"
        console.print(f"policy     version {policy['version']}, {policy['state']}: {arm_words}")
    console.print(f"reason     {explanation['reason']}: {explanation['sentence']}")
    _print_unmet(console, view)
    console.print()
    table = Table("", "rung", "what it says now", title="The ladder, strongest first", title_justify="left")
    marks = {"decides": "=>", "above": "", "below": "x"}
    for rung in explanation["ladder"]:
        table.add_row(marks[rung["standing"]], rung["name"], rung["note"])
    console.print(table)
    console.print("=> decides; what stands above it would override it, what stands below (x) is overridden.")
    if explanation["drafters"]:
        console.print()
        _print_curves(console, explanation["drafters"])
    if explanation["evidence"]:
        console.print()
        console.print("Evidence")
        for sentence in explanation["evidence"]:
            console.print(f"  {sentence}")


def _print_curves(console: Console, curves: Sequence[Mapping[str, Any]]) -> None:
    """What is known of each drafter, with its intervals."""
    lengths = (1, 2, 4, 8)
    table = Table("drafter", "blocks", *(f"{length} kept" for length in lengths))
    table.title, table.title_justify = "Drafters: blocks of which at least so many drafts are kept (95 %)", "left"
    for curve in curves:
        cells = [
            f"{curve['survival'][length - 1]:.0%} ({curve['low'][length - 1]:.0%}-{curve['high'][length - 1]:.0%})"
            for length in lengths
        ]
        table.add_row(curve["drafter"], f"{curve['blocks']:.0f}", *cells)
    print_table(console, table)


def _safety(status: Mapping[str, Any]) -> str:
    safety = status["safety"]
    if status["hold"]:
        words = "the budget is spent, so only pins speculate"
    elif safety["gate"] == "open":
        words = "every drafter may be used"
    else:
        words = "only drafters that are proved to pay may be used"
    return f"{safety['budget_seconds']:.1f} of {safety['cap_seconds']:.1f} engine seconds may be lost to plain; {words}"


def _guardrail(state: Mapping[str, Any]) -> str:
    if state["until"] is None:
        return f"{state['check']}: some of the requests try again"
    return f"{state['check']}: plain{_until(state['until'])}, for {counted(state['requests'], 'request')} were judged"


def print_decision(console: Console, decision: Mapping[str, Any]) -> None:
    """`paceline explain --decision ID`."""
    arm = (
        "plain" if decision["cap"] == 0 else f"{decision['drafter']}, up to {counted(decision['cap'], 'token')} a cycle"
    )
    if decision["cap"] == UNKNOWN_LENGTH:
        arm = f"{decision['drafter']}, nobody knows how many tokens a cycle"
    console.print(f"decision   {decision['decision_id']}")
    console.print(f"context    {decision['route']}/{decision['language']}, policy version {decision['policy_version']}")
    console.print(f"arm        {arm}")
    console.print(f"reason     {decision['reason']}: {decision['sentence']}")
    propensity = decision["propensity"]
    if propensity is not None and propensity < 1.0:
        console.print(f"drawn      by chance, with probability {propensity:.2f}")
    if decision["source"] == "id":
        console.print("outcome    not sampled: all of this was read from the id")
        return
    tpot = decision["tpot_seconds"]
    console.print(
        f"outcome    {decision['finish']} after {counted(decision['output_tokens'], 'token')}; "
        f"{decision['proposed']} proposed, {decision['verified']} verified, {decision['accepted']} accepted"
    )
    seconds = "" if tpot is None else f", then {tpot * 1000:.1f} ms a token"
    console.print(f"time       {decision['ttft_seconds'] * 1000:.0f} ms to the first token{seconds}")


def print_switched_off(console: Console, view: Mapping[str, Any]) -> None:
    """`paceline off`."""
    for kill in _holding(view):
        console.print(f"Speculation is off for {_route(kill['route'])}{_until(kill['expires_at'])}: {kill['reason']}")
    _print_unmet(console, view)


def print_switched_on(console: Console, view: Mapping[str, Any]) -> None:
    """`paceline on`: what is on now, or what still holds it off and how to take that back."""
    for kill in _holding(view):
        console.print(
            f"Speculation is still off for {_route(kill['route'])}{_until(kill['expires_at'])}: {kill['reason']}; "
            "`paceline on --all` takes that back."
        )
    if not view["active"]:
        # Switching everything on takes back what `off --all` did, and leaves the routes' own switches.
        left = sorted(kill["route"] for kill in view["in_force"]) if view["route"] == "*" else []
        but = f" but {', '.join(left)}: `paceline on ROUTE` takes that back" if left else ""
        console.print(f"Speculation is on for {_route(view['route'])}{but}.")


def _holding(view: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [kill for kill in view["in_force"] if kill["route"] in (view["route"], "*")] if view["active"] else []


def print_pin(console: Console, view: Mapping[str, Any]) -> None:
    """`paceline pin`: what is in force now."""
    pin = view["pin"]
    where = f"{view['route']}/{view['language']}"
    arm = "plain" if pin["block_length"] == 0 else f"{pin['drafter']} at block length {pin['block_length']}"
    console.print(f"{where} is pinned to {arm}{_until(pin['expires_at'])}: {pin['reason']}")
    _print_unmet(console, view)


def print_unpin(console: Console, view: Mapping[str, Any]) -> None:
    """`paceline unpin`: what decides now."""
    if view["language"] == "*":
        now = "each language is served by its own policy, or its own pin"
    elif view["pin"] is not None:
        now = "the pin for every language holds it"
    else:
        now = f"{view['explanation']['reason']} decides"
    console.print(f"The pin of {view['route']}/{view['language']} is taken back; {now}.")


def print_drafters(console: Console, view: Mapping[str, Any]) -> None:
    """`paceline draft load` and `paceline draft unload`."""
    console.print(f"Drafters of this server: {', '.join(view['drafters'])}.")


def print_settings(console: Console, rows: Sequence[tuple[str, Any, str]], *, origin: bool) -> None:
    """`paceline config show`."""
    table = Table("setting", "value", *(["origin"] if origin else []))
    for name, value, came_from in rows:
        shown = ", ".join(map(str, value)) if isinstance(value, list) else "" if value in (None, {}) else str(value)
        table.add_row(name, shown, *([came_from] if origin else []))
    print_table(console, table)


def _print_unmet(console: Console, view: Mapping[str, Any]) -> None:
    """An order that is in force and cannot be met."""
    if view["unmet"]:
        print_paragraph(console, f"It cannot be met: {view['unmet']}.")


def _route(route: str) -> str:
    return "every route" if route == "*" else route


def _until(expires_at: float | None) -> str:
    return "" if expires_at is None else f" for {describe_duration(expires_at - time.time())}"


def _schedule(steps: Sequence[Mapping[str, Any]]) -> str:
    """``1-2: 8, 3-8: 4``; ``1-2: head 8, 3-8: ngram 4``; ``4 at every load``; ``plain`` for an empty schedule."""
    parts = []
    several = len(_drafters(steps)) > 1
    if len(steps) == 1 and steps[0]["load_low"] == 1 and steps[0]["load_high"] >= ANY_LOAD:
        return f"{length_words(steps[0]['block_length'])} at every load" if steps[0]["block_length"] else "plain"
    for step in steps:
        load = (
            f"{step['load_low']}"
            if step["load_low"] == step["load_high"]
            else f"{step['load_low']}-{step['load_high']}"
        )
        if step["load_high"] >= ANY_LOAD:
            load = f"{step['load_low']} and more"
        length = length_words(step["block_length"]) if step["block_length"] else "plain"
        parts.append(f"{load}: {step['drafter']} {length}" if several and step["block_length"] else f"{load}: {length}")
    return ", ".join(parts) or "plain"


def _drafters(steps: Sequence[Mapping[str, Any]]) -> list[str]:
    """Those that have a block length, in rising order of load."""
    return list(dict.fromkeys(step["drafter"] for step in steps if step["block_length"]))


def _block_length(steps: Sequence[Mapping[str, Any]], load: int) -> int:
    return next((step["block_length"] for step in steps if step["load_low"] <= load <= step["load_high"]), 0)


def _drafter(policy: Mapping[str, Any]) -> str:
    return policy["drafter"] if policy["copier"] is None else f"{policy['drafter']} after {policy['copier']}"


def _speedup(policy: Mapping[str, Any]) -> str:
    if policy["speedup"] is None:
        return "unknown"
    return f"{policy['speedup']:.2f} ({policy['speedup_low']:.2f} to {policy['speedup_high']:.2f})"


def _throughput(throughput: Mapping[str, float]) -> str:
    parts = []
    for name in ("tuned", "plain"):
        seconds = throughput[f"{name}_seconds"]
        parts.append(f"{name} {throughput[f'{name}_tokens'] / seconds:.0f}" if seconds else f"{name} unknown")
    return f"{', '.join(parts)} tokens per busy second, at unequal load"
