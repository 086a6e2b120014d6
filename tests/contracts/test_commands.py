"""Every command that docs, fixes and error texts name is one that there is, with the options that they give it."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from orchestra.cli.app import app

ROOT = Path(__file__).parents[2]
PAST = ("CHANGELOG.md", "docs/log.md")
"""What they tell was once."""
NAMES = ("orchestra benchmarks", "orchestra control", "orchestra gateway")
"""What is called like that and is no command."""
COMMAND = re.compile(r"(?<![\w/.-])(?:\.venv/bin/)?orchestra ((?:[^`;|&(),:#\n]|\\\n)+)")
SPAN = re.compile(r"`([^`\n]+(?:\n(?! {4})[^`\n]+)?)`")


TREE: Any = typer.main.get_command(app)


def spans(text: str) -> list[str]:
    """What stands between backticks, which may break over a line."""
    return [" ".join(span.split()) for span in SPAN.findall(text)]


def of_page(text: str) -> Iterator[str]:
    yield from spans(text)
    yield from re.findall(r"^    .*", text.replace("\\\n", " "), re.MULTILINE)


class Strings(ast.NodeVisitor):
    """The strings of a program, whole, with X for a value in one; of docstrings what they quote."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant):
            self.found += spans(str(node.value.value))
        else:
            self.visit(node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        self.found.append("".join(str(one.value) if isinstance(one, ast.Constant) else "X" for one in node.values))

    def visit_Constant(self, node: ast.Constant) -> None:
        self.found += [node.value] if isinstance(node.value, str) else []


def of_code(text: str) -> list[str]:
    strings = Strings()
    strings.visit(ast.parse(text))
    return strings.found + [span for line in re.findall(r"#.*", text) for span in spans(line)]


def of_script(text: str) -> Iterator[str]:
    yield from (line for line in text.splitlines() if ".venv/bin/orchestra " in line)
    yield from spans(text)


def named() -> Iterator[tuple[str, str]]:
    """Each command that a file names: the file, and the words after `orchestra`."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    for name in listed:
        if name in PAST or name.startswith("tests/") or not (ROOT / name).is_file():
            continue
        kind = of_page if name.endswith(".md") else of_code if name.endswith(".py") else of_script
        try:
            text = (ROOT / name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        if "orchestra " in text:
            for words in kind(text):
                yield from ((name, found) for found in COMMAND.findall(words) if not words.startswith(NAMES))


def missing(words: str) -> str:
    """What of a command there is not; empty for one that is right."""
    command = TREE
    rest = words.split()
    while rest and hasattr(command, "commands"):
        word = rest.pop(0)
        if word not in command.commands:
            return word if re.fullmatch(r"[a-z][a-z-]+", word) else ""
        command = command.commands[word]
    options = {option for one in command.params for option in (*one.opts, *one.secondary_opts)} | {"--help"}
    given = [word.partition("=")[0].rstrip(".…]'\"") for word in " ".join(rest).partition(" -- ")[0].split()]
    return next((word for word in given if word.startswith("--") and "X" not in word and word not in options), "")


def test_every_command_that_is_named_is_one_that_there_is() -> None:
    found = list(named())
    assert len(found) > 400
    assert {(name, words): what for name, words in found if (what := missing(words))} == {}


def test_another_command_or_option_is_found() -> None:
    assert [missing(words) for words in ("tools record", "rerun --form X", "run --until sft", "bogus")] == [
        "record", "--form", "", "bogus",
    ]  # fmt: skip
    code = '"""Like `orchestra one`, orchestra prose."""\nE(fix=f"orchestra two {n} --x")  # `orchestra 3`'
    assert [words for text in of_code(code) for words in COMMAND.findall(text)] == ["one", "two X --x", "3"]
