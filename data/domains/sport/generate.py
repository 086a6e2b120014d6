"""Writes entries/*.csv: a league that adds up. Run: .venv/bin/python data/domains/sport/generate.py"""

import random
from collections import Counter
from pathlib import Path

from orchestra.domains.fixtures import names, write

SEED = 9006
TODAY = 250
ROLES = ["keeper", "back", "back", "middle", "middle", "forward"]
TIERS = {"bronze": (10, 20), "silver": (20, 40), "gold": (35, 70)}
PAST = range(TODAY - 70, TODAY, 7)
FUTURE = range(TODAY + 4, TODAY + 35, 6)

Row = dict[str, str | int | None]
Tables = dict[str, list[Row]]


def number(value: str | int | None) -> int:
    """A cell that holds a number, as one."""
    assert isinstance(value, int)
    return value


def people(rng: random.Random) -> Tables:
    """Clubs with their grounds, players and fans."""
    taken: set[str] = set()
    cities, grounds, clubs = names(rng, 10, taken), names(rng, 24, taken), names(rng, 24, taken)
    players, fans = names(rng, len(clubs) * len(ROLES), taken), names(rng, 90, taken)
    return {
        "clock": [{"id": 1, "day": TODAY}],
        "grounds": [{"ground": g, "city": rng.choice(cities), "seats": rng.randint(7, 24)} for g in sorted(grounds)],
        "clubs": [
            {"club": club, "ground": ground, "budget": rng.randint(90, 480), "points": 0}
            for club, ground in zip(sorted(clubs), grounds, strict=True)
        ],
        "players": [
            {
                "player": player,
                "club": clubs[i % len(clubs)],
                "role": ROLES[i // len(clubs)],
                "value": rng.randint(20, 190),
                "status": rng.choices(["fit", "injured", "banned"], [8, 1, 1])[0],
            }
            for i, player in enumerate(players)
        ],
        "tiers": [{"tier": tier, "percent": percent, "price": price} for tier, (percent, price) in TIERS.items()],
        "fans": [{"fan": fan, "club": rng.choice(clubs), "credit": rng.randint(0, 180)} for fan in sorted(fans)],
        "members": [
            {
                "fan": fan,
                "tier": rng.choice(list(TIERS)),
                "expires": TODAY + rng.choice([-rng.randint(1, 60), *(rng.randint(3, 170) for _ in range(4))]),
            }
            for fan in sorted(fans)
            if rng.random() < 0.65
        ],
    }


def season(rng: random.Random, tables: Tables) -> None:
    """Adds matches, one a club and round, with scorers and points; today's have no result yet."""
    clubs = {str(row["club"]): row for row in tables["clubs"]}
    squads = {club: [row for row in tables["players"] if row["club"] == club] for club in clubs}
    days = [day for day in (*PAST, TODAY, *FUTURE) for _ in range(len(clubs) // 2)]
    pairs: list[tuple[str, str]] = []
    while len(pairs) < len(days):
        round_ = rng.sample(list(clubs), len(clubs))
        pairs += zip(round_[::2], round_[1::2], strict=True)
    matches, scorers = list[Row](), list[Row]()
    numbers = rng.sample(range(1001, 2900), len(days))
    for match, day, (home, away) in zip(numbers, days, pairs, strict=True):
        played = day < TODAY
        goals = rng.choices(range(5), [5, 6, 4, 2, 1], k=2) if played else [None, None]
        matches.append({"match": match, "home": home, "away": away, "day": day, "price": rng.randint(6, 28)})
        matches[-1] |= {"status": "played" if played else "planned", "home_goals": goals[0], "away_goals": goals[1]}
        for club, made, other in ((home, goals[0], goals[1]), (away, goals[1], goals[0])):
            if made is None or other is None:
                continue
            clubs[club]["points"] = number(clubs[club]["points"]) + (3 if made > other else int(made == other))
            late = day > TODAY - 15 and made > 0  # the last goal is still to be credited
            shooters = [str(row["player"]) for row in rng.choices(squads[club][1:], k=made - late)]
            scorers += [
                {"match": match, "player": player, "club": club, "goals": shooters.count(player)}
                for player in sorted(set(shooters))
            ]
    tables["matches"] = sorted(matches, key=lambda row: number(row["match"]))
    tables["scorers"] = sorted(scorers, key=lambda row: (number(row["match"]), str(row["player"])))


def sales(rng: random.Random, tables: Tables) -> None:
    """Adds tickets, at the price less the member's per cent, and offers for players."""
    percent = {row["fan"]: TIERS[str(row["tier"])][0] for row in tables["members"] if number(row["expires"]) >= TODAY}
    seats = {row["ground"]: number(row["seats"]) for row in tables["grounds"]}
    ground = {row["club"]: row["ground"] for row in tables["clubs"]}
    room = {row["match"]: seats[ground[row["home"]]] for row in tables["matches"]}
    held: set[tuple[object, object]] = set()
    recent = [row for row in tables["matches"] if number(row["day"]) > TODAY - 30]
    tickets, offers = list[Row](), list[Row]()
    for ticket in sorted(rng.sample(range(3001, 4900), 190)):
        fan, match = rng.choice(tables["fans"]), rng.choice(recent)
        while (fan["fan"], match["match"]) in held or not room[match["match"]]:
            fan, match = rng.choice(tables["fans"]), rng.choice(recent)
        held.add((fan["fan"], match["match"]))
        price = number(match["price"]) * (100 - percent.get(fan["fan"], 0)) // 100
        status = "used" if match["status"] == "played" else rng.choices(["valid", "returned"], [9, 1])[0]
        room[match["match"]] -= status == "valid"
        tickets.append({"ticket": ticket, "fan": fan["fan"], "match": match["match"], "price": price})
        tickets[-1]["status"] = status
    wanted: set[tuple[object, object]] = set()
    numbers = rng.sample(range(5001, 5900), 124)
    for offer in numbers[:110]:
        player, buyer = rng.choice(tables["players"]), rng.choice(tables["clubs"])
        while player["club"] == buyer["club"] or (player["player"], buyer["club"]) in wanted:
            player, buyer = rng.choice(tables["players"]), rng.choice(tables["clubs"])
        wanted.add((player["player"], buyer["club"]))
        fee, days = number(player["value"]) + rng.randint(0, 60), rng.randint(0, 60)
        status = "refused" if days > 35 else rng.choices(["open", "refused"], [6, 1])[0]
        offers.append({"offer": offer, "player": player["player"], "buyer": buyer["club"], "fee": fee})
        offers[-1] |= {"day": TODAY - days, "status": status}
    for offer, player in zip(numbers[110:], rng.sample(tables["players"], 14), strict=True):
        fee = number(player["value"]) + rng.randint(0, 20)
        offers.append({"offer": offer, "player": player["player"], "buyer": player["club"], "fee": fee})
        offers[-1] |= {"day": TODAY - rng.randint(61, 200), "status": "accepted"}
    tables["tickets"], tables["offers"] = tickets, sorted(offers, key=lambda row: number(row["offer"]))


def check(tables: Tables) -> None:
    """What must hold whatever was done: points and goals add up, tickets fit their matches, offers their players."""
    today = number(tables["clock"][0]["day"])
    points = {row["club"]: 0 for row in tables["clubs"]}
    ground = {row["club"]: row["ground"] for row in tables["clubs"]}
    seats = {row["ground"]: number(row["seats"]) for row in tables["grounds"]}
    credited: Counter[object] = Counter()
    for row in tables["scorers"]:
        credited[row["match"], row["club"]] += number(row["goals"])
    for match in tables["matches"]:
        home, away = match["home_goals"], match["away_goals"]
        assert (match["status"] == "played") == (home is not None and away is not None), match
        goals = {match["home"]: home or 0, match["away"]: away or 0}
        assert all(credited[match["match"], club] <= number(made) for club, made in goals.items()), match
        if home is not None and away is not None:
            assert number(match["day"]) <= today, match
            points[match["home"]] += 1 if home == away else 3 * (number(home) > number(away))
            points[match["away"]] += 1 if home == away else 3 * (number(home) < number(away))
        sold = [row for row in tables["tickets"] if row["match"] == match["match"]]
        assert all(row["status"] != ("valid" if match["status"] == "played" else "used") for row in sold), match
        assert sum(row["status"] == "valid" for row in sold) <= seats[ground[match["home"]]], match
    playing = [(row["day"], club) for row in tables["matches"] for club in (row["home"], row["away"])]
    assert len(playing) == len(set(playing))
    assert all(points[row["club"]] == row["points"] for row in tables["clubs"])
    club_of = {row["player"]: row["club"] for row in tables["players"]}
    value_of = {row["player"]: number(row["value"]) for row in tables["players"]}
    for offer in tables["offers"]:
        assert number(offer["fee"]) >= value_of[offer["player"]], offer
        assert offer["status"] != "open" or club_of[offer["player"]] != offer["buyer"], offer


def generate(folder: Path) -> dict[str, int]:
    """Write one CSV a table; the number of entries of each."""
    rng = random.Random(SEED)
    tables = people(rng)
    season(rng, tables)
    sales(rng, tables)
    tables["players"].sort(key=lambda row: str(row["player"]))
    check(tables)
    return write(folder, tables)


if __name__ == "__main__":
    print(generate(Path(__file__).parent / "entries"))
