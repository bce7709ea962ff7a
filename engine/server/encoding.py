"""Words and prefixes of a request as the model's tokens."""

from dataclasses import dataclass

from engine.server.controls import OutputControls
from engine.server.errors import ApiError
from engine.server.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class OutputTokens:
    """Fields of `kernels.sampling.Sampling`."""

    bad_words: tuple[tuple[int, ...], ...]
    forced_prefix: tuple[int, ...]


def output_tokens(controls: OutputControls, tokenizer: Tokenizer, room: int, vocabulary: int) -> OutputTokens:
    """The tokens of bad words, each as it begins a text and as it follows a space, and of the forced prefix.

    Raises `ApiError` for a prefix that the output has no `room` for, and for tokens that the model does not know.
    """
    words: dict[tuple[int, ...], None] = {}
    for word in controls.bad_words:
        for text in (word.lstrip(), f" {word.lstrip()}"):
            words[_known(tokenizer.encode_output(text), "bad_words", vocabulary)] = None
    prefix = controls.forced_prefix
    if isinstance(prefix, str):
        prefix = _known(tokenizer.encode_output(prefix), "forced_prefix", vocabulary)
    if prefix is not None and len(prefix) > room:
        raise ApiError(
            f"forced_prefix has {len(prefix)} tokens and the output has room for {room}; give a shorter one.",
            param="forced_prefix",
            code="invalid_value",
        )
    return OutputTokens(tuple(words), prefix or ())


def _known(tokens: list[int], field: str, vocabulary: int) -> tuple[int, ...]:
    if not tokens or max(tokens) >= vocabulary:
        raise ApiError(
            f"{field} holds text that the model has no tokens for; leave it out.", param=field, code="invalid_value"
        )
    return tuple(tokens)
