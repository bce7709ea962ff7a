"""How the tests launch vLLM."""

from dataclasses import replace

from tuner.bench.vllm_server import VllmLaunch, ngram_launch

BLOCK_LENGTH = 5
PLAIN = VllmLaunch()
"""As vLLM is launched by most."""
NGRAM = replace(
    ngram_launch(BLOCK_LENGTH),
    arguments=("--enable-per-request-metrics", "--per-request-spec-decode-metrics", "summary"),
)
"""Drafts from n-grams of the request's own text, and tells of it in each answer."""
