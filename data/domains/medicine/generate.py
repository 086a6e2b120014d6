"""Writes entries/*.csv: a clinic that adds up. Run: .venv/bin/python data/domains/medicine/generate.py"""

import random
from collections import Counter
from pathlib import Path

from orchestra.domains.fixtures import names, write

SEED = 9197
TODAY = 300
MINUTES = range(480, 931, 30)
A_DAY = 150
FIELDS = {"skin": 1, "heart": 3, "eyes": 2, "bones": 4, "ears": 2, "teeth": 1, "nerves": 5, "lungs": 3}
FORMS = ["pills", "drops", "cream", "syrup", "spray"]
LATE_FEE = 15

Row = dict[str, str | int | None]
Tables = dict[str, list[Row]]


def number(value: str | int | None) -> int:
    """A cell that holds a number, as one."""
    assert isinstance(value, int)
    return value


def people(rng: random.Random) -> Tables:
    """Doctors, insurers, patients with their allergies, and drugs."""
    taken: set[str] = set()
    doctors, insurers, patients = names(rng, 26, taken), names(rng, 6, taken), names(rng, 80, taken)
    substances = [name.lower() for name in names(rng, 18, taken)]
    numbers = sorted(rng.sample(range(101, 900), 72))
    return {
        "clock": [{"id": 1, "day": TODAY}],
        "slots": [{"minute": minute} for minute in MINUTES],
        "fields": [{"field": field, "floor": floor} for field, floor in FIELDS.items()],
        "doctors": [
            {
                "doctor": doctor,
                "field": list(FIELDS)[i % len(FIELDS)],
                "fee": rng.randrange(30, 121, 5),
                "off": rng.randint(0, 6),
                "starts": rng.choice(MINUTES[:-5]),
            }
            for i, doctor in enumerate(sorted(doctors))
        ],
        "insurers": [
            {"insurer": insurer, "percent": percent}
            for insurer, percent in zip(sorted(insurers), rng.sample(range(50, 96, 5), 6), strict=True)
        ],
        "patients": [
            {"patient": p, "age": rng.randint(4, 92), "insurer": rng.choice(insurers), "doctor": rng.choice(doctors)}
            for p in sorted(patients)
        ],
        "allergies": [
            {"patient": p, "substance": substance}
            for p in sorted(patients)
            for substance in sorted(rng.sample(substances, rng.choices([0, 1, 2], [3, 6, 1])[0]))
        ],
        "drugs": [
            {
                "drug": drug,
                "form": rng.choice(FORMS),
                "substance": substances[i % len(substances)],
                "price": rng.randint(4, 79),
                "stock": rng.choice([rng.randint(0, 5), rng.randint(6, 60), rng.randint(6, 60)]),
            }
            for i, drug in enumerate(numbers)
        ],
    }


def works(doctor: Row, day: int) -> bool:
    return day % 7 != doctor["off"]


def diary(rng: random.Random, tables: Tables) -> None:
    """Adds visits, none two at once, and prescriptions by the patient's doctor, none against an allergy."""
    doctors = {row["doctor"]: row for row in tables["doctors"]}
    taken: set[tuple[object, ...]] = set()
    visits, prescriptions = list[Row](), list[Row]()
    for visit in sorted(rng.sample(range(1001, 2900), 240)):
        while True:
            patient = rng.choice(tables["patients"])
            own = doctors[patient["doctor"]]
            doctor = own if rng.random() < 0.6 else rng.choice(tables["doctors"])
            ahead = rng.choice([0, rng.randint(1, 3), rng.randint(1, 9), -rng.randint(1, 20), -rng.randint(1, 90)])
            day, first = TODAY + ahead, number(doctor["starts"])
            minute = first + rng.choice([0, 0, 0, 30, 30, 60, 90, A_DAY])
            marks = {(doctor["doctor"], day, minute), (patient["patient"], day)}
            if works(doctor, day) and not marks & taken:
                break
        taken |= marks
        past = rng.choices(["done", "missed", "cancelled"], [8, 1, 1])[0]
        status = past if ahead < 0 else rng.choices(["booked", "cancelled"], [12, 1])[0]
        visits.append({"visit": visit, "patient": patient["patient"], "doctor": doctor["doctor"], "day": day})
        visits[-1] |= {"minute": minute, "status": status}
    allergic = {(row["patient"], row["substance"]) for row in tables["allergies"]}
    for prescription in sorted(rng.sample(range(4001, 4900), 180)):
        patient, drug = rng.choice(tables["patients"]), rng.choice(tables["drugs"])
        while (patient["patient"], drug["substance"]) in allergic:
            drug = rng.choice(tables["drugs"])
        days = rng.choice([rng.randint(0, 9), rng.randint(0, 29), rng.randint(10, 90)])
        status = rng.choices(["open", "filled", "cancelled"], [1, 8, 1] if days > 30 else [7, 3, 1])[0]
        prescriptions.append({"prescription": prescription, "patient": patient["patient"]})
        prescriptions[-1] |= {"doctor": patient["doctor"], "drug": drug["drug"], "packs": rng.randint(1, 5)}
        prescriptions[-1] |= {"day": TODAY - days, "status": status}
    tables["visits"], tables["prescriptions"] = visits, prescriptions


