"""A store that cannot be used for a while: every path says so as OpenAI would, and goes on afterwards."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from orchestra.errors import DataError
from orchestra.files import atomic
from orchestra.serving.gateway import Gateway
from orchestra.serving.shared.database import STORE, Database
from orchestra.serving.wire.errors import StoreError
from orchestra.system.storage import RESTORING
from tests.support.serving_world import backend
from tests.unit.serving.test_gateway import call

CHAT = "/v1/chat/completions"
ADD = "INSERT INTO calls VALUES (?, 'a', 'd', ?, 0)"


@pytest.mark.parametrize("path", [CHAT, "/v1/models", "/v1/models/orchestrator"])
def test_it_is_told_in_openai_s_form_and_passes(path: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    gateway = Gateway(tmp_path, backend=backend(tmp_path))
    headers = {"Authorization": f"Bearer {gateway.keys.create('team')[1]}"}
    asked = {"json": {"messages": [{"role": "user", "content": "what is 1+1?"}]}} if path == CHAT else {}
    for unwritten in (1, 0):
        with gateway.store.look() as store:
            store.execute(f"PRAGMA query_only = {unwritten}")
        reply = call(gateway, tmp_path, "POST" if asked else "GET", path, headers=headers, **asked)
        assert reply.status_code == (503 if unwritten else 200)
        if unwritten:
            error = reply.json()["error"]
            assert (error["type"], error["code"]) == ("service_unavailable", "store_failed")
            assert int(reply.headers["retry-after"]) > 0 and "attempt to write a readonly database" in caplog.text
            assert f"request {reply.headers['x-request-id']} failed" in caplog.text


def test_none_is_made_in_the_place_of_one_that_is_half_restored(tmp_path: Path) -> None:
    """A new one has no keys, and without keys everybody may ask."""
    atomic.write_text(tmp_path / RESTORING, "")
    with pytest.raises(DataError, match="orchestra restore FILE again"):
        Database(tmp_path / STORE)
    assert not (tmp_path / STORE).exists()


def test_a_full_disk_leaves_no_half_change(tmp_path: Path) -> None:
    database = Database(tmp_path / STORE)
    with database.look() as store:
        pages = store.execute("PRAGMA page_count").fetchone()[0]
        store.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreError, match="database or disk is full"), database.change() as store:
        store.execute(ADD, ("first", b""))
        store.execute(ADD, ("second", b"x" * 100_000))
    with database.look() as store:
        store.execute(f"PRAGMA max_page_count = {pages + 100}")
    with database.change() as store:
        store.execute(ADD, ("third", b"x" * 100_000))
    with database.look() as store:
        assert [row[0] for row in store.execute("SELECT id FROM calls")] == ["third"]


def test_a_change_that_read_before_it_writes_waits_for_another_gateways(tmp_path: Path) -> None:
    """Else both would pass a check of what is left, and the later one would fail or write over the other's."""
    one, other = (Database(tmp_path / STORE) for _ in range(2))
    begun, seen = threading.Event(), list[int]()

    def spend(database: Database, name: str) -> None:
        with database.change() as store:
            seen.append(store.execute("SELECT count(*) FROM calls").fetchone()[0])
            begun.set()
            time.sleep(0.2)
            store.execute(ADD, (name, b""))

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(spend, one, "first")
        begun.wait(5)
        second = threads.submit(spend, other, "second")
        first.result()
        second.result()
    assert seen == [0, 1]


def test_looking_fails_as_a_change_does(tmp_path: Path) -> None:
    database = Database(tmp_path / STORE)
    database.close()
    for use in (database.look, database.change):
        with pytest.raises(StoreError, match="cannot be used"), use() as store:
            store.execute("SELECT 1 FROM keys")
