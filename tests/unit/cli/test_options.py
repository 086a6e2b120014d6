"""What a user types counts, or is refused; paths are those of the folder in which it is typed."""

import os
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from flows.__main__ import _parser
from orchestra.cli.app import app
from orchestra.errors import ConfigError, OrchestraError
from orchestra.system import ending
from orchestra.system.storage import storage_named
from tests.support.worlds import ROOT


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("params.yaml", "dvc.yaml"):
        shutil.copy(ROOT / name, tmp_path)
    for name in ("data/catalogue", "data/domains/mock", "models/recipes/embedded"):
        shutil.copytree(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "data/licences.yaml", tmp_path / "data")
    (tmp_path / "inside").mkdir()
    monkeypatch.chdir(tmp_path / "inside")
    return tmp_path


def orchestra(*arguments: str) -> Result:
    done: Result = CliRunner().invoke(app, list(arguments))
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


@pytest.fixture
def handed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a command hands over, in place of doing it."""
    found: list[str] = []

    def kept(*arguments: str) -> None:
        found.extend(arguments)
        raise SystemExit

    monkeypatch.setattr(ending, "hand_over", kept)
    return found


BY_RULE = "domains examples mock --solver none"
UNUSED = [
    ("evaluate --model 1", "--model", "without --benchmark"),
    ("evaluate --cap-usd 1", "--cap-usd", "without --benchmark"),
    ("evaluate --retry-failures", "--retry-failures", "without --benchmark"),
    ("learn --freeze 5 --split bogus", "--split", "beside --freeze"),
    ("learn --freeze 5 --seeds zz", "--seeds", "beside --freeze"),
    ("learn --set grpo.seed=1 --freeze 5", "--set", "beside --freeze"),
    ("keys create bob --period day", "--period", "without --budget"),
    (f"{BY_RULE} --price bogus/x", "--price", "without --model"),
    (f"{BY_RULE} --max-output-tokens 9000", "--max-output-tokens", "without --model"),
    (f"{BY_RULE} --licence MIT", "--licence", "without --model"),
    (f"{BY_RULE} --cap-usd abc", "--cap-usd", "where no model is asked"),
    (f"{BY_RULE} --cassette replay", "--cassette", "where no model is asked"),
    ("data preferences --out x.jsonl --cap-usd abc", "--cap-usd", "without --model"),
    ("data preferences --out x.jsonl --max-output-tokens 9", "--max-output-tokens", "without --model"),
    ("launch --on slurm --image i", "--image", "with --on slurm"),
    ("launch --on slurm --claim c", "--claim", "with --on slurm"),
    ("launch --on slurm --secret s --out x", "--secret", "with --on slurm"),
    ("schedule --flow monitor", "--flow", "without --cron"),
    ("schedule nightly --remove --set grpo.seed=1", "--set", "without --cron"),
    ("schedule nightly --remove --timezone UTC", "--timezone", "without --cron"),
    ("notify --remove --smtp smtps://a@b", "--smtp", "beside --remove"),
    ("tools describe --all --price openai/gpt-5", "--price", "without --model"),
    ("data import x --to y --format corpus --lenient", "--lenient", "with --format corpus"),
    ("data import x --to y --format general-thought --answer a", "--answer", "with --format general-thought"),
    ("data import x --to y --format questions --tools t", "--tools", "with --format questions"),
    ("evaluate --benchmark own --model 1 --user solo", "--user", "with --benchmark own"),
    ("evaluate --benchmark hle --model 1 --judge-price a/b", "--judge-price", "without --judge"),
    ("power --disagreement 20 --against nobody", "--against", "beside --disagreement"),
]


@pytest.mark.parametrize(("command", "option", "why"), UNUSED, ids=[command for command, *_ in UNUSED])
def test_an_option_that_would_change_nothing_is_refused(
    workspace: Path, handed: list[str], command: str, option: str, why: str
) -> None:
    before = sorted(workspace.rglob("*"))
    with pytest.raises(ConfigError, match=f"^{option}: it changes nothing {why}"):
        orchestra(*command.split())
    assert not handed and sorted(workspace.rglob("*")) == before


def test_what_is_left_out_is_not_refused(workspace: Path, handed: list[str]) -> None:
    assert orchestra("evaluate").exit_code == 0 and not handed
    orchestra("learn", "--freeze", "5")
    assert handed == ["tasks.experiments.sealed", "5"]


def test_a_version_is_that_of_the_present_folder(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for words, folder in (["--version", "made"], "made"), ([], "../data/versions/default"):
        monkeypatch.chdir(workspace / "inside")
        assert orchestra(*BY_RULE.split(), "--count", "3", *words).stdout.splitlines()[-1] == f"in {folder}"
        assert (workspace / "inside" / folder / "mock-train.jsonl").is_file()
    assert not (workspace / "made").exists()


def test_joined_files_are_those_of_the_present_folder(workspace: Path, handed: list[str]) -> None:
    orchestra("learn", "--join", "one.json", "--join", "../two.json")
    assert handed[-2:] == ["--join=inside/one.json", "--join=two.json"]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("../models/grpo/", "models/grpo"),
        ("mine", "inside/mine"),
        ("/elsewhere/mine", "/elsewhere/mine"),
        ("3", "3"),
        ("golden", "golden"),
        ("../3", "{root}/3"),
        ("../golden", "{root}/golden"),
        ("./3", "inside/3"),
        ("http://127.0.0.1:8800/v1", "http://127.0.0.1:8800/v1"),
        ("gpt-5-mini@https://host/v1", "gpt-5-mini@https://host/v1"),
    ],
)
def test_a_measured_checkpoint_is_that_of_the_present_folder(
    workspace: Path, handed: list[str], typed: str, meant: str
) -> None:
    orchestra("evaluate", "--benchmark", "own", "--model", typed)
    assert f"--model={meant.format(root=workspace)}" in handed


@pytest.mark.parametrize("why", ["-slow", "--why", ""])
def test_a_release_reaches_the_flow_as_it_was_typed(workspace: Path, handed: list[str], why: str) -> None:
    orchestra("release", "--to", "12", "--canary", "12.3456789", f"--why={why}")
    told = _parser().parse_args(handed[1:])
    assert (told.flow, told.rollback, told.to, told.shadow) == ("release", False, 12, None)
    assert (told.canary, told.why) == (12.3456789, why)


def test_an_answer_reaches_the_flow_as_it_was_typed(workspace: Path, handed: list[str]) -> None:
    orchestra("refuse", "3", "--by=-n", "--reason=-- worse")
    told = _parser().parse_args(handed[1:])
    assert (told.flow, told.version, told.approve, told.by, told.reason) == ("answer", 3, False, "-n", "-- worse")


@pytest.mark.parametrize("command", ["data preferences --out file/x.jsonl", f"{BY_RULE} --version file"])
def test_a_file_in_place_of_a_folder_is_one_line(workspace: Path, command: str) -> None:
    (workspace / "inside/file").touch()
    with pytest.raises(OrchestraError, match=r"file: it is there already.* — name another path"), storage_named():
        orchestra(*command.split())


OUTPUTS = [
    "backup OUT",
    "data export x.jsonl OUT",
    "data import x.jsonl --format questions --to OUT",
    "data measure x.jsonl --to OUT",
    "data preferences --out OUT",
    f"{BY_RULE} --version OUT",
    "export models/grpo OUT",
    "index build x.jsonl --out OUT",
    "launch --on slurm --out OUT",
    "synthesize --out OUT",
    "tools describe --all --out OUT",
]


@pytest.mark.parametrize("place", ["/proc/x", "/proc/self/x/y", "x" * 300])
@pytest.mark.parametrize("command", OUTPUTS)
def test_an_output_that_cannot_be_made_is_refused_before_any_work(workspace: Path, command: str, place: str) -> None:
    before = sorted(workspace.rglob("*"))
    with pytest.raises(ConfigError, match=f"^{place}: nothing can be written there: .* — name another path"):
        orchestra(*command.replace("OUT", place).split())
    assert sorted(workspace.rglob("*")) == before


@pytest.mark.parametrize("command", OUTPUTS)
def test_an_output_takes_the_place_of_no_device(workspace: Path, command: str) -> None:
    os.mkfifo(workspace / "pipe")
    (workspace / "link").symlink_to("/proc/self/fd/1")
    for place in (workspace / "pipe", workspace / "link"):
        with pytest.raises(ConfigError, match=f"^{place}: it is a device or a pipe, .* — name a file"):
            orchestra(*command.replace("OUT", str(place)).split())


@pytest.mark.parametrize("port", ["-1", "65536", "99999999"])
def test_a_port_is_one_that_there_is(workspace: Path, port: str) -> None:
    assert orchestra("mcp", "--http", port).exit_code == 2
