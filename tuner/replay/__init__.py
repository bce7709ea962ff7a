"""Replay: any controller over the same traces, with the truth known."""
