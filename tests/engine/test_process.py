"""The engine process and its client: real processes, the tiny model, no sleeping."""

import asyncio
import dataclasses
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Coroutine, Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import pytest

from engine.messages import EngineOptions, Submit
from engine.process import (
    DrafterRefusedError,
    EngineClient,
    EngineGoneError,
    EngineStartError,
    SequenceFailedError,
)
from policies.cycle_policy import INITIAL_CYCLE_POLICY
from policies.stats import FinishReason
from policies.testing import ListSink, total_emitted
from tests.engine.engine_process import collect, running_engine, tiny_options
from tests.engine.scripted import decision, submit
from tests.engine.tiny_model import make_tiny_model

DEADLINE_SECONDS = 60.0
Result = TypeVar("Result")


class Shared:
    """One engine for every test that leaves it as it was, with the event loop that it lives in."""

    def __init__(self, options: EngineOptions) -> None:
        self._runner = asyncio.Runner()
        self.sink = ListSink()
        self.client: EngineClient = self.run(EngineClient.start(options, self.sink))

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self._runner.run(asyncio.wait_for(work, DEADLINE_SECONDS))

    def close(self) -> None:
        self.run(self.client.close())
        self._runner.close()


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def shared(model_path: Path) -> Iterator[Shared]:
    engine = Shared(tiny_options(model_path))
    yield engine
    engine.close()


@pytest.fixture
def client(shared: Shared) -> EngineClient:
    shared.sink.cycles.clear()
    return shared.client


def message(client: EngineClient, *, max_tokens: int = 20, drafter: str = "ngram", seed: int = 5) -> Submit:
    key = client.next_key()
    built = submit(key, (10, 20, 30, 10, 20, 30, 10), max_tokens=max_tokens, chosen=decision(drafter, 4))
    return dataclasses.replace(built, sampling=dataclasses.replace(built.sampling, seed=seed, temperature=0.7))


async def wait_until_free(client: EngineClient) -> None:
    """Read the status until nothing runs; the caller's deadline ends a wait in vain."""
    while (status := await client.status()).running or status.waiting:
        pass
    assert (status.free_slots, status.free_blocks) == (client.info.slots, client.info.blocks)


def test_a_sequence_is_generated_and_its_cycles_reach_the_sink(shared: Shared, client: EngineClient) -> None:
    token_ids, finished = shared.run(collect(client.submit(message(client))))
    assert len(token_ids) == 20
    assert all(0 <= token < client.info.vocabulary for token in token_ids)
    assert finished is not None
    assert finished.reason is FinishReason.LENGTH
    assert total_emitted(shared.sink.cycles) == 19, "the first token comes from the prefill"
    assert finished.verified == sum(s.verified for stats in shared.sink.cycles for s in stats.sequences) > 0


def test_many_at_once_get_what_each_gets_alone(shared: Shared, client: EngineClient) -> None:
    async def alone_and_together() -> tuple[list[list[int]], list[list[int]]]:
        alone = [(await collect(client.submit(message(client, seed=seed, drafter="none"))))[0] for seed in range(6)]
        together = await asyncio.gather(*(collect(client.submit(message(client, seed=n % 6))) for n in range(30)))
        return alone, [token_ids for token_ids, _ in together]

    alone, together = shared.run(alone_and_together())
    assert len({tuple(text) for text in alone}) == 6
    assert together == alone * 5
    assert max(stats.load for stats in shared.sink.cycles) == client.info.slots


def test_leaving_a_generation_early_frees_what_it_held(shared: Shared, client: EngineClient) -> None:
    async def leave() -> None:
        generation = client.submit(message(client, max_tokens=240))
        async for _ in generation:
            break
        await generation.aclose()
        await generation.aclose()
        assert [item async for item in generation] == []
        await wait_until_free(client)

    emitted = 239
    # A sequence is short enough to be over before we leave it, if the machine has other things to do.
    while emitted == 239:
        shared.sink.cycles.clear()
        shared.run(leave())
        emitted = total_emitted(shared.sink.cycles)
    assert emitted < 239


