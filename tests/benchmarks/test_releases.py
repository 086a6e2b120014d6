"""Releases under load: how replies are counted, what the table objects to, and the quick form of the real thing."""

from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.load import UserLoad, UserReply, read_reply
from benchmarks.releases import CaseRow, refused, releases, served, table
from tests.support.endpoint import serving
from tests.support.waiting import soon


def answered(version: str = "1") -> dict[str, Any]:
    return {"choices": [], "orchestra": {"version": version}}


def error(kind: str, code: str) -> dict[str, Any]:
    return {"error": {"message": "m", "type": kind, "param": None, "code": code}}


def asked(script: Callable[[dict[str, Any]], Any], replies: int) -> UserLoad:
    """A load of three users on an endpoint that plays the script, ended after so many replies."""
    with serving(script) as double, UserLoad(double.url.removesuffix("/v1"), ["a?", "b?"], 3) as load:
        assert soon(lambda: len(load.replies) >= replies, 60)
    return load


def test_replies_are_answers_failures_of_the_model_typed_failures_or_nothing_a_client_can_act_on() -> None:
    assert read_reply(200, answered("4")) == ("", "200", "4")
    model = UserReply(0.0, *read_reply(502, error("model_error", "malformed")))
    down = UserReply(0.0, *read_reply(503, error("service_unavailable", "model_down")))
    bug = UserReply(0.0, *read_reply(500, error("server_error", "internal")))
    assert [(one.failed, one.untyped) for one in (model, down, bug)] == [(False, False), (True, False), (True, True)]


def test_users_ask_on_whatever_they_are_told() -> None:
    said = [(200, answered(), 0), (503, error("service_unavailable", "model_down"), 0), (0, {}, 0), (500, "what?", 0)]
    count = iter(range(10**9))
    load = asked(lambda _: said[next(count) % len(said)], 40)
    codes = load.codes()
    assert {"200", "model_down"} < set(codes) and all(
        n >= 5 for code, n in codes.items() if code in ("200", "model_down")
    )
    row = CaseRow.of("case", load)
    assert row.requests == len(load.replies) and row.failed == row.requests - codes["200"]
    assert row.untyped == row.failed - codes["model_down"] > 0
    assert row.faults == [f"{row.untyped} requests failed without a typed error"]
    assert "FAULT: " in table([row]) and "codes: " in table([row])


def test_an_answer_is_waited_for_by_version_and_time() -> None:
    load = asked(lambda _: (200, answered("2"), 0), 5)
    last = load.replies[-1].at
    assert load.await_answer(0.0, 1, "2") == load.replies[0]
    assert load.await_answer(0.0, 0.2, "1") is None and load.await_answer(last + 1, 0.2) is None
    row = CaseRow.of("case", load)
    assert row.faults == [] and "as it must be" in table([row])


def test_a_load_that_asked_nothing_shows_nothing() -> None:
    assert CaseRow.of("case", UserLoad("http://127.0.0.1:9", ["a?"], 1)).faults == ["nothing was asked"]


@pytest.mark.slow
def test_the_quick_form_in_process_has_nothing_to_object_to() -> None:
    """The shipped base, a real gateway process and real releases; `--engine vllm` adds the model server's kill."""
    with served("in_process", users=2) as (site, url):
        rows = [refused(site, url), releases(site, url, 2)]
    assert [row.faults for row in rows] == [[], []], table(rows)
    assert all(row.requests > 0 and row.failed == 0 for row in rows)
    assert len(rows[0].notes) == 4 and rows[0].notes[0].startswith("a bit flipped: "), rows[0].notes
