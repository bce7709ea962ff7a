"""A process that serves the same prompts with vLLM; run by path with the Python of PACELINE_VLLM_PYTHON.

Speaks as ``transformers_worker`` does; {"load"} says how many of the prompts it may run together.
"""

import json
import os
import sys
import time
from importlib import import_module
from typing import Any


def main() -> None:
    """Answer until the input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what vLLM prints is no answer
    setup = json.loads(sys.stdin.readline())
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    os.environ["OMP_NUM_THREADS"] = str(setup["threads"])
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, sorted(os.sched_getaffinity(0))[: setup["threads"]]))
    vllm: Any = import_module("vllm")  # of another environment
    model = vllm.LLM(
        setup["model"], dtype=setup["dtype"], max_model_len=2048, enable_prefix_caching=False, max_num_seqs=16
    )
    print(json.dumps({"version": vllm.__version__}), file=answers)
    for line in sys.stdin:
        asked = json.loads(line)
        answer: dict[str, Any] = {"seconds": 0.0, "tokens": 0, "prompt_tokens": [], "texts": []}
        prompts, counts, load = asked["prompts"], asked["new_tokens"], asked.get("load", 1)
        for start in range(0, len(prompts), load):
            sampling = [
                vllm.SamplingParams(temperature=0.0, max_tokens=count, min_tokens=count - 1)
                for count in counts[start : start + load]
            ]
            started = time.perf_counter()
            found = model.chat(prompts[start : start + load], sampling, use_tqdm=False)
            answer["seconds"] += time.perf_counter() - started
            for one in found:
                answer["tokens"] += len(one.outputs[0].token_ids)
                answer["prompt_tokens"].append(len(one.prompt_token_ids))
                answer["texts"].append(one.outputs[0].text)
        print(json.dumps(answer), file=answers)


if __name__ == "__main__":
    main()
