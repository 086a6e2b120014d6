"""The published files of each benchmark, in their schema: what is taken, left out, and refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from orchestra.errors import ConfigError, DataError
from orchestra.evaluation.benchmarks.base import BENCHMARKS, Protocol
from orchestra.evaluation.benchmarks.frames.loader import FramesRow, load, load_oracle
from orchestra.evaluation.benchmarks.hle import loader as hle
from orchestra.evaluation.benchmarks.hle.inspect_worker import rows_of
from orchestra.evaluation.benchmarks.source import files_of, hashes
from orchestra.evaluation.benchmarks.tau2 import loader as tau2
from orchestra.files.jsonl import write_jsonl
from tests.support.benchmarks import pairs, published
from tests.support.worlds import example


def test_hle_takes_the_text_only_questions_with_the_authors_prompt(tmp_path: Path) -> None:
    file = published("hle", tmp_path, pairs("hle")[:3])
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows[1]["image"] = "data:image/png;base64,AAAA"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = hle.load([file])
    assert [question.id for question in found] == ["h000", "h002"]
    system, user = found[0].messages
    assert system.role == "system" and system.content.startswith("Your response should be in the following format:")
    assert "Confidence: {your confidence score between 0% and 100%" in system.content
    assert user.content == found[0].question and found[0].group == "Other"
    rows[0].pop("answer")
    file.write_text(json.dumps(rows[0]) + "\n")
    with pytest.raises(DataError, match=r"test\.jsonl:1: field answer"):
        hle.load([file])


def test_an_hle_copy_that_does_not_say_which_questions_have_an_image_is_refused(tmp_path: Path) -> None:
    file = published("hle", tmp_path, pairs("hle")[:2])
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows[0].pop("image")
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(DataError, match=r"test\.jsonl:1: field image: .* — get the published file again$"):
        hle.load([file])
    rows[0]["image"] = None
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert len(hle.load([file])) == 2


def test_inspect_reads_the_lines_that_our_loader_reads(tmp_path: Path) -> None:
    (row, *_) = [json.loads(line) for line in published("hle", tmp_path, pairs("hle")[:1]).read_text().splitlines()]
    file = tmp_path / "separated.jsonl"
    file.write_text(json.dumps({**row, "question": "one\u2028two"}, ensure_ascii=False) + "\n", encoding="utf-8")
    assert [one["question"] for one in rows_of(file)] == [one.question for one in hle.load([file])] == ["one\u2028two"]


def test_frames_with_retrieval_sends_the_question_alone(tmp_path: Path) -> None:
    found = load([published("frames", tmp_path)])
    assert len(found) == 100 and found[0].id == "frames-f000"
    assert found[0].messages[0].content == found[0].question
    assert found[0].group == "Numerical reasoning | Tabular"


@pytest.mark.parametrize("links", ["5", "'https://w/A'", "{'https://w/A': 1}", "https://w/A"])
def test_links_that_are_no_list_are_named(links: str) -> None:
    row = FramesRow.model_validate({"Prompt": "who?", "Answer": "Bob", "wiki_links": links})
    with pytest.raises(DataError, match=r"test.tsv:2: field wiki_links: not a list"):
        row.links("test.tsv:2")


def test_frames_with_oracle_pages_needs_every_page_that_is_named(tmp_path: Path) -> None:
    file, pages = published("frames", tmp_path, pairs("frames")[:1]), tmp_path / "pages.jsonl"
    pages.write_text('{"url": "https://w/A", "text": "first page"}\n')
    with pytest.raises(DataError, match=r"no text of https://w/B"):
        load_oracle([file, pages])
    with pages.open("a") as more:
        more.write('{"url": "https://w/B", "text": "second page"}\n')
    (question,) = load_oracle([file, pages])
    sent = question.messages[0].content
    assert sent.index("first page") < sent.index("second page") < sent.index(question.question)
    assert question.question not in ("", sent)


def release(folder: Path) -> Path:
    """A release of tau2-bench with one small task a domain."""
    task: dict[str, Any] = {"id": "t1", "user_scenario": {"instructions": "x"}, "evaluation_criteria": {"actions": []}}
    ticket = {**task, "id": "t2", "ticket": "broken", "evaluation_criteria": {"actions": [{"name": "fix"}]}}
    for domain in ("airline", "retail", "telecom", "mock"):
        here = folder / "domains" / domain
        here.mkdir(parents=True)
        (here / "tasks.json").write_text(json.dumps([task, ticket, {**task, "id": "t3"}]))
        (here / "split_tasks.json").write_text(json.dumps({"base": ["t2", "t1"], "train": ["t3"]}))
    banking = folder / "domains" / "banking_knowledge" / "tasks"
    banking.mkdir(parents=True)
    (banking / "task_001.json").write_text(json.dumps(task))
    return folder


def test_tau2_takes_the_base_split_and_knows_which_tasks_need_no_user(tmp_path: Path) -> None:
    found = tau2.load([release(tmp_path / "tau2")])
    assert [question.id for question in found] == [
        "airline/t2", "airline/t1", "retail/t2", "retail/t1", "telecom/t2", "telecom/t1", "banking_knowledge/t1",
        "mock/t2", "mock/t1",
    ]  # fmt: skip
    assert [question.id for question in found if question.settings["solo"]] == ["telecom/t2", "mock/t2"]
    (tmp_path / "tau2/domains/mock/split_tasks.json").write_text('{"base": ["t9"]}')
    with pytest.raises(DataError, match="no task t9"):
        tau2.load([tmp_path / "tau2"])


def test_own_takes_examples_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "heldout.jsonl"
    write_jsonl(file, [example("e1"), example("e2", instruction="what is 2*3?", answer="6")])
    found = BENCHMARKS["own"].load([file])
    assert [(one.id, one.question, one.answer) for one in found] == [
        ("e1", "what is 37*24?", "888"),
        ("e2", "what is 2*3?", "6"),
    ]
    assert found[0].example == example("e1")


def test_files_are_the_named_ones_and_nothing_is_downloaded_unasked(tmp_path: Path) -> None:
    protocol = BENCHMARKS["hle"].protocol
    file = published("hle", tmp_path)
    assert files_of(protocol, tmp_path, [file]) == (file,)
    assert list(hashes([file])) == ["test.jsonl"] and len(hashes([file])["test.jsonl"]) == 64
    with pytest.raises(DataError, match="no such file"):
        files_of(protocol, tmp_path, [tmp_path / "other.parquet"])
    with pytest.raises(ConfigError, match="downloads are off"):
        files_of(protocol, tmp_path, [])


@pytest.mark.parametrize("name", ["hle", "frames", "frames-oracle", "tau2", "own"])
def test_a_protocol_says_what_decides_the_score(name: str) -> None:
    protocol = BENCHMARKS[name].protocol
    assert protocol.benchmark == name and protocol.scorer and protocol.split
    assert protocol.source is None or (protocol.source.licence and protocol.source.revision)


def test_a_changed_prompt_is_refused(tmp_path: Path) -> None:
    file = Path(hle.__file__).parent / "protocol.yaml"
    changed = tmp_path / "protocol.yaml"
    changed.write_text(file.read_text().replace("prompt_sha256: 0f", "prompt_sha256: 1f"))
    with pytest.raises(ConfigError, match=r"another one — write prompt_sha256: [0-9a-f]{64}, and"):
        Protocol.load(changed)
