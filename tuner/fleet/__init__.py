"""Servers that others wrote, steered while they serve: vLLM, llama.cpp and SGLang, one by one or as a fleet.

``paceline sidecar`` is two processes. The data path (`tuner.fleet.proxy`) passes requests on, byte for byte where it
may not steer, and asks a `Chooser` about the others; the control process learns from what it reports, and has the
store, the admin API and the metrics. A busy tuner beside the data path would cost every first byte milliseconds.
"""
