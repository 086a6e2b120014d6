"""The note for newcomers: once for each gateway, of a demonstration model, with questions of the gateway's data."""

from pathlib import Path
from typing import Any

import pytest

from orchestra.cli.welcome import welcome
from orchestra.serving.app import create_app
from orchestra.serving.gateway import Gateway
from tests.support.real_gateway import listening
from tests.support.serving_world import backend, questions


def gateway(root: Path, **params: Any) -> Any:
    """One whose release has these parameters, over held-out questions."""
    made = backend(root)
    made.serving = made.serving.model_copy(update={"params": {**made.serving.params, **params}})
    return create_app(Gateway(questions(root), backend=made), load=False)


def test_the_first_answer_says_what_the_model_is_and_the_second_does_not(tmp_path: Path) -> None:
    root = tmp_path / "workspace"
    with listening(gateway(tmp_path)) as port:
        url = f"http://127.0.0.1:{port}"
        first = welcome(root, url)
        assert "demonstration model of a made-up world" in first[0]
        assert [line.partition("orchestra ask ")[2] for line in first[1:]] == [
            '"What is 2 + 3?"', '"When was the Battle of Opal?"',
        ]  # fmt: skip
        assert welcome(root, url) == []


def test_other_profiles_say_nothing_whatever_the_workspace_is(tmp_path: Path) -> None:
    with listening(gateway(tmp_path, profile="qwen3-8b")) as port:
        assert welcome(tmp_path, f"http://127.0.0.1:{port}") == []


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"data": []}', b'{"data": [{"notice": 3}]}'])
def test_a_gateway_that_does_not_say_what_it_serves_has_no_note(tmp_path: Path, body: bytes) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    with listening(app) as port:
        assert welcome(tmp_path, f"http://127.0.0.1:{port}") == []
