"""Writes entries/*.csv: a shop that adds up. Run: .venv/bin/python data/domains/ecommerce/generate.py"""

import random
from pathlib import Path

from orchestra.domains.fixtures import names, write

SEED = 20251115
TODAY = 400
KINDS = ["lamp", "kettle", "chair", "radio", "bag", "tent", "mug", "pan", "rug", "desk", "drum", "vase"]
TIERS = {"basic": 0, "silver": 5, "gold": 10}

Row = dict[str, str | int | None]
Tables = dict[str, list[Row]]


def people_and_goods(rng: random.Random) -> Tables:
    taken: set[str] = set()
    cities, suppliers = names(rng, 14, taken), names(rng, 14, taken)
    customers = names(rng, 100, taken)
    numbers = rng.sample(range(101, 1000), 100)
    return {
        "clock": [{"id": 1, "day": TODAY}],
        "cities": [{"city": c, "zone": rng.randint(1, 4)} for c in sorted(cities)],
        "tiers": [{"tier": tier, "percent": percent} for tier, percent in TIERS.items()],
        "suppliers": [
            {"supplier": s, "city": rng.choice(cities), "days": rng.randint(2, 19)} for s in sorted(suppliers)
        ],
        "customers": [
            {
                "customer": c,
                "city": rng.choice(cities),
                "tier": rng.choices(list(TIERS), [5, 3, 2])[0],
                "credit": rng.randint(0, 299),
            }
            for c in sorted(customers)
        ],
        "products": [
            {
                "product": number,
                "kind": KINDS[i % len(KINDS)],
                "supplier": rng.choice(suppliers),
                "price": rng.randint(4, 89),
                "stock": rng.randint(0, 59),
            }
            for i, number in enumerate(sorted(numbers))
        ],
    }


def status_of(rng: random.Random, age: int) -> str:
    """A plausible state for an order of `age` days: young ones are open, old ones have arrived."""
    if rng.random() < 0.08:
        return "cancelled"
    if age <= 6:
        return rng.choices(["open", "shipped"], [4, 1])[0]
    if age <= 12:
        return rng.choices(["open", "shipped", "delivered"], [1, 3, 2])[0]
    return rng.choices(["delivered", "returned"], [9, 1])[0]


def sales(rng: random.Random, tables: Tables) -> None:
    """Adds orders, lines, coupons and reviews; a total is the lines less the tier's and the coupon's per cent."""
    products, lines = tables["products"], list[Row]()
    orders: list[Row] = []
    free = rng.sample(range(10, 100), 36)
    coupons: list[Row] = []
    buyers = [*tables["customers"], *rng.choices(tables["customers"], k=80)]
    for number, buyer in zip(sorted(rng.sample(range(1001, 9500), 180)), rng.sample(buyers, 180), strict=True):
        age = rng.choice([rng.randint(0, 6), rng.randint(5, 14), rng.randint(8, 35), rng.randint(31, 120)])
        bought = rng.sample(products, rng.choices([1, 2, 3], [6, 3, 1])[0])
        total = 0
        for product in sorted(bought, key=lambda p: int(p["product"] or 0)):
            quantity = rng.choices([1, 2, 3, 4], [5, 3, 1, 1])[0]
            lines.append({"order_id": number, "product": product["product"], "quantity": quantity})
            lines[-1]["price"] = product["price"]
            total += quantity * int(product["price"] or 0)
        total = total * (100 - TIERS[str(buyer["tier"])]) // 100
        if free and rng.random() < 0.08:
            percent = rng.choice([10, 20, 25, 30])
            coupons.append({"coupon": free.pop(), "percent": percent, "expires": TODAY - age + 10, "order_id": number})
            total -= total * percent // 100
        orders.append(
            {
                "order_id": number,
                "customer": buyer["customer"],
                "day": TODAY - age,
                "status": status_of(rng, age),
                "total": total,
            }
        )
    for coupon in free:
        expires = TODAY + rng.choice([-20, -3, 5, 9, 14, 30, 60])
        coupons.append(
            {"coupon": coupon, "percent": rng.choice([10, 20, 25, 30]), "expires": expires, "order_id": None}
        )
    tables["orders"], tables["lines"] = orders, lines
    tables["coupons"] = sorted(coupons, key=lambda row: int(row["coupon"] or 0))
    tables["reviews"] = reviews(rng, orders, lines)


def reviews(rng: random.Random, orders: list[Row], lines: list[Row]) -> list[Row]:
    """Only who received a product has judged it, and once."""
    received = {row["order_id"]: row["customer"] for row in orders if row["status"] == "delivered"}
    pairs = {(str(received[row["order_id"]]), row["product"]) for row in lines if row["order_id"] in received}
    judged = [pair for pair in sorted(pairs, key=str) if rng.random() < 0.5]
    return [{"customer": c, "product": p, "stars": rng.choices(range(1, 6), [1, 1, 2, 4, 4])[0]} for c, p in judged]


def generate(folder: Path) -> dict[str, int]:
    """Write one CSV a table; the number of entries of each."""
    rng = random.Random(SEED)
    tables = people_and_goods(rng)
    sales(rng, tables)
    return write(folder, tables)


if __name__ == "__main__":
    print(generate(Path(__file__).parent / "entries"))
