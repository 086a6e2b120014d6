"""Every kind of error has its entry in the runbook, and every command in it is one that there is."""

import ast
import re
from pathlib import Path

import typer

from orchestra.cli.app import app
from orchestra.cli.operations.runs import RUNBOOK
from orchestra.system import runs

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / RUNBOOK).read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL))


def error_classes() -> set[str]:
    """Every class below OrchestraError, wherever it is defined."""
    bases: dict[str, set[str]] = {}
    for file in [*(ROOT / "orchestra").rglob("*.py"), *(ROOT / "tasks").rglob("*.py")]:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                bases[node.name] = {base.id for base in node.bases if isinstance(base, ast.Name)}
    found = {"OrchestraError"}
    while more := {name for name, parents in bases.items() if parents & found} - found:
        found |= more
    return found - {"OrchestraError"}


def kinds_of_no_class() -> set[str]:
    """Kinds that a run's record or a stage gives to what no error class of ours says."""
    named = {runs.BUG, runs.KILLED, runs.STOPPED}
    for file in ("orchestra/system/runs.py", "tasks/platform/stage.py"):
        text = (ROOT / file).read_text(encoding="utf-8")
        named |= {word for pair in re.findall(r'kind="(\w+)"|_fail\(name, "(\w+)"', text) for word in pair}
    return named - {""}


def test_every_kind_of_error_has_a_section_and_every_section_a_kind() -> None:
    assert len(error_classes()) > 12 and {"TimeLimit", "OutOfMemory"} <= kinds_of_no_class()
    assert set(SECTIONS) == error_classes() | kinds_of_no_class()


def test_a_section_says_meaning_confirmation_and_command() -> None:
    for name, text in SECTIONS.items():
        assert re.findall(r"^(\w+): \S", text, re.MULTILINE) == ["Meaning", "Confirm", "Command"], name


def test_every_command_and_option_in_it_is_one_that_there_is() -> None:
    known = typer.main.get_command(app)
    commands: dict[str, typer.core.TyperCommand] = known.commands  # type: ignore[attr-defined]
    told = re.findall(r"`orchestra ([\w-]+)([^`]*)`", TEXT)
    assert len(told) > 20
    for name, rest in told:
        assert name in commands, name
        options = {option for param in commands[name].params for option in param.opts}
        if not hasattr(commands[name], "commands"):
            assert set(re.findall(r"--[\w-]+", rest)) <= options, f"{name}{rest}"
