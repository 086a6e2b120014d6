"""Writes entries/*.csv: flights and hotels that are never overbooked. Run: python data/domains/travel/generate.py"""

import random
from collections import Counter
from pathlib import Path
from typing import Any

from orchestra.domains.fixtures import names as made_names
from orchestra.domains.fixtures import write

SEED = 20260730
TODAY = 250
# level: (grade, per cent off, price of the first bag, points that the level costs)
LEVELS = {"blue": (1, 0, 35, 0), "green": (2, 5, 20, 400), "black": (3, 12, 10, 900)}

Row = dict[str, Any]
Tables = dict[str, list[Row]]


def names(rng: random.Random, count: int, taken: set[str]) -> list[str]:
    """In order."""
    return sorted(made_names(rng, count, taken))


def people_and_places(rng: random.Random) -> Tables:
    taken: set[str] = set()
    cities, hotels, travellers = names(rng, 14, taken), names(rng, 44, taken), names(rng, 100, taken)
    return {
        "clock": [{"id": 1, "day": TODAY}],
        "cities": [{"city": c, "tax": rng.randint(0, 6)} for c in cities],
        "levels": [
            {"level": level, "grade": grade, "percent": percent, "bag": bag, "cost": cost}
            for level, (grade, percent, bag, cost) in LEVELS.items()
        ],
        "travellers": [
            {
                "traveller": t,
                "city": rng.choice(cities),
                "level": rng.choices(list(LEVELS), [5, 3, 2])[0],
                "points": rng.choice([rng.randint(0, 199), rng.randint(100, 1400), rng.randint(100, 1400)]),
                "wallet": rng.choice([rng.randint(0, 99), rng.randint(100, 999), rng.randint(100, 999)]),
            }
            for t in travellers
        ],
        "hotels": [
            {
                "hotel": hotel,
                "city": cities[i % len(cities)],
                "stars": (stars := rng.randint(1, 5)),
                "price": 18 * stars + rng.randint(15, 60),
                "rooms": rng.randint(1, 6),
            }
            for i, hotel in enumerate(hotels)
        ],
    }


def timetable(rng: random.Random, tables: Tables) -> None:
    """Adds flights, several on each route; one of a route costs about what the others do, and takes as long."""
    cities = [row["city"] for row in tables["cities"]]
    routes = rng.sample([(a, b) for a in cities for b in cities if a != b], 26)
    flights: list[Row] = []
    lengths = {route: rng.randint(45, 300) for route in routes}
    for i, number in enumerate(sorted(rng.sample(range(101, 1000), 104))):
        origin, destination = route = routes[i % len(routes)]
        flights.append(
            {
                "flight": number,
                "origin": origin,
                "destination": destination,
                "day": TODAY + rng.choice([rng.randint(-60, 0), rng.randint(1, 16), rng.randint(1, 50)]),
                "departs": 5 * rng.randint(60, 220),
                "minutes": lengths[route],
                "price": lengths[route] // 2 + rng.randint(25, 140),
                "seats": rng.randint(2, 9),
            }
        )
    tables["flights"] = flights


def bookings(rng: random.Random, tables: Tables) -> None:
    """Adds tickets: a flight has no more than its seats, a traveller no two flights on a day."""
    taken: Counter[Any] = Counter()
    busy: set[tuple[str, int]] = set()
    tickets: list[Row] = []
    for number in sorted(rng.sample(range(2001, 5800), 220)):
        while True:
            flight, traveller = rng.choice(tables["flights"]), rng.choice(tables["travellers"])
            day = (traveller["traveller"], flight["day"])
            if day not in busy and taken[flight["flight"]] < flight["seats"]:
                break
        status = "cancelled" if rng.random() < 0.1 else "flown" if flight["day"] < TODAY else "booked"
        if status != "cancelled":
            busy.add(day)
            taken[flight["flight"]] += 1
        tickets.append(
            {
                "ticket": number,
                "traveller": traveller["traveller"],
                "flight": flight["flight"],
                "paid": flight["price"] * (100 - LEVELS[traveller["level"]][1]) // 100,
                "bags": rng.choices([0, 1, 2], [5, 3, 1])[0],
                "status": status,
            }
        )
    tables["tickets"] = tickets


