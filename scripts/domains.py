"""Prints the shipped domains beside those published with the method: `.venv/bin/python scripts/domains.py [COUNT]`.

COUNT (default 500) verified tasks a side are made of each domain, to show that there are that many.
"""

import sys
from pathlib import Path

from orchestra.domains.engine import load_domain
from orchestra.environment import quiet
from orchestra.errors import OrchestraError
from orchestra.synthesis.domain_examples import Split, domain_tasks

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


def main() -> int:
    quiet()
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    print("| domain | tools | entries | intents | tasks made, train + held out | published: tools | entries | tasks |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |", flush=True)
    for name, published in PUBLISHED.items():
        try:
            domain = load_domain(DOMAINS / name)
            made = [sum(1 for _ in domain_tasks(domain, 0, count, side)) for side in SIDES]
        except OrchestraError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        entries = sum(len(rows) for rows in domain.open().contents().values())
        ours = [name, len(domain.tools), entries, len(domain.intents), f"{made[0]} + {made[1]}"]
        print("| " + " | ".join(map(str, [*ours, *published])) + " |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
