"""Verdicts on served answers: who gives them, what they may cost, that none is paid twice, and both sides alike."""

import inspect
import json
import os
import shutil
import signal
import threading
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from flows.retraining import served_drift
from monitoring.drift import MIN_EPISODES
from orchestra.evaluation.report import EVALUATION as REPORTS
from orchestra.evaluation.report import TRAINED, Comparison
from orchestra.files.examples import read_examples
from orchestra.files.jsonl import write_jsonl
from orchestra.serving.records.telemetry import TRACES, served
from orchestra.serving.releases.state import Serving, write
from orchestra.tools.chat.client import Chat
from orchestra.types import Charge, Component, Episode
from tasks.platform.evidence import HELDOUT, ReferenceEpisode, keep_reference
from tasks.records import judged
from tasks.records.judged import EVALUATION, JUDGED, Sampler, Spent, drawn, figures
from tests.support.endpoint import answer, serving
from tests.support.worlds import ROOT, change, episode, example

RELEASE = "f" * 64
JUDGE = {"model": "judge-1", "price": "openai/gpt-5", "rubric": "frames", "max_output_tokens": 200}
RIGHT, WRONG = "Explanation: so.\nDecision: TRUE", "Explanation: so.\nDecision: FALSE"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A release whose evaluation solved 3 of 4 at 1 cent each."""
    shutil.copytree(ROOT / "data/catalogue", tmp_path / "data/catalogue")
    shutil.copy(ROOT / "params.yaml", tmp_path)
    change(tmp_path, world={"domains": []}, deploy={"judging": {"share": 1.0}})
    write(
        tmp_path,
        Serving(
            version="1", checkpoint="x", checkpoint_hash="x", engine="vllm", params={}, fingerprint=RELEASE, code="x"
        ),
    )
    examples = [example(f"e{n}", instruction=f"what is {n}+1?", answer=str(n + 1)) for n in range(100)]
    (tmp_path / HELDOUT).parent.mkdir(parents=True, exist_ok=True)
    write_jsonl(tmp_path / HELDOUT, examples)
    return tmp_path


def look(root: Path, *more: ReferenceEpisode) -> Spent:
    """What the monitor finds beside that evaluation, and `more` of it."""
    found = [
        ReferenceEpisode(question=f"what is {n}+1?", episode=one)
        for n, one in enumerate(evaluated(100, lambda n: episode(cost_usd="0.01", solved=bool(n % 4))))
    ]
    return judged.look(root, RELEASE, served(root / TRACES, RELEASE), [*found, *more])


def evaluated(count: int, made: Callable[[int], Episode]) -> list[Episode]:
    """The trained model's episodes of the held-out questions."""
    return [made(n).model_copy(update={"example_id": f"e{n}", "policy": TRAINED}) for n in range(count)]


def report(root: Path, checkpoint: str, episodes: list[Episode]) -> None:
    """What the evaluate stage leaves behind."""
    (root / REPORTS).mkdir(parents=True, exist_ok=True)
    comparison = Comparison(
        policies={}, examples=len(episodes), data_hash="d", checkpoints={TRAINED: checkpoint}, price_date="2025-11-15",
        bootstrap=1, seed=0, simulated=True,
    )  # fmt: skip
    (root / REPORTS / "comparison.json").write_text(comparison.model_dump_json())
    write_jsonl(root / REPORTS / "episodes.jsonl", episodes)


