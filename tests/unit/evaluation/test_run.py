"""An evaluation that is killed continues to the same episodes, whatever the kill left in the file."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestra.config.schema import Rollout
from orchestra.evaluation.run import Contender, data_hash, evaluate
from orchestra.rollout.parse import format_answer, format_call
from orchestra.rollout.policies.base import Conversation, Policy, ScriptedPolicy
from orchestra.types import Episode, Price, ToolCall
from tests.support.worlds import codec, example, toolkit

LIMITS = Rollout(max_turns=3, max_turn_tokens=64, max_tokens=2000)
EXAMPLES = [example(f"e{n}", instruction=f"what is {n}+1?", answer=str(n + 1)) for n in range(5)]


def decide(conversation: Conversation) -> str:
    if not conversation.turns:
        sum_ = conversation.example.instruction.removeprefix("what is ").rstrip("?")
        return format_call(ToolCall(name="calculator", arguments={"expression": sum_}))
    return format_answer(conversation.turns[0].observation or "")


def contenders(built: list[str]) -> list[Contender]:
    def build(name: str) -> Callable[[], Policy]:
        def made() -> Policy:
            built.append(name)
            return ScriptedPolicy(name, decide, codec().turn)

        return made

    return [Contender(name, build(name), codec(), Price()) for name in ("one", "two")]


def run(folder: Path, file: Path, built: list[str] | None = None) -> dict[str, list[Episode]]:
    seen: list[tuple[str, int, int]] = []
    found = evaluate(
        contenders([] if built is None else built),
        EXAMPLES,
        toolkit(folder),
        LIMITS,
        file=file,
        on_progress=lambda name, done, total: seen.append((name, done, total)),
        chunk=2,
    )
    assert seen == [(name, done, 5) for name in ("one", "two") for done in (2, 4, 5)]
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[Episode]]]:
    folder = tmp_path_factory.mktemp("whole")
    return folder, run(folder, folder / "episodes.jsonl")


def test_every_policy_attempts_every_example_in_order(whole: tuple[Path, dict[str, list[Episode]]]) -> None:
    folder, found = whole
    assert {name: [e.example_id for e in es] for name, es in found.items()} == {
        name: [e.id for e in EXAMPLES] for name in ("one", "two")
    }
    assert all(episode.solved for episodes in found.values() for episode in episodes)
    lines = (folder / "episodes.jsonl").read_text().splitlines()
    assert [Episode.model_validate_json(line) for line in lines] == found["one"] + found["two"]


def test_a_finished_run_builds_nothing(whole: tuple[Path, dict[str, list[Episode]]]) -> None:
    folder, found = whole
    built: list[str] = []
    before = (folder / "episodes.jsonl").read_bytes()
    assert run(folder, folder / "episodes.jsonl", built) == found
    assert built == [] and (folder / "episodes.jsonl").read_bytes() == before


@settings(max_examples=12, deadline=None)
@given(share=st.floats(0, 1), rubbish=st.sampled_from([b"", b'{"half', b"\x00\xff", b"null\n", b"{}\n"]))
def test_a_file_cut_anywhere_continues_to_the_same_bytes(
    whole: tuple[Path, dict[str, list[Episode]]], share: float, rubbish: bytes
) -> None:
    folder, found = whole
    complete = (folder / "episodes.jsonl").read_bytes()
    file = folder / "cut.jsonl"
    file.write_bytes(complete[: int(share * len(complete))] + rubbish)
    assert run(folder, file) == found
    assert file.read_bytes() == complete


def test_episodes_of_another_plan_are_not_used(whole: tuple[Path, dict[str, list[Episode]]]) -> None:
    folder, found = whole
    file = folder / "other.jsonl"
    shutil.copyfile(folder / "episodes.jsonl", file)
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join([*lines[:2], lines[4], *lines[2:4]]))
    assert run(folder, file) == found
    assert file.read_text().splitlines(keepends=True) == lines


def test_the_data_hash_sees_examples_tools_and_limits() -> None:
    one = data_hash(EXAMPLES, {"a": "1", "b": "2"}, LIMITS)
    assert one == data_hash(EXAMPLES, {"b": "2", "a": "1"}, LIMITS)
    others = [
        data_hash(EXAMPLES[:-1], {"a": "1", "b": "2"}, LIMITS),
        data_hash(EXAMPLES, {"a": "1", "b": "3"}, LIMITS),
        data_hash(EXAMPLES, {"a": "1", "b": "2"}, LIMITS.model_copy(update={"max_turns": 4})),
    ]
    assert len({one, *others}) == 4
