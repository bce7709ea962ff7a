"""Run by the Python of vLLM: the asynchronous twin over its own scheduler, two steps in flight, a formula for a model.

vLLM never schedules asynchronously on a CPU (vllm/platforms/cpu.py, 0.32.0), so a server cannot show it there.
"""

import sys
from dataclasses import replace
from typing import Any

import torch
from paceline_vllm import AsyncPolicyScheduler
from paceline_vllm.following import InForce
from paceline_vllm.messages import WORD_ARGUMENT, word_argument
from paceline_vllm.policies.types import Context, Decision, Reason
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

CAPS = {"a": 4, "b": 2, "c": 0, "d": 4}
BLOCK_LENGTH, PROMPT, LENGTH, KILLED_AT = 4, 9, 60, 20


def made_scheduler(model: str) -> Any:
    config = EngineArgs(
        model=model,
        max_model_len=512,
        max_num_seqs=8,
        enable_prefix_caching=False,
        speculative_config={"method": "draft_model", "model": model, "num_speculative_tokens": BLOCK_LENGTH},
    ).create_engine_config()
    config.scheduler_config.async_scheduling = True
    config.cache_config.num_gpu_blocks = 1000
    attention = FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=1, dtype=torch.float32)
    return AsyncPolicyScheduler(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(1000, [], [KVCacheGroupSpec(["layer"], attention)]),
        block_size=16,
        structured_output_manager=StructuredOutputManager(config),
        log_stats=True,
    )


def token(place: int) -> int:
    """The text that every request has."""
    return 100 + 7 * place % 50


class Worker:
    """Verifies the first of the drafts that it made in the step before, and drafts for the next one."""

    def __init__(self) -> None:
        self.written = dict.fromkeys(CAPS, 0)
        self.drafts: dict[str, list[int]] = {name: [] for name in CAPS}
        self.verified: dict[str, list[int]] = {name: [] for name in CAPS}

    def execute(self, output: Any) -> Any:
        names = list(output.num_scheduled_tokens)
        sampled = []
        for name in names:
            count = len(output.scheduled_spec_decode_tokens.get(name, ()))
            self.verified[name].append(count)
            drafts = self.drafts[name][:count]
            assert len(drafts) == count, f"{name}: {count} drafts are verified, and {drafts} were made"
            at = self.written[name]
            kept = next((place for place, one in enumerate(drafts) if one != token(at + place)), count)
            sampled.append([token(at + place) for place in range(kept + 1)])
            at = self.written[name] = at + kept + 1
            places = range(at, at + output.num_spec_tokens_to_schedule)
            self.drafts[name] = [token(place) if place % 3 else 1 for place in places]  # every third one is wrong
        return ModelRunnerOutput(names, {name: place for place, name in enumerate(names)}, sampled_token_ids=sampled)


def run(model: str, kills: bool) -> None:
    scheduler = made_scheduler(model)
    for key, (name, cap) in enumerate(CAPS.items(), start=1):
        decision = Decision("id", Context("m", "r", "en"), "draft_model", cap, True, Reason.LEARNED, 1)
        arguments = {WORD_ARGUMENT: word_argument(key, decision)}
        sampling = SamplingParams(max_tokens=LENGTH, temperature=0.0, ignore_eos=True, extra_args=arguments)
        scheduler.add_request(Request(name, [1] * PROMPT, sampling, None))
    worker = Worker()
    texts: dict[str, list[int]] = {name: [] for name in CAPS}
    flying: list[tuple[Any, Any]] = []
    for number in range(10 * LENGTH):
        if kills and number == KILLED_AT:
            policy = scheduler._follower.in_force.policy
            scheduler._follower.in_force = InForce(replace(policy, kill=True), None, steered=True)
            worker.verified = {name: [] for name in CAPS}
        if scheduler.has_requests():
            output = scheduler.schedule()
            flying.append((output, worker.execute(output)))
            if len(flying) < 2 and output.total_num_scheduled_tokens:
                continue
        if not flying:
            break
        for outputs in scheduler.update_from_output(*flying.pop(0)).values():
            for one in outputs.outputs:
                texts[one.request_id] += one.new_token_ids
    assert texts == {name: [token(place) for place in range(LENGTH)] for name in CAPS}
    longest = {name: max(counts) for name, counts in worker.verified.items()}
    assert longest == (dict.fromkeys(CAPS, 0) if kills else CAPS), longest
    state = scheduler._state()
    assert (state.faults, state.first_fault) == (0, "")


if __name__ == "__main__":
    for kills in (False, True):
        run(sys.argv[1], kills)
