"""Launch settings that we render, read by vLLM's own code and served by a real vLLM."""

import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.tuner.fleet.render.learned import EDIT, STORY, geometric, known
from tests.vllm.test_vllm import answer
from tuner.bench.vllm_server import VllmLaunch, VllmServer, running_vllm
from tuner.fleet.render import Engine, Known, Launch, merge, render

BATCHES = 24
SECONDS = 120.0
RISING = known("edit/code", [(1, 1, 0), (2, 16, 3)], survival=geometric(0.9), predicted=((1, 1.0), (2, 1.8)))
SCHEDULES: list[tuple[list[Known], list[int]]] = [
    ([EDIT], [8] * 3 + [4] * 4 + [0] * 17),
    ([EDIT, STORY], [8] * 3 + [0] * 21),
    ([RISING], [0] + [3] * 15 + [0] * 8),
]
READ = """
import json, sys
from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup
told = json.load(sys.stdin)
table = told["num_speculative_tokens_per_batch_size"]
print(json.dumps(build_dynamic_sd_schedule_lookup(table, int(sys.argv[1]), told["num_speculative_tokens"])))
"""
PARSE = """
import json, sys
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
print(json.dumps(parser.parse_args(sys.argv[1:]).speculative_config))
"""


def in_vllm(environment: Path, code: str, *arguments: str, given: str = "") -> object:
    """What `code` prints last, as JSON, in vLLM's environment."""
    command = [str(environment / "bin" / "python"), "-c", code, *arguments]
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def rendered(mix: list[Known], file: str = "") -> Launch:
    return render(Engine.VLLM, merge(mix), "0.32.0", file)


@pytest.mark.parametrize(("mix", "expected"), SCHEDULES)
def test_vllms_own_table_has_the_block_length_that_was_learned_at_every_batch_size(
    vllm_folder: Path, mix: list[Known], expected: list[int]
) -> None:
    found = in_vllm(vllm_folder, READ, str(BATCHES), given=rendered(mix).flags[1])
    assert found == [0, *expected]  # index 0 is not used


def test_vllm_reads_the_same_from_its_file_as_from_the_flag(vllm_folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "speculation.yaml"
    launch = rendered([EDIT], str(file))
    assert launch.file is not None
    file.write_text(f"# a comment\n{launch.file.content}", encoding="utf-8")
    by_flag = in_vllm(vllm_folder, PARSE, *rendered([EDIT]).flags)
    assert by_flag == json.loads(rendered([EDIT]).flags[1])
    assert in_vllm(vllm_folder, PARSE, *launch.flags) == by_flag


@pytest.fixture(scope="module")
def scheduled(vllm_folder: Path, default_model: Path) -> Iterator[VllmServer]:
    with running_vllm(vllm_folder, default_model, VllmLaunch(arguments=rendered([RISING]).flags)) as server:
        yield server


def drafts(server: VllmServer) -> dict[str, float]:
    page = httpx.get(f"{server.url}/metrics", timeout=SECONDS).text
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name in ("vllm:spec_decode_num_drafts_total", "vllm:spec_decode_num_draft_tokens_total")
    }


def test_a_real_vllm_follows_the_schedule_by_load(scheduled: VllmServer) -> None:
    answer(scheduled)
    assert sum(drafts(scheduled).values()) == 0, "a single request decodes plain by this schedule"
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: answer(scheduled), range(4)))
    found = drafts(scheduled)
    assert found["vllm:spec_decode_num_drafts_total"] > 0, "several together draft"
    assert found["vllm:spec_decode_num_draft_tokens_total"] <= 3 * found["vllm:spec_decode_num_drafts_total"]