def request(
    root: Path, number: int, question: str, made: Episode, release: str = RELEASE, domain: str | None = None
) -> None:
    record = {
        "trace_id": f"{number:032x}",
        "fingerprint": release,
        "request": {"messages": [{"role": "user", "content": question}], "domain": domain},
        "episode": json.loads(made.model_dump_json()),
    }
    (root / TRACES).mkdir(parents=True, exist_ok=True)
    with (root / TRACES / "2026-01-01.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def known(root: Path, count: int, right: Callable[[int], bool], usd: str) -> None:
    """Requests for held-out questions."""
    for number in range(count):
        said = str(number % 100 + 1) if right(number) else "no idea"
        request(root, number, f"what is {number % 100}+1?", episode(cost_usd=usd, answer=said))


def test_a_rule_judges_what_is_known_and_costs_nothing(root: Path) -> None:
    known(root, MIN_EPISODES, lambda number: bool(number % 4), "0.01")
    request(root, 1000, "who are you?", episode(cost_usd=1))
    request(root, 1001, "what is 1+1?", episode(cost_usd=1, solved=None))
    request(root, 1002, "what is 1+1?", episode(cost_usd=1), release="another")
    spent = look(root)
    assert spent.signals == [] and f"in {MIN_EPISODES} verdicts by rule" in spent.line
    found = figures(root)
    assert found is not None and found.by == "rule" and not found.rose
    assert found.usd_per_solved == pytest.approx(0.0135, abs=1e-3) and found.evaluated_usd_per_solved == pytest.approx(
        1 / 75
    )
    assert not list((root / JUDGED).glob("ledger-*"))
    before = (root / JUDGED / f"{RELEASE}.jsonl").read_text()
    look(root)
    assert (root / JUDGED / f"{RELEASE}.jsonl").read_text() == before, "nothing is judged twice"


def test_of_the_held_out_set_only_what_is_asked_for_is_kept(root: Path) -> None:
    sampler = Sampler(root, None, RELEASE, ())  # type: ignore[arg-type]
    assert sampler._rules({"what is 7+1?", "who are you?"}).keys() == {"what is 7+1?"}
    (root / HELDOUT).write_text("no example")
    assert sampler._rules(set()) == {}, "nothing is read where nothing is due"


def test_a_rule_is_compared_with_what_it_judged_of_the_evaluation(root: Path) -> None:
    """A domain's tasks cost little and are never judged by a rule where they are served."""
    tasks = [example(f"d{n}", instruction=f"ship order {n}", answer=None, kind="database") for n in range(100)]
    with (root / HELDOUT).open("a", encoding="utf-8") as file:
        file.write("".join(one.model_dump_json() + "\n" for one in tasks))
    known(root, 200, lambda number: bool(number % 4), "0.01")
    cheap = [
        ReferenceEpisode(
            question=f"ship order {n}", episode=episode(cost_usd="0.0001").model_copy(update={"example_id": f"d{n}"})
        )
        for n in range(100)
    ]
    spent = look(root, *cheap)
    found = figures(root)
    assert found is not None and found.evaluated_usd_per_solved == pytest.approx(1 / 75)
    assert spent.signals == [] and not found.rose


def _of_a_domain(name: str) -> Episode:
    task = episode(cost_usd="0.0001")
    called = task.turns[0].model_copy(update={"charges": (Charge(component=Component.DOMAIN, name="ship"),)})
    return task.model_copy(update={"example_id": name, "turns": (called, *task.turns)})


def test_another_held_out_set_does_not_end_the_comparison(root: Path) -> None:
    """A later run may replace the set, and its candidate be refused: the champion serves on."""
    known(root, 200, lambda number: bool(number % 4), "0.01")
    tasks = [ReferenceEpisode(question=f"ship order {n}", episode=_of_a_domain(f"d{n}")) for n in range(100)]
    look(root, *tasks)
    (root / HELDOUT).write_text(example("new", instruction="what is 7*7?", answer="49").model_dump_json() + "\n")
    assert look(root, *tasks).signals == []
    found = figures(root)
    assert found is not None and found.by == "rule"
    assert found.evaluated_usd_per_solved == pytest.approx(1 / 75)


def test_a_rise_is_told_with_both_figures(root: Path) -> None:
    known(root, 200, lambda number: number % 4 == 0, "0.02")
    (signal,) = look(root).signals
    assert signal.name == "dollars per solved request" and signal.current == pytest.approx(0.08)
    found = figures(root)
    assert found is not None and found.rose and found.verdicts == 200


def test_too_few_verdicts_say_so(root: Path) -> None:
    known(root, MIN_EPISODES - 1, lambda number: False, "9")
    spent = look(root)
    assert spent.signals == [] and f"({MIN_EPISODES - 1} of {MIN_EPISODES})" in spent.line
    found = figures(root)
    assert found is not None and found.by is None and found.usd_per_solved is None


def test_the_sample_is_the_share(root: Path) -> None:
    names = [f"{number:032x}" for number in range(20_000)]
    assert sum(drawn(name, 0.1) for name in names) / len(names) == pytest.approx(0.1, abs=0.01)
    assert not any(drawn(name, 0.0) for name in names) and all(drawn(name, 1.0) for name in names)


@pytest.fixture
def asks(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With a judge, and requests that no rule knows."""
    change(root, world={"judge": JUDGE, "domains": []})
    monkeypatch.setattr(judged, "EVALUATED", 3)
    for number in range(4):
        request(root, number, f"riddle {number}?", episode(cost_usd="0.01", answer="x" if number else None))
    return root


def verdicts(root: Path) -> dict[str, bool]:
    return {one.id: one.solved for one in Sampler(root, None, RELEASE, ()).kept()}  # type: ignore[arg-type]


def test_the_judge_judges_both_sides_and_the_unanswered_cost_nothing(
    asks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(
        lambda body: (200, answer(WRONG if "riddle 2" in body["messages"][0]["content"] else RIGHT), 0)
    ) as double:
        monkeypatch.setenv("ORCHESTRA_JUDGE_URL", f"http://127.0.0.1:{double.server_port}/v1")
        look(asks)
        said = verdicts(asks)
        assert [said[f"{EVALUATION}e{n}"] for n in range(3)] == [True] * 3
        assert [said[f"{n:032x}"] for n in range(4)] == [False, True, False, True]
        assert len(double.asked) == 6
        look(asks)
        assert len(double.asked) == 6, "none is paid for twice"
    (ledger,) = (asks / JUDGED).glob("ledger-*")
    charges = [json.loads(line) for line in ledger.read_text().splitlines()]
    assert len(charges) == 6 and all(Decimal(one["cost_usd"]) > 0 for one in charges)


def test_the_days_cap_holds_and_is_told(asks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change(asks, deploy={"judging": {"share": 1.0, "daily_usd": 1e-6}})
    with serving(lambda body: (200, answer(RIGHT), 0)) as double:
        monkeypatch.setenv("ORCHESTRA_JUDGE_URL", f"http://127.0.0.1:{double.server_port}/v1")
        line = look(asks).line
        assert double.asked == []
    assert "6 not judged: " in line and "USD are spent" in line
    assert verdicts(asks) == {f"{0:032x}": False}, "what has no answer needs no judge"


def test_a_judge_that_fails_is_told_and_no_verdict(asks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ORCHESTRA_JUDGE_URL", raising=False)
    assert "not judged: " in look(asks).line and verdicts(asks) == {}
    with serving(lambda body: (200, answer("I would rather not say."), 0)) as double:
        monkeypatch.setenv("ORCHESTRA_JUDGE_URL", f"http://127.0.0.1:{double.server_port}/v1")
        assert "6 not judged: " in look(asks).line
    assert verdicts(asks) == {f"{0:032x}": False}


def test_a_look_waits_as_long_as_one_verdict_may_take_and_another_look_for_it() -> None:
    deadline_s = inspect.signature(Chat).parameters["deadline_s"].default
    assert deadline_s < judged.JUDGE_S < judged.LOCK_S and judged.LOOK_S > judged.LOCK_S + judged.JUDGE_S


@pytest.mark.parametrize("limits", [{"concurrency": 2}, {"requests_per_minute": 2}])
def test_no_verdict_waits_for_a_place_until_it_is_too_late(
    asks: Path, monkeypatch: pytest.MonkeyPatch, limits: dict[str, int]
) -> None:
    monkeypatch.setattr(judged, "JUDGE_S", 0.5)
    file = asks / "data/catalogue/tools.yaml"
    text = file.read_text(encoding="utf-8")
    text = text.replace("providers:\n", f"providers:\n  openai: {json.dumps(limits)}\n")
    file.write_text(text, encoding="utf-8")
    with serving(lambda body: (200, answer(RIGHT), 0.3)) as double:
        monkeypatch.setenv("ORCHESTRA_JUDGE_URL", f"http://127.0.0.1:{double.server_port}/v1")
        assert "not judged" not in look(asks).line
    assert len(double.asked) == len(verdicts(asks)) == 2, "each that is paid for has its verdict"


def test_a_verdict_is_kept_though_the_monitor_ends_before_the_others(
    asks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def said(body: dict[str, Any]) -> tuple[int, Any, float]:
        if "riddle" not in body["messages"][0]["content"]:
            return 200, answer(RIGHT), 0
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        return 200, answer(RIGHT), 1

    monkeypatch.setattr(judged, "AT_ONCE", 4)
    # Another test of this process may have left a handler of its own.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with serving(said) as double:
            monkeypatch.setenv("ORCHESTRA_JUDGE_URL", f"http://127.0.0.1:{double.server_port}/v1")
            with pytest.raises(KeyboardInterrupt):
                look(asks)
    finally:
        signal.signal(signal.SIGINT, before)
    assert verdicts(asks) == {f"{EVALUATION}e{n}": True for n in range(3)}


def test_an_outage_of_the_tools_is_told_though_no_episode_is_left_to_compare(root: Path) -> None:
    report(root, "x", evaluated(99, lambda n: episode(cost_usd="0.01")))
    for number in range(MIN_EPISODES):
        request(root, number, "what is 1+1?", episode(solved=None))
    told, signals = served_drift(root)
    assert [signal.name for signal in signals or ()] == ["share lost to tools"]
    assert told.startswith("share lost to tools: 1, ") and f"other drift (0 of {MIN_EPISODES})" in told


def test_drift_is_told_from_what_serves_though_another_candidate_was_evaluated_since(root: Path) -> None:
    usual = evaluated(99, lambda n: episode(cost_usd="0.01", calls={"gpt-5": 1}))
    for number, one in enumerate(usual):
        request(root, number, "who are you?", one)
    report(root, "x", usual)
    assert served_drift(root)[1] == []
    keep_reference(root, "x", {one.id: one for one in read_examples(root / HELDOUT)}, usual)
    report(root, "refused", evaluated(99, lambda n: episode(cost_usd="1")))
    told, signals = served_drift(root)
    assert signals == [] and told.startswith("no drift; ")


def kinds(number: int) -> Episode:
    """Every fifth is a domain's task, and calls a tool of its own."""
    return _of_a_domain(f"e{number}") if number % 5 == 0 else episode(cost_usd="0.02", calls={"gpt-5": 1})


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "in reports"])
def test_callers_that_name_no_domain_or_only_one_are_no_drift(root: Path, kept: bool) -> None:
    held = list(read_examples(root / HELDOUT))
    usual = [one for part in range(10) for one in evaluated(100, kinds)]
    usual = [one.model_copy(update={"example_id": f"{one.example_id}-{n // 100}"}) for n, one in enumerate(usual)]
    tasks = [
        held[n % 100].model_copy(update={"id": one.example_id, "domain": None if n % 5 else "travel"})
        for n, one in enumerate(usual)
    ]
    write_jsonl(root / HELDOUT, tasks)
    report(root, "x", usual)
    if kept:
        keep_reference(root, "x", {one.id: one for one in tasks}, usual)
    for number in range(300):
        request(root, number, "who are you?", kinds(1))
    assert served_drift(root)[1] == []
    shutil.rmtree(root / TRACES)
    for number in range(150):
        request(root, number, "book it", kinds(0), domain="travel")
    assert served_drift(root)[1] == []
    shutil.rmtree(root / TRACES)
    for number in range(150):  # The domain's tools are not called any more.
        request(root, number, "book it", kinds(1), domain="travel")
    assert "mix of tools (share that moved)" in [one.name for one in served_drift(root)[1] or ()]


