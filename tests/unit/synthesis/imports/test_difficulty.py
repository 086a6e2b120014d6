"""Difficulty: measured by a solver over a file, kept through a kill, and the band of it that GRPO learns from."""

import sys
from dataclasses import replace
from pathlib import Path
from subprocess import PIPE, Popen

import pytest

from orchestra.config.schema import Rollout, load_params
from orchestra.errors import DataError, ServiceError
from orchestra.files.examples import read_examples
from orchestra.files.jsonl import write_jsonl
from orchestra.synthesis.filters.filters import Solver
from orchestra.synthesis.filters.solver import stumbling
from orchestra.synthesis.imports.difficulty import measure
from orchestra.types import Category, Example
from tasks.grpo import chosen
from tasks.platform.stage import Stage
from tests.support.worlds import ROOT, codec, example, toolkit

LIMITS = Rollout(max_turns=4, max_turn_tokens=60, max_tokens=8000)


def questions(count: int) -> list[Example]:
    call = [{"name": "calculator", "arguments": {"expression": "37*24"}}]
    return [example(f"e{n}", golden_calls=call, category=Category.ARITHMETIC) for n in range(count)]


@pytest.fixture
def solver(tmp_path: Path) -> Solver:
    return Solver(stumbling(codec().turn, 1, 0.3), codec(), toolkit(tmp_path), LIMITS, tries=4)


def test_a_killed_measurement_goes_on_where_it_was(tmp_path: Path, solver: Solver) -> None:
    source, whole, resumed = (tmp_path / name for name in ("in.jsonl", "whole.jsonl", "resumed.jsonl"))
    write_jsonl(source, questions(5))
    said: list[str] = []
    assert measure(source, whole, solver, "a", said.append, at_once=2) == 5
    assert said == ["2/5 examples (40%)", "4/5 examples (80%)", "5/5 examples (100%)"]
    made = read_examples(whole)
    assert [one.model_copy(update={"difficulty": None}) for one in made] == questions(5)
    assert {one.difficulty for one in made} <= {n / 4 for n in range(5)} and len({one.difficulty for one in made}) > 1

    def killed(line: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure(source, resumed, solver, "a", killed, at_once=2)
    (partial,) = tmp_path.glob(".resumed.jsonl.????????.partial")
    assert not resumed.exists() and len(read_examples(partial)) == 2
    with partial.open("ab") as file:
        file.write(b'{"id": "e2", "ki')  # what a kill in the middle of a line leaves
    said.clear()
    measure(source, resumed, solver, "a", said.append, at_once=2)
    assert said[:2] == ["2 of 5 are measured already", "4/5 examples (80%)"]
    assert resumed.read_bytes() == whole.read_bytes() and not partial.exists()


def test_two_runs_do_not_measure_for_one_file(tmp_path: Path, solver: Solver) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    write_jsonl(source, questions(2))
    code = (
        "import sys; from pathlib import Path; from orchestra.synthesis.imports import difficulty as one\n"
        "one._measure = lambda *_: print('begun', flush=True) or sys.stdin.read()\n"
        "one._tag = lambda *_: 'tag'\n"
        f"one.measure(Path({str(source)!r}), Path({str(target)!r}), None, 'a', print)"
    )
    with Popen([sys.executable, "-c", code], stdin=PIPE, stdout=PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "begun\n"
        with pytest.raises(ServiceError, match=rf"out\.jsonl: a run with pid {other.pid} works on it — wait for it"):
            measure(source, target, solver, "a", print)
        other.communicate()
    assert measure(source, target, solver, "a", lambda _: None) == 2


def test_another_solver_or_source_starts_anew(tmp_path: Path, solver: Solver) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    for content, tries, identity in ((2, 4, "a"), (2, 2, "a"), (2, 4, "b"), (3, 4, "a")):
        write_jsonl(source, questions(content))
        with pytest.raises(ZeroDivisionError):
            measure(source, target, replace(solver, tries=tries), identity, lambda line: print(1 // (line[0] == "x")))
    assert len(list(tmp_path.glob(".out.jsonl.????????.partial"))) == 4


def test_grpo_learns_from_the_band_and_from_what_nobody_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shipped = load_params(ROOT / "params.yaml")

    def stage(**section: object) -> Stage:
        settings = shipped.grpo.model_copy(update=section)
        return Stage("grpo", shipped.model_copy(update={"grpo": settings}), tmp_path)

    levels = [0.0, 0.25, 0.5, 1.0, None]
    examples = [one.model_copy(update={"difficulty": d}) for one, d in zip(questions(5), levels, strict=True)]
    assert chosen(stage(), examples) == examples
    assert [one.id for one in chosen(stage(difficulty_range=(0.2, 0.8)), examples)] == ["e1", "e2", "e4"]
    said = "grpo: difficulty 0.2 to 0.8: 2 examples; 2 others left out; 1 not measured, kept\n"
    assert capsys.readouterr().out == said
    with pytest.raises(DataError, match=r"no example's difficulty is within 0\.6 to 0\.7 — widen the range"):
        chosen(stage(difficulty_range=(0.6, 0.7)), examples[:4])
    (tmp_path / "data/extra").mkdir(parents=True)
    other = examples[3].model_copy(update={"instruction": "another question", "difficulty": 0.5})
    write_jsonl(tmp_path / "data/extra/m.jsonl", [examples[0].model_copy(update={"difficulty": 0.5}), other])
    measured = chosen(stage(difficulty_range=(0.2, 0.8), difficulty_file="data/extra/m.jsonl"), examples)
    assert [one.id for one in measured] == ["e0", "e1", "e2", "e4"]  # by what is asked, not by the id alone
