"""Where the training prompts come from: drawn from templates, or begun by a few words and written on by the target.

The mix is that of the traffic which the drafters are for: half chat and story in English, a quarter in six other
languages, a quarter code and structured text. Half of the answers are greedy, half sampled.
"""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from engine.training.code_prompts import draw_code, draw_code_edit, library_snippets
from engine.training.everyday import CHAT, STORY, fill
from engine.training.exclusion import Exclusion
from engine.training.openings import OPENINGS
from engine.training.records import draw_structured
from engine.training.words import WORDS

OTHER_LANGUAGES = ("de", "fr", "es", "it", "pt", "nl")

SHARES: Mapping[tuple[str, str], float] = {
    ("chat", "en"): 0.27,
    ("story", "en"): 0.23,
    **{("chat", language): 0.13 / len(OTHER_LANGUAGES) for language in OTHER_LANGUAGES},
    **{("story", language): 0.13 / len(OTHER_LANGUAGES) for language in OTHER_LANGUAGES},
    ("code", "code"): 0.08,
    ("code-edit", "code"): 0.08,
    ("extract", "code"): 0.08,
}
"""Share of the sequences by kind and language: most of them where drafters that copy from the context do not help."""

TEMPLATE_SHARE = 0.25
"""Share of the prompts that come whole from a template. The target writes the others itself, since answers to one
template are much alike: a head that was trained on 60 % of them drafted held-out answers to templates well (S_1 0.51)
and those to other people's prompts less so (0.40)."""

_TEMPERATURES = (0.7, 0.8, 0.9, 1.0)
_SYSTEM_TURNS = (
    *("You are a helpful assistant.", "You answer briefly.", "You are a patient tutor.", "You help people at work."),
    "You are a friendly assistant and answer in short sentences.",
    "You are a writer with a warm and simple style.",
    "You are an expert programmer. Return only code.",
)


@dataclass(frozen=True, slots=True)
class TrainingPrompt:
    """A conversation for the target to answer."""

    kind: str
    """`chat`, `story`, `code`, `code-edit` or `extract`."""
    language: str
    """BCP 47 primary subtag, or `code`."""
    messages: tuple[Mapping[str, str], ...]
    """Each with `role` and `content`; the last is the user's."""
    open_turn: bool
    """The last message is only begun: the target writes the rest of it before it answers."""
    temperature: float
    """Of the answer; 0 is greedy."""
    turns: int
    """Answers wanted; between two of them the target writes the user's next turn."""


def draw_prompt(draw: random.Random, snippets: tuple[str, ...]) -> TrainingPrompt:
    """One prompt of the mix. `snippets` are those of `library_snippets`."""
    kind, language = draw.choices(list(SHARES), list(SHARES.values()))[0]
    temperature = 0.0 if draw.random() < 0.5 else draw.choice(_TEMPERATURES)
    from_template = draw.random() < TEMPLATE_SHARE
    conversation: tuple[Mapping[str, str], ...]
    if not from_template:
        conversation = ({"role": "user", "content": draw.choice(OPENINGS[kind, language])},)
    elif kind == "code-edit":
        conversation = draw_code_edit(draw, snippets)
    elif kind == "code":
        conversation = ({"role": "user", "content": draw_code(draw)},)
    elif kind == "extract":
        conversation = ({"role": "user", "content": draw_structured(draw)},)
    else:
        templates = CHAT if kind == "chat" else STORY
        content = fill(draw.choice(templates[language]), WORDS[language], draw)
        conversation = ({"role": "user", "content": content},)
    if draw.random() < 0.12:
        conversation = ({"role": "system", "content": draw.choice(_SYSTEM_TURNS)}, *conversation)
    return TrainingPrompt(
        kind=kind,
        language=language,
        messages=conversation,
        open_turn=not from_template,
        temperature=temperature,
        turns=2 if kind == "chat" and draw.random() < 0.25 else 1,
    )


def training_prompts(seed: int, exclusion: Exclusion) -> Iterator[TrainingPrompt]:
    """Prompts without end, the same for the same seed, none of which `exclusion` covers."""
    draw = random.Random(seed)
    snippets = library_snippets()
    while True:
        prompt = draw_prompt(draw, snippets)
        if not any(exclusion.covers(message["content"]) for message in prompt.messages):
            yield prompt
