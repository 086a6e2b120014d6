"""How a command hands its options over."""

from pathlib import Path

from orchestra.cli.common import words


def test_options_are_written_as_a_command_line_has_them() -> None:
    assert words(cap_usd="1.50", from_="sft", limit=0) == ["--cap-usd=1.50", "--from=sft", "--limit=0"]
    assert words(force=["sft", "grpo"], data=[Path("a")]) == ["--force=sft", "--force=grpo", "--data=a"]
    assert words(remove=True, test=False, url=None, set_=[], why="") == ["--remove", "--why="]
    assert words(why="-slow", canary=12.3456789) == ["--why=-slow", "--canary=12.3456789"]
