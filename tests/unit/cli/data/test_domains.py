"""`orchestra domains check`: what it calls sound works in the pipeline, too."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from orchestra.cli.app import app
from orchestra.errors import ConfigError, DataError
from tests.support.worlds import ROOT


@pytest.fixture
def domain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A sound domain in a workspace of its own."""
    for name in ("params.yaml", "dvc.yaml"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "data/catalogue", tmp_path / "data/catalogue")
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(ROOT / "data/domains/weather", tmp_path / "data/domains/weather"))


def check(name: str = "weather") -> str:
    return CliRunner().invoke(app, ["domains", "check", name], catch_exceptions=False).stdout


def replaced(file: str, old: str, new: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / file
        text = path.read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, new), encoding="utf-8")

    return change


def emptied(file: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / file).write_text("", encoding="utf-8")

    return change


def search(folder: Path) -> None:
    for file in ("tools.yaml", "intents.yaml"):
        replaced(file, "get_station", "search")(folder)


BROKEN: dict[str, tuple[Callable[[Path], None], str]] = {
    "a word": (
        replaced("entries/stations.csv", "Durvon,216", "Durvon,many"),
        "data/domains/weather: stations.height: 'many' is no number — correct that table's file in entries/",
    ),
    "a thousand": (
        replaced("entries/stations.csv", "Durvon,216", 'Durvon,"1,074"'),
        "data/domains/weather: stations.height: '1,074' is no number",
    ),
    "a tool of the catalogue": (
        search,
        "data/domains/weather: the catalogue has a tool search, too — rename it in tools.yaml",
    ),
    "no mapping": (
        emptied("intents.yaml"),
        "intents.yaml: .* — write keys and values, as the file of that name in another domain has",
    ),
    "no SQL": (
        replaced("tools.yaml", "select ", "select from "),
        "tools.yaml: .*syntax error — write one statement of SQLite, over the tables of schema.sql",
    ),
    "another header": (
        replaced("entries/stations.csv", "station,", "name,"),
        "stations.csv:2: stations has no column name — name columns that schema.sql has: station, ",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_or_implausible_file_is_told_with_what_helps(domain: Path, case: str) -> None:
    change, said = BROKEN[case]
    change(domain)
    with pytest.raises(DataError, match=said):
        check()


@pytest.mark.parametrize("name", ["weathr", "../domains/weather", "."])
def test_a_domain_that_is_not_there_is_told_with_those_that_are(domain: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"no domain named .* — name one of: weather"):
        check(name)


@pytest.mark.parametrize("name", ["Meine Garage", "garäge", "-x"])
def test_a_folder_that_params_cannot_name_is_not_sound(domain: Path, name: str) -> None:
    domain.rename(domain.with_name(name))
    with pytest.raises(DataError, match=f"world.domains cannot name the folder '{name}' — name it by letters"):
        CliRunner().invoke(app, ["domains", "check", "--", name], catch_exceptions=False)


def test_entries_saved_by_a_spreadsheet_are_read(domain: Path) -> None:
    """`CSV UTF-8` of a spreadsheet begins with a byte order mark; numbers may be written with a point."""
    for file in (domain / "entries").glob("*.csv"):
        file.write_text(file.read_text(encoding="utf-8"), encoding="utf-8-sig")
    replaced("entries/stations.csv", "Durvon,216", "Durvon,216.0")(domain)
    assert "sound" in check()
