"""Paceline in vLLM: steers how far each request speculates, step by step, and reports what came of it.

``--scheduler-cls paceline_vllm.PolicyScheduler``, or ``paceline_vllm.AsyncPolicyScheduler`` where vLLM schedules
asynchronously. The environment says where policies come from, and where reports go: see ``steered``.

`paceline plugin vllm` writes this package, with what it needs of ours, for the environment of vLLM. Nothing of it
imports vLLM but ``scheduler``, which is imported when one of the classes is asked for.
"""


def __getattr__(name: str) -> type:
    if name in ("PolicyScheduler", "AsyncPolicyScheduler"):
        from tuner.fleet.vllm.plugin import scheduler

        return scheduler.PolicyScheduler if name == "PolicyScheduler" else scheduler.AsyncPolicyScheduler
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
