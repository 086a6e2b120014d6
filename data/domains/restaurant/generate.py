"""Writes entries/*.csv: a restaurant whose bills add up. Run: .venv/bin/python data/domains/restaurant/generate.py"""

import random
from collections import Counter
from pathlib import Path
from typing import Any

from orchestra.domains.fixtures import names, write

SEED = 20260228
TODAY = 180
AREAS = {"hall": 0, "bar": 1, "garden": 2, "terrace": 3}
COURSES = {"starter": (6, 13), "soup": (5, 10), "main": (12, 31), "dessert": (4, 11)}
ALLERGENS = {
    "milk": ["butter", "cream", "cheese"],
    "egg": ["eggs", "noodles"],
    "nuts": ["almonds", "walnuts"],
    "fish": ["salmon", "trout", "tuna"],
    "gluten": ["flour", "bread", "barley"],
    "": [
        *["beef", "chicken", "lamb", "rice", "beans", "lentils", "tomatoes", "onions", "carrots", "spinach"],
        *["mushrooms", "potatoes", "peppers", "apples", "lemons", "honey", "chocolate", "basil"],
    ],
}

Row = dict[str, Any]
Tables = dict[str, list[Row]]


def house_and_kitchen(rng: random.Random) -> Tables:
    taken: set[str] = set()
    waiters, suppliers, guests = names(rng, 12, taken), names(rng, 9, taken), names(rng, 90, taken)
    goods = sorted((name, allergen) for allergen, found in ALLERGENS.items() for name in found)
    tables: Tables = {
        "clock": [{"id": 1, "day": TODAY}],
        "areas": [{"area": area, "cover": cover} for area, cover in AREAS.items()],
        "dining_tables": [
            {"table_id": n, "area": rng.choice(list(AREAS)), "seats": rng.choice([2, 2, 3, 4, 4, 5, 6, 6, 8, 10])}
            for n in sorted(rng.sample(range(101, 190), 34))
        ],
        "waiters": [{"waiter": w, "area": list(AREAS)[i % 4], "tips": 0} for i, w in enumerate(sorted(waiters))],
        "guests": [
            {
                "guest": guest,
                "avoids": rng.choice(list(ALLERGENS)[:5]) if rng.random() < 0.4 else None,
                "points": rng.randint(0, 140),
                "owed": rng.choice([0, 0, rng.randint(3, 30)]),
            }
            for guest in sorted(guests)
        ],
        "suppliers": [{"supplier": s, "days": rng.randint(1, 12)} for s in sorted(suppliers)],
        "ingredients": [
            {
                "ingredient": name,
                "allergen": allergen or None,
                "supplier": rng.choice(suppliers),
                "price": rng.randint(1, 9),
                "stock": rng.choice([rng.randint(0, 12), rng.randint(15, 99)]),
            }
            for name, allergen in goods
        ],
    }
    tables["dishes"], tables["recipes"] = list[Row](), list[Row]()
    for i, dish in enumerate(sorted(rng.sample(range(201, 300), 80))):
        course = list(COURSES)[i % 4]
        tables["dishes"].append({"dish": dish, "course": course, "price": rng.randint(*COURSES[course])})
        count = rng.choice([2, 2, 3, 3, 4])
        for (name, _), amount in zip(sorted(rng.sample(goods, count)), rng.sample(range(1, 6), count), strict=True):
            tables["recipes"].append({"dish": dish, "ingredient": name, "amount": amount})
    return tables


def status_of(rng: random.Random, day: int) -> str:
    """A plausible state for a reservation: past ones are over, today's guests are coming in."""
    if rng.random() < 0.06:
        return "cancelled"
    if day < TODAY:
        return rng.choices(["done", "missed"], [9, 1])[0]
    return rng.choice(["booked", "seated"]) if day == TODAY else "booked"


def evenings(rng: random.Random, tables: Tables) -> None:
    """Adds reservations: one party a table and evening, and one table a guest and evening."""
    rows: list[Row] = []
    days = [d for d in range(TODAY - 9, TODAY + 15) for _ in range(5 if d < TODAY else 28 if d == TODAY else 8)]
    numbers = sorted(rng.sample(range(1001, 5000), len(days)))
    for day in sorted(set(days)):
        chosen = rng.sample(tables["dining_tables"], days.count(day))
        for place, guest in zip(chosen, rng.sample(tables["guests"], len(chosen)), strict=True):
            row = {"reservation": numbers.pop(0), "guest": guest["guest"], "table_id": place["table_id"], "day": day}
            rows.append(row | {"people": rng.randint(max(1, place["seats"] - 2), place["seats"])})
            rows[-1]["status"] = status_of(rng, day)
    tables["reservations"] = rows


