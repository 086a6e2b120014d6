"""The note for newcomers: once, of the embedded profile, with questions of the data."""

import json
from pathlib import Path

from orchestra.cli.welcome import EXAMPLES, welcome
from tests.support.worlds import ROOT


def workspace(root: Path, profile: str = "embedded") -> Path:
    text = (ROOT / "params.yaml").read_text(encoding="utf-8").replace("profile: embedded", f"profile: {profile}")
    (root / "params.yaml").write_text(text, encoding="utf-8")
    file = root / EXAMPLES
    file.parent.mkdir(parents=True)
    rows = [
        {"category": "topic", "instruction": "Tell me the year of the Battle of Opal."},
        {"category": "topic", "instruction": "When was the Battle of Opal?"},
        {"category": "lookup", "instruction": "What is on invoice 3?"},
        {"category": "arithmetic", "instruction": "What is 2 + 3?"},
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return root


def test_the_first_answer_says_what_the_model_is_and_the_second_does_not(tmp_path: Path) -> None:
    root = workspace(tmp_path)
    first = welcome(root)
    assert "demonstration model of a made-up world" in first[0]
    assert [line.partition("orchestra ask ")[2] for line in first[1:]] == [
        '"What is 2 + 3?"', '"When was the Battle of Opal?"',
    ]  # fmt: skip
    assert welcome(root) == []


def test_other_profiles_say_nothing(tmp_path: Path) -> None:
    assert welcome(workspace(tmp_path, "qwen3-8b")) == []
