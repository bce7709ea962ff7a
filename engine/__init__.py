"""The embedded speculative engine and its OpenAI-compatible server."""
