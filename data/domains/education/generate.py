"""Writes entries/*.csv: a school whose credits and bills add up. Run: python data/domains/education/generate.py"""

import random
from collections import Counter
from pathlib import Path
from typing import Any

from orchestra.domains.fixtures import names as made_names
from orchestra.domains.fixtures import write

SEED = 20260418
TODAY = 700
SUBJECTS = [
    "algebra",
    "biology",
    "chemistry",
    "drawing",
    "economics",
    "geometry",
    "history",
    "latin",
    "music",
    "physics",
    "poetry",
    "zoology",
]
PROGRAMMES = {"arts": 18, "business": 34, "law": 41, "medicine": 47, "science": 29, "teaching": 22}
GRANTS = {"none": (0, 0), "small": (10, 50), "partial": (25, 60), "half": (50, 70)}
WEEKDAYS = ["monday", "tuesday", "wednesday", "thursday", "friday"]

Row = dict[str, Any]
Tables = dict[str, list[Row]]


def names(rng: random.Random, count: int, taken: set[str]) -> list[str]:
    """In order."""
    return sorted(made_names(rng, count, taken))


def people_and_places(rng: random.Random) -> Tables:
    taken: set[str] = set()
    buildings, teachers, students = names(rng, 9, taken), names(rng, 26, taken), names(rng, 96, taken)
    return {
        "clock": [{"id": 1, "day": TODAY}],
        "grants": [{"grant": g, "percent": percent, "minimum": least} for g, (percent, least) in GRANTS.items()],
        "programmes": [{"programme": p, "fee": fee} for p, fee in PROGRAMMES.items()],
        "buildings": [{"building": b, "closes": rng.randint(18, 23)} for b in buildings],
        "rooms": [
            {"room": number, "building": rng.choice(buildings), "seats": rng.choice([6, 8, 10, 12, 15, 20, 24, 30])}
            for number in sorted(rng.sample(range(101, 200), 22))
        ],
        "teachers": [{"teacher": t, "building": rng.choice(buildings), "hour": rng.randint(8, 17)} for t in teachers],
        "students": [
            {
                "student": s,
                "programme": rng.choice(list(PROGRAMMES)),
                "grant": "none",
                "balance": rng.choice([rng.randint(0, 60), rng.randint(40, 699), rng.randint(40, 699)]),
                "credits": 0,
            }
            for s in students
        ],
        "books": [
            {
                "book": number,
                "subject": SUBJECTS[i % len(SUBJECTS)],
                "shelf": rng.randint(1, 49),
                "copies": rng.choice([1, 1, 2, 3, 4, 5]),
                "price": rng.randint(12, 79),
            }
            for i, number in enumerate(sorted(rng.sample(range(501, 1000), 60)))
        ],
    }


def timetable(rng: random.Random, tables: Tables) -> None:
    """Adds courses: no room and no teacher is needed twice at one time."""
    used: set[tuple[Any, str, int]] = set()
    courses: list[Row] = []
    for i, number in enumerate(sorted(rng.sample(range(201, 500), 48))):
        while True:
            room, teacher = rng.choice(tables["rooms"]), rng.choice(tables["teachers"])["teacher"]
            weekday, hour = rng.choice(WEEKDAYS), rng.randint(8, 17)
            times = {(room["room"], weekday, hour), (teacher, weekday, hour)}
            if not times & used:
                used |= times
                break
        courses.append(
            {
                "course": number,
                "subject": SUBJECTS[i % len(SUBJECTS)],
                "teacher": teacher,
                "room": room["room"],
                "weekday": weekday,
                "hour": hour,
                "credits": rng.randint(2, 6),
                "seats": min(room["seats"], rng.choice([4, 5, 6, 8, 10, 12, 15])),
            }
        )
    tables["courses"] = courses


def studies(rng: random.Random, tables: Tables) -> None:
    """Adds enrolments and their invoices; credits and grants follow from what was passed."""
    numbers = iter(sorted(rng.sample(range(5001, 9400), 420)))
    taken: Counter[int] = Counter()
    enrolments: list[Row] = []
    invoices: list[Row] = []
    for student in tables["students"]:
        times: set[tuple[str, int]] = set()
        plan = [False] * rng.choice([0, 1, 1, 2, 2, 3]) + [True] * rng.choice([0, 1, 1, 1, 1, 2, 3])
        for running, course in zip(plan, rng.sample(tables["courses"], len(plan)), strict=True):
            time = (course["weekday"], course["hour"])
            if running and (time in times or taken[course["course"]] >= course["seats"]):
                continue
            row = {"student": student["student"], "course": course["course"], "day": TODAY - rng.randint(120, 420)}
            status, points = "running", None
            if running:
                row["day"] = TODAY - rng.choice([rng.randint(0, 14), rng.randint(10, 30), rng.randint(15, 80)])
                status = "dropped" if rng.random() < 0.08 else "running"
            else:
                points = rng.choice([rng.randint(25, 70), rng.randint(50, 99), rng.randint(50, 99)])
                status = "passed" if points >= 50 else "failed"
            if status == "running":
                times.add(time)
                taken[course["course"]] += 1
            enrolments.append({**row, "status": status, "points": points})
            student["credits"] += course["credits"] if status == "passed" else 0
        settle(rng, student, [row for row in enrolments if row["student"] == student["student"]])
        for row in enrolments:
            if row["student"] == student["student"]:
                invoices.append(invoice(rng, tables, student, row, next(numbers)))
    tables["enrolments"] = sorted(enrolments, key=lambda row: (row["student"], row["course"]))
    tables["invoices"] = invoices


