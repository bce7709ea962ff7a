"""The fields that steer single tokens and are not OpenAI's sampling settings; and log-probabilities."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.server.errors import ApiError, invalid
from engine.server.fields import checked, token_ids
from engine.server.rules import WATERMARK_RULES
from engine.server.structured import StructuredOutput, structured_output
from kernels.sampling import Verifier, Watermark


@dataclass(frozen=True, slots=True)
class OutputControls:
    """What a request asks of its output beyond sampling; token ids exist, strings are not tokens yet."""

    top_logprobs: int | None = None
    """None: no log-probabilities."""
    min_tokens: int = 0
    ignore_eos: bool = False
    """Whether the model's own ends are tokens like others."""
    stop_token_ids: tuple[int, ...] = ()
    """Ends of the output beside the model's own."""
    bad_words: tuple[str, ...] = ()
    allowed_tokens: tuple[int, ...] = ()
    forced_prefix: str | tuple[int, ...] | None = None
    watermark: Watermark | None = None
    verifier: Verifier | None = None
    """None: the server's."""
    structured: StructuredOutput | None = None


def output_controls(
    given: Mapping[str, Any], vocabulary: int, top_logprobs: int | None, max_tokens: int | None
) -> OutputControls:
    """From the checked fields of a body. Raises `ApiError`."""
    min_tokens = given.get("min_tokens", 0)
    if max_tokens is not None and min_tokens > max_tokens:
        raise invalid("min_tokens", min_tokens, f"at most {max_tokens}, the value of max_tokens")
    structured = structured_output(given)
    prefix = given.get("forced_prefix")
    if prefix is not None and structured is not None:
        raise ApiError(
            f"forced_prefix is given beside {structured.field}, whose grammar begins with the output; "
            "give only one of the two.",
            param="forced_prefix",
            code="conflict",
        )
    return OutputControls(
        top_logprobs=top_logprobs,
        min_tokens=min_tokens,
        ignore_eos=given.get("ignore_eos", False),
        stop_token_ids=token_ids(given.get("stop_token_ids", []), "stop_token_ids", vocabulary),
        bad_words=tuple(given.get("bad_words", [])),
        allowed_tokens=token_ids(given.get("allowed_token_ids", []), "allowed_token_ids", vocabulary),
        forced_prefix=token_ids(prefix, "forced_prefix", vocabulary) if isinstance(prefix, list) else prefix,
        watermark=_watermark(given),
        verifier=Verifier(given["verifier"]) if "verifier" in given else None,
        structured=structured,
    )


def _watermark(given: Mapping[str, Any]) -> Watermark | None:
    if "watermark" not in given:
        return None
    fields = checked(given["watermark"], WATERMARK_RULES, prefix="watermark.")
    default = Watermark()
    return Watermark(
        gamma=float(fields.get("gamma", default.gamma)),
        delta=float(fields.get("delta", default.delta)),
        key=fields.get("key", default.key) & ((1 << 64) - 1),
    )
