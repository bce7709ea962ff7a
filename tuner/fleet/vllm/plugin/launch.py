"""What vLLM was launched with, read from its configuration; and what the plug-in refuses before anything is served."""

import hashlib
import uuid
from dataclasses import dataclass
from typing import Any

from policies.types import OTHER_ROUTE, PLAIN, UNDETERMINED, Context, Decision, Reason
from tuner.fleet.vllm.plugin.messages import Hello

KNOWN_VERSIONS = ("0.32.",)
"""Of vLLM, by how they begin: those that this plug-in was run with. vLLM does not keep its scheduler compatible."""


@dataclass(frozen=True, slots=True)
class Launch:
    """How vLLM was launched."""

    model: str
    drafter: str
    """`PLAIN` without one."""
    block_length: int
    block_lengths: tuple[int, ...]
    """That a step may draft: rising, 0 first."""
    shows_drafts: bool
    """Whether drafts are seen before they are verified: where vLLM schedules asynchronously, only their number is."""

    def level(self, length: int) -> int:
        """The least block length of a step that covers `length`."""
        return next((each for each in self.block_lengths if each >= length), self.block_lengths[-1])

    def decision(self) -> Decision:
        """Of requests that nobody decided about: what vLLM was launched with."""
        return Decision(
            decision_id="",
            context=Context(self.model, OTHER_ROUTE, UNDETERMINED),
            drafter=self.drafter,
            cap=self.block_length,
            forced=True,
            reason=Reason.ENGINE_DEFAULT,
            policy_version=0,
        )


class LaunchRefused(RuntimeError):
    """vLLM is not to start so; the text is one sentence that says what to change."""


def refuse(version: str, config: Any, asynchronous: bool) -> None:
    """
    Args:
        version: of vLLM.
        config: its ``VllmConfig``.
        asynchronous: whether the scheduler class is the asynchronous twin.

    Raises:
        LaunchRefused: the plug-in would not do what it says.
    """
    if not version.startswith(KNOWN_VERSIONS):
        known = ", ".join(f"{each}x" for each in KNOWN_VERSIONS)
        raise LaunchRefused(
            f"paceline_vllm was checked with vLLM {known} and this is {version}: leave --scheduler-cls out, or write "
            "the plug-in anew with a Paceline that knows this version"
        )
    if bool(config.scheduler_config.async_scheduling) != asynchronous:
        wrong, right = ("PolicyScheduler", "AsyncPolicyScheduler")[:: -1 if asynchronous else 1]
        raise LaunchRefused(
            f"vLLM schedules {'' if not asynchronous else 'not '}asynchronously here, which is not for "
            f"paceline_vllm.{wrong}: give --scheduler-cls paceline_vllm.{right}"
        )
    parallel = config.parallel_config
    for name in ("data_parallel_size", "pipeline_parallel_size"):
        size = getattr(parallel, name)
        if size > 1:
            raise LaunchRefused(
                f"{name} is {size}, and paceline_vllm steers one engine as a whole: start one server for each replica, "
                "with tensor parallelism alone"
            )
    if config.model_config.runner_type != "generate" or config.model_config.is_diffusion:
        raise LaunchRefused(
            "the model does not write one token after the other, so there is nothing to speculate: "
            "leave --scheduler-cls out"
        )


def launch_of(config: Any, asynchronous: bool, lookup: list[int] | None) -> Launch:
    """`lookup` is vLLM's table of block lengths by load, if it was launched with one: graphs were captured for those
    lengths."""
    speculative = config.speculative_config
    longest = config.num_speculative_tokens if speculative is not None else 0
    lengths = set(lookup[1:]) if lookup else set(range(longest + 1))
    return Launch(
        model=model_name(config),
        drafter=str(speculative.method) if longest else PLAIN,
        block_length=longest,
        block_lengths=tuple(sorted({0, *lengths})),
        shows_drafts=not asynchronous,
    )


def model_name(config: Any) -> str:
    """As clients ask for it."""
    served = config.model_config.served_model_name
    name = served[0] if isinstance(served, list) else served
    return str(name or config.model_config.model)


def hello_of(version: str, config: Any, launch: Launch) -> Hello:
    """What is said to whoever listens."""
    model, cache, speculative = config.model_config, config.cache_config, config.speculative_config
    versions = {
        "target": _fingerprint(model.model, model.revision, model.dtype, model.quantization),
        "tokenizer": _fingerprint(model.tokenizer, model.tokenizer_revision),
        "engine": _fingerprint("vllm", version),
    }
    if launch.drafter != PLAIN:
        versions[launch.drafter] = _fingerprint(
            speculative.method,
            speculative.model,
            speculative.revision,
            speculative.prompt_lookup_min,
            speculative.prompt_lookup_max,
        )
    return Hello(
        instance=uuid.uuid4().hex[:12],
        vllm_version=version,
        model=launch.model,
        drafter=launch.drafter,
        block_length=launch.block_length,
        block_lengths=launch.block_lengths,
        dtype=str(model.dtype).removeprefix("torch."),
        device=str(config.device_config.device_type),
        slots=int(config.scheduler_config.max_num_seqs),
        kv_blocks=int(cache.num_gpu_blocks or 0),
        kv_block_tokens=int(cache.block_size or 0),
        context_limit=int(model.max_model_len),
        vocabulary=int(model.get_vocab_size()),
        versions=versions,
    )


def _fingerprint(*parts: object) -> str:
    return hashlib.blake2s(repr([str(part) for part in parts]).encode(), digest_size=6).hexdigest()