def settle(rng: random.Random, student: Row, results: list[Row]) -> None:
    """A grant needs a good enough average."""
    points = [row["points"] for row in results if row["points"] is not None]
    average = sum(points) / len(points) if points else 0
    if rng.random() < 0.6:
        student["grant"] = [g for g, (_, least) in GRANTS.items() if average >= least][-1]


def invoice(rng: random.Random, tables: Tables, student: Row, enrolment: Row, number: int) -> Row:
    """The bill of an enrolment: credits times the programme's fee, less the grant; dropping it reduces it."""
    credits = next(c["credits"] for c in tables["courses"] if c["course"] == enrolment["course"])
    amount = credits * PROGRAMMES[student["programme"]] * (100 - GRANTS[student["grant"]][0]) // 100
    status, reduced = "paid", 0
    if enrolment["status"] == "running":
        status = rng.choices(["open", "paid"], [3, 2] if TODAY - enrolment["day"] <= 30 else [2, 3])[0]
    elif enrolment["status"] == "dropped":
        status, reduced = rng.choice([("paid", amount // 2), ("paid", amount), ("cancelled", amount)])
    return {
        "invoice": number,
        "student": student["student"],
        "kind": "course",
        "course": enrolment["course"],
        "loan": None,
        "amount": amount,
        "reduced": reduced,
        "due": enrolment["day"] + 30,
        "status": status,
    }


def library(rng: random.Random, tables: Tables) -> None:
    """Adds loans, never more than there are copies, and the fines of those that came back late."""
    loans: list[Row] = []
    out: Counter[Any] = Counter()
    last = max(row["invoice"] for row in tables["invoices"])
    numbers = sorted(rng.sample(range(1001, 4000), 140))
    for number in numbers:
        student, book = rng.choice(tables["students"]), rng.choice(tables["books"])
        name, status = student["student"], rng.choices(["out", "returned", "lost"], [10, 4, 1])[0]
        if status == "out" and (out[book["book"]] >= book["copies"] or out[name] >= 3 or (name, book["book"]) in out):
            status = "returned"
        due = TODAY + rng.choice([rng.randint(-25, -1), rng.randint(0, 14), rng.randint(0, 21), rng.randint(0, 21)])
        if status != "out":
            due = TODAY - rng.randint(20, 200)
        else:
            out.update([book["book"], name, (name, book["book"])])
        loan = {"loan": number, "student": name, "book": book["book"], "due": due, "status": status}
        loans.append({**loan, "renewals": rng.choices([0, 1, 2], [5, 2, 1])[0]})
        late = 2 * rng.randint(1, 12) if status == "returned" and rng.random() < 0.5 else 0
        amount = book["price"] + 15 if status == "lost" else min(late, book["price"])
        if amount:
            last += rng.randint(1, 3)
            tables["invoices"].append(
                {
                    "invoice": last,
                    "student": name,
                    "kind": "library",
                    "course": None,
                    "loan": number,
                    "amount": amount,
                    "reduced": 0,
                    "due": due + 34,
                    "status": "open" if due + 34 >= TODAY and rng.random() < 0.8 else "paid",
                }
            )
    tables["loans"] = loans


def check(tables: Tables) -> None:
    """What must hold between the entries; the database checks the rest."""
    courses = {row["course"]: row for row in tables["courses"]}
    rooms = {row["room"]: row for row in tables["rooms"]}
    numbers = [row[kind] for kind in ("room", "course", "book", "loan", "invoice") for row in tables[f"{kind}s"]]
    assert len(set(numbers)) == len(numbers) and max(numbers) < 9800
    running = Counter(row["course"] for row in tables["enrolments"] if row["status"] == "running")
    assert all(running[number] <= row["seats"] <= rooms[row["room"]]["seats"] for number, row in courses.items())
    passed: Counter[str] = Counter()
    for row in tables["enrolments"]:
        assert row["day"] <= TODAY and (row["status"] == "passed") == ((row["points"] or 0) >= 50)
        passed[row["student"]] += courses[row["course"]]["credits"] if row["status"] == "passed" else 0
    assert all(row["credits"] == passed[row["student"]] for row in tables["students"])
    bills = {(row["student"], row["course"]) for row in tables["invoices"] if row["kind"] == "course"}
    assert bills == {(row["student"], row["course"]) for row in tables["enrolments"]}
    out = Counter(row["book"] for row in tables["loans"] if row["status"] == "out")
    assert all(out[row["book"]] <= row["copies"] for row in tables["books"])
    assert all(TODAY - row["due"] < 30 for row in tables["loans"] if row["status"] == "out")


def generate(folder: Path) -> dict[str, int]:
    """Write one CSV a table; the number of entries of each."""
    rng = random.Random(SEED)
    tables = people_and_places(rng)
    timetable(rng, tables)
    studies(rng, tables)
    library(rng, tables)
    check(tables)
    return write(folder, tables)


if __name__ == "__main__":
    print(generate(Path(__file__).parent / "entries"))