def nights_in_hotels(rng: random.Random, tables: Tables) -> None:
    """Adds stays: no night has more of them than the hotel has rooms, and nobody sleeps twice."""
    taxes = {row["city"]: row["tax"] for row in tables["cities"]}
    taken: Counter[Any] = Counter()
    stays: list[Row] = []
    for number in sorted(rng.sample(range(6001, 9400), 150)):
        while True:
            hotel, traveller = rng.choice(tables["hotels"]), rng.choice(tables["travellers"])
            nights = rng.choices([1, 2, 3, 4, 5, 7], [3, 5, 5, 3, 2, 2])[0]
            arrival = TODAY + rng.choice([rng.randint(-80, -7), rng.randint(-3, 9), rng.randint(1, 40)])
            dates = range(arrival, arrival + nights)
            free = all(taken[hotel["hotel"], date] < hotel["rooms"] for date in dates)
            if free and not any((traveller["traveller"], date) in taken for date in dates):
                break
        status = "stayed" if arrival + nights <= TODAY else "booked"
        if rng.random() < 0.1 and arrival != TODAY:
            status = "cancelled"
        else:
            taken.update((name, date) for date in dates for name in (hotel["hotel"], traveller["traveller"]))
        percent = LEVELS[traveller["level"]][1]
        stays.append(
            {
                "stay": number,
                "traveller": traveller["traveller"],
                "hotel": hotel["hotel"],
                "arrival": arrival,
                "nights": nights,
                "paid": hotel["price"] * nights * (100 - percent) // 100 + taxes[hotel["city"]] * nights,
                "status": status,
            }
        )
    tables["stays"] = stays


def check(tables: Tables) -> None:
    """What must hold between the entries; the database checks the rest."""
    flights = {row["flight"]: row for row in tables["flights"]}
    levels = {row["traveller"]: row["level"] for row in tables["travellers"]}
    numbers = [row[kind] for kind in ("flight", "ticket", "stay") for row in tables[f"{kind}s"]]
    assert len(set(numbers)) == len(numbers) and max(numbers) < 9800
    live = [row for row in tables["tickets"] if row["status"] != "cancelled"]
    assert all(n <= flights[f]["seats"] for f, n in Counter(row["flight"] for row in live).items())
    assert max(Counter((row["traveller"], flights[row["flight"]]["day"]) for row in live).values()) == 1
    assert all((row["status"] == "flown") == (flights[row["flight"]]["day"] < TODAY) for row in live)
    for row in tables["tickets"]:
        assert row["paid"] == flights[row["flight"]]["price"] * (100 - LEVELS[levels[row["traveller"]]][1]) // 100
    slept = [row for row in tables["stays"] if row["status"] != "cancelled"]
    assert all((row["status"] == "stayed") == (row["arrival"] + row["nights"] <= TODAY) for row in slept)
    dates = [(row, row["arrival"] + n) for row in slept for n in range(row["nights"])]
    assert max(Counter((row["traveller"], date) for row, date in dates).values()) == 1
    rooms = {row["hotel"]: row["rooms"] for row in tables["hotels"]}
    assert all(n <= rooms[hotel] for (hotel, _), n in Counter((row["hotel"], date) for row, date in dates).items())


def generate(folder: Path) -> dict[str, int]:
    """Write one CSV a table; the number of entries of each."""
    rng = random.Random(SEED)
    tables = people_and_places(rng)
    timetable(rng, tables)
    bookings(rng, tables)
    nights_in_hotels(rng, tables)
    check(tables)
    return write(folder, tables)


if __name__ == "__main__":
    print(generate(Path(__file__).parent / "entries"))
