"""The two classes that ``--scheduler-cls`` names. Importing this imports vLLM."""

import vllm
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from tuner.fleet.vllm.plugin.steered import Steered


class PolicyScheduler(Steered, Scheduler):
    """For drafters that vLLM schedules step by step, such as ``ngram`` and ``suffix``."""

    vllm_version = vllm.__version__


class AsyncPolicyScheduler(Steered, AsyncScheduler):
    """For drafters under asynchronous scheduling, such as ``draft_model``, ``eagle3`` and ``mtp`` on a GPU."""

    asynchronous = True
    vllm_version = vllm.__version__
