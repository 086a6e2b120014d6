"""Writes entries/*.csv: a cinema whose seats add up. Run: .venv/bin/python data/domains/entertainment/generate.py"""

import random
from collections import Counter
from pathlib import Path
from typing import Any

from orchestra.domains.fixtures import names, write

SEED = 20261405
TODAY = 250
PLANS = {"lite": (8, 0, 3), "plus": (15, 10, 6), "full": (24, 25, 12)}
GENRES = ["drama", "comedy", "thriller", "western", "fantasy", "musical", "mystery", "romance"]
HALLS = ["amber", "coral", "cobalt", "indigo", "ivory", "jade", "olive", "pearl"]
SLOTS = [600, 800, 1000, 1200]

Row = dict[str, Any]
Tables = dict[str, list[Row]]


def house_and_public(rng: random.Random) -> Tables:
    taken: set[str] = set()
    cities, studios, viewers = names(rng, 10, taken), names(rng, 14, taken), names(rng, 90, taken)
    films: list[Row] = []
    for i, number in enumerate(sorted(rng.sample(range(101, 200), 64))):
        row = {"film": number, "genre": GENRES[i % len(GENRES)], "minutes": rng.randint(75, 165)}
        row |= {"age": rng.choice([0, 0, 6, 12, 12, 16, 18]), "studio": rng.choice(studios)}
        films.append(row | {"online": int(rng.random() < 0.6)})
    return {
        "clock": [{"id": 1, "day": TODAY}],
        "plans": [
            {"plan": plan, "fee": fee, "percent": percent, "streams": streams}
            for plan, (fee, percent, streams) in PLANS.items()
        ],
        "studios": [{"studio": s, "city": rng.choice(cities)} for s in sorted(studios)],
        "films": films,
        "halls": [{"hall": h, "floor": rng.randint(1, 5), "seats": rng.randint(18, 60)} for h in HALLS],
        "viewers": [
            {
                "viewer": viewer,
                "age": rng.choice([rng.randint(9, 17), rng.randint(18, 80), rng.randint(18, 80)]),
                "balance": rng.randint(0, 199),
                "plan": rng.choices(list(PLANS), [4, 3, 2])[0],
                "until": TODAY + (rng.randint(0, 29) if rng.random() < 0.75 else -rng.randint(1, 40)),
            }
            for viewer in sorted(viewers)
        ],
    }


def programme(rng: random.Random, tables: Tables) -> None:
    """Adds shows: a hall has one show a slot, and half of the films share them."""
    running = rng.sample(tables["films"], 34)
    free = [(day, slot, hall) for day in range(TODAY - 9, TODAY + 10) for slot in SLOTS for hall in tables["halls"]]
    chosen = sorted(rng.sample(free, 104), key=lambda place: place[:2])
    rows: list[Row] = []
    for number, (day, slot, hall) in zip(sorted(rng.sample(range(1001, 2000), 104)), chosen, strict=True):
        row = {"show": number, "film": rng.choice(running)["film"], "hall": hall["hall"], "day": day}
        row |= {"starts": slot, "price": rng.randint(6, 11) + (2 if slot > 900 else 0), "free": hall["seats"]}
        status = "cancelled" if rng.random() < 0.06 else "played" if day < TODAY else "planned"
        rows.append(row | {"status": status})
    tables["shows"] = rows


def sales(rng: random.Random, tables: Tables) -> None:
    """Adds tickets: five or six seats cost one less, and a plan that is paid takes its per cent off."""
    films = {row["film"]: row for row in tables["films"]}
    rows: list[Row] = []
    numbers = sorted(rng.sample(range(2001, 9000), 500))
    for show in tables["shows"]:
        old = [v for v in tables["viewers"] if v["age"] >= films[show["film"]]["age"]]
        for viewer in rng.sample(old, rng.choice([1, 1, 2, 3])):
            day = min(TODAY, show["day"]) - rng.randint(1, 9)
            quantity = rng.choices(range(1, 7), [5, 6, 3, 2, 1, 1])[0]
            percent = PLANS[viewer["plan"]][1] if day <= viewer["until"] else 0
            paid = show["price"] * (quantity - (quantity >= 5)) * (100 - percent) // 100
            row = {"ticket": numbers.pop(0), "viewer": viewer["viewer"], "show": show["show"], "day": day}
            row |= {"quantity": quantity, "paid": paid, "refund": 0, "status": "valid"}
            if show["status"] == "cancelled":
                row |= {"refund": paid, "status": "refunded"}
            elif rng.random() < 0.08:
                row |= {"refund": max(0, paid - quantity), "status": "refunded"}
            else:
                row["status"] = "used" if show["status"] == "played" else "valid"
                show["free"] -= quantity
            rows.append(row)
    tables["tickets"] = rows


