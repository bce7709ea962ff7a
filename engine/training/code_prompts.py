"""Prompts about code: something to write, or a file to change and return whole.

The files are functions and classes of Python's own standard library, read where the interpreter keeps it, and short
configuration files that are made up here; much of the answer to an edit is a copy of the prompt.
"""

import ast
import random
import re
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from engine.training.everyday import fill

_MODULES = (
    *("argparse", "bisect", "calendar", "cmd", "codecs", "collections/__init__", "configparser", "contextlib", "copy"),
    *("csv", "dataclasses", "difflib", "filecmp", "fileinput", "fnmatch", "fractions", "functools", "getopt", "glob"),
    *("gzip", "hashlib", "heapq", "html/parser", "imaplib", "inspect", "ipaddress", "json/decoder", "json/encoder"),
    *("linecache", "locale", "logging/__init__", "logging/handlers", "mailbox", "mimetypes", "netrc", "numbers"),
    *("pathlib", "pprint", "queue", "random", "reprlib", "sched", "shelve", "shlex", "shutil", "smtplib", "socket"),
    *("statistics", "string", "subprocess", "tarfile", "tempfile", "textwrap", "threading", "timeit", "trace"),
    *("traceback", "types", "urllib/parse", "urllib/request", "uuid", "weakref", "zipfile", "email/message"),
    *("http/client", "http/cookies", "http/server", "unittest/case", "unittest/mock", "xml/dom/minidom", "turtle"),
)
_MIN_CHARACTERS, _MAX_CHARACTERS = 120, 900

_TASKS: Mapping[str, tuple[str, ...]] = {
    "language": ("Python", "Python", "Python", "JavaScript", "TypeScript", "Java", "C", "Go", "Rust", "Bash", "PHP"),
    "task": (
        *("reverses the words of a sentence", "checks whether a string is a palindrome", "merges two sorted lists"),
        *("counts the vowels in a text", "reads a CSV file and sums a column", "finds the second largest number"),
        *("validates an email address", "converts Roman numerals to integers", "removes duplicates from a list"),
        *("computes the nth Fibonacci number", "sorts people by age and then by name", "flattens a nested list"),
        *("downloads a page and counts its links", "renames all files in a folder", "parses a date in ISO format"),
        *(
            "draws a random card from a deck",
            "computes the average of a moving window",
            "rotates a square matrix",
        ),
        *("formats a number of bytes for people", "groups words by their first letter", "checks balanced brackets"),
        *("generates a random password", "writes a log line with a timestamp", "implements a stack with push and pop"),
        *("implements a simple LRU cache", "computes the greatest common divisor", "replaces tabs by spaces"),
        *("finds the longest common prefix", "splits a list into chunks", "prints a multiplication table"),
        *("simulates a bank account", "reads JSON from a file and prints one field", "inverts a dictionary"),
    ),
    "style": ("", " Add comments.", " Include a short example.", " Keep it as short as possible.", " Add type hints."),
}
_WRITE = (
    "Write a {language} function that {task}.{style}",
    "Can you write a small program in {language} that {task}?{style}",
    "How would you write a {language} function that {task}?{style}",
    "Show me {language} code that {task}.{style}",
)
_RETURN = (
    *("Return the complete file.", "Give me the whole file.", "Please return the full code.", "Show the entire file."),
    *("Send back all of it.", "Return only the code."),
)
_MANNERS = (
    *("Add a docstring to {name}.", "Add type hints to {name}.", "Add a comment above {name} that says what it does."),
    *("Log a message at the start of {name}.", "Raise a ValueError in {name} when the first argument is None."),
    *("Make {name} return early when there is nothing to do.", "Fügen Sie einen Docstring zu {name} hinzu."),
    *("Ajoute un commentaire au début de {name}.", "Añade un comentario a {name}."),
)
_CONFIG: Mapping[str, tuple[str, ...]] = {
    "app": ("shop", "blog", "tracker", "library", "forum", "weather", "billing", "gallery"),
    "port": ("3000", "5000", "8081", "9090", "7700"),
    "number": ("2", "3", "5", "10", "20", "30", "45", "60", "90", "120"),
    "word": ("debug", "info", "warning", "primary", "replica", "nightly", "hourly", "strict"),
    "colour": ("#112233", "#e0e0e0", "#c0392b", "#27ae60", "#2c3e50", "#f39c12"),
}
_FILES = (
    "```yaml\nname: {app}\nserver:\n  host: 0.0.0.0\n  port: {port}\n  workers: {number}\nlogging:\n  level: {word}\n"
    "  keep_days: {number}\ncache:\n  enabled: true\n  seconds: {number}\n```",
    '```json\n{{\n  "name": "{app}",\n  "version": "1.{number}.0",\n  "port": {port},\n  "retries": {number},\n'
    '  "mode": "{word}",\n  "limits": {{\n    "users": {number},\n    "uploads": {number}\n  }}\n}}\n```',
    "```css\n.{app} {{\n  color: {colour};\n  background: {colour};\n  padding: {number}px;\n}}\n\n"
    ".{app} a:hover {{\n  color: {colour};\n}}\n```",
    "```sql\nCREATE TABLE {app} (\n  id INTEGER PRIMARY KEY,\n  name VARCHAR({number}) NOT NULL,\n"
    "  created_at TIMESTAMP,\n  score INTEGER DEFAULT {number}\n);\n\nCREATE INDEX {app}_name ON {app} (name);\n```",
    "```ini\n[{app}]\nport = {port}\ntimeout = {number}\n\n[backup]\nevery = {number}\nkeep = {number}\n```",
    "```javascript\nconst port = {port};\nconst limit = {number};\n\nexport function {app}Url(id) {{\n"
    "  return `http://localhost:${{port}}/{app}/${{id}}`;\n}}\n\nexport function pages(total) {{\n"
    "  return Math.ceil(total / limit);\n}}\n```",
    "```bash\n#!/usr/bin/env bash\nset -e\nTARGET=/srv/{app}\nKEEP={number}\n\nmkdir -p $TARGET\n"
    'tar -czf "$TARGET/{word}.tar.gz" /etc/{app}\nfind "$TARGET" -mtime +$KEEP -delete\necho "done {word}"\n```',
    "```dockerfile\nFROM python:3.{number}-slim\nWORKDIR /{app}\nCOPY requirements.txt .\n"
    'RUN pip install -r requirements.txt\nCOPY . .\nEXPOSE {port}\nCMD ["python", "{app}.py"]\n```',
    "```go\npackage {app}\n\nconst limit = {number}\n\n// Clip returns at most limit items.\n"
    "func Clip(items []string) []string {{\n\tif len(items) > limit {{\n\t\treturn items[:limit]\n\t}}\n"
    "\treturn items\n}}\n```",
)


