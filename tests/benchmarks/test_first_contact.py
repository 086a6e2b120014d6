"""What newcomers ask first, asked over HTTP: counted as it is in process, and held to a bar."""

import json
from pathlib import Path

import pytest

from benchmarks import first_contact
from orchestra.serving.app import create_app
from orchestra.serving.gateway import Gateway
from tests.support.real_gateway import listening
from tests.support.serving_world import backend

ASKED = [("what is 37*24?", "888"), ("what is 1/0?", "cannot know"), ("what is 2+2?", "4"), ("  ", "stays calm")]


@pytest.mark.parametrize(("bar", "code", "said"), [("0.5", 0, "bar: met"), ("0.51", 1, "bar: missed (51% fit)")])
def test_a_gateway_is_asked_over_http_and_held_to_the_bar(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], bar: str, code: int, said: str
) -> None:
    samples = tmp_path / "samples.jsonl"
    samples.write_text("".join(json.dumps({"ask": a, "expect": e, "why": ""}) + "\n" for a, e in ASKED))
    with listening(create_app(Gateway(tmp_path, backend=backend(tmp_path)), load=False)) as port:
        given = ["--url", f"http://127.0.0.1:{port}", "--samples", str(samples), "--bar", bar]
        assert first_contact.main(given) == code
    out = capsys.readouterr().out
    assert "number: 2 of 2\ncannot know: 0 of 1\nstays calm: 0 of 1\nall: 50.0 %\n" in out and out.endswith(f"{said}\n")
    assert "'  ' was refused: " in out
    assert "'what is 1/0?': expected cannot know, said " in out and "calculator {'expression': '1/0'}" in out


@pytest.mark.parametrize("given", [[], ["models/grpo", "--url", "http://127.0.0.1:1"]])
def test_either_a_checkpoint_or_a_gateway_is_asked(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        first_contact.main(given)
    assert ended.value.code == 2 and "one of the two" in capsys.readouterr().err
