"""The shop adds up, and its rules hold whatever is called."""

import random
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from orchestra.domains.engine import Session, load_domain
from orchestra.errors import CallError

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
    assert len(SHOP.tools) >= 15 and len(SHOP.intents) >= 30
    assert sum(tool.writes for tool in SHOP.tools.values()) >= 8
    assert all(len(intent.wordings) >= 2 for intent in SHOP.intents)
    assert max(len(tool.file.parameters) for tool in SHOP.tools.values()) <= 3


def test_entries_are_consistent_and_plausible() -> None:
    session = SHOP.open()
    assert all(total == computed for total, computed in totals(session).values())
    contents: dict[str, list[Any]] = {name: list(table) for name, table in session.contents().items()}
    delivered = {row[0]: row[1] for row in contents["orders"] if row[3] == "delivered"}
    bought = {(delivered[order], product) for order, product, *_ in contents["lines"] if order in delivered}
    assert all((customer, product) in bought for customer, product, _ in contents["reviews"])
    assert all(0 <= row[2] <= 400 for row in contents["orders"])
    assert all(1001 <= row[0] <= 9999 for row in contents["orders"])


@pytest.mark.parametrize(
    ("tool", "arguments", "message"),
    [
        ("place_order", {"customer": "Nobody", "product": 1, "quantity": 1}, "there is no customer Nobody"),
        ("place_order", {"customer": "Boxum", "product": 1, "quantity": 1}, "there is no product 1"),
        ("cancel_order", {"order": 1}, "there is no order 1"),
        ("move_customer", {"customer": "Boxum", "city": "Atlantis"}, "there is no city Atlantis"),
        ("add_credit", {"customer": "Boxum", "amount": 101}, "amount must be from 1 to 100"),
    ],
)
def test_refusals_are_messages(tool: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(CallError, match=message):
        SHOP.open().call(tool, arguments)


def test_an_order_lives_its_life() -> None:
    session = SHOP.open()
    rows: dict[str, list[Any]] = {name: list(table) for name, table in session.contents().items()}
    customer, credit = next((row[0], row[3]) for row in rows["customers"] if row[2] == "basic" and row[3] > 200)
    product, price, stock = next((row[0], row[3], row[4]) for row in rows["products"] if row[4] > 10 and row[3] < 40)
    text = session.call("place_order", {"customer": customer, "product": product, "quantity": 2})
    order = int(text.split(", ")[0].removeprefix("order: "))
    assert f"credit: {credit - 2 * price}" in text
    assert session.call("change_quantity", {"order": order, "product": product, "quantity": 1}) == f"total: {price}"
    assert f"stock: {stock - 1}" in session.call("get_product", {"product": product})
    assert session.call("cancel_order", {"order": order}) == f"refund: {price}"
    assert f"credit: {credit}" in session.call("get_customer", {"customer": customer})
    assert f"stock: {stock}" in session.call("get_product", {"product": product})
    for tool in ("cancel_order", "ship_order"):
        with pytest.raises(CallError, match=f"order {order} is not open"):
            session.call(tool, {"order": order})
    assert all(total == computed for total, computed in totals(session).values())


LIVE = {"open", "shipped", "delivered"}


def goods_and_money(session: Session) -> tuple[int, int]:
    """Everything in stock or with a customer; every credit and every live order's total."""
    rows: dict[str, list[Any]] = {name: list(table) for name, table in session.contents().items()}
    live = {order for order, _, _, status, _ in rows["orders"] if status in LIVE}
    goods = sum(row[4] for row in rows["products"]) + sum(row[2] for row in rows["lines"] if row[0] in live)
    money = sum(row[3] for row in rows["customers"]) + sum(row[4] for row in rows["orders"] if row[0] in live)
    return goods, money


def test_whatever_is_called_the_shop_still_adds_up() -> None:
    """A thousand random calls: goods come from restocking alone, money from added credit less fees, nothing is lost."""
    rng, session = random.Random(3), SHOP.open()
    contents = session.contents()
    tables = {"order": "orders", "customer": "customers", "product": "products", "coupon": "coupons"}
    tables |= {"city": "cities", "supplier": "suppliers"}
    pools: dict[str, list[object]] = {name: [row[0] for row in contents[table]] for name, table in tables.items()}
    pools |= {"kind": ["lamp", "mug", "boat"], "quantity": [1, 2, 9], "amount": [5, 100], "stars": [1, 5]}
    goods, money = goods_and_money(session)
    done: Counter[str] = Counter()
    for _ in range(1_000):
        tool = rng.choice(list(SHOP.tools.values()))
        arguments: dict[str, Any] = {name: rng.choice(pools[name]) for name in tool.file.parameters}
        before = None if tool.name != "return_order" else session.call("get_order", arguments)
        try:
            text = session.call(tool.name, arguments)
        except CallError:
            continue
        done[tool.name] += 1
        goods += arguments["quantity"] if tool.name == "restock" else 0
        money += arguments["amount"] if tool.name == "add_credit" else 0
        if before is not None:
            money -= int(before.split("total: ")[1]) - int(text.removeprefix("refund: "))
    assert sum(done.values()) > 300 and {"place_order", "cancel_order", "return_order", "use_coupon"} <= set(done)
    assert goods_and_money(session) == (goods, money)
    assert all(total == computed for total, computed in totals(session).values())
