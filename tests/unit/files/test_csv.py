"""No cell of a CSV that this project writes is a formula to a spreadsheet: texts of outside are written elsewhere."""

import csv
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
WRITES = re.compile(r"csv\.(?:Dict)?[Ww]riter|\bDictWriter\(|\.to_csv\(|\bwrite_csv\(|text/csv|\.csv[\"']\)\.open\(\"w")
NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?(?:e[+-]?\d+)?")
FORMULA = ("=", "+", "-", "@", "\t", "\r")
TABLES = sorted((ROOT / "data/domains").glob("*/entries/*.csv"))


def test_one_place_writes_csv_and_it_writes_the_shipped_domains_alone() -> None:
    """Another place must decide what it does with a cell such as `=HYPERLINK(…)`, and stand here with its test."""
    files = [
        file
        for folder in ("orchestra", "tasks", "flows", "scripts", "benchmarks", "examples")
        for file in (ROOT / folder).rglob("*")
        if file.suffix in (".py", ".html", ".js", ".sh")
    ]
    found = {str(file.relative_to(ROOT)) for file in files if WRITES.search(file.read_text(encoding="utf-8"))}
    assert len(files) > 300 and found == {"orchestra/domains/fixtures.py"}
    users = {
        str(file.relative_to(ROOT))
        for folder in ("orchestra", "tasks", "flows", "scripts", "benchmarks", "data")
        for file in (ROOT / folder).rglob("*.py")
        if "domains.fixtures" in file.read_text(encoding="utf-8")
    }
    assert users and all(re.fullmatch(r"data/domains/\w+/generate\.py", user) for user in users)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: f"{table.parts[-3]}-{table.stem}")
def test_no_cell_of_a_shipped_table_is_a_formula(table: Path) -> None:
    with table.open(encoding="utf-8", newline="") as file:
        cells = [cell for row in csv.reader(file) for cell in row]
    assert cells and [cell for cell in cells if cell.startswith(FORMULA) and not NUMBER.fullmatch(cell)] == []