def test_cancelling_ends_a_generation_that_somebody_waits_for(shared: Shared, client: EngineClient) -> None:
    async def cancel() -> None:
        os.kill(client.pid, signal.SIGSTOP)
        first = message(client, max_tokens=240)
        generations = [client.submit(message(client, max_tokens=240)) for _ in range(client.info.slots)]
        blocked = asyncio.ensure_future(collect(client.submit(first)))
        client.cancel(first.request_key)
        client.cancel(first.request_key)
        assert await blocked == ([], None)
        os.kill(client.pid, signal.SIGCONT)
        await asyncio.gather(*(anext(generation) for generation in generations))
        for generation in generations:
            await generation.aclose()
        await wait_until_free(client)

    shared.run(cancel())


def test_a_sequence_that_cannot_run_fails_alone(shared: Shared, client: EngineClient) -> None:
    async def fail() -> None:
        bad = message(client, drafter="oracle")
        good = asyncio.ensure_future(collect(client.submit(message(client))))
        with pytest.raises(SequenceFailedError, match=r"drafter 'oracle'; this engine has none, ngram\.$"):
            await collect(client.submit(bad))
        assert len((await good)[0]) == 20

    shared.run(fail())
    assert client.alive


def test_a_cycle_policy_set_from_another_thread_is_in_force(shared: Shared, client: EngineClient) -> None:
    policy = dataclasses.replace(INITIAL_CYCLE_POLICY, version=41)
    thread = threading.Thread(target=client.set_cycle_policy, args=(policy,))
    thread.start()
    thread.join()
    assert shared.run(client.status()).policy_version == 41


def test_a_redirect_reaches_a_running_sequence(shared: Shared, client: EngineClient) -> None:
    async def redirect() -> list[int]:
        sent = message(client, max_tokens=240, drafter="none")
        generation = client.submit(sent)
        token_ids = list((await anext(generation)).token_ids)
        client.redirect(sent.request_key, decision("ngram", 4, route="story"))
        return token_ids + (await collect(generation))[0]

    plain, _ = shared.run(collect(client.submit(message(client, max_tokens=240, drafter="none"))))
    routes: list[str] = []
    # A sequence is short enough to be over before the redirect is there, if the machine has other things to do.
    while "story" not in routes:
        shared.sink.cycles.clear()
        assert shared.run(redirect()) == plain
        routes = [sequence.context.route for stats in shared.sink.cycles for sequence in stats.sequences]
        assert routes == sorted(routes), "once redirected, it stays so"


def test_setting_a_policy_never_blocks_even_if_the_engine_does_not_read(shared: Shared, client: EngineClient) -> None:
    os.kill(client.pid, signal.SIGSTOP)
    try:
        for version in range(100, 4100):
            client.set_cycle_policy(dataclasses.replace(INITIAL_CYCLE_POLICY, version=version))
    finally:
        os.kill(client.pid, signal.SIGCONT)
    assert shared.run(client.status()).policy_version == 4099


def test_a_message_that_cannot_cross_fails_in_front_of_its_sender(shared: Shared, client: EngineClient) -> None:
    policy = dataclasses.replace(INITIAL_CYCLE_POLICY, draft_costs=MappingProxyType({}))
    with pytest.raises(TypeError, match="mappingproxy"):
        client.set_cycle_policy(policy)
    assert shared.run(client.status()).running == 0


