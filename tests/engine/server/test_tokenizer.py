"""engine.server.tokenizer on a real tokenizer folder."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.model_config import ModelError
from engine.server.detokenize import TextStream
from engine.server.errors import ApiError
from engine.server.tokenizer import ModelTokenizer, load_tokenizer
from engine.server.tools import CallTurn, Message, parse_tools
from tests.engine.lock_watch import longest_wait
from tests.engine.tiny_model import IM_END, IM_START, make_tiny_model

VOCABULARY = 384


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"), vocabulary=VOCABULARY)


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> ModelTokenizer:
    return load_tokenizer(folder, VOCABULARY)


def test_text_survives_encoding_and_streaming_token_by_token(tokenizer: ModelTokenizer) -> None:
    @given(st.text(max_size=80))
    def run(text: str) -> None:
        tokens = tokenizer.encode(text)
        stream = TextStream(tokenizer.token_bytes, [])
        assert "".join(stream.push([token]) for token in tokens) == _without_special(text)

    def _without_special(text: str) -> str:
        return text.replace("<|endoftext|>", "").replace("<|im_start|>", "").replace("<|im_end|>", "")

    run()


def test_a_chat_is_rendered_up_to_the_beginning_of_the_answer(tokenizer: ModelTokenizer) -> None:
    tokens = tokenizer.encode_chat([Message("system", "Be brief."), Message("user", "Hé 🙂")])
    assert tokens.count(IM_START) == 3
    assert tokens.count(IM_END) == 2
    text = b"".join(tokenizer.token_bytes[token] for token in tokens).decode()
    assert text == "system\nBe brief.\nuser\nHé 🙂\nassistant\n"


def test_the_ends_come_from_every_configuration_and_from_names(folder: Path, tmp_path: Path) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 300]}))
    assert load_tokenizer(folder, VOCABULARY).stop_token_ids == (0, IM_END)
    assert load_tokenizer(tmp_path, VOCABULARY).stop_token_ids == (0, IM_END, 300)


@pytest.mark.parametrize(
    ("name", "content"),
    [("tokenizer.json", None), ("tokenizer.json", "{}"), ("tokenizer_config.json", "["), ("config.json", "[")],
)
def test_a_damaged_tokenizer_is_a_model_error(folder: Path, tmp_path: Path, name: str, content: str | None) -> None:
    for file in folder.iterdir():
        if file.name != name or content is not None:
            (tmp_path / file.name).write_bytes(file.read_bytes())
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(ModelError, match=r"holds no tokenizer that can be read \(.+\); fetch the model again"):
        load_tokenizer(tmp_path, VOCABULARY)


def test_a_tokenizer_of_another_model_is_a_model_error(folder: Path) -> None:
    with pytest.raises(ModelError, match=f"vocabulary ends at {VOCABULARY - 2}; use the tokenizer that the model was"):
        load_tokenizer(folder, VOCABULARY - 1)


@pytest.mark.parametrize(
    ("template", "code"),
    [(None, "no_chat_template"), ("{{ raise_exception('roles must alternate') }}", "invalid_value")],
)
def test_a_template_that_cannot_render_is_a_400(folder: Path, tmp_path: Path, template: str | None, code: str) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = template
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(ApiError) as caught:
        load_tokenizer(tmp_path, VOCABULARY).encode_chat([Message("user", "hi")])
    assert caught.value.status == 400
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (
            "{% if tools %}{{ tools[0].function.name }} as <tool_call>\n{% endif %}"
            "{% for message in messages %}{{ message.role }}: {{ message.content }}"
            "{% for call in message.tool_calls %}{{ call.function.arguments.city }}{% endfor %}; {% endfor %}",
            "weather as <tool_call>\nuser: Rain?; assistant: Ulm; tool: no; ",
        ),
        (
            "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}",
            'assistant: <tool_call>\n{"name": "weather", "arguments": {"city": "Ulm"}}\n</tool_call>\n'
            "user: <tool_response>\nno\n</tool_response>\n",
        ),
    ],
)
def test_tools_are_told_by_the_template_where_it_writes_calls_in_this_form_and_else_in_the_system_message(
    folder: Path, tmp_path: Path, template: str, expected: str
) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": template}))
    tokenizer = load_tokenizer(tmp_path, VOCABULARY)
    tools = parse_tools({"tools": [{"type": "function", "function": {"name": "weather"}}]})
    messages = [
        Message("user", "Rain?"),
        Message("assistant", "", (CallTurn("a", "weather", '{"city": "Ulm"}'),)),
        Message("tool", "no", call_id="a"),
    ]
    text = b"".join(tokenizer.token_bytes[token] for token in tokenizer.encode_chat(messages, tools)).decode()
    assert text.endswith(expected)
    assert text == expected or text.startswith("system: # Tools")


@pytest.mark.parametrize("text", ["a sentence of words. " * 20_000, " " * 400_000, "a" * 400_000])
def test_of_a_text_far_beyond_the_context_no_more_is_read_than_the_context_asks(
    folder: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    limit = 128
    tokenizer = load_tokenizer(folder, VOCABULARY, limit)
    read: list[int] = []
    encode = ModelTokenizer._encode

    def watched(self: ModelTokenizer, text: str, *, add_special_tokens: bool) -> list[int]:
        read.append(len(text))
        return encode(self, text, add_special_tokens=add_special_tokens)

    monkeypatch.setattr(ModelTokenizer, "_encode", watched)
    with pytest.raises(ApiError, match="give at most 127") as of_prompt:
        tokenizer.encode(text)
    with pytest.raises(ApiError, match="give at most 127") as of_chat:
        tokenizer.encode_chat([Message("user", text)])
    assert [caught.value.param for caught in (of_prompt, of_chat)] == ["prompt", "messages"]
    assert {caught.value.code for caught in (of_prompt, of_chat)} == {"context_length_exceeded"}
    assert sum(read) < len(text) / 2


def test_a_text_is_refused_by_its_length_only_where_its_tokens_are_too_many(folder: Path) -> None:
    unlimited = load_tokenizer(folder, VOCABULARY)
    longest = max(unlimited.token_bytes, key=len).decode()
    text = longest * 120
    assert load_tokenizer(folder, VOCABULARY, 121).encode(text) == unlimited.encode(text)


def test_other_threads_run_while_a_long_text_is_tokenised(tokenizer: ModelTokenizer) -> None:
    text = "some words to be read, " * 60_000
    assert longest_wait(lambda: tokenizer.encode(text)) < 0.3


def test_half_of_a_surrogate_pair_in_the_arguments_of_a_call_is_no_fault(folder: Path, tmp_path: Path) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "tokenizer_config.json").read_text())
    template = "<tool_call>{{ messages[0].tool_calls[0].function.arguments.city }}"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": template}))
    tokenizer = load_tokenizer(tmp_path, VOCABULARY)
    call = Message("assistant", "", (CallTurn("a", "weather", '{"city": "\\ud800"}'),))
    assert tokenizer.encode_chat([call]) == tokenizer.encode_output("<tool_call>?")
