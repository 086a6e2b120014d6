"""Keys are hashed at rest, limited each by itself, and dead once revoked."""

import contextlib
import sqlite3
import time
from decimal import Decimal
from pathlib import Path

import pytest

from orchestra.errors import ConfigError, OrchestraError
from orchestra.serving.shared.database import STORE, Database
from orchestra.serving.shared.keys import Keys, operator_key, own_key, period_of
from orchestra.serving.wire.errors import ApiError, too_many


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(Database(tmp_path / "store.sqlite"))


def test_a_key_opens_until_it_is_revoked_and_its_secret_is_nowhere(keys: Keys, tmp_path: Path) -> None:
    assert not keys.required
    key, secret = keys.create("team")
    assert keys.required and keys.admit(f"Bearer {secret}") == key.id
    files = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert secret.split("_", 2)[2].encode() not in files and all(
        file.stat().st_mode & 0o077 == 0 for file in tmp_path.glob("store.sqlite")
    )
    keys.revoke(key.id)
    with pytest.raises(ApiError, match="not valid") as caught:
        keys.admit(f"Bearer {secret}")
    assert caught.value.status == 401 and keys.required
    with pytest.raises(ConfigError, match="no valid key"):
        keys.revoke(key.id)


@pytest.mark.parametrize("what", ["locked", "damaged", "a folder"])
def test_a_store_that_cannot_be_used_is_never_to_be_deleted(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its keys the gateway would answer everybody."""
    file = tmp_path / STORE
    monkeypatch.setattr("orchestra.serving.shared.database.WAIT_S", 0.05)
    Database(file).close()
    with contextlib.closing(sqlite3.connect(file)) as other:
        if what == "locked":
            other.execute("PRAGMA locking_mode=EXCLUSIVE")
            other.execute("BEGIN EXCLUSIVE")
        else:
            file.unlink()
            file.mkdir() if what == "a folder" else file.write_bytes(b"no database" * 1000)
        with pytest.raises(OrchestraError) as caught:
            Database(file)
    fix = {"locked": "try again", "damaged": "orchestra restore FILE", "a folder": "chown or chmod"}[what]
    assert str(file) == caught.value.where and fix in caught.value.fix and "rm " not in caught.value.fix


def test_the_scheme_is_read_in_any_case(keys: Keys) -> None:
    key, secret = keys.create("team")
    assert {keys.admit(f"{scheme}{secret}") for scheme in ("Bearer ", "bearer ", "BEARER ", "Bearer  ", "")} == {key.id}
    with pytest.raises(ApiError):
        keys.admit(f"Bearer {secret.upper()}")


@pytest.mark.parametrize("said", ["", "Bearer x", "Bearer ork_000000000000_" + "a" * 43, "Basic eA=="])
def test_what_is_no_key_is_401(keys: Keys, said: str) -> None:
    keys.create("team")
    with pytest.raises(ApiError) as caught:
        keys.admit(said)
    assert caught.value.status == 401 and caught.value.code == "invalid_api_key"


def test_a_valid_key_s_id_with_another_secret_opens_nothing(keys: Keys) -> None:
    secret = keys.create("team")[1]
    guessed = secret[:-1] + ("B" if secret.endswith("A") else "A")
    assert keys.opens(secret) and not keys.opens(guessed)
    with pytest.raises(ApiError, match="not valid") as caught:
        keys.admit(f"Bearer {guessed}")
    assert caught.value.status == 401 and keys.list()[0].requests == 0


def test_a_rate_is_the_key_s_own(keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    _, limited = keys.create("slow", per_minute=3)
    _, free = keys.create("free")
    for _ in range(3):
        keys.admit(f"Bearer {limited}")
    with pytest.raises(ApiError) as caught:
        keys.admit(f"Bearer {limited}")
    assert caught.value.status == 429 and int(caught.value.headers["Retry-After"]) == 20
    for _ in range(9):
        keys.admit(f"Bearer {free}")
    for wait_s in (15, 10):
        now += 5
        with pytest.raises(ApiError) as caught:
            keys.admit(f"Bearer {limited}")
        assert int(caught.value.headers["Retry-After"]) == wait_s
    now += 10.1
    keys.admit(f"Bearer {limited}")
    assert {key.name: key.requests for key in keys.list()} == {"slow": 4, "free": 9}


@pytest.mark.parametrize(("wait_s", "told"), [(0.2, 1), (1.4, 2), (2.5, 3), (15.0000001, 15), (20, 20)])
def test_who_waits_as_long_as_told_does_not_come_too_soon(wait_s: float, told: int) -> None:
    assert too_many("more than 3 requests a minute", "rate_limit_exceeded", wait_s).headers["Retry-After"] == str(told)


@pytest.mark.parametrize("jump_s", [-30 * 86_400, -3600, 3600, 30 * 86_400])
def test_a_jump_of_the_clock_neither_locks_a_key_out_nor_opens_it_wide(
    keys: Keys, monkeypatch: pytest.MonkeyPatch, jump_s: int
) -> None:
    now = 1_790_000_000.0
    monkeypatch.setattr(time, "time", lambda: now)
    _, limited = keys.create("slow", per_minute=3)
    for _ in range(3):
        keys.admit(f"Bearer {limited}")
    now += jump_s
    for _ in range(3):
        keys.admit(f"Bearer {limited}")
    with pytest.raises(ApiError) as caught:
        keys.admit(f"Bearer {limited}")
    assert 0 < int(caught.value.headers["Retry-After"]) <= 60


def test_keys_are_listed_the_oldest_first_whatever_their_ids(keys: Keys) -> None:
    made = [keys.create(f"team {number}")[0].id for number in range(8)]
    assert [key.id for key in keys.list()] == made


def test_the_operator_s_key_is_private(keys: Keys, tmp_path: Path) -> None:
    assert own_key(tmp_path) is None
    for _ in range(2):
        operator_key(tmp_path, keys)
    secret = own_key(tmp_path)
    assert secret and keys.admit(f"Bearer {secret}") and len(keys.list()) == 1
    assert (tmp_path / ".state/operator.key").stat().st_mode & 0o777 == 0o600


def test_an_operators_key_that_opens_nothing_is_replaced(keys: Keys, tmp_path: Path) -> None:
    operator_key(tmp_path, keys)
    secret = own_key(tmp_path)
    assert secret and keys.opens(secret) and not keys.opens(secret[:-1]) and not keys.opens("")
    keys.revoke(keys.list()[0].id)
    assert not keys.opens(secret)
    operator_key(tmp_path, keys)
    renewed = own_key(tmp_path)
    assert renewed and renewed != secret and keys.admit(f"Bearer {renewed}")
    (tmp_path / ".state/operator.key").write_text("ork_000000000000_" + "a" * 43, encoding="ascii")
    operator_key(tmp_path, keys)
    assert keys.opens(own_key(tmp_path) or "")


def test_periods() -> None:
    now = 1_700_000_000.0
    assert [period_of(period, now) for period in ("day", "month", "total")] == ["2023-11-14", "2023-11", ""]


def test_keys_keep_their_budget(keys: Keys) -> None:
    key, _ = keys.create("team", budget_usd=Decimal("1.50"), period="day")
    assert key.budget_usd == Decimal("1.50") and key.spent_usd == 0 and key.period == "day"
