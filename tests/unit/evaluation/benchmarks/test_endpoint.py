"""A chat endpoint or a gateway: lost attempts are booked and reported alike, and each release has its own results."""

import sys
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from orchestra.accounting.ledger import total
from orchestra.errors import BudgetError, ConfigError, ServiceError
from orchestra.evaluation.benchmarks.endpoint import EndpointModel
from orchestra.evaluation.benchmarks.hle.harness import harnessed
from orchestra.evaluation.benchmarks.models import GATEWAY_MODEL, ModelSettings
from orchestra.evaluation.benchmarks.run import Evaluation
from orchestra.evaluation.benchmarks.served import Served, served
from orchestra.files.jsonl import read_jsonl
from orchestra.rollout.parse import format_answer
from orchestra.serving.app import create_app
from orchestra.serving.gateway import Gateway
from orchestra.tools.experts.judging import URL
from orchestra.types import Category, Charge, Component
from tasks.experiments.wanted import Wanted, options
from tests.support.benchmarks import MODEL, evaluation, pairs, player, published
from tests.support.endpoint import Double, answer, serving
from tests.support.real_gateway import listening
from tests.support.serving_world import backend
from tests.support.worlds import example

LOST, BROKEN = (0, None, 0.0), (502, {"error": {"message": "a tool failed"}}, 0.0)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pause between two tries."""
    monkeypatch.setattr("orchestra.tools.chat.retries.MAX_BACKOFF_S", 0.0)


def answers(*tries: Any) -> Any:
    """The tested model replies with these in turn, again and again; the judge as ever."""
    asked = [0]

    def reply(request: dict[str, Any]) -> Any:
        if request["model"] not in (MODEL, GATEWAY_MODEL):
            return player("hle")(request)
        asked[0] += 1
        return tries[(asked[0] - 1) % len(tries)]

    return reply


def spent(usd: str = "0.01", seconds: float = 0.0) -> Any:
    """A gateway's answer that cost so much."""
    return (200, answer("12") | {"orchestra": {"cost_usd": usd, "stop": "answered"}}, seconds)


def gateway(folder: Path, double: Double, count: int, **more: Any) -> Evaluation:
    """An evaluation of the double as a gateway that may spend 1 USD a question."""
    made = evaluation("hle", published("hle", folder, pairs("hle")[:count]), folder, **more)
    return replace(made, model=replace(made.model, model=double.url, price=None, question_usd=Decimal(1)))


def booked(made: Evaluation) -> Decimal:
    """Dollars of the tested model in the ledger."""
    charges = read_jsonl(made.folder / "ledger.jsonl", Charge)
    return total(charge for charge in charges if charge.component is Component.POLICY)


@pytest.mark.parametrize("lost", [LOST, BROKEN])
def test_lost_attempts_at_a_gateway_keep_to_the_cap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: Any) -> None:
    with serving(answers(lost, lost, spent("1"))) as double:
        monkeypatch.setenv(URL, double.url)
        made = gateway(tmp_path, double, 4, concurrency=1, cap_usd=Decimal(5))
        with pytest.raises(BudgetError, match="are spent"):
            made.attempt(made.shards)
        asked = sum(request["model"] == GATEWAY_MODEL for request in double.asked)
    assert booked(made) == asked == 4
    (attempt,) = made.attempts()
    assert attempt.cost_usd == 3


