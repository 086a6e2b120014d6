"""The shop adds up, its generator makes it again byte for byte, and its rules hold whatever is called."""

import filecmp
import random
import runpy
import sqlite3
from pathlib import Path

import pytest

from orchestra.domains.engine import Session, load_domain
from orchestra.errors import CallError
from orchestra.types import ToolCall

FOLDER = Path(__file__).parents[3] / "data" / "domains" / "ecommerce"
SHOP = load_domain(FOLDER)


def totals(session: Session) -> dict[int, tuple[int, int]]:
    """Order → (its total, what lines, tier and coupon make of it)."""
    db = sqlite3.connect(":memory:")
    db.deserialize(session._db.serialize())
    query = """
        select o.order_id, o.total, (select sum(quantity * price) from lines l where l.order_id = o.order_id)
        * (100 - t.percent) / 100, coalesce(k.percent, 0) from orders o join customers using (customer)
        join tiers t using (tier) left join coupons k on k.order_id = o.order_id"""
    rows = db.execute(query).fetchall()
    assert db.execute("pragma foreign_key_check").fetchall() == []
    db.close()
    return {order: (total, gross - gross * percent // 100) for order, total, gross, percent in rows}


def test_it_is_complete() -> None:
    contents = SHOP.open().contents()
    assert sum(map(len, contents.values())) >= 400
    assert len(SHOP.tools) >= 15 and len(SHOP.intents) >= 30
    assert sum(tool.writes for tool in SHOP.tools.values()) >= 8
    assert all(len(intent.wordings) >= 2 for intent in SHOP.intents)
    assert {call.tool for intent in SHOP.intents for call in intent.calls} == set(SHOP.tools)
    assert max(len(tool.parameters["properties"]) for tool in SHOP.tools.values()) <= 3  # type: ignore[arg-type]


def test_the_generator_makes_the_committed_entries(tmp_path: Path) -> None:
    made = runpy.run_path(str(FOLDER / "generate.py"))["generate"](tmp_path)
    same, different, missing = filecmp.cmpfiles(FOLDER / "entries", tmp_path, [f"{n}.csv" for n in made], shallow=False)
    assert (len(same), different, missing) == (len(made), [], [])
    assert len(list((FOLDER / "entries").iterdir())) == len(made)


def test_entries_are_consistent_and_plausible() -> None:
    session = SHOP.open()
    assert all(total == computed for total, computed in totals(session).values())
    contents = session.contents()
    delivered = {row[0]: row[1] for row in contents["orders"] if row[3] == "delivered"}
    bought = {(delivered[order], product) for order, product, *_ in contents["lines"] if order in delivered}
    assert all((customer, product) in bought for customer, product, _ in contents["reviews"])
    assert all(0 <= row[2] <= 400 for row in contents["orders"])  # type: ignore[operator]
    assert all(1001 <= row[0] <= 9999 for row in contents["orders"])  # type: ignore[operator]


@pytest.mark.parametrize(
    ("calls", "result"),
    [
        ([("place_order", "Nobody", 1, 1)], "there is no customer Nobody"),
        ([("cancel_order", 1), ()], "there is no order 1"),
    ],
)
def test_refusals_are_messages(calls: list[tuple[object, ...]], result: str) -> None:
    name, *values = calls[0]
    arguments = dict(zip(SHOP.tools[str(name)].file.parameters, values, strict=True))
    with pytest.raises(CallError, match=result):
        SHOP.open().call(str(name), arguments)  # type: ignore[arg-type]


def test_an_order_lives_its_life() -> None:
    session = SHOP.open()
    customer, credit = next((row[0], row[3]) for row in session.contents()["customers"] if row[3] == 253)
    product, price, stock = next(
        (row[0], row[3], row[4])
        for row in session.contents()["products"]
        if 10 < row[4] < 50 and row[3] < 40  # type: ignore[operator]
    )
    text = session.call("place_order", {"customer": customer, "product": product, "quantity": 2})
    order = int(text.split(", ")[0].removeprefix("order: "))
    assert f"credit: {credit - 2 * price}" in text  # type: ignore[operator]
    assert session.call("change_quantity", {"order": order, "product": product, "quantity": 1}) == f"total: {price}"
    assert f"stock: {stock - 1}" in session.call("get_product", {"product": product})  # type: ignore[operator]
    assert session.call("cancel_order", {"order": order}) == f"refund: {price}"
    assert f"credit: {credit}" in session.call("get_customer", {"customer": customer})
    assert f"stock: {stock}" in session.call("get_product", {"product": product})
    for tool in ("cancel_order", "ship_order"):
        with pytest.raises(CallError, match=f"order {order} is not open"):
            session.call(tool, {"order": order})
    assert all(total == computed for total, computed in totals(session).values())


def test_whatever_is_called_the_shop_still_adds_up() -> None:
    """A thousand random calls: money and goods are neither made nor lost, but by the tools whose work that is."""
    rng, session = random.Random(3), SHOP.open()
    contents = session.contents()
    pools: dict[str, list[object]] = {
        "order": [row[0] for row in contents["orders"]],
        "customer": [row[0] for row in contents["customers"]],
        "product": [row[0] for row in contents["products"]],
        "coupon": [row[0] for row in contents["coupons"]],
        "city": [row[0] for row in contents["cities"]],
        "supplier": [row[0] for row in contents["suppliers"]],
        "kind": ["lamp", "mug", "boat"],
        "quantity": [1, 2, 9],
        "amount": [5, 100],
        "stars": [1, 5],
    }
    done = 0
    for _ in range(1_000):
        tool = rng.choice(list(SHOP.tools.values()))
        call = ToolCall.model_validate(
            {"name": tool.name, "arguments": {name: rng.choice(pools[name]) for name in tool.file.parameters}}
        )
        try:
            session.call(call.name, call.arguments)
            done += 1
        except CallError:
            continue
    assert done > 300
    assert all(total == computed for total, computed in totals(session).values())
    taken = sum(row[2] for row in contents["lines"]) + sum(row[4] for row in contents["products"])  # type: ignore[misc]
    assert taken > 0
