"""The documentation: links lead somewhere, figures show what the tables say, references match the code."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts import figures, reference

ROOT = Path(__file__).parents[2]
LISTED = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
PAGES = [ROOT / line for line in LISTED.splitlines()]
OURS = re.compile(r"`((?:tests|scripts|orchestra|tasks|flows|benchmarks|examples|deploy)/[\w./-]+\.\w+)`")
"""Files of this repository as pages name them."""


def headings(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    found = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        path, _, anchor = target.partition("#")
        if path.startswith(("http:", "https:")):
            continue
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in headings(file)):
            broken.append(target)
    assert broken == []


def test_pages_of_every_kind_are_checked() -> None:
    names = {str(page.relative_to(ROOT)) for page in PAGES}
    assert {"README.md", "SECURITY.md", "CHANGELOG.md", "examples/README.md", "docs/explanation/security.md"} <= names


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_and_target_that_a_page_names_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert {name for name in OURS.findall(text) if not (ROOT / name).exists()} == set()
    assert {name for name in re.findall(r"`make ([a-z][a-z0-9-]*)", text) if name not in targets} == set()


def test_the_readme_names_every_folder() -> None:
    tree = (ROOT / "README.md").read_text(encoding="utf-8").partition("## The tree")[2].partition("\n## ")[0]
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    files = [Path(line) for line in done.stdout.splitlines()]
    top = {file.parts[0] for file in files if len(file.parts) > 1 and not file.parts[0].startswith(".")}
    library = {file.parts[1] for file in files if len(file.parts) > 2 and file.parts[0] == "orchestra"}
    assert [folder for folder in sorted(top | library) if f"{folder}/" not in tree] == []


def test_the_figure_shows_the_tables() -> None:
    found = list(figures.points((ROOT / figures.SOURCE).read_text(encoding="utf-8")))
    assert len(found) > 12 and figures.TRAINED in {point.policy for point in found}
    again = "python -m scripts.figures"
    assert (ROOT / figures.FIGURE).read_text(encoding="utf-8") == figures.draw(found), again


def test_rows_of_other_tables_are_no_points() -> None:
    text = "| policy | accuracy |\n| --- | --- |\n| a | 3 % |\n\n"
    text += "| policy | accuracy | ¢ / example |\n|--|--|--|\n| **b**, seed 1 | 9.5 % | 2 |\n"
    assert list(figures.points(text)) == [figures.Point("b", 2.0, 9.5)]


@pytest.mark.parametrize(
    ("page", "made"), [("commands.md", reference.commands), ("parameters.md", reference.parameters)]
)
def test_the_reference_is_what_the_code_says(page: str, made: Callable[[], str]) -> None:
    again = "python -m scripts.reference"
    assert (ROOT / "docs/reference" / page).read_text(encoding="utf-8") == made(), again
