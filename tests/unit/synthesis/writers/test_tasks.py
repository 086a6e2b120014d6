"""A model that writes: real HTTP to a scripted double; what it writes is proven, fixed twice, or dropped."""

import json
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from orchestra.accounting.budget import Budget
from orchestra.config.schema import load_params
from orchestra.errors import DataError
from orchestra.files.jsonl import read_jsonl, read_lines
from orchestra.synthesis.dataset.versions import DatasetVersion, Made, Maker
from orchestra.synthesis.domain_tasks.tasks import DomainTask, domain_tasks
from orchestra.synthesis.imports.intake import beside
from orchestra.synthesis.writers.generator import Dropped
from orchestra.synthesis.writers.prompts import EVOLVE, REPAIR, SHORTER, SYSTEM, TASK, Prompt
from orchestra.synthesis.writers.structured import Writer, parse
from orchestra.synthesis.writers.tasks import ModelGenerator, WrittenTask
from orchestra.tools.chat.client import Chat
from orchestra.tools.experts.metered import PaidChat
from orchestra.tools.replay.cassette import Cassette, Mode
from orchestra.types import Component, Example, Price
from orchestra.validation.gate.decontamination import Gate
from tests.support.endpoint import answer, serving
from tests.support.worlds import ROOT, kit

PRICE = Price(input_per_million=Decimal(1), output_per_million=Decimal(1))
DOMAIN = "mock"


def good(split: Any = "train", count: int = 8) -> list[dict[str, Any]]:
    """Tasks that hold, as a model would write them."""
    return [written(task) for task in domain_tasks(kit().domain(DOMAIN), 5, count, split)]


def written(task: DomainTask, **update: Any) -> dict[str, Any]:
    calls = [{"tool": call.name, "arguments": call.arguments} for call in task.golden_calls]
    made = {
        "instruction": f"Hello, {task.instruction}",
        "category": task.category,
        "calls": calls,
        "communicate": list(task.communicate),
        "answer": f"It is {' and '.join(task.communicate)}.",
    }
    return {**made, **update}


def writer(folder: Path, url: str, mode: Mode = "auto", cap: str = "1") -> Writer:
    chat = Chat("m-1", model="m-1", url=url, backoff_s=0.01, cassette=Cassette(folder / "cassette.jsonl", mode))
    return Writer(PaidChat(chat, PRICE, Budget(folder / "ledger.jsonl", Decimal(cap)), Component.GENERATOR))


def maker(folder: Path, url: str, mode: Mode = "auto", cap: str = "1") -> Maker:
    config = load_params(ROOT / "params.yaml").synthesize
    generator = ModelGenerator(writer(folder, url, mode, cap), 0, "CC-BY-4.0")
    return Maker(DatasetVersion(folder), generator, kit(), config, Gate.open(ROOT))


def kept(made: Made) -> list[Example]:
    return read_jsonl(made.path, Example)


def refused(made: Made) -> list[str]:
    """The reasons."""
    return [json.loads(line)["reason"] for line in read_lines(beside(made.path, "refused"))]


def turns(request: dict[str, Any]) -> int:
    """How often the model has been sent its reply back."""
    return sum(message["role"] == "assistant" for message in request["messages"])


def in_turn(replies: list[Any]) -> Callable[[dict[str, Any]], Any]:
    """A new reply for every request."""
    left = iter(replies)
    return lambda request: next(left)


def test_what_it_writes_is_an_example_with_its_prompts_hashes(tmp_path: Path) -> None:
    with serving(in_turn(good())) as double:
        made = maker(tmp_path, double.url).examples(DOMAIN, "train", 8)
    assert len(kept(made)) == 8 and not refused(made) and made.ended is None
    hashes = tuple(prompt.sha256 for prompt in (SYSTEM, TASK, REPAIR, SHORTER))
    for example in kept(made):
        origin = example.provenance
        assert (origin.generator, origin.licence, origin.prompts) == ("model:m-1", "CC-BY-4.0", hashes)
        assert example.entities and example.instruction.startswith("Hello")
    request = double.asked[0]
    form = request["response_format"]["json_schema"]["schema"]
    assert request["model"] == "m-1" and "calls" in form["properties"] and "instruction" in form["required"]
    assert len({asked["messages"][1]["content"] for asked in double.asked}) == 8
    path = DatasetVersion(tmp_path).examples(DOMAIN, "train")
    rows = path.read_text(encoding="utf-8").splitlines()
    assert [Example.model_validate_json(row) for row in rows] == kept(made)
    card = json.loads(path.with_suffix(".card.json").read_text(encoding="utf-8"))
    assert card["examples"] == 8 and Decimal(card["cost_usd"]) == Decimal("0.000107") * 8


