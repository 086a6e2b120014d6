"""`orchestra power` and `orchestra report`, as a person types them."""

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from orchestra.cli.app import app
from orchestra.errors import ConfigError, DataError
from orchestra.files.jsonl import write_jsonl
from orchestra.system.environment import nameless
from tests.support.worlds import ROOT, episode


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("params.yaml", "dvc.yaml"):
        shutil.copy(ROOT / name, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def orchestra(*arguments: str) -> str:
    done: Result = CliRunner().invoke(app, list(arguments))
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.stdout


def test_power_of_a_stated_disagreement() -> None:
    said = orchestra("power", "--difference", "2", "--power", "0.8", "--disagreement", "20")
    assert "disagree on 20.0 % of the examples (as given)" in said and "3,917" in said
    assert "more trials do not help" in said
    noisy = orchestra("power", "--disagreement", "20", "--noise", "10")
    assert len(noisy.splitlines()) > len(said.splitlines()) - 1 and "2,445" in noisy


def test_a_user_without_a_login_gives_a_name(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> str:
        raise KeyError("getpwuid(): uid not found: 12345")

    # What stands for a login, so that libraries find one, names nobody.
    for getuser in (unknown, nameless):
        monkeypatch.setattr("orchestra.cli.decide.getpass.getuser", getuser)
        with pytest.raises(ConfigError, match="has no login — --by NAME"):
            orchestra("approve", "3")


def test_a_report_that_there_is_none_of_names_those_there_are(workspace: Path) -> None:
    with pytest.raises(DataError, match="no decision about version 9 — orchestra run"):
        orchestra("report", "9", "--print")
    (workspace / ".state/decisions").mkdir(parents=True)
    for version in (10, 2):
        (workspace / f".state/decisions/{version}.html").touch()
    with pytest.raises(DataError, match="no decision about version 9 — one of: 2, 10"):
        orchestra("report", "9", "--print")


@pytest.mark.parametrize("option", ["--disagreement", "--noise"])
@pytest.mark.parametrize("percent", ["nan", "inf", "-1", "101"])
def test_power_of_what_is_no_percentage_is_one_line(option: str, percent: str) -> None:
    with pytest.raises(ConfigError, match=f"{option}: {percent} is no percentage"):
        orchestra("power", "--disagreement", "20", option, percent)


def test_power_of_the_last_evaluation(workspace: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        orchestra("power")
    ours: list[bool | None] = [*[True] * 8, False, None]
    theirs: list[bool | None] = [*[True] * 5, *[False] * 5]
    made = [
        episode(solved=solved).model_copy(update={"example_id": f"e{n}", "policy": name})
        for name, found in (("grpo", ours), ("sft", theirs))
        for n, solved in enumerate(found)
    ]
    (workspace / "reports/evaluation").mkdir(parents=True)
    write_jsonl(workspace / "reports/evaluation/episodes.jsonl", made)
    said = orchestra("power", "--difference", "20")
    # Nine examples have both verdicts; three of them differ.
    assert "33.3 % of the examples (measured: trained orchestrator and SFT model)" in said
    assert "the 10 examples of the last evaluation" in said
    with pytest.raises(ConfigError, match="oracle was not evaluated"):
        orchestra("power", "--against", "oracle")
    (workspace / "reports/evaluation/episodes.jsonl").write_text("{}\n")
    with pytest.raises(DataError, match="line 1 is no episode"):
        orchestra("power")


def test_report_names_the_page_of_the_last_decision_and_of_a_version(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DataError, match="nothing was decided yet"):
        orchestra("report")
    for name in ("reports/decision.html", ".state/decisions/2.html"):
        (workspace / name).parent.mkdir(parents=True)
        (workspace / name).write_text("<!doctype html>")
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    assert orchestra("report").strip() == str(workspace / "reports/decision.html")
    assert opened == [(workspace / "reports/decision.html").as_uri()]
    assert orchestra("report", "2", "--print").strip().endswith("decisions/2.html") and len(opened) == 1
    with pytest.raises(DataError, match="no decision about version 7"):
        orchestra("report", "7")
