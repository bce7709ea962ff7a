"""A vLLM that is none: requests, and a scheduler with as much of vLLM's behaviour as the plug-in counts on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from policies.cycle_policy import CyclePolicy, Outlook, PassCost, Survival, Window
from policies.features import request_features
from policies.types import Context, Decision, Reason
from tuner.fleet.vllm.plugin.cycle_report import CycleReport
from tuner.fleet.vllm.plugin.following import InForce
from tuner.fleet.vllm.plugin.launch import Launch
from tuner.fleet.vllm.plugin.seat import Seat
from tuner.fleet.vllm.plugin.steering import Steering

MODEL, NGRAM = "smol", "ngram"
LAUNCH = Launch(MODEL, NGRAM, 5, (0, 1, 2, 3, 4, 5), shows_drafts=True)
FLAT = PassCost((1, 100), (0.020, 0.021), 0.0, 0.0)
"""Rows cost next to nothing: everything that is offered pays."""
STEEP = PassCost((1, 100), (0.010, 1.0), 0.0, 0.0)
"""A row costs as much as a cycle: nothing pays."""
SURE = (0.95, 0.9, 0.85, 0.8, 0.75)


def decision(cap: int = 5, route: str = "chat", *, forced: bool = False, drafter: str = NGRAM, **more: Any) -> Decision:
    return Decision("id", Context(MODEL, route, "en"), drafter, cap, forced, Reason.LEARNED, 1, **more)


def policy(cost: PassCost | None = FLAT, *, survival: tuple[float, ...] = SURE, **more: Any) -> CyclePolicy:
    """One curve for everything."""
    given: dict[str, Any] = {
        "version": 3,
        "kill": False,
        "window": Window(0, plain=False),
        "survivals": {},
        "default_survivals": {NGRAM: Survival(((), survival, survival, survival))},
        "cost": cost,
        "draft_costs": {},
        "margin": 0.02,
        "max_neighbour_slowdown": 1.1,
        "default_outlooks": {NGRAM: Outlook(survival, (1.0,) * len(survival))},
    }
    return CyclePolicy(**(given | more))


def orders(of: CyclePolicy) -> InForce:
    return InForce(of, None, steered=True)


@dataclass
class Request:
    """As `tuner.fleet.vllm.plugin.step.Running` reads it."""

    request_id: str
    spec_token_ids: list[int] = field(default_factory=list)
    num_computed_tokens: int = 100
    is_prefill_chunk: bool = False
    max_tokens: int = 1000
    num_output_tokens: int = 1


class Bench:
    """Steps of `Steering` with a drafter that proposes whatever the test says."""

    def __init__(self, *decisions: Decision, launch: Launch = LAUNCH, most: int | None = None) -> None:
        self.launch = launch
        self.steering = Steering(launch)
        self.requests = [Request(f"r{place}") for place in range(len(decisions))]
        most = launch.block_length if most is None else most
        features = request_features(0, 9, 99, False, False)
        self.seats = {
            request.request_id: Seat(place, each, most, features, 0.0)
            for place, (request, each) in enumerate(zip(self.requests, decisions, strict=True), start=1)
        }
        self.block_length: int | None = launch.block_length
        """Of the last step."""
        self.now = 0.0

    def step(
        self,
        in_force: InForce,
        drafts: Sequence[Sequence[int]] | None = None,
        kept: Callable[[int], int] = lambda verified: verified,
        seconds: float = 0.02,
        prompts: int = 0,
    ) -> CycleReport:
        """One step: `drafts` are at hand for each request, by default as many as the step before was told to make;
        of those that are verified, `kept` are; besides, `prompts` tokens of prompts are read."""
        made = self.launch.block_length if self.block_length is None else self.block_length
        for place, request in enumerate(self.requests):
            request.spec_token_ids = list(range(10, 10 + made)) if drafts is None else list(drafts[place])
        step, self.block_length = self.steering.open(self.requests, self.seats, in_force, self.now)
        scheduled = {request.request_id: 1 + len(request.spec_token_ids) for request in self.requests}
        if prompts:
            scheduled["new"] = prompts
        made = self.launch.block_length if self.block_length is None else self.block_length
        self.steering.enter(
            step,
            scheduled,
            {request.request_id: request.spec_token_ids for request in self.requests if request.spec_token_ids},
            self.seats,
            made,
            0,
            0.0,
        )
        for entry, request in zip(step.entries, self.requests, strict=True):
            accepted = kept(entry.verified)
            entry.tokens = [*request.spec_token_ids[:accepted], 7]
            entry.chosen = len(entry.tokens)
            request.num_computed_tokens += accepted + 1
            request.num_output_tokens += accepted + 1
        self.now += seconds
        return self.steering.close(step, (), True, self.now, self.now)

    def learn(self) -> None:
        """Plain steps until the cost model is trusted with this load, see `policies.ledger.CostTrust`."""
        load = len(self.requests)
        for _ in range(10):
            self.step(orders(policy(window=Window(0, plain=True))), seconds=FLAT.seconds(load, load, 0))

    @property
    def verified(self) -> list[int]:
        """What was left of the drafts in the last step."""
        return [len(request.spec_token_ids) for request in self.requests]


def vllm_config(**changed: Any) -> SimpleNamespace:
    """vLLM's configuration, as far as it is read."""
    groups: dict[str, dict[str, Any]] = {
        "scheduler_config": {"async_scheduling": False, "max_num_seqs": 4},
        "parallel_config": {"data_parallel_size": 1, "pipeline_parallel_size": 1},
        "model_config": {
            "runner_type": "generate",
            "is_diffusion": False,
            "served_model_name": MODEL,
            "model": "a/path",
            "revision": None,
            "dtype": "torch.bfloat16",
            "quantization": None,
            "tokenizer": "a/path",
            "tokenizer_revision": None,
            "max_model_len": 512,
            "get_vocab_size": lambda: 1000,
        },
        "cache_config": {"num_gpu_blocks": 10, "block_size": 16},
        "device_config": {"device_type": "cpu"},
        "speculative_config": {
            "method": NGRAM,
            "model": None,
            "revision": None,
            "prompt_lookup_min": 2,
            "prompt_lookup_max": 4,
        },
    }
    for name, values in changed.items():
        groups[name] = groups[name] | values
    config = SimpleNamespace(**{name: SimpleNamespace(**values) for name, values in groups.items()})
    config.num_speculative_tokens = 5
    return config