def bills(rng: random.Random, tables: Tables) -> None:
    """Adds orders, items and vouchers: a total is the cover and the dishes, a discount comes from one voucher."""
    area = {row["table_id"]: row["area"] for row in tables["dining_tables"]}
    guests = {row["guest"]: row for row in tables["guests"]}
    seated = [row for row in tables["reservations"] if row["status"] in ("seated", "done")]
    tonight = {row["guest"] for row in tables["reservations"] if row["day"] == TODAY}
    hungry = rng.sample(sorted(set(guests) - tonight), 34)
    away = [(guest, TODAY, "open") for guest in hungry]
    away += [(rng.choice(sorted(guests)), TODAY - rng.randint(1, 30), "paid") for _ in range(50)]
    visits: list[tuple[Any, int, str, Row | None]] = [
        (r["guest"], r["day"], "open" if r["status"] == "seated" else "paid", r) for r in seated
    ]
    visits += [(*visit, None) for visit in away]
    tables["vouchers"] = [
        {"voucher": n, "value": (value := rng.choice([10, 20, 25, 40, 50])), "remaining": value, "expires": 0}
        for n in sorted(rng.sample(range(301, 390), 40))
    ]
    for voucher in tables["vouchers"]:
        voucher["expires"] = TODAY + rng.choice([-15, -4, 3, 10, 20, 35, 60])
    orders, items = list[Row](), list[Row]()
    numbers = sorted(rng.sample(range(5001, 9500), len(visits)))
    for number, (guest, day, status, visit) in zip(numbers, sorted(visits, key=lambda v: v[1]), strict=True):
        where = "bar" if visit is None else area[visit["table_id"]]
        waiter = rng.choice([w for w in tables["waiters"] if w["area"] == where])
        cover = 0 if visit is None else visit["people"] * AREAS[where]
        dishes = eaten(rng, tables, guests[guest]["avoids"], number, rng.choice([1, 1, 2, 2, 3]))
        order = {"order_id": number, "guest": guest, "reservation": visit and visit["reservation"]}
        order |= {"waiter": waiter["waiter"], "day": day, "cover": cover}
        order |= {"total": cover + sum(row["quantity"] * row["price"] for row in dishes), "voucher": None}
        order |= {"discount": 0, "tip": rng.choice([0, 2, 3, 5, 8]) if status == "paid" else 0, "status": status}
        good = [v for v in tables["vouchers"] if v["remaining"] and v["expires"] >= day]
        if rng.random() < 0.1:
            voucher = rng.choice(good)
            order |= {"voucher": voucher["voucher"], "discount": min(voucher["remaining"], order["total"])}
            voucher["remaining"] -= order["discount"]
        waiter["tips"] += order["tip"]
        orders.append(order)
        items += dishes
    tables["orders"], tables["items"] = orders, items


def eaten(rng: random.Random, tables: Tables, avoids: str | None, order: int, count: int) -> list[Row]:
    """The dishes of an order, none of them with what the guest avoids."""
    bad = {row["ingredient"] for row in tables["ingredients"] if avoids and row["allergen"] == avoids}
    bad_dishes = {row["dish"] for row in tables["recipes"] if row["ingredient"] in bad}
    chosen = rng.sample([row for row in tables["dishes"] if row["dish"] not in bad_dishes], count)
    return [
        {"order_id": order, "dish": row["dish"], "quantity": rng.choice([1, 1, 2, 3]), "price": row["price"]}
        for row in sorted(chosen, key=lambda row: int(row["dish"]))
    ]


def check(tables: Tables) -> None:
    """What holds of the entries and after whatever is called."""
    seats = {row["table_id"]: row["seats"] for row in tables["dining_tables"]}
    held = [row for row in tables["reservations"] if row["status"] in ("booked", "seated", "done")]
    assert max(Counter((row["table_id"], row["day"]) for row in held).values()) == 1
    coming = [row for row in held if row["status"] == "booked"]
    assert max(Counter((row["guest"], row["day"]) for row in coming).values()) == 1
    assert all(row["people"] <= seats[row["table_id"]] for row in held)
    assert all(row["day"] >= TODAY for row in coming)
    bill = {row["reservation"]: row for row in tables["orders"] if row["reservation"]}
    for row in tables["reservations"]:
        assert (row["status"] in ("seated", "done")) == (row["reservation"] in bill), row
        if row["reservation"] in bill:
            order = bill[row["reservation"]]
            assert (order["guest"], order["day"]) == (row["guest"], row["day"]), row
            assert (order["status"] == "open") == (row["status"] == "seated"), row
    parts: Counter[int] = Counter()
    for row in tables["items"]:
        parts[row["order_id"]] += row["quantity"] * row["price"]
    spent: Counter[int] = Counter()
    tips: Counter[str] = Counter()
    for row in tables["orders"]:
        assert row["total"] == row["cover"] + parts[row["order_id"]], row
        assert row["status"] == "paid" or (row["day"] == TODAY and row["tip"] == 0), row
        assert (row["voucher"] is None) == (row["discount"] == 0), row
        spent[row["voucher"]] += row["discount"]
        tips[row["waiter"]] += row["tip"]
    assert max(Counter(row["guest"] for row in tables["orders"] if row["status"] == "open").values()) == 1
    assert all(row["value"] - row["remaining"] == spent[row["voucher"]] for row in tables["vouchers"])
    assert all(row["tips"] == tips[row["waiter"]] for row in tables["waiters"])
    assert {row["area"] for row in tables["waiters"]} == set(AREAS)


def generate(folder: Path) -> dict[str, int]:
    """Write one CSV a table; the number of entries of each."""
    rng = random.Random(SEED)
    tables = house_and_kitchen(rng)
    evenings(rng, tables)
    bills(rng, tables)
    check(tables)
    return write(folder, tables)


if __name__ == "__main__":
    print(generate(Path(__file__).parent / "entries"))