def accounts(rng: random.Random, tables: Tables) -> None:
    """Adds one bill a patient and day for visits, drugs and late fees, with its charges and what the insurer covers."""
    fee = {row["doctor"]: number(row["fee"]) for row in tables["doctors"]}
    price = {row["drug"]: number(row["price"]) for row in tables["drugs"]}
    percent = {row["insurer"]: number(row["percent"]) for row in tables["insurers"]}
    cover = {row["patient"]: percent[str(row["insurer"])] for row in tables["patients"]}
    owing: dict[tuple[str, int], list[tuple[str, int]]] = {}
    for row in tables["visits"]:
        if row["status"] == "done":
            owing.setdefault((str(row["patient"]), number(row["day"])), []).append(("visit", fee[row["doctor"]]))
        elif row["status"] == "cancelled" and number(row["day"]) <= TODAY + 1 and rng.random() < 0.5:
            owing.setdefault((str(row["patient"]), min(number(row["day"]), TODAY)), []).append(("late", LATE_FEE))
    for row in tables["prescriptions"]:
        if row["status"] == "filled":
            cost = price[row["drug"]] * number(row["packs"])
            owing.setdefault((str(row["patient"]), number(row["day"])), []).append(("drugs", cost))
    bills, charges = list[Row](), list[Row]()
    numbers = sorted(rng.sample(range(6001, 6900), len(owing)))
    for bill, (patient, day) in zip(numbers, rng.sample(sorted(owing), len(owing)), strict=True):
        items = owing[patient, day]
        total = sum(amount for _, amount in items)
        covered = sum(amount for item, amount in items if item != "late") * cover[patient] // 100
        paid = covered == total or rng.random() < (0.8 if day < TODAY - 40 else 0.3)
        bills.append({"bill": bill, "patient": patient, "day": day, "total": total, "covered": covered})
        bills[-1]["status"] = "paid" if paid else "open"
        for count, (item, amount) in enumerate(items, 1):
            charges.append({"bill": bill, "number": count, "item": item, "amount": amount})
    tables["bills"], tables["charges"] = bills, charges


def check(tables: Tables) -> None:
    """What must hold whatever was done: bills are their charges, nobody is in two places, states fit dates."""
    today = number(tables["clock"][0]["day"])
    sums: Counter[object] = Counter()
    late: Counter[object] = Counter()
    for row in tables["charges"]:
        sums[row["bill"]] += number(row["amount"])
        late[row["bill"]] += number(row["amount"]) * (row["item"] == "late")
    for bill in tables["bills"]:
        assert sums[bill["bill"]] == bill["total"], bill
        assert 0 <= number(bill["covered"]) <= number(bill["total"]) - late[bill["bill"]], bill
        assert number(bill["day"]) <= today, bill
    off = {row["doctor"]: row["off"] for row in tables["doctors"]}
    booked = [row for row in tables["visits"] if row["status"] == "booked"]
    assert len({(row["doctor"], row["day"], row["minute"]) for row in booked}) == len(booked)
    assert len({(row["patient"], row["day"]) for row in booked}) == len(booked)
    starts = {row["doctor"]: number(row["starts"]) for row in tables["doctors"]}
    assert all(0 <= number(row["minute"]) - starts[row["doctor"]] <= A_DAY for row in tables["visits"])
    assert all(number(row["day"]) >= today and number(row["day"]) % 7 != off[row["doctor"]] for row in booked)
    assert all(number(row["day"]) <= today for row in tables["visits"] if row["status"] in ("done", "missed"))
    allergic = {(row["patient"], row["substance"]) for row in tables["allergies"]}
    substance = {row["drug"]: row["substance"] for row in tables["drugs"]}
    for row in tables["prescriptions"]:
        assert (row["patient"], substance[row["drug"]]) not in allergic, row
        assert number(row["day"]) <= today, row


def generate(folder: Path) -> dict[str, int]:
    """Write one CSV a table; the number of entries of each."""
    rng = random.Random(SEED)
    tables = people(rng)
    diary(rng, tables)
    accounts(rng, tables)
    check(tables)
    return write(folder, tables)


if __name__ == "__main__":
    print(generate(Path(__file__).parent / "entries"))
