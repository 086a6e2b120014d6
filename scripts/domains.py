"""Prints the shipped domains beside those published with the method: `.venv/bin/python scripts/domains.py [COUNT]`.

COUNT (default 500) verified tasks a side are made of each domain, to show that there are that many. With `--check N`,
the first N of each side are judged with their golden calls, with no call, and with one golden call dropped, swapped or
changed; the right answer is given every time.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from orchestra.domains.engine import load_domain
from orchestra.errors import OrchestraError
from orchestra.synthesis.domain_tasks.mutation import Mutation, Worth, worth
from orchestra.synthesis.domain_tasks.tasks import domain_tasks
from orchestra.system.environment import quiet
from orchestra.types import Split

DOMAINS = Path(__file__).parents[1] / "data" / "domains"
SIDES: tuple[Split, Split] = ("train", "heldout")
PUBLISHED = {
    "finance": (22, 686, 396),
    "sport": (19, 423, 247),
    "ecommerce": (15, 577, 343),
    "medicine": (19, 920, 622),
    "entertainment": (24, 852, 561),
    "railway": (25, 790, 414),
    "restaurant": (23, 683, 348),
    "education": (21, 816, 426),
    "travel": (15, 752, 331),
    "weather": (14, 549, 375),
}
"""Tools, entries and tasks of ToolScale (arXiv 2511.21689)."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="The shipped domains beside the published ones.")
    parser.add_argument("count", nargs="?", type=int, default=500, help="verified tasks a side and domain")
    parser.add_argument("--check", type=int, default=0, metavar="N", help="judge N of them a side with mutated calls")
    asked = parser.parse_args(argv)
    quiet()
    ours = ["domain", "tools", "entries", "intents", "tasks made, train + held out"]
    checks = ["solved by golden calls", "by none", "by mutated ones"] if asked.check else []
    header = [*ours, *checks, "published: tools", "entries", "tasks"]
    print(f"| {' | '.join(header)} |\n| --- |{' ---: |' * (len(header) - 1)}", flush=True)
    mutants: Counter[Mutation] = Counter()
    missed: Counter[Mutation] = Counter()
    for name, published in PUBLISHED.items():
        try:
            domain = load_domain(DOMAINS / name)
            made, tasks = [0, 0], []
            for number, side in enumerate(SIDES):
                for task in domain_tasks(domain, 0, max(asked.count, asked.check), side):
                    made[number] += 1
                    if made[number] <= asked.check:
                        tasks.append(task)
        except OrchestraError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        found = worth(domain, tasks)
        mutants, missed = mutants + found.mutants, missed + found.missed
        entries = sum(len(rows) for rows in domain.open().contents().values())
        row = [name, len(domain.tools), entries, len(domain.intents), f"{made[0]} + {made[1]}"]
        print(
            "| " + " | ".join(map(str, [*row, *(_rates(found) if asked.check else []), *published])) + " |", flush=True
        )
    if asked.check:
        kinds = ", ".join(f"{kind} {missed[kind]} of {count}" for kind, count in sorted(mutants.items()))
        print(f"\nMutations judged solved all the same: {_share(missed.total(), mutants.total())} ({kinds})")
    return 0


def _rates(found: Worth) -> list[str]:
    counts = ((found.replayed, found.tasks), (found.idle, found.tasks), (found.missed.total(), found.mutants.total()))
    return [_share(*count) for count in counts]


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %"


if __name__ == "__main__":
    sys.exit(main())
