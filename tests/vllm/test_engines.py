"""The adapters, the probe and the doctor against a real vLLM."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from policies.types import PLAIN
from tests.vllm.launches import BLOCK_LENGTH
from tests.vllm.test_vllm import answer
from tuner.bench.vllm_server import MODEL_NAME, VllmServer, ngram_launch, running_vllm
from tuner.fleet.doctor import Verdict, examine
from tuner.fleet.engines.draft_counts import draft_counts
from tuner.fleet.engines.probe import probe
from tuner.fleet.engines.scrape import EngineMeter, Scraped
from tuner.fleet.types import UNKNOWN_DRAFTER, Effect, EngineKind, Lever, Upstream
from tuner.fleet.vllm.writing import write_plugin

PATIENT = 120.0
"""Seconds: the machine is shared with other tests."""
NOBODY = "127.0.0.1:9"
"""Where no reports are taken."""


@pytest.fixture(scope="module")
def vllm_plugin(
    vllm_folder: Path, default_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[VllmServer]:
    """With the plug-in, without orders; its answers tell nothing of drafts, as most launch it."""
    folder = tmp_path_factory.mktemp("plugin")
    write_plugin(folder)
    with running_vllm(vllm_folder, default_model, ngram_launch(BLOCK_LENGTH).with_plugin(folder, NOBODY)) as server:
        yield server


def probed(server: VllmServer) -> Upstream:
    async def run() -> Upstream:
        async with httpx.AsyncClient() as client:
            return await probe(server.url, client=client, seconds=PATIENT)

    return asyncio.run(run())


def examined(server: VllmServer) -> Verdict:
    return asyncio.run(examine(server.url, seconds=PATIENT))


def test_a_vllm_that_drafts_is_known_by_what_it_does(vllm_ngram: VllmServer) -> None:
    found = probed(vllm_ngram)
    assert (found.engine, found.models) == (EngineKind.VLLM, (MODEL_NAME,))
    assert found.version.startswith("0.32")
    assert (found.speculates, found.drafter, found.block_length) == (True, UNKNOWN_DRAFTER, BLOCK_LENGTH)
    assert found.effect(Lever.PLUGIN) is Effect.ABSENT
    assert found.effect(Lever.REQUEST_LENGTH) is Effect.ABSENT


def test_a_vllm_without_a_drafter_is_known_to_have_none(vllm_plain: VllmServer) -> None:
    found = probed(vllm_plain)
    assert (found.speculates, found.drafter, found.block_length) == (False, PLAIN, 0)
    verdict = examined(vllm_plain)
    assert verdict.advisable is False
    assert "decodes plain" in verdict.sentence
    assert verdict.command.startswith("python -m vllm.entrypoints.openai.api_server ")


def test_the_plug_in_is_known_by_its_effect_and_the_speeds_are_compared(vllm_plugin: VllmServer) -> None:
    found = examined(vllm_plugin)
    assert found.upstream.effect(Lever.PLUGIN) is Effect.WORKS, found.upstream.capabilities
    assert found.drafting is True
    assert [one.text for one in found.speeds] == ["repeating", "story"]
    assert found.speeds[0].drafting > 0
    assert found.advisable is True


def test_the_metrics_count_what_the_answers_tell(vllm_ngram: VllmServer) -> None:
    """A reading may come before the counters of an answer, so that they are read until they have counted it."""

    async def run() -> tuple[dict[str, float], dict[str, float]]:
        async with httpx.AsyncClient() as client:
            meter = EngineMeter(vllm_ngram.url, client)
            assert (await meter.read()).reading is not None
            contents = [answer(vllm_ngram) for _ in range(3)]
            told = [draft_counts(content) for content in contents]
            assert all(counts is not None for counts in told)
            expected = {
                "tokens": float(sum(content["usage"]["completion_tokens"] for content in contents)),
                "drafted": float(sum(counts.drafted or 0 for counts in told if counts is not None)),
                "accepted": float(sum(counts.accepted for counts in told if counts is not None)),
                "cycles": float(sum(counts.cycles or 0 for counts in told if counts is not None)),
            }
            counted = dict.fromkeys(expected, 0.0)
            until = time.monotonic() + PATIENT
            while counted["tokens"] < expected["tokens"] and time.monotonic() < until:
                _add(counted, await meter.read())
            return counted, expected

    counted, expected = asyncio.run(run())
    assert counted == expected


def _add(counted: dict[str, float], scraped: Scraped) -> None:
    delta = scraped.delta
    assert delta is not None, scraped.sentence
    counted["tokens"] += delta.output_tokens or 0.0
    counted["drafted"] += delta.drafted or 0.0
    counted["accepted"] += delta.accepted or 0.0
    counted["cycles"] += delta.cycles or 0.0