def test_a_gateways_question_that_fails_for_good_is_reported_with_its_dollars(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(answers(LOST)) as double:
        monkeypatch.setenv(URL, double.url)
        made = gateway(tmp_path, double, 1)
        made.attempt(made.shards)
    (attempt,) = made.attempts()
    assert attempt.failure and attempt.cost_usd == booked(made) == len(double.asked) > 1


def test_an_answer_has_as_long_as_the_command_gives_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = options().parse_args(["--benchmark", "hle", "--model", "m"])
    assert told.deadline == Wanted.deadline == ModelSettings.deadline_s > 5 * 600
    with serving(answers(spent(seconds=0.5))) as double:
        monkeypatch.setenv(URL, double.url)
        made = gateway(tmp_path, double, 2, limit=1)
        hasty = replace(made, model=replace(made.model, deadline_s=0.1))
        hasty.attempt(hasty.shards)
        (attempt,) = hasty.attempts()
        assert "no answer within 0.1 s" in attempt.failure and attempt.cost_usd == booked(made) == 1
        hasty.journal.forget_failures(hasty.shards[0])
        assert made.attempt(made.shards) == 1 and made.attempts()[0].answer == "12"


def test_questions_to_a_gateway_wait_for_those_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(answers(spent(seconds=0.05))) as double:
        monkeypatch.setenv(URL, double.url)
        made = gateway(tmp_path, double, 12, concurrency=8, cap_usd=Decimal(5))
        assert made.attempt(made.shards) == 12
    assert booked(made) == Decimal("0.12")


def test_what_a_plain_endpoint_is_reported_to_cost_is_what_is_booked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uncounted = {"choices": answer("12")["choices"]}
    with serving(answers(LOST, (200, answer("12"), 0), (200, uncounted, 0), LOST, LOST, LOST)) as double:
        monkeypatch.setenv(URL, double.url)
        file, tape = published("hle", tmp_path, pairs("hle")[:3]), str(tmp_path / "tape.jsonl")
        made = evaluation("hle", file, tmp_path, double.url, concurrency=1, tape=("record", tape))
        made.attempt(made.shards)
    again = evaluation("hle", file, tmp_path / "again", double.url, tape=("replay", tape))
    again.attempt(again.shards)
    assert again.attempts() == made.attempts() and not booked(again)
    assert [bool(attempt.failure) for attempt in made.attempts()] == [False, False, True]
    assert sum(attempt.cost_usd for attempt in made.attempts()) == booked(made)
    assert all(attempt.cost_usd > 0 for attempt in made.attempts())


def test_a_tested_model_is_asked_as_the_entries_of_its_provider_and_its_row_say(tmp_path: Path) -> None:
    made = evaluation("hle", published("hle", tmp_path), tmp_path)
    world = made.params.world.model_copy(update={"catalogue": "data/catalogue/real.yaml", "price_date": "2026-08-06"})
    model = replace(made.model, params=made.params.model_copy(update={"world": world}))
    names = {"openai/gpt-5-mini": "max_completion_tokens", "together/llama-3.3-70b-turbo": "max_tokens"}
    for price, name in names.items():
        opened = replace(model, price=price).open(made.budget(), None)
        assert isinstance(opened, EndpointModel) and opened.limit_parameter == name
        assert replace(model, price=price).own_temperature == (price == "openai/gpt-5-mini"), "its entries say 1"
    assert replace(model, model="o3-mini@http://127.0.0.1:9/v1").own_temperature


def test_another_release_gets_results_of_its_own_and_a_replay_those_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tape = str(tmp_path / "tape.jsonl")
    with serving(answers(spent("0.1"), spent("0.2"))) as double:
        monkeypatch.setenv(URL, double.url)

        def made(fingerprint: str, **more: Any) -> Evaluation:
            double.health = (200, {"status": "ok", "fingerprint": fingerprint, "version": "3"})
            return gateway(tmp_path, double, 1, **more)

        first, second = made("f1", tape=("auto", tape)), made("f1", tape=("auto", tape))
        assert first.attempt(first.shards) == 1 and second.attempt(second.shards) == 0
        other = made("f2", tape=("auto", tape))
        assert other.attempt(other.shards) == 1
        assert [one.cost_usd for run in (first, other) for one in run.attempts()] == [Decimal("0.1"), Decimal("0.2")]
        asked = len(double.asked)
    again = replace(made("f3", tape=("replay", tape)), root=tmp_path / "again")
    again.attempt(again.shards)
    assert again.attempts() == other.attempts() and len(double.asked) == asked
    assert again.folder.name == other.folder.name != first.folder.name


def test_a_gateway_that_cannot_say_what_it_serves_is_asked_nothing(tmp_path: Path) -> None:
    with serving(answers(spent())) as double:
        double.health = (503, {"error": {"message": "the model is being loaded"}})
        with pytest.raises(ServiceError, match=r"/health: the gateway does not say what it serves"):
            _ = gateway(tmp_path, double, 1).folder
    with pytest.raises(ServiceError, match="see that it answers there"):
        served(double.url, None)
    assert not double.asked


def test_a_release_during_an_evaluation_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"cost_usd": "0.1", "stop": "answered", "version": "4"}
    with serving(answers((200, answer("12") | {"orchestra": told}, 0))) as double:
        monkeypatch.setenv(URL, double.url)
        double.health = (200, {"fingerprint": "f1", "version": "3"})
        made = gateway(tmp_path, double, 2, concurrency=1)
        with pytest.raises(ConfigError, match="it answers with version 4, and version 3 is measured"):
            made.attempt(made.shards)
    assert made.attempts() == [] and booked(made) == Decimal("0.1")


def test_our_gateway_says_what_it_serves(tmp_path: Path) -> None:
    own = Gateway(tmp_path, backend=backend(tmp_path, lambda _: format_answer("12")))
    with listening(create_app(own, load=False)) as port:
        found = served(f"http://127.0.0.1:{port}/v1", None)
    assert found == Served(fingerprint=own.active.serving.fingerprint, version=own.active.serving.version)


def test_an_endpoint_plays_no_domain(tmp_path: Path) -> None:
    file = tmp_path / "heldout.jsonl"
    file.write_text(example(domain="mock", category=Category.LOOKUP).model_dump_json() + "\n", encoding="utf-8")
    made = evaluation("own", file, tmp_path)
    with pytest.raises(ConfigError, match="needs the tools of the domain mock — measure a checkpoint, or --only topic"):
        made.attempt(made.shards)


def test_inspect_too_asks_no_endpoint_without_a_price(tmp_path: Path) -> None:
    made = evaluation("hle", published("hle", tmp_path), tmp_path)
    with pytest.raises(ConfigError, match="--price PROVIDER/MODEL"):
        harnessed(replace(made, model=replace(made.model, price=None)))


@pytest.mark.parametrize("limits", [{"question_usd": Decimal(1)}, {"deadline_s": 60.0}])
def test_limits_that_inspect_cannot_keep_are_refused(tmp_path: Path, limits: dict[str, Any]) -> None:
    made = evaluation("hle", published("hle", tmp_path), tmp_path)
    with pytest.raises(ConfigError, match="leave out --question-usd and --deadline"):
        harnessed(replace(made, model=replace(made.model, **limits)))


INSPECT = """#!{python}
import json
sample = {{"id": "h000", "error": None, "orchestra": {{"version": "4"}}}}
last = {{"status": "success", "figures": {{}}, "versions": {{"inspect_ai": "0", "inspect_evals": "0"}}}}
print(json.dumps(sample))
print(json.dumps(last))
"""
"""In place of the package: one answer of another release."""


def test_a_release_while_inspect_asks_ends_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / ".venv-inspect/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(INSPECT.format(python=sys.executable))
    python.chmod(0o755)
    with serving(answers(spent())) as double:
        monkeypatch.setenv(URL, double.url)
        double.health = (200, {"fingerprint": "f1", "version": "3"})
        made = gateway(tmp_path, double, 1)
        made = replace(made, model=replace(made.model, question_usd=None))
        with pytest.raises(ConfigError, match="it answers with version 4, and version 3 is measured"):
            harnessed(made)
