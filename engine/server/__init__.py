"""The OpenAI-compatible server in front of the engine process."""

from engine.server.app import ServerOptions, create_app
from engine.server.tokenizer import ModelTokenizer, Tokenizer, load_tokenizer

__all__ = ["ModelTokenizer", "ServerOptions", "Tokenizer", "create_app", "load_tokenizer"]