def evenings_at_home(rng: random.Random, tables: Tables) -> None:
    """Adds streams within each plan's limit, and ratings by who has seen a film."""
    online = [row for row in tables["films"] if row["online"]]
    streams: list[Row] = []
    for viewer in tables["viewers"]:
        last = min(TODAY - 1, viewer["until"])
        for film in rng.sample(online, rng.randint(0, PLANS[viewer["plan"]][2])):
            if film["age"] <= viewer["age"] and rng.random() < 0.6:
                streams.append({"viewer": viewer["viewer"], "film": film["film"], "day": last - rng.randint(0, 45)})
    tables["streams"] = sorted(streams, key=lambda row: (row["viewer"], row["film"]))
    tables["ratings"] = [
        {"viewer": viewer, "film": film, "stars": rng.choices(range(1, 6), [1, 1, 2, 4, 4])[0]}
        for viewer, film in sorted(seen(tables))
        if rng.random() < 0.5
    ]
    tables["gifts"] = [
        {
            "gift": number,
            "value": rng.choice([10, 15, 20, 30, 50]),
            "expires": TODAY + rng.choice([-12, -2, 6, 15, 30, 60]),
            "viewer": rng.choice(tables["viewers"])["viewer"] if rng.random() < 0.25 else None,
        }
        for number in sorted(rng.sample(range(201, 400), 44))
    ]


def seen(tables: Tables) -> set[tuple[str, int]]:
    """Who has seen which film, in a hall or at home."""
    film = {row["show"]: row["film"] for row in tables["shows"]}
    visits = {(row["viewer"], film[row["show"]]) for row in tables["tickets"] if row["status"] == "used"}
    return visits | {(row["viewer"], row["film"]) for row in tables["streams"]}


def check(tables: Tables) -> None:
    """What holds of the entries and after whatever is called."""
    shows = {row["show"]: row for row in tables["shows"]}
    films = {row["film"]: row for row in tables["films"]}
    viewers = {row["viewer"]: row for row in tables["viewers"]}
    seats = {row["hall"]: row["seats"] for row in tables["halls"]}
    sold: Counter[int] = Counter()
    for row in tables["tickets"]:
        show = shows[row["show"]]
        assert row["status"] != "valid" or show["status"] == "planned", row
        assert row["status"] == "refunded" or (show["status"] != "cancelled" and row["refund"] == 0), row
        assert row["day"] <= TODAY and viewers[row["viewer"]]["age"] >= films[show["film"]]["age"], row
        sold[row["show"]] += row["quantity"] if row["status"] != "refunded" else 0
    assert all(row["free"] == seats[row["hall"]] - sold[row["show"]] for row in shows.values())
    assert all(row["status"] != "played" or row["day"] < TODAY for row in shows.values())
    times: dict[tuple[str, int], list[int]] = {}
    for row in shows.values():
        if row["status"] == "planned":
            times.setdefault((row["hall"], row["day"]), []).append(row["starts"])
    assert all(b - a >= 200 for day in times.values() for a, b in zip(sorted(day), sorted(day)[1:], strict=False))
    recent = Counter(row["viewer"] for row in tables["streams"] if row["day"] > TODAY - 30)
    assert all(count <= PLANS[viewers[viewer]["plan"]][2] for viewer, count in recent.items())
    for row in tables["streams"]:
        assert films[row["film"]]["online"] and films[row["film"]]["age"] <= viewers[row["viewer"]]["age"], row
    assert {(row["viewer"], row["film"]) for row in tables["ratings"]} <= seen(tables)
    assert not {*shows} & {row["ticket"] for row in tables["tickets"]}


def generate(folder: Path) -> dict[str, int]:
    """Write one CSV a table; the number of entries of each."""
    rng = random.Random(SEED)
    tables = house_and_public(rng)
    programme(rng, tables)
    sales(rng, tables)
    evenings_at_home(rng, tables)
    check(tables)
    return write(folder, tables)


if __name__ == "__main__":
    print(generate(Path(__file__).parent / "entries"))