def library_snippets() -> tuple[str, ...]:
    """Functions and small classes of the standard library, each short enough for a prompt, in a fixed order."""
    folder = Path(sysconfig.get_path("stdlib"))
    snippets: dict[str, None] = {}
    for module in _MODULES:
        path = folder / f"{module}.py"
        if not path.is_file():
            continue
        source = path.read_text(encoding="utf-8")
        lines = source.splitlines()
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.end_lineno is not None:
                taken = lines[node.lineno - 1 : node.end_lineno]
                indent = len(taken[0]) - len(taken[0].lstrip())
                text = "\n".join(line[indent:] for line in taken)
                if _MIN_CHARACTERS <= len(text) <= _MAX_CHARACTERS:
                    snippets[text] = None
    return tuple(snippets)


def _edit(text: str, draw: random.Random) -> tuple[str, str]:
    """An instruction and the text that it leads to; the same text where only a person could tell the result."""
    names = sorted({name for name in re.findall(r"\b[a-z_][a-z_]{3,}\b", text) if text.count(name) > 1})
    numbers = sorted(set(re.findall(r"(?<![\w.#])\d{1,4}(?![\w.])", text)))
    kind = draw.random()
    if kind < 0.45 and names:
        old = draw.choice(names)
        new = draw.choice(("new_", "my_", "the_", "current_")) + old.strip("_")
        asked = draw.choice((f"Rename {old} to {new} everywhere.", f"Please rename {old} to {new}.",
                             f"Benenne {old} in {new} um.", f"Renomme {old} en {new}."))  # fmt: skip
        return asked, re.sub(rf"\b{re.escape(old)}\b", new, text)
    if kind < 0.75 and numbers:
        old = draw.choice(numbers)
        new = str(int(old) + draw.choice((1, 5, 10, 100)))
        return draw.choice((f"Change {old} to {new}.", f"Use {new} instead of {old}.", f"{old} is too small, make it "
                            f"{new}.")), re.sub(rf"(?<![\w.#]){old}(?![\w.])", new, text)  # fmt: skip
    defined = re.findall(r"(?:def|class|func|function) (\w+)", text)
    name = draw.choice(defined) if defined else "the file"
    return draw.choice(_MANNERS).replace("{name}", name), text


def draw_code(draw: random.Random) -> str:
    """The user turn of a request to write code."""
    return fill(draw.choice(_WRITE), _TASKS, draw)


def draw_code_edit(draw: random.Random, snippets: tuple[str, ...]) -> tuple[dict[str, str], ...]:
    """A conversation about one file: its user asks for a change, or for a second one after the first was done."""
    if draw.random() < 0.3:
        text = fill(draw.choice(_FILES).replace("{{", "\0").replace("}}", "\1"), _CONFIG, draw)
        text = text.replace("\0", "{").replace("\1", "}")
        text = text[:3] + text[3].lower() + text[4:]
    else:
        text = f"```python\n{draw.choice(snippets)}\n```"
    asked, changed = _edit(text, draw)
    first = f"{text}\n\n{asked} {draw.choice(_RETURN)}"
    if len(text) > 450 or changed == text or draw.random() < 0.4:
        return ({"role": "user", "content": first},)
    again, _ = _edit(changed, draw)
    return (
        {"role": "user", "content": first},
        {"role": "assistant", "content": changed},
        {"role": "user", "content": f"{again} {draw.choice(_RETURN)}"},
    )
