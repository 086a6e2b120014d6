"""Writes entries/*.csv: a railway whose seats, fares and refunds agree. Run: python data/domains/railway/generate.py"""

import random
from collections import Counter
from pathlib import Path
from typing import Any

from orchestra.domains.fixtures import names, write

SEED = 20260332
TODAY = 300
CLASSES = {"first": 50, "second": 0}
RULES = {0: 50, 2: 80, 7: 100}
PASSES = {"local": (10, 18), "area": (25, 42), "network": (50, 90)}

Row = dict[str, Any]
Tables = dict[str, list[Row]]


def people_and_lines(rng: random.Random) -> Tables:
    taken: set[str] = set()
    stations, passengers = sorted(names(rng, 24, taken)), sorted(names(rng, 90, taken))
    holders = sorted(rng.sample(passengers, 56))
    passes: list[Row] = []
    for number, holder in zip(sorted(rng.sample(range(401, 900), 56)), holders, strict=True):
        starts = TODAY - rng.randint(0, 44)
        kind = rng.choices(list(PASSES), [4, 3, 2])[0]
        passes.append({"pass": number, "passenger": holder, "kind": kind, "starts": starts, "expires": starts + 30})
    return {
        "clock": [{"id": 1, "day": TODAY}],
        "stations": [{"station": s, "zone": rng.randint(1, 6), "platforms": rng.randint(2, 14)} for s in stations],
        "classes": [{"class": name, "percent": percent} for name, percent in CLASSES.items()],
        "refund_rules": [{"days": days, "percent": percent} for days, percent in RULES.items()],
        "pass_kinds": [{"kind": k, "percent": percent, "price": price} for k, (percent, price) in PASSES.items()],
        "passengers": [
            {"passenger": p, "station": rng.choice(stations), "wallet": rng.randint(0, 299)} for p in passengers
        ],
        "passes": passes,
        "trains": trains(rng, stations),
    }


def trains(rng: random.Random, stations: list[str]) -> list[Row]:
    """Eighteen routes with four trains each, some of them gone, most of them to come."""
    ends = rng.sample([(a, b) for a in stations for b in stations if a != b], 18)
    rows: list[Row] = []
    for number, route in zip(sorted(rng.sample(range(101, 400), 72)), rng.sample(ends * 4, 72), strict=True):
        base = 9 + 61 * ends.index(route) // 17
        day = TODAY + rng.choice([-rng.randint(1, 20), 0, rng.randint(1, 6), rng.randint(4, 15)])
        departs = rng.randrange(330, 1200, 5)
        status = "cancelled" if rng.random() < 0.06 else "arrived" if day < TODAY else "planned"
        late = rng.choice([0, 4, 12, 35, 48, 65, 90]) if status == "arrived" else 0
        rows.append(
            {
                "train": number,
                "origin": route[0],
                "destination": route[1],
                "day": day,
                "departs": departs,
                "arrives": departs + 20 + 2 * base + rng.randint(0, 9),
                "fare": base + rng.randint(0, 7),
                "delay": rng.choice([0, 0, 6, 15]) if day == TODAY and status == "planned" else late,
                "status": status,
            }
        )
    return rows


