"""A process that serves the same prompts with transformers' `generate`; run by path, as ``vllm_worker`` is.

Lines of JSON on standard input and output. First {"model", "dtype", "threads", "assistant"}, answered by {"version"};
then {"arm", "prompts", "new_tokens"}, answered by {"seconds", "tokens", "prompt_tokens", "texts"}.
"""

import json
import os
import sys
import time
from importlib import import_module
from typing import Any

PLAIN, LOOKUP, HEURISTIC, DYNAMIC = "plain", "prompt-lookup", "assistant-heuristic", "assistant-dynamic"
LOOKUP_TOKENS = 10
"""What transformers' documentation uses for prompt lookup."""


def main() -> None:
    """Answer until the input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is no answer
    setup = json.loads(sys.stdin.readline())
    import torch

    transformers: Any = import_module("transformers")  # its annotations are at odds with what it takes and gives
    torch.set_num_threads(setup["threads"])
    dtype = getattr(torch, setup["dtype"])
    tokenizer = transformers.AutoTokenizer.from_pretrained(setup["model"])
    model = transformers.AutoModelForCausalLM.from_pretrained(setup["model"], dtype=dtype).eval()
    assistant: Any = None
    if setup["assistant"]:
        assistant = transformers.AutoModelForCausalLM.from_pretrained(setup["assistant"], dtype=dtype).eval()
    print(json.dumps({"version": transformers.__version__}), file=answers)
    for line in sys.stdin:
        asked = json.loads(line)
        options = _options(asked["arm"], assistant)
        answer: dict[str, Any] = {"seconds": 0.0, "tokens": 0, "prompt_tokens": [], "texts": []}
        for messages, count in zip(asked["prompts"], asked["new_tokens"], strict=True):
            started = time.perf_counter()
            inputs = tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
            )
            with torch.inference_mode():
                found = model.generate(
                    **inputs, do_sample=False, max_new_tokens=count, min_new_tokens=count - 1, **options
                )
            length = inputs["input_ids"].shape[1]
            text = tokenizer.decode(found[0, length:], skip_special_tokens=True)
            answer["seconds"] += time.perf_counter() - started
            answer["tokens"] += found.shape[1] - length
            answer["prompt_tokens"].append(length)
            answer["texts"].append(text)
        print(json.dumps(answer), file=answers)


def _options(arm: str, assistant: Any) -> dict[str, Any]:
    if arm == PLAIN:
        return {}
    if arm == LOOKUP:
        return {"prompt_lookup_num_tokens": LOOKUP_TOKENS}
    # Its own defaults stop a draft when the assistant is unsure; the heuristic changes the length from block to block.
    schedule = "heuristic" if arm == HEURISTIC else "constant"
    assistant.generation_config.num_assistant_tokens_schedule = schedule
    return {"assistant_model": assistant}


if __name__ == "__main__":
    main()
