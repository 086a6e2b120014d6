"""Writes entries/*.csv: a weather service in order. Run: .venv/bin/python data/domains/weather/generate.py"""

import random
from pathlib import Path
from typing import Any

from orchestra.domains.fixtures import names as made_names
from orchestra.domains.fixtures import write

SEED = 20261034
TODAY = 500
# kind of sensor: (lowest value, highest value, price of a spare)
KINDS = {
    "humidity": (5, 100, 35),
    "pressure": (900, 1080, 60),
    "rain": (0, 250, 25),
    "temperature": (1, 49, 20),
    "wind": (0, 220, 80),
}
PARTS = ["north", "south", "east", "west"]
DANGERS = ["flood", "fog", "heat", "hail", "storm"]
# plan: (price of changing to it, fee a day and region, regions that it allows)
PLANS = {"small": (5, 3, 2), "medium": (20, 2, 4), "large": (60, 1, 8)}

Row = dict[str, Any]
Tables = dict[str, list[Row]]


def names(rng: random.Random, count: int, taken: set[str]) -> list[str]:
    """In order."""
    return sorted(made_names(rng, count, taken))


def people_and_places(rng: random.Random) -> Tables:
    taken: set[str] = set()
    regions, stations = names(rng, 28, taken), names(rng, 60, taken)
    subscribers, technicians = names(rng, 90, taken), names(rng, 36, taken)
    return {
        "clock": [{"id": 1, "day": TODAY}],
        "kinds": [
            {"kind": kind, "lowest": lowest, "highest": highest, "price": price, "spares": rng.randint(4, 19)}
            for kind, (lowest, highest, price) in KINDS.items()
        ],
        "regions": [{"region": region, "part": PARTS[i % 4]} for i, region in enumerate(regions)],
        "stations": [
            {
                "station": station,
                "region": regions[i % len(regions)],
                "height": rng.choice([rng.randint(5, 300), rng.randint(200, 1900)]),
                "status": rng.choices(["running", "paused"], [9, 1])[0],
            }
            for i, station in enumerate(rng.sample(stations, len(stations)))
        ],
        "plans": [
            {"plan": plan, "price": price, "fee": fee, "regions": most} for plan, (price, fee, most) in PLANS.items()
        ],
        "subscribers": [
            {
                "subscriber": s,
                "plan": rng.choices(list(PLANS), [4, 3, 2])[0],
                "level": rng.choices([1, 2, 3, 4], [4, 4, 3, 1])[0],
                "balance": rng.choice([rng.randint(0, 49), rng.randint(20, 399), rng.randint(20, 399)]),
            }
            for s in subscribers
        ],
        "technicians": [{"technician": t, "part": PARTS[i % 4]} for i, t in enumerate(technicians)],
    }


