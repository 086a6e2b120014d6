"""Figures of the claims that are told elsewhere are those of docs/claims.md."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CHEAP = "preferences: dollars under “cheap”, over neutral"
ENGLISH = "ordinary English: {}, over neutral"
TOLD = [
    ("docs/explanation/results.md", ENGLISH.format("use of X under “avoid X”"), "avoided expert {0} times"),
    ("docs/explanation/results.md", ENGLISH.format("dollars under “cheap”"), "*Cheap* costs {0} times"),
    ("docs/explanation/results.md", ENGLISH.format("seconds under “fast”"), "*fast* takes {0} times"),
    ("docs/explanation/results.md", ENGLISH.format("use of X under “prefer X”"), "*Prefer* reaches {0} times"),
    ("docs/explanation/results.md", CHEAP, "*cheap* costs {1}, {2} and {3} times"),
    ("README.md", CHEAP, "*Cheap* costs {0} times"),
]
"""Page, claim, and the words around its mean (0) and its seeds."""


@pytest.mark.parametrize(("page", "claim", "words"), TOLD)
def test_a_figure_of_a_claim_is_that_of_the_claims(page: str, claim: str, words: str) -> None:
    rows = (ROOT / "docs/claims.md").read_text(encoding="utf-8").splitlines()
    # Claim, bar, mean, interval, by seed, holds.
    (cells,) = [one for row in rows if len(one := row.strip("| ").split(" | ")) == 6 and one[0] == claim]
    figures = [one[:-1] for one in (cells[2], *cells[4].split(" · "))]
    assert words.format(*figures) in " ".join((ROOT / page).read_text(encoding="utf-8").split())
