"""Shared parts of the shipped domains' generators: made-up names, and one CSV a table."""

import csv
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_ONSETS = "b br d dr f g h k kl l m n p pr qu r s st t tr v"
ONSETS = _ONSETS.split()
VOWELS = ["a", "e", "i", "o", "u"]
CODAS = ["l", "n", "r", "s", "x", "th"]
LINKS = ("", "", "v", "d", "m")
ENDS = ["ane", "el", "ik", "on", "ard", "ova", "is", "um", "ett", "ora", "yn", "ash"]
LONGEST = 9


def names(rng: random.Random, count: int, taken: set[str]) -> list[str]:
    """`count` made-up capitalised names such as Borvane, none of them in `taken`, which they join."""
    made: list[str] = []
    while len(made) < count:
        stem = rng.choice(ONSETS) + rng.choice(VOWELS) + rng.choice(CODAS)
        name = (stem + rng.choice(LINKS) + rng.choice(ENDS)).capitalize()
        if name not in taken and len(name) <= LONGEST:
            taken.add(name)
            made.append(name)
    return made


def write(folder: Path, tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, int]:
    """One CSV a table, its columns those of its first row; the number of entries of each."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in tables.items():
        with (folder / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    return {name: len(rows) for name, rows in tables.items()}
