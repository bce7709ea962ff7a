"""What vLLM, llama.cpp and SGLang tell of themselves, in one form, and what each of them lets be steered."""
