"""Every shipped domain is complete, consistent, made by its generator, and gives verified tasks on both sides."""

import filecmp
import runpy
import sqlite3
from pathlib import Path

import pytest

from orchestra.domains.compare import judge
from orchestra.domains.engine import Domain, load_domain
from orchestra.synthesis.domain_tasks.tasks import DomainTask, domain_tasks
from tests.support.worlds import PUBLISHED, ROOT

FOLDERS = [ROOT / "data" / "domains" / name for name in PUBLISHED]

pytestmark = pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)


@pytest.fixture(scope="module")
def domains() -> dict[str, Domain]:
    return {folder.name: load_domain(folder) for folder in FOLDERS}


def sample(domain: Domain) -> list[DomainTask]:
    return [task for split in ("train", "heldout") for task in domain_tasks(domain, 0, 60, split)]


def test_it_is_complete(folder: Path, domains: dict[str, Domain]) -> None:
    domain = domains[folder.name]
    assert sum(map(len, domain.open().contents().values())) >= 400
    assert 14 <= len(domain.tools) <= 25 and len(domain.intents) >= 30
    assert {call.tool for intent in domain.intents for call in intent.calls} == set(domain.tools)
    assert sum(intent.category == "change" for intent in domain.intents) >= 10
    assert (folder / "policy.md").read_text(encoding="utf-8").startswith("# ")


def test_its_generator_makes_the_committed_entries(folder: Path, domains: dict[str, Domain], tmp_path: Path) -> None:
    made = runpy.run_path(str(folder / "generate.py"))["generate"](tmp_path)
    names = [f"{name}.csv" for name in made]
    same, different, missing = filecmp.cmpfiles(folder / "entries", tmp_path, names, shallow=False)
    assert (len(same), different, missing) == (len(made), [], [])
    assert len(list((folder / "entries").iterdir())) == len(made)


def test_the_rows_of_every_result_can_be_told(folder: Path, domains: dict[str, Domain]) -> None:
    for tool in domains[folder.name].tools.values():
        shown = [s for s, text in zip(tool.statements, tool.file.statements, strict=True) if text.startswith("select")]
        assert shown and all(statement.keys or statement.beside for statement in shown), tool.name


def test_its_references_hold(folder: Path, domains: dict[str, Domain]) -> None:
    db = sqlite3.connect(":memory:")
    db.deserialize(domains[folder.name].open()._db.serialize())
    assert db.execute("pragma foreign_key_check").fetchall() == []
    db.close()


def test_its_tasks_are_solved_by_their_calls_and_not_without(folder: Path, domains: dict[str, Domain]) -> None:
    domain = domains[folder.name]
    tasks = sample(domain)
    assert len({task.instruction for task in tasks}) == 120
    assert {task.category for task in tasks} == {"lookup", "change"}
    sides: dict[str, set[str]] = {}
    for number, task in enumerate(tasks):
        for entity in task.entities:
            sides.setdefault(entity, set()).add("train" if number < 60 else "heldout")
        session = domain.open()
        assert not judge(domain, session, task.golden_calls, task.communicate, task.answer).solved
        for call in task.golden_calls:
            session.call(call.name, call.arguments)
        assert judge(domain, session, task.golden_calls, task.communicate, task.answer).solved
        session.close()
    assert all(len(found) == 1 for found in sides.values()), "an entity is in training and held out"
