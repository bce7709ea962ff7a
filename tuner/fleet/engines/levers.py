"""What each engine lets be steered, tested by its effect: pulled, and looked whether drafting changed.

A field that is there proves nothing. llama.cpp takes ``speculative.n_max`` and ignores it since b9115 (#22838);
ik_llama.cpp honours it, and answers unknown ones with an error; vLLM takes any ``vllm_xargs``.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tuner.fleet.engines.identity import Identity
from tuner.fleet.engines.trial import Trial, Trier
from tuner.fleet.types import Capability, Effect, EngineKind, Lever
from tuner.fleet.vllm.plugin.messages import LENGTH_ARGUMENT

REQUEST_OFF: Mapping[str, Any] = {"speculative.n_max": 0}
"""A block length of 0 in the request, where a build of llama.cpp honours it."""
PLUGIN_OFF: Mapping[str, Any] = {"vllm_xargs": {LENGTH_ARGUMENT: 0}}
"""The same for vLLM with the plug-in."""
_ALIASES_TRIED = 3


async def request_length(trier: Trier, identity: Identity, bare: Trial) -> Capability:
    """Whether a block length in the request is honoured. `bare` is a trial without any."""
    if identity.engine is EngineKind.VLLM:
        return Capability(Lever.REQUEST_LENGTH, Effect.ABSENT, "vLLM has no field for it; its plug-in makes one.")
    if identity.engine is EngineKind.SGLANG:
        return Capability(Lever.REQUEST_LENGTH, Effect.ABSENT, "SGLang has no field for it (sglang#30263).")
    effect, sentence = await _switched(trier, REQUEST_OFF, "speculative.n_max 0", bare)
    if effect is Effect.IGNORED and identity.engine is EngineKind.LLAMA_CPP:
        sentence += " llama.cpp ignores it since b9115."
    return Capability(Lever.REQUEST_LENGTH, effect, sentence)


async def plugin(trier: Trier, identity: Identity, bare: Trial) -> Capability:
    """Whether ``paceline_vllm`` steers this server."""
    if identity.engine is not EngineKind.VLLM:
        return Capability(Lever.PLUGIN, Effect.ABSENT, "The plug-in is for vLLM.")
    effect, sentence = await _switched(trier, PLUGIN_OFF, f"{LENGTH_ARGUMENT} 0 in vllm_xargs", bare)
    if effect is Effect.IGNORED:
        return Capability(Lever.PLUGIN, Effect.ABSENT, f"{sentence} So paceline_vllm is not loaded.")
    return Capability(Lever.PLUGIN, effect, sentence)


async def aliases(trier: Trier, identity: Identity) -> Capability:
    """Whether models of one server differ in their drafting only: presets of llama-server's router mode."""
    if identity.engine is not EngineKind.LLAMA_CPP:
        return Capability(Lever.ALIASES, Effect.ABSENT, "Only llama-server in router mode has aliases.")
    twins = _twins(identity)
    if len(twins) < 2:
        said = "It serves one model, or models that differ in more than their drafting."
        return Capability(Lever.ALIASES, Effect.ABSENT, said)
    loaded = [name for name, is_loaded in twins if is_loaded]
    named = " and ".join(name for name, _ in twins)
    if len(loaded) < 2:
        said = f"{named} differ in drafting only, but are not loaded together, and trying them would load them."
        return Capability(Lever.ALIASES, Effect.UNKNOWN, said)
    trials = [(name, await trier.run(model=name)) for name in loaded[:_ALIASES_TRIED]]
    if unknown := [trial.sentence for _, trial in trials if trial.drafting is None]:
        return Capability(Lever.ALIASES, Effect.UNKNOWN, unknown[0])
    said = f"The same request drafted {', '.join(f'{trial.amount} as {name}' for name, trial in trials)}."
    differ = len({trial.amount for _, trial in trials}) > 1
    return Capability(Lever.ALIASES, Effect.WORKS if differ else Effect.IGNORED, said)


def corpora(identity: Identity) -> Capability:
    """Whether texts can be given to the n-gram drafter. None is: it would change what others get."""
    if identity.engine is not EngineKind.SGLANG:
        return Capability(Lever.CORPORA, Effect.ABSENT, "Only SGLang's n-gram drafter reads other texts.")
    answer = identity.answers.get("/list_external_corpora")
    if answer is not None and answer.status in (401, 403):
        return Capability(Lever.CORPORA, Effect.UNKNOWN, "It lists its texts only with an admin key.")
    if answer is None or answer.status != 200 or answer.mapping.get("success") is not True:
        return Capability(Lever.CORPORA, Effect.ABSENT, "It has no texts to list: its drafter is no n-gram one.")
    counts = answer.mapping.get("corpus_token_counts")
    many = len(counts) if isinstance(counts, Mapping) else 0
    said = f"It lists {many} texts. Whether one more changes its drafting is not tried, since it would for everybody."
    return Capability(Lever.CORPORA, Effect.UNKNOWN, said)


async def _switched(trier: Trier, fields: Mapping[str, Any], named: str, bare: Trial) -> tuple[Effect, str]:
    """What came of asking for no drafts by `fields`."""
    if not bare.drafting:
        return Effect.UNKNOWN, bare.sentence or "It drafted nothing, so that there is nothing to switch off."
    off = await trier.run(fields)
    if off.status >= 400:
        return Effect.REFUSED, f"A request with {named} is refused. {off.sentence}"
    if off.drafting is None:
        return Effect.UNKNOWN, off.sentence
    if off.drafting:
        return Effect.IGNORED, f"With {named} it drafted {off.amount}, without {bare.amount}."
    again = await trier.run()
    if not again.drafting:
        return Effect.UNKNOWN, again.sentence or "It stopped drafting by itself while this was tried."
    return Effect.WORKS, f"With {named} it drafted nothing, without {bare.amount} before and {again.amount} after it."


def _twins(identity: Identity) -> list[tuple[str, bool]]:
    """(alias, loaded) of models whose launch lines differ in what speculates only, as ``GET /models`` tells them."""
    answer = identity.answer("/models")
    listed = answer.mapping.get("data") if answer is not None else None
    by_rest: dict[tuple[str, ...], list[tuple[str, bool]]] = {}
    for each in listed if isinstance(listed, list) else []:
        status = each.get("status") if isinstance(each, Mapping) else None
        if isinstance(status, Mapping) and isinstance(status.get("args"), list):
            rest = _without_drafting([str(word) for word in status["args"]])
            by_rest.setdefault(rest, []).append((str(each.get("id", "")), status.get("value") == "loaded"))
    return max(by_rest.values(), key=len, default=[])


def _without_drafting(words: Sequence[str]) -> tuple[str, ...]:
    """A launch line without what says how to draft, under which name and at which port."""
    kept: list[str] = []
    skipping = False
    for word in words:
        if word.startswith("-") and not word[1:2].isdigit():
            skipping = word.startswith(("--spec", "--draft", "--model-draft", "-md")) or word in (
                "--alias",
                "-a",
                "--port",
            )
        if not skipping:
            kept.append(word)
    return tuple(kept)