def task(kind: str = "change", /, **update: Any) -> dict[str, Any]:
    return written(next(t for t in domain_tasks(kit().domain(DOMAIN), 5, 8, "train") if t.category == kind), **update)


def heldout() -> dict[str, Any]:
    return good("heldout", 1)[0]


BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "no object": (lambda: [1], "Input should be an object"),
    "a key missing": (lambda: {"instruction": "hi"}, "category: Field required"),
    "an unknown key": (lambda: task(code="import os"), "code: Extra inputs are not permitted"),
    "a tool that is none": (lambda: task(calls=[{"tool": "drop_all", "arguments": {}}]), "there is no tool drop_all"),
    "arguments from nowhere": (lambda: task(instruction="please do it"), "nothing tells"),
    "a wrong answer": (lambda: task(answer="It is 99."), "the golden calls do not solve it"),
    "another category": (lambda: task("lookup", category="change"), "do not make it a change"),
    "an answer given away": (
        lambda: (found := task("lookup")) and task("lookup", instruction=f"{found['instruction']} {found['answer']}"),
        "the instruction says the answer",
    ),
    "a fact that nobody needs": (lambda: task(facts={"colour": "green"}), "no call needs the fact colour"),
    "a held-out entity": (heldout, "which is not among the entries shown"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_wrong_is_sent_back_twice_and_then_dropped_with_the_reason(tmp_path: Path, case: str) -> None:
    make, reason = BAD[case]
    with serving(lambda request: make()) as double:
        made = maker(tmp_path, double.url).examples(DOMAIN, "train", 1)
    assert not kept(made) and reason in refused(made)[0], refused(made)
    assert [turns(request) for request in double.asked] == [0, 1, 2]
    assert reason in double.asked[2]["messages"][-1]["content"]


def test_a_repair_in_time_is_kept(tmp_path: Path) -> None:
    fixed = good()[0]
    with serving(lambda request: fixed if turns(request) == 2 else {**fixed, "answer": "no idea"}) as double:
        made = maker(tmp_path, double.url).examples(DOMAIN, "train", 1)
    assert len(kept(made)) == 1 and len(double.asked) == 3


def test_a_run_is_replayed_byte_for_byte_without_a_connection(tmp_path: Path) -> None:
    with serving(in_turn([{}, *good(count=5)])) as double:
        first = maker(tmp_path, double.url).examples(DOMAIN, "train", 5)
        asked = len(double.asked)
    path, spent = DatasetVersion(tmp_path).examples(DOMAIN, "train"), DatasetVersion(tmp_path).spent_usd
    before = path.read_bytes()
    path.unlink()
    again = maker(tmp_path, "http://127.0.0.1:9", "replay", cap="0").examples(DOMAIN, "train", 5)
    assert asked == 6 and kept(again) == kept(first) and path.read_bytes() == before
    assert DatasetVersion(tmp_path).spent_usd == spent > 0


def test_the_cap_ends_the_run_and_keeps_what_was_made(tmp_path: Path) -> None:
    with serving(in_turn(good())) as double:
        made = maker(tmp_path, double.url, cap="0.0145").examples(DOMAIN, "train", 8)
        assert 1 <= len(kept(made)) < 8 and len(double.asked) == len(kept(made))
        assert made.ended is not None and "USD are spent, and the next call could cost" in made.ended
        more = maker(tmp_path, double.url, cap="1").examples(DOMAIN, "train", 8)
        assert len(kept(more)) == 8 and len(double.asked) == 8 and more.ended is None
        assert kept(more)[: len(kept(made))] == kept(made)


def test_an_endpoint_that_fails_ends_the_run_too(tmp_path: Path) -> None:
    with serving([(401, {"error": "who are you"}, 0)]) as double:
        made = maker(tmp_path, double.url).examples(DOMAIN, "train", 3)
    assert kept(made) == [] and "HTTP 401" in str(made.ended)


def test_a_prompt_that_the_model_refuses_is_dropped_and_the_others_are_written(tmp_path: Path) -> None:
    rest = in_turn(good())

    def script(request: dict[str, Any]) -> Any:
        return (200, answer(None, refusal="I cannot help"), 0) if len(double.asked) == 2 else rest(request)

    with serving(script) as double:
        made = maker(tmp_path, double.url).examples(DOMAIN, "train", 3)
    assert len(kept(made)) == 2 and made.ended is None and len(double.asked) == 3


def evolving(request: dict[str, Any]) -> Any:
    """Asked for a task it writes one; asked for a harder one it joins the parent with a look at a free book."""
    text = request["messages"][1]["content"]
    if found := re.search(r"A request with its solution:\n(.*)\n", text):
        parent = json.loads(found[1])
        more = {"tool": "find_books", "arguments": {"reader": "Palla"}}
        words = f"{parent['instruction']} and which books does Palla hold"
        return {**parent, "instruction": words, "calls": [*parent["calls"], more]}
    return good()[turns(request)]


def test_harder_examples_by_a_model_name_their_parent_and_pass_the_same_filters(tmp_path: Path) -> None:
    with serving(evolving) as double:
        parents = kept(maker(tmp_path, double.url).examples(DOMAIN, "train", 1))
        made = maker(tmp_path, double.url).evolved(DOMAIN, "train", 2)
    assert len(kept(made)) == 1 and refused(made)[0] == "asked before"
    (harder,) = kept(made)
    assert harder.provenance.parent == parents[0].id
    assert harder.provenance.prompts == tuple(one.sha256 for one in (SYSTEM, EVOLVE, REPAIR, SHORTER))
    assert len(harder.verifier.golden_calls) == len(parents[0].verifier.golden_calls) + 1


def test_a_harder_example_that_is_not_harder_is_sent_back(tmp_path: Path) -> None:
    with serving(in_turn([good()[0], *[good()[0]] * 3])) as double:
        maker(tmp_path, double.url).examples(DOMAIN, "train", 1)
        made = maker(tmp_path, double.url).evolved(DOMAIN, "train", 1)
    assert not kept(made) and "calls; at least" in refused(made)[0]
    assert len(double.asked) == 4


def test_no_prompt_shows_an_entity_of_the_other_split(tmp_path: Path) -> None:
    domain = kit().domain(DOMAIN)
    names = {e.split(":")[1] for t in domain_tasks(domain, 0, 10, "heldout") for e in t.entities}
    with serving(in_turn(good())) as double:
        maker(tmp_path, double.url).examples(DOMAIN, "train", 8)
    for request in double.asked:
        entries = re.search(r"Entries \(a few of each table\):\n(.*)\n", request["messages"][1]["content"])
        assert entries is not None
        shown = {str(row[key]) for rows in json.loads(entries[1]).values() for row in rows for key in row if key in
                 ("reader", "book")}  # fmt: skip
        assert shown and not shown & names


def test_a_reply_in_a_fence_is_read_and_prose_is_not() -> None:
    plain = json.dumps(good()[0])
    assert parse(WrittenTask, f"```json\n{plain}\n```") == parse(WrittenTask, plain)
    with pytest.raises(DataError, match="Invalid JSON"):
        parse(WrittenTask, f"Here you are: {plain}")


def test_a_value_is_never_taken_for_a_slot() -> None:
    assert Prompt("<<a>> and <<b>>").fill(a="<<b>>", b="x") == "<<b>> and x"


def test_dropped_tasks_do_not_stop_the_generator(tmp_path: Path) -> None:
    replies: Iterator[Any] = iter([{}, {}, {}, *good()])
    with serving(lambda request: next(replies)) as double:
        generator = ModelGenerator(writer(tmp_path, double.url), 0, "Apache-2.0")
        made = list(generator.tasks(kit().domain(DOMAIN), "train", 3))
    assert [isinstance(one, Dropped) for one in made] == [True, False, False]
