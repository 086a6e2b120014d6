"""Writes entries/*.csv: a bank that adds up. Run: .venv/bin/python data/domains/finance/generate.py"""

import random
from pathlib import Path

from orchestra.domains.fixtures import names, write

SEED = 7006
TODAY = 700
PLANS = {"basic": (3, 0), "plus": (1, 10), "prime": (0, 25)}
RATES = {"home": 4, "car": 6, "study": 3, "shop": 9}
TRADES = ["food", "books", "shoes", "fuel", "toys", "tools"]

Row = dict[str, str | int | None]
Tables = dict[str, list[Row]]


def number(value: str | int | None) -> int:
    """A cell that holds a number, as one."""
    assert isinstance(value, int)
    return value


def total_of(kind: str, amount: int, score: int) -> int:
    """What a loan costs in all: the amount with the interest of its kind, 2 per cent more for a low score."""
    return amount * (100 + RATES[kind] + (2 if score < 600 else 0)) // 100


def people(rng: random.Random) -> Tables:
    """Branches with their clients, and the shops."""
    taken: set[str] = set()
    branches, managers = names(rng, 20, taken), names(rng, 20, taken)
    clients, shops = names(rng, 100, taken), names(rng, 24, taken)
    return {
        "clock": [{"id": 1, "day": TODAY}],
        "plans": [{"plan": plan, "fee": fee, "price": price} for plan, (fee, price) in PLANS.items()],
        "rates": [{"kind": kind, "percent": percent} for kind, percent in RATES.items()],
        "branches": [
            {"branch": branch, "manager": manager, "cash": rng.randrange(150, 451, 25)}
            for branch, manager in zip(sorted(branches), managers, strict=True)
        ],
        "clients": [
            {
                "client": client,
                "branch": branches[i % len(branches)],
                "plan": rng.choices(list(PLANS), [5, 3, 2])[0],
                "score": rng.randint(380, 840),
            }
            for i, client in enumerate(sorted(clients))
        ],
        "shops": [{"shop": shop, "trade": rng.choice(TRADES)} for shop in sorted(shops)],
    }


def accounts(rng: random.Random, tables: Tables) -> None:
    """Adds accounts and cards; a closed account is empty, the cards of a frozen one are blocked."""
    holders = [(str(row["client"]), "current") for row in tables["clients"]]
    holders += [(client, "savings") for client, _ in holders if rng.random() < 0.65]
    rows: list[Row] = []
    for account, (client, kind) in zip(
        sorted(rng.sample(range(1001, 4900), len(holders))), rng.sample(holders, len(holders)), strict=True
    ):
        status = rng.choices(["open", "frozen", "closed"], [16, 2, 3 if kind == "savings" else 0])[0]
        balance = 0 if status == "closed" else rng.randint(0, 899)
        rows.append({"account": account, "client": client, "kind": kind, "balance": balance, "status": status})
    tables["accounts"] = rows
    carriers = [row for row in rows if row["kind"] == "current"]
    carriers += rng.sample(carriers, 25)
    tables["cards"] = [
        {
            "card": card,
            "account": row["account"],
            "status": "blocked" if row["status"] == "frozen" or rng.random() < 0.12 else "active",
            "most": rng.randrange(40, 301, 10),
            "expires": TODAY + rng.choice([rng.randint(-60, -1), *(rng.randint(10, 900) for _ in range(7))]),
        }
        for card, row in zip(
            sorted(rng.sample(range(101, 900), len(carriers))), rng.sample(carriers, len(carriers)), strict=True
        )
    ]


def age(rng: random.Random) -> int:
    """Days since something happened: often recent, sometimes long ago."""
    return rng.choice([rng.randint(0, 6), rng.randint(3, 14), rng.randint(10, 40), rng.randint(31, 200)])


