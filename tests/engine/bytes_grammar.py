"""Whether a text follows a grammar, asked of llguidance over bytes."""

from llguidance import LLMatcher, LLTokenizer

from engine.grammar_check import LIMITS


def fits(grammar: str, text: str) -> bool:
    """Whether `text` is whole under `grammar`."""
    matcher = LLMatcher(LLTokenizer("byte"), grammar, log_level=0, limits=LIMITS)
    tokens = list(text.encode())
    return matcher.validate_tokens(tokens) == len(tokens) and matcher.consume_tokens(tokens) and matcher.is_accepting()
