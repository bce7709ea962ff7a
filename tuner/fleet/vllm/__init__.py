"""vLLM, steered from inside: the plug-in's source, what writes it out, and the control process's side of it."""
