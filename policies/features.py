"""The features of a request that shift acceptance inside a context, and are no keys of a policy."""

from policies.types import RequestFeatures, SamplingClass


def request_features(
    temperature: float, prompt_tokens: int, max_tokens: int, opt_out: bool, structured: bool
) -> RequestFeatures:
    """What shifts acceptance inside a context. An output is structured where a grammar holds it to a form."""
    return RequestFeatures(
        sampling=sampling_class(temperature),
        structured=structured,
        prompt_tokens=prompt_tokens,
        max_tokens=max_tokens,
        opt_out=opt_out,
    )


def sampling_class(temperature: float) -> SamplingClass:
    if temperature == 0:
        return SamplingClass.GREEDY
    return SamplingClass.LOW if temperature <= 0.5 else SamplingClass.HIGH