def test_a_killed_engine_is_told_to_everybody_who_waits_with_the_signals_name(
    model_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def kill() -> None:
        async with running_engine(tiny_options(model_path)) as client:
            assert client.alive
            await client.status()
            os.kill(client.pid, signal.SIGSTOP)
            generations = [client.submit(message(client, max_tokens=240)) for _ in range(6)]
            waiting = [asyncio.ensure_future(collect(generation)) for generation in generations]
            waiting.append(asyncio.ensure_future(client.status()))  # type: ignore[arg-type]
            os.kill(client.pid, signal.SIGKILL)
            ends = await asyncio.gather(*waiting, return_exceptions=True)
            assert [type(end) for end in ends] == [EngineGoneError] * 7
            sentence = "The engine process was ended by SIGKILL, as the system does when memory runs out."
            assert {str(end) for end in ends} == {client.end} == {sentence}
            assert [record.getMessage() for record in caplog.records] == [sentence]
            assert not client.alive
            with pytest.raises(EngineGoneError):
                client.submit(message(client))
            with pytest.raises(EngineGoneError):
                await client.status()
            client.cancel(1)
            client.set_cycle_policy(INITIAL_CYCLE_POLICY)

    asyncio.run(asyncio.wait_for(kill(), DEADLINE_SECONDS))


@pytest.mark.parametrize("ended_by", [signal.SIGSEGV, signal.SIGABRT, signal.SIGTERM])
def test_an_engine_that_a_signal_ends_before_it_can_serve_is_one_sentence(
    model_path: Path, monkeypatch: pytest.MonkeyPatch, ended_by: signal.Signals
) -> None:
    popen = subprocess.Popen

    def doomed(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        process: subprocess.Popen[bytes] = popen(*arguments, **options)
        process.send_signal(ended_by)
        return process

    monkeypatch.setattr(subprocess, "Popen", doomed)
    with pytest.raises(EngineStartError) as caught:
        asyncio.run(EngineClient.start(tiny_options(model_path), ListSink()))
    assert str(caught.value) == f"The engine process was ended by {ended_by.name}. It could not serve yet."


def test_closing_ends_the_process_and_the_generations_that_still_run(model_path: Path) -> None:
    async def close() -> None:
        async with running_engine(tiny_options(model_path, calibrate=True)) as client:
            assert client.info.calibration, "the calibration seeds the cost model"
            assert (client.info.drafters, client.info.dtype, client.info.context_limit) == (
                ("none", "ngram"),
                "float32",
                256,
            )
            assert client.info.linear_seconds > 0.0
            assert [load for load, seconds in client.info.linear_seconds_by_load if seconds > 0.0] == [1, 2, 4]
            exited = os.pidfd_open(client.pid)
            running = asyncio.ensure_future(collect(client.submit(message(client, max_tokens=240))))
            os.kill(client.pid, signal.SIGSTOP)
            closing = asyncio.ensure_future(client.close())
            os.kill(client.pid, signal.SIGCONT)
            await closing
            with pytest.raises(EngineGoneError):
                await running
            assert_exits(exited)

    asyncio.run(asyncio.wait_for(close(), DEADLINE_SECONDS))


def test_a_model_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    options = tiny_options(tmp_path / "nowhere")
    with pytest.raises(EngineStartError) as caught:
        asyncio.run(EngineClient.start(options, ListSink()))
    assert "nowhere" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_context_limit_beyond_the_model_is_one_sentence(model_path: Path) -> None:
    options = dataclasses.replace(tiny_options(model_path), context_limit=5000)
    with pytest.raises(EngineStartError) as caught:
        asyncio.run(EngineClient.start(options, ListSink()))
    assert str(caught.value) == "engine.context_limit is 5000; give 2 to 2048, the most that the model reads."


def test_giving_up_while_the_engine_starts_leaves_no_process(model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exits: list[int] = []
    popen = subprocess.Popen

    def watched(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        process: subprocess.Popen[bytes] = popen(*arguments, **options)
        exits.append(os.pidfd_open(process.pid))
        return process

    monkeypatch.setattr(subprocess, "Popen", watched)

    async def give_up() -> None:
        loop = asyncio.get_running_loop()

        def cancel(_: str) -> None:
            loop.call_soon_threadsafe(starting.cancel)

        starting = asyncio.ensure_future(EngineClient.start(tiny_options(model_path), ListSink(), cancel))
        with pytest.raises(asyncio.CancelledError):
            await starting

    asyncio.run(give_up())
    assert len(exits) == 1
    assert_exits(exits[0])


ORPHAN = """
import asyncio, sys
from pathlib import Path
from engine.process import EngineClient
from policies.testing import ListSink
from tests.engine.engine_process import tiny_options
from tests.engine.test_process import message

async def main() -> None:
    client = await EngineClient.start(tiny_options(Path(sys.argv[1])), ListSink())
    if sys.argv[2] == "busy":
        generation = client.submit(message(client, max_tokens=240))
        await anext(generation)
    sys.stdout.write(f"{client.pid}\\n")
    sys.stdout.flush()
    await asyncio.Event().wait()

asyncio.run(main())
"""


def test_the_engine_ends_when_its_control_process_dies_idle_or_busy(model_path: Path) -> None:
    controls = [
        subprocess.Popen(
            [sys.executable, "-c", ORPHAN, str(model_path), load],
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )
        for load in ("idle", "busy")
    ]
    exits = []
    for control in controls:
        with control:
            assert control.stdout is not None
            exits.append(os.pidfd_open(int(control.stdout.readline())))
            control.kill()
    for exited in exits:
        assert_exits(exited)


def assert_exits(pid_descriptor: int) -> None:
    """A process descriptor becomes readable when its process has ended."""
    poll = select.poll()
    poll.register(pid_descriptor, select.POLLIN)
    ended = poll.poll(DEADLINE_SECONDS * 1000)
    os.close(pid_descriptor)
    assert ended, "the engine process still runs"


def test_a_drafter_is_unloaded_and_loaded_while_the_engine_serves(model_path: Path) -> None:
    async def change() -> None:
        options = dataclasses.replace(tiny_options(model_path, calibrate=True), drafters=("ngram", "suffix"))
        async with running_engine(options) as client:
            assert list(client.info.drafters) == ["none", "ngram", "suffix"]
            before = await collect(client.submit(message(client, drafter="suffix")))
            running = asyncio.ensure_future(collect(client.submit(message(client, drafter="suffix", max_tokens=200))))
            versions = client.info.versions
            assert set(versions) == {"target", "tokenizer", "engine", "ngram", "suffix"}
            assert set(client.info.resident_bytes) == set(client.info.resident_seconds) == {"ngram", "suffix"}
            await client.unload_drafter("suffix")
            assert list(client.info.drafters) == ["none", "ngram"]
            assert set(client.info.versions) == set(versions) - {"suffix"}
            assert {timing.drafter for timing in client.info.draft_calibration} == {"ngram"}
            with pytest.raises(DrafterRefusedError, match=r"no drafter 'suffix' to unload; loaded are ngram$"):
                await client.unload_drafter("suffix")
            with pytest.raises(DrafterRefusedError, match=r"no drafter 'oracle'; give one of ngram, suffix"):
                await client.load_drafter("oracle")
            late = await collect(client.submit(message(client, drafter="suffix")))
            assert late[0] == before[0]
            assert late[1] is not None
            assert late[1].proposed == 0
            await client.load_drafter("suffix")
            assert list(client.info.drafters) == ["none", "ngram", "suffix"]
            assert client.info.versions == versions
            assert {timing.drafter for timing in client.info.draft_calibration} == {"ngram", "suffix"}
            assert client.info.resident_bytes["suffix"] > 0
            await running
            exited = os.pidfd_open(client.pid)
            os.kill(client.pid, signal.SIGSTOP)
            waiting = asyncio.ensure_future(client.load_drafter("ngram"))
            os.kill(client.pid, signal.SIGKILL)
            with pytest.raises(EngineGoneError):
                await waiting
            assert_exits(exited)
            with pytest.raises(EngineGoneError):
                await client.unload_drafter("ngram")

    asyncio.run(asyncio.wait_for(change(), DEADLINE_SECONDS))


def test_a_cache_smaller_than_the_context_limit_is_the_context_limit_of_the_engine(model_path: Path) -> None:
    async def run() -> None:
        options = dataclasses.replace(tiny_options(model_path, slots=2), kv_blocks=3)
        async with running_engine(options) as engine:
            assert (engine.info.blocks, engine.info.context_limit) == (3, 48)
            asked = message(engine, max_tokens=48 - 7, drafter="ngram")
            token_ids, finished = await collect(engine.submit(asked))
            assert len(token_ids) == 48 - 7
            assert finished is not None

    asyncio.run(asyncio.wait_for(run(), DEADLINE_SECONDS))