def dealings(rng: random.Random, tables: Tables) -> None:
    """Adds card payments, transfers, loans and what was paid back on them."""
    cards, rows = tables["cards"], tables["accounts"]
    clients = {row["client"]: row for row in tables["clients"]}
    payments, transfers, loans, instalments = list[Row](), list[Row](), list[Row](), list[Row]()
    for payment in sorted(rng.sample(range(7001, 8900), 170)):
        card, days = rng.choice(cards), age(rng)
        payments.append({"payment": payment, "card": card["card"], "shop": rng.choice(tables["shops"])["shop"]})
        payments[-1]["amount"] = rng.randint(3, number(card["most"]))
        payments[-1]["day"] = min(TODAY - days, number(card["expires"]) - days)
        payments[-1]["status"] = rng.choices(["paid", "refunded"], [8, 1])[0]
    for transfer in sorted(rng.sample(range(5001, 5900), 140)):
        source = rng.choice(rows)
        sender = clients[source["client"]]
        near = [row for row in rows if clients[row["client"]]["branch"] == sender["branch"] and row is not source]
        target = rng.choice(near if rng.random() < 0.75 else [row for row in rows if row is not source])
        own = target["client"] == source["client"]
        transfers.append({"transfer": transfer, "source": source["account"], "target": target["account"]})
        transfers[-1]["amount"] = rng.randint(5, 199)
        transfers[-1]["fee"] = 0 if own else PLANS[str(sender["plan"])][0]
        transfers[-1]["day"] = TODAY - age(rng)
        transfers[-1]["status"] = rng.choices(["done", "reversed"], [9, 1])[0]
    worthy = [row for row in rows if row["kind"] == "current" and number(clients[row["client"]]["score"]) >= 450]
    for loan, row in zip(sorted(rng.sample(range(6001, 6900), 56)), rng.sample(worthy, 56), strict=True):
        score, kind, day = (
            number(clients[row["client"]]["score"]),
            rng.choice(list(RATES)),
            TODAY - rng.randint(30, 300),
        )
        amount = rng.randrange(100, min(score, 600) + 1, 10)
        owed, paid = total_of(kind, amount, score), 0
        for part in range(1, rng.randint(1, 4)):
            paid = rng.randint(20, 60)
            owed -= paid
            instalments.append({"loan": loan, "number": part, "amount": paid, "day": day + 9 * part})
            if owed <= 60:
                break
        if owed <= 60 or rng.random() < 0.12:
            last = sum(row["loan"] == loan for row in instalments) + 1
            instalments.append({"loan": loan, "number": last, "amount": owed, "day": day + 9 * last})
            owed = 0
        loans.append(
            {"loan": loan, "account": row["account"], "kind": kind, "amount": amount, "owed": owed, "day": day}
        )
        loans[-1]["status"] = "running" if owed else "repaid"
    tables |= {"payments": payments, "transfers": transfers, "loans": loans, "instalments": instalments}


def check(tables: Tables) -> None:
    """What must hold whatever was done: loans add up, states fit dates, closed accounts are empty."""
    today = number(tables["clock"][0]["day"])
    client_of = {row["account"]: row["client"] for row in tables["accounts"]}
    score_of = {row["client"]: number(row["score"]) for row in tables["clients"]}
    frozen = {row["account"] for row in tables["accounts"] if row["status"] == "frozen"}
    for loan in tables["loans"]:
        paid = sum(number(row["amount"]) for row in tables["instalments"] if row["loan"] == loan["loan"])
        total = total_of(str(loan["kind"]), number(loan["amount"]), score_of[str(client_of[loan["account"]])])
        assert number(loan["owed"]) == total - paid, loan
        assert (loan["owed"] == 0) == (loan["status"] == "repaid"), loan
    running = [row["account"] for row in tables["loans"] if row["status"] == "running"]
    assert len(running) == len(set(running))
    assert all(row["balance"] == 0 for row in tables["accounts"] if row["status"] == "closed")
    assert all(row["status"] == "blocked" for row in tables["cards"] if row["account"] in frozen)
    card_of = {row["card"]: row for row in tables["cards"]}
    for row in tables["payments"]:
        card = card_of[row["card"]]
        assert number(row["day"]) <= min(today, number(card["expires"])), row
        assert number(row["amount"]) <= number(card["most"]), row
    assert all(number(row["day"]) <= today for row in tables["instalments"])
    for row in tables["transfers"]:
        assert number(row["day"]) <= today, row
        assert row["fee"] == 0 or client_of[row["source"]] != client_of[row["target"]], row


def generate(folder: Path) -> dict[str, int]:
    """Write one CSV a table; the number of entries of each."""
    rng = random.Random(SEED)
    tables = people(rng)
    accounts(rng, tables)
    dealings(rng, tables)
    check(tables)
    return write(folder, tables)


if __name__ == "__main__":
    print(generate(Path(__file__).parent / "entries"))