def price(tables: Tables, passenger: str, train: Row, kind: str, day: int) -> int:
    """The fare with the class's surcharge and less the per cent of a pass that is valid on that day."""
    valid = [p for p in tables["passes"] if p["passenger"] == passenger and p["starts"] <= day <= p["expires"]]
    percent = max((PASSES[p["kind"]][0] for p in valid), default=0)
    return int(train["fare"] * (100 + CLASSES[kind]) * (100 - percent) // 10_000)


def seats_of(rng: random.Random, train: Row) -> list[Row]:
    labels = [f"A{n}" for n in range(1, rng.randint(2, 3) + 1)] + [f"B{n}" for n in range(1, rng.randint(4, 6) + 1)]
    return [
        {
            "train": train["train"],
            "seat": label,
            "class": "first" if label[0] == "A" else "second",
            "place": rng.choice(["window", "aisle"]),
            "booking": None,
        }
        for label in labels
    ]


def journeys(rng: random.Random, tables: Tables) -> None:
    """Adds seats, bookings and refunds: a booking that was not refunded holds one seat of its train."""
    seats, bookings, refunds = list[Row](), list[Row](), list[Row]()
    free = sorted(rng.sample(range(2001, 9000), 400))
    for train in tables["trains"]:
        here = seats_of(rng, train)
        seats += here
        share = 0.35 if train["status"] == "planned" else 0.45
        taken = [seat for seat in here if rng.random() < share]
        for seat, buyer in zip(taken, rng.sample(tables["passengers"], len(taken)), strict=True):
            day = min(TODAY, train["day"]) - rng.randint(1, 12)
            paid = price(tables, buyer["passenger"], train, seat["class"], day)
            row = {"booking": free.pop(0), "passenger": buyer["passenger"], "train": train["train"]}
            row |= {"class": seat["class"], "day": day, "paid": paid, "status": "booked"}
            bookings.append(row)
            if train["status"] == "cancelled":
                back = (min(TODAY, train["day"]), paid, "cancelled")
            elif rng.random() < 0.08:
                when = rng.randint(day, min(TODAY, train["day"]))
                rule = max(days for days in RULES if days <= train["day"] - when)
                back = (when, paid * RULES[rule] // 100, "returned")
            else:
                seat["booking"] = row["booking"]
                row["status"] = "used" if train["status"] == "arrived" else "booked"
                if row["status"] == "booked" or train["delay"] < 30 or rng.random() < 0.85:
                    continue
                share_back = 50 if train["delay"] >= 60 else 25
                back = (rng.randint(train["day"], TODAY), paid * share_back // 100, "delayed")
            row["status"] = row["status"] if back[2] == "delayed" else "refunded"
            refunds.append({"booking": row["booking"], "day": back[0], "amount": back[1], "reason": back[2]})
    tables["bookings"], tables["seats"], tables["refunds"] = bookings, seats, refunds


def check(tables: Tables) -> None:
    """What holds of the entries and after whatever is called."""
    trains = {row["train"]: row for row in tables["trains"]}
    bookings = {row["booking"]: row for row in tables["bookings"]}
    refunds = {row["booking"]: row for row in tables["refunds"]}
    held = {row["booking"]: row for row in tables["seats"] if row["booking"] is not None}
    for number, row in bookings.items():
        train = trains[row["train"]]
        assert (row["status"] == "refunded") == (number not in held), number
        assert row["day"] <= min(TODAY, train["day"]), number
        assert row["status"] == "refunded" or train["status"] != "cancelled", number
        assert row["status"] != "booked" or train["status"] == "planned", number
        assert row["status"] != "refunded" or refunds[number]["reason"] != "delayed", number
        if number in held:
            assert (held[number]["train"], held[number]["class"]) == (row["train"], row["class"]), number
    for number, row in refunds.items():
        assert 0 <= row["amount"] <= bookings[number]["paid"], number
        assert bookings[number]["day"] <= row["day"] <= TODAY, number
        assert bookings[number]["status"] == ("used" if row["reason"] == "delayed" else "refunded"), number
        assert row["reason"] != "cancelled" or row["amount"] == bookings[number]["paid"], number
    assert all((row["day"] < TODAY) or row["status"] != "arrived" for row in trains.values())
    valid = Counter(row["passenger"] for row in tables["passes"] if row["expires"] >= TODAY)
    assert not valid or max(valid.values()) == 1
    assert not {*trains} & {*bookings} and not {row["pass"] for row in tables["passes"]} & {*trains, *bookings}


def generate(folder: Path) -> dict[str, int]:
    """Write one CSV a table; the number of entries of each."""
    rng = random.Random(SEED)
    tables = people_and_lines(rng)
    journeys(rng, tables)
    check(tables)
    return write(folder, tables)


if __name__ == "__main__":
    print(generate(Path(__file__).parent / "entries"))
