"""The kill switch between two real processes: in force as soon as the engine has heard of it."""

import asyncio
import dataclasses
import os
import pickle
import queue
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from engine.messages import SetCyclePolicy, Submit, ToEngine
from engine.process import EngineClient
from kernels.sampling import Sampling
from policies.cycle_policy import INITIAL_CYCLE_POLICY, CyclePolicy
from policies.stats import CycleStats
from policies.testing import ListSink
from tests.engine.engine_process import collect, running_engine, tiny_options
from tests.engine.scripted import decision, submit
from tests.engine.tiny_model import make_tiny_model

DEADLINE_SECONDS = 120.0
TOGGLES = 12
SEQUENCES = 24


def sequence(client: EngineClient, seed: int) -> Submit:
    period = (40 + seed, 50, 60, 70)
    return dataclasses.replace(
        submit(client.next_key(), period * 4, max_tokens=230, chosen=decision("ngram", 8)),
        sampling=Sampling(seed=seed, temperature=0.6),
    )


def policies() -> Sequence[CyclePolicy]:
    """Off and on in turn, now by the switch for all and now by that of the only route in use."""
    return [
        dataclasses.replace(
            INITIAL_CYCLE_POLICY,
            version=version,
            kill=version % 4 == 1,
            killed_routes=frozenset({"chat"} if version % 4 == 3 else ()),
        )
        for version in range(1, TOGGLES + 1)
    ]


def test_no_cycle_speculates_once_the_engine_has_answered_after_the_switch(tmp_path: Path) -> None:
    sink = ListSink()

    async def toggle() -> tuple[list[int], int]:
        """For each policy, the cycles done when a status that was asked right behind it came back."""
        async with running_engine(tiny_options(make_tiny_model(tmp_path)), sink) as client:
            seen: list[int] = []
            texts = [asyncio.ensure_future(collect(client.submit(sequence(client, seed)))) for seed in range(SEQUENCES)]
            for policy in policies():
                start = (await client.status()).cycle
                while (await client.status()).cycle < start + 8:
                    assert not all(text.done() for text in texts), "the engine must be at work during the test"
                client.set_cycle_policy(policy)
                status = await client.status()
                assert status.policy_version == policy.version
                seen.append(status.cycle)
            return seen, sum(len(token_ids) for token_ids, _ in await asyncio.gather(*texts))

    seen, tokens = asyncio.run(asyncio.wait_for(toggle(), DEADLINE_SECONDS))
    assert tokens > 0
    decoded = [stats for stats in sink.cycles if stats.load]
    assert [stats.cycle for stats in decoded] == list(range(1, len(decoded) + 1))
    for policy, cycle, end in zip(policies(), seen, [*seen[1:], len(decoded)], strict=True):
        later = [stats for stats in decoded if cycle < stats.cycle and stats.policy_version == policy.version]
        assert all(stats.policy_version >= policy.version for stats in decoded if stats.cycle > cycle)
        assert len(later) >= 8 or end == len(decoded)
        verified = verified_in(later)
        if policy.kill or policy.killed_routes:
            assert verified == 0
            assert all(sequence.requested == 0 for stats in later for sequence in stats.sequences)
        assert all(stats.killed == policy.kill for stats in later)
    assert verified_in(decoded) > 0, "between the switches there was speculation to stop"


def verified_in(cycles: Sequence[CycleStats]) -> int:
    return sum(sequence.verified for stats in cycles for sequence in stats.sequences)


def test_a_switch_that_arrives_during_a_cycle_is_in_force_in_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine is stopped while the message is written, so that nothing but the cycle in flight can come before."""
    sink = ListSink()

    async def switch_while_stopped() -> list[int]:
        async with running_engine(tiny_options(make_tiny_model(tmp_path)), sink) as client:
            written: queue.SimpleQueue[ToEngine] = queue.SimpleQueue()
            send = client._connection.send_bytes

            def counted(message: bytes) -> None:
                send(message)
                written.put(pickle.loads(message))

            monkeypatch.setattr(client._connection, "send_bytes", counted)
            texts = [asyncio.ensure_future(collect(client.submit(sequence(client, seed)))) for seed in range(SEQUENCES)]
            last_before: list[int] = []
            for version in range(1, 9):
                start = (await client.status()).cycle
                while (await client.status()).cycle < start + 5:
                    assert not all(text.done() for text in texts), "the engine must be at work during the test"
                os.kill(client.pid, signal.SIGSTOP)
                os.waitid(os.P_PID, client.pid, os.WSTOPPED | os.WNOWAIT)
                before = asyncio.ensure_future(client.status())
                await asyncio.sleep(0)  # lets the question be put before the switch
                policy = dataclasses.replace(INITIAL_CYCLE_POLICY, version=version, kill=version % 2 == 1)
                client.set_cycle_policy(policy)
                while written.get(timeout=DEADLINE_SECONDS) != SetCyclePolicy(policy):
                    pass
                os.kill(client.pid, signal.SIGCONT)
                last_before.append((await before).cycle)
            await asyncio.gather(*texts)
            return last_before

    last_before = asyncio.run(asyncio.wait_for(switch_while_stopped(), DEADLINE_SECONDS))
    decoded = [stats for stats in sink.cycles if stats.load]
    for stats in decoded:
        version = sum(stats.cycle > last for last in last_before)
        assert stats.policy_version == version
        assert stats.killed == (version % 2 == 1)
        if stats.killed:
            assert verified_in([stats]) == 0
    assert verified_in(decoded) > 0
