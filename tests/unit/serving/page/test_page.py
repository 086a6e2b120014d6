"""The page at `/`: nothing from elsewhere, and its script over a stand-in for the browser (see `test_browser`)."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from orchestra.serving.page import PAGE
from tests.support.serving_world import backend
from tests.unit.serving.test_gateway import call

NODE = shutil.which("node")
SCRIPT = Path(__file__).with_name("page.mjs")
CARD = {"version": "7", "strongest_expert": "gpt-5", "max_message_tokens": 900}
MODELS = {"text": json.dumps({"data": [CARD]})}
LOADING = {"status": 503, "text": json.dumps({"error": {"message": "the model is being loaded"}})}
ATTACK = "<img src=x onerror=document.title='broken'>"


def test_it_is_static_and_asks_nobody_else(tmp_path: Path) -> None:
    reply = call(backend(tmp_path), tmp_path, "GET", "/")
    policy = reply.headers["content-security-policy"]
    assert reply.status_code == 200 and "default-src 'none'" in policy and "connect-src 'self'" in policy
    text = PAGE.read_text(encoding="utf-8")
    assert re.findall(r"https?://", text) == [] and "innerHTML" not in text and "document.write" not in text


def test_its_parts_can_be_reached_by_keyboard_and_are_named() -> None:
    text = PAGE.read_text(encoding="utf-8")
    form = text.partition("<form")[2].partition("</form>")[0]
    fields = re.findall(r"<(?:textarea|input|select)\b[^>]*>", form)
    assert len(fields) == form.count("<label") and "tabindex" not in text and 'aria-live="polite"' in text
    assert ":focus-visible" in text and "prefers-color-scheme: dark" in text and "width=device-width" in text


def played(posts: list[dict[str, Any]], steps: list[Any], *, models: Any = None, **fields: Any) -> dict[str, Any]:
    """What the page's script sends and shows, with `fields` set before the steps."""
    if NODE is None:
        pytest.skip("no node here: apt-get install nodejs")
    told = {"models": models or [MODELS], "posts": posts, "steps": steps, "set": fields}
    done = subprocess.run([NODE, SCRIPT, PAGE], input=json.dumps(told), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def said(text: str) -> dict[str, Any]:
    return {"choices": [{"delta": {"content": text}, "finish_reason": None}]}


def called(name: str, observation: str | None, cost_usd: float = 0.041) -> dict[str, Any]:
    call = {"name": name, "arguments": {"question": "q"}, "observation": observation}
    return {"choices": [{"delta": {}}], "orchestra": {"tool_call": {**call, "cost_usd": cost_usd, "latency_s": 96}}}


def ended(stop: str, finish: str = "stop") -> dict[str, Any]:
    account = {"cost_usd": 0.0412, "latency_s": 96, "wall_s": 1, "stop": stop}
    return {"choices": [{"delta": {}, "finish_reason": finish}], "orchestra": account}


def stream(*events: dict[str, Any], hang: bool = False) -> dict[str, Any]:
    return {"events": [*events, *([] if hang else ["[DONE]"])], "hang": hang}


def test_beside_the_answer_stands_the_experts_own_reply_and_both_cost_what_was_typed() -> None:
    answer = stream(called("calculator", "888", 0), said("888"), ended("answered"))
    expert = stream(called("gpt-5", "It is 888."), said("I cannot know that."), ended("answered"))
    found = played([answer, expert], ["submit"], compare={"checked": True}, budget={"value": "0.10"})
    assert [one["budget_usd"] for one in found["sent"]] == ["0.05", "0.05"]
    assert found["sent"][1]["preference"] == {"tools_allowed": ["gpt-5"], "prefer": ["gpt-5"]}
    left, right = found["panels"]
    assert left["answer"] == "888" and right["title"] == "gpt-5's own reply" and right["answer"] == "It is 888."
    assert right["bill"].startswith("$0.041200") and not found["stop"]
    alone = played([answer], ["submit"], budget={"value": "0.10"})
    assert [one["budget_usd"] for one in alone["sent"]] == ["0.10"]


@pytest.mark.parametrize(
    "events",
    [
        [said("I cannot know that.")],
        [called("calculator", "error: no tool named calculator", 0), said("888")],
        [called("gpt-5", "error: gpt-5: has no argument q", 0), said("888")],
        [called("gpt-5", None), said("888")],
    ],
)
def test_an_expert_that_was_not_asked_has_no_answer(events: list[dict[str, Any]]) -> None:
    answer = stream(said("888"), ended("answered"))
    found = played([answer, stream(*events, ended("answered"))], ["submit"], compare={"checked": True})
    shown = found["panels"][1]
    assert shown["answer"] == "no reply of gpt-5: the small model did not call it, or the call failed"
    assert shown["bill"].startswith("$0.041200")


def test_what_serves_is_asked_again_once_it_is_loaded() -> None:
    answer = stream(said("888"), ended("answered"))
    found = played([answer, answer], ["submit"], models=[LOADING, MODELS], compare={"checked": True})
    assert [one["title"] for one in found["panels"]] == ["orchestra", "gpt-5's own reply"]
    found = played([answer], ["submit"], models=[LOADING, LOADING], compare={"checked": True})
    assert found["panels"][1]["title"] == "nothing is compared"
    assert found["panels"][1]["error"] == "the model is being loaded"
    none = {"text": json.dumps({"data": [{**CARD, "strongest_expert": None}]})}
    found = played([answer], ["submit"], models=[none], compare={"checked": True}, budget={"value": "0.10"})
    assert found["panels"][1]["error"] == "the catalogue has no expert" and found["sent"][0]["budget_usd"] == "0.10"


def test_a_demonstration_says_so_and_offers_questions_to_try() -> None:
    told = {**CARD, "notice": "a made-up world", "to_try": ["When was Opal?", ATTACK]}
    answer = stream(said("1712"), ended("answered"))
    found = played([answer], [{"try": 0}, "submit"], models=[{"text": json.dumps({"data": [told]})}])
    assert found["notice"] == "Note: a made-up world. Questions to try:" and found["tries"] == told["to_try"]
    assert found["sent"][0]["messages"][0]["content"] == "When was Opal?"
    other = played([], [], models=[{"text": json.dumps({"data": [{**CARD, "notice": None, "to_try": []}]})}])
    assert other["notice"] == "" and other["tries"] == []


def test_what_was_said_and_spent_stays_after_a_stop() -> None:
    half = stream(called("gpt-5", "Ada"), said("The founder was "), hang=True)
    (shown,) = played([half], ["submit", "stop"])["panels"]
    assert shown["answer"] == "The founder was " and "$0.041000" in shown["calls"][0]
    assert shown["error"] == "stopped; calls made until then are charged"


def test_a_failure_shows_what_it_cost() -> None:
    account = {"cost_usd": 0.041, "latency_s": 96, "wall_s": 1, "stop": "malformed"}
    failure: dict[str, Any] = {"error": {"message": "the model did not write a readable turn"}, "orchestra": account}
    (shown,) = played([stream(called("gpt-5", None), said("So"), failure)], ["submit"])["panels"]
    assert shown["error"] == failure["error"]["message"] and shown["bill"].startswith("$0.041000")
    assert shown["answer"] == "So" and "→ failed · $0.041000" in shown["calls"][0]
    (shown,) = played([stream(called("gpt-5", None, 0), ended("budget", "length"))], ["submit"])["panels"]
    assert "→ not called · $0.000000" in shown["calls"][0] and shown["answer"] == "no answer (budget)"


def test_half_an_answer_does_not_look_whole() -> None:
    cut = stream(said("The three are Ada, "), ended("token_limit", "length"))
    (shown,) = played([cut], ["submit"])["panels"]
    assert shown["answer"] == "The three are Ada, " and shown["error"] == "cut off (token_limit)"
    (shown,) = played([{"events": [said("The three are Ada, ")]}], ["submit"])["panels"]
    assert shown["error"] == "the connection ended before the answer did"


@pytest.mark.parametrize(
    ("key", "sent"),
    [({}, 1), ({"shiftKey": True}, 0), ({"isComposing": True}, 0), ({"keyCode": 229}, 0), ({"key": "a"}, 0)],
)
def test_enter_asks_but_not_the_one_that_ends_a_composition(key: dict[str, Any], sent: int) -> None:
    found = played([stream(said("888"), ended("answered"))], [{"key": "Enter", "shiftKey": False, **key}])
    assert len(found["sent"]) == sent


@pytest.mark.parametrize("text", ["<html><h1>Bad Gateway</h1></html>", "", '{"detail": "no"}', "null"])
def test_a_server_in_between_is_told_by_its_status(text: str) -> None:
    (shown,) = played([{"status": 502, "text": text}], ["submit"])["panels"]
    assert shown["error"].startswith("HTTP 502: this is no answer of the gateway")