def test_without_its_own_evaluation_no_drift_is_told(root: Path) -> None:
    report(root, "refused", evaluated(99, lambda n: episode(cost_usd="1")))
    for number in range(MIN_EPISODES):
        request(root, number, "what is 1+1?", episode(cost_usd="0.01", answer="2"))
    told, signals = served_drift(root)
    assert signals is None and told.startswith("drift cannot be told: no evaluation of version 1 is here; ")
    found = figures(root)
    assert found is not None and found.by is None, "nor what a solved request costs beside another model's"


def test_the_judge_judges_the_answers_of_what_serves(asks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = evaluated(3, lambda n: episode(cost_usd="0.01", answer="ours"))
    keep_reference(asks, "x", {one.id: one for one in read_examples(asks / HELDOUT)}, made)
    report(asks, "refused", evaluated(3, lambda n: episode(cost_usd="1", answer="theirs")))
    remade = [example(f"e{n}", instruction=f"another question {n}?") for n in range(3)]
    write_jsonl(asks / HELDOUT, remade)
    with serving(lambda body: (200, answer(RIGHT), 0)) as double:
        monkeypatch.setenv("ORCHESTRA_JUDGE_URL", f"http://127.0.0.1:{double.server_port}/v1")
        served_drift(asks)
    texts = [one["messages"][0]["content"] for one in double.asked]
    assert sum("ours" in text for text in texts) == 3 and not any("theirs" in text for text in texts)
    assert not any("another question" in text for text in texts), "each is judged under its own question"


def test_nothing_serves(root: Path) -> None:
    shutil.rmtree(root / ".state")
    assert served_drift(root) == ("nothing serves", None) and figures(root) is None