def measurements(rng: random.Random, tables: Tables) -> None:
    """Adds sensors and what they read in the last days; some have read today already."""
    numbers = iter(sorted(rng.sample(range(1001, 4900), len(tables["stations"]) * len(KINDS))))
    sensors: list[Row] = []
    readings: list[Row] = []
    for station in sorted(tables["stations"], key=lambda row: row["station"]):
        warmth = max(2, 27 - station["height"] // 90 - rng.randint(0, 9))
        usual = {
            "humidity": rng.randint(35, 85),
            "pressure": rng.randint(985, 1030),
            "rain": rng.randint(0, 30),
            "temperature": warmth,
            "wind": rng.randint(4, 60),
        }
        for kind in sorted(rng.sample(list(KINDS), rng.choice([2, 2, 3, 3, 4]))):
            lowest, highest, _ = KINDS[kind]
            sensor = {"sensor": next(numbers), "station": station["station"], "kind": kind, "status": "working"}
            sensors.append({**sensor, "checked": TODAY - rng.randint(30, 400)})
            last = 0 if station["status"] == "running" and rng.random() < 0.2 else 1
            days = rng.sample(range(last, last + 3), rng.choice([1, 2, 2, 3]))
            for ago in sorted({*days, last}, reverse=True):
                value = usual[kind] + rng.randint(-6, 9)
                reading = {"sensor": sensor["sensor"], "day": TODAY - ago}
                readings.append({**reading, "value": min(max(value, lowest), highest)})
    tables["sensors"], tables["readings"] = sensors, readings


def outlook(rng: random.Random, tables: Tables) -> None:
    """Adds the forecasts of the coming days."""
    rows: list[Row] = []
    for region in tables["regions"]:
        usual = rng.randint(9, 29)
        for day in range(TODAY, TODAY + 5):
            chance = 5 * rng.choice([rng.randint(0, 5), rng.randint(4, 12), rng.randint(10, 20)])
            sky = ["rain", "storm"] if chance >= 60 else ["clouds", "clouds", "fog"] if chance >= 30 else ["sun"]
            high = usual + rng.randint(-4, 6)
            row = {"region": region["region"], "day": day, "sky": rng.choice(sky), "high": high}
            rows.append({**row, "low": max(1, high - rng.randint(3, 9)), "rain": chance})
    tables["forecasts"] = rows


def warnings(rng: random.Random, tables: Tables) -> None:
    """Adds subscriptions, alerts, and a notice to everyone who is subscribed and wants such a level to know."""
    subscriptions: list[Row] = []
    names_of_regions = [row["region"] for row in tables["regions"]]
    for row in tables["subscribers"]:
        count = min(rng.choice([0, 1, 1, 1, 2, 2, 3, 4]), PLANS[row["plan"]][2])
        for region in sorted(rng.sample(names_of_regions, count)):
            ends = TODAY + rng.randint(1, 60)
            subscriptions.append({"subscriber": row["subscriber"], "region": region, "ends": ends})
    wanted = {row["subscriber"]: row["level"] for row in tables["subscribers"]}
    active: set[tuple[str, str]] = set()
    alerts: list[Row] = []
    notices: list[Row] = []
    for number in sorted(rng.sample(range(101, 800), 84)):
        region, danger = rng.choice(names_of_regions), rng.choice(DANGERS)
        level = rng.choices([1, 2, 3, 4], [3, 4, 3, 1])[0]
        starts = TODAY - rng.choice([rng.randint(0, level), rng.randint(0, 2), rng.randint(5, 90)])
        status = "over" if starts + level < TODAY else "active"
        ends = starts + level
        if status == "active" and (region, danger) in active:
            starts, ends, status = starts - 20, ends - 20, "over"
        if rng.random() < 0.1 and ends - starts > 1:
            ends, status = min(ends - 1, TODAY), "lifted"
        alerts.append({"alert": number, "region": region, "danger": danger, "level": level, "starts": starts})
        alerts[-1].update({"ends": ends, "status": status})
        if status == "active":
            active.add((region, danger))
            told = [row["subscriber"] for row in subscriptions if row["region"] == region]
            notices += [{"alert": number, "subscriber": s, "day": starts} for s in told if wanted[s] <= level]
    tables["alerts"], tables["subscriptions"], tables["notices"] = alerts, subscriptions, notices


def repairs(rng: random.Random, tables: Tables) -> None:
    """Adds jobs: an open one for each faulty sensor, done ones for some that work; each in its technician's part."""
    stations = {row["station"]: row for row in tables["stations"]}
    parts = {row["region"]: row["part"] for row in tables["regions"]}
    jobs: list[Row] = []
    chosen = rng.sample(tables["sensors"], 104)
    for number, sensor in zip(sorted(rng.sample(range(5001, 9400), 104)), chosen, strict=True):
        station = stations[sensor["station"]]
        part = parts[station["region"]]
        status = rng.choices(["open", "done"], [5, 6])[0]
        day = TODAY + rng.randint(0, 14) if status == "open" else TODAY - rng.randint(1, 120)
        sensor["status"] = "faulty" if status == "open" else "working"
        sensor["checked"] = sensor["checked"] if status == "open" else day
        jobs.append(
            {
                "job": number,
                "sensor": sensor["sensor"],
                "technician": rng.choice([row["technician"] for row in tables["technicians"] if row["part"] == part]),
                "day": day,
                "cost": 40 + KINDS[sensor["kind"]][2] + station["height"] // 100,
                "status": status,
            }
        )
    tables["jobs"] = jobs


def check(tables: Tables) -> None:
    """What must hold between the entries; the database checks the rest."""
    numbers = [row[kind] for kind in ("sensor", "alert", "job") for row in tables[f"{kind}s"]]
    assert len(set(numbers)) == len(numbers) and max(numbers) < 9800
    kinds = {row["sensor"]: KINDS[row["kind"]] for row in tables["sensors"]}
    assert all(kinds[r["sensor"]][0] <= r["value"] <= kinds[r["sensor"]][1] for r in tables["readings"])
    assert {row["sensor"] for row in tables["readings"]} == set(kinds)
    active = [row for row in tables["alerts"] if row["status"] == "active"]
    assert all(row["starts"] <= TODAY <= row["ends"] for row in active)
    assert all(row["ends"] < TODAY for row in tables["alerts"] if row["status"] == "over")
    assert all(row["starts"] <= row["ends"] <= TODAY for row in tables["alerts"] if row["status"] == "lifted")
    assert len({(row["region"], row["danger"]) for row in active}) == len(active)
    subscribed = {(row["subscriber"], row["region"]) for row in tables["subscriptions"]}
    regions = {row["alert"]: row["region"] for row in active}
    assert all((row["subscriber"], regions[row["alert"]]) in subscribed for row in tables["notices"])
    open_jobs = [row["sensor"] for row in tables["jobs"] if row["status"] == "open"]
    assert sorted(open_jobs) == [row["sensor"] for row in tables["sensors"] if row["status"] == "faulty"]


def generate(folder: Path) -> dict[str, int]:
    """Write one CSV a table; the number of entries of each."""
    rng = random.Random(SEED)
    tables = people_and_places(rng)
    measurements(rng, tables)
    outlook(rng, tables)
    warnings(rng, tables)
    repairs(rng, tables)
    check(tables)
    tables["stations"].sort(key=lambda row: row["station"])
    return write(folder, tables)


if __name__ == "__main__":
    print(generate(Path(__file__).parent / "entries"))
