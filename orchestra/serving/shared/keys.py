"""API keys: hashed at rest, each with its own rate and its own dollars."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Literal, get_args

from orchestra.errors import ConfigError
from orchestra.files import atomic
from orchestra.serving.shared.database import Database
from orchestra.serving.wire.errors import ApiError, too_many
from orchestra.types import Record

Period = Literal["day", "month", "total"]
PERIODS: tuple[Period, ...] = get_args(Period)
OPERATOR = "operator"
"""The key of this workspace's own commands, made with the first one."""
OPERATOR_FILE = ".state/operator.key"
_KEY = re.compile(r"^(?i:bearer )?\s*ork_([0-9a-f]{12})_([A-Za-z0-9_-]{43})$")


class ApiKey(Record):
    """What is known of a key; its secret was told once."""

    id: str
    name: str
    created: float
    """Unix seconds, as `revoked`."""
    revoked: float | None = None
    per_minute: int | None = None
    """Requests; None: no limit."""
    budget_usd: Decimal | None = None
    """Dollars a period; None: no limit."""
    period: Period = "total"
    spent_usd: Decimal = Decimal(0)
    """In the present period."""
    requests: int = 0


def period_of(period: Period, now: float) -> str:
    """The name of the present period, in UTC."""
    moment = datetime.fromtimestamp(now, UTC)
    return {"day": f"{moment:%Y-%m-%d}", "month": f"{moment:%Y-%m}", "total": ""}[period]


class Keys:
    """The keys of a workspace."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known = False

    @property
    def required(self) -> bool:
        """Whether callers need a key: from the first one on, and for good."""
        if not self._known:
            with self._database.look() as store:
                self._known = store.execute("SELECT 1 FROM keys LIMIT 1").fetchone() is not None
        return self._known

    def create(
        self,
        name: str,
        *,
        per_minute: int | None = None,
        budget_usd: Decimal | None = None,
        period: Period = "total",
    ) -> tuple[ApiKey, str]:
        """A new key, and its secret, which is nowhere kept."""
        key_id, secret, now = secrets.token_hex(6), secrets.token_urlsafe(32), time.time()
        budget = None if budget_usd is None else f"{budget_usd:f}"
        row = (key_id, name, _digest(secret), now, None, per_minute, budget, period)
        with self._database.change() as store:
            store.execute(
                "INSERT INTO keys VALUES (?, ?, ?, ?, ?, ?, ?, ?, '0', ?, 0, ?, ?)",
                (*row, period_of(period, now), float(per_minute or 0), now),
            )
        return self._find(key_id), f"ork_{key_id}_{secret}"

    def list(self) -> list[ApiKey]:
        """Every key, revoked ones too, the oldest first."""
        with self._database.look() as store:
            ids = [row[0] for row in store.execute("SELECT id FROM keys ORDER BY created")]
        return [self._find(key_id) for key_id in ids]

    def revoke(self, key_id: str) -> ApiKey:
        """It opens nothing from now on; raises `ConfigError` for one that is not there."""
        with self._database.change() as store:
            done = store.execute(
                "UPDATE keys SET revoked = ? WHERE id = ? AND revoked IS NULL", (time.time(), key_id)
            ).rowcount
        if not done:
            raise ConfigError(f"no valid key {key_id[:40]}", where="keys revoke", fix="orchestra keys list")
        return self._find(key_id)

    def opens(self, secret: str) -> bool:
        """Whether it is that of a valid key; no request is counted."""
        found = _KEY.match(f"Bearer {secret}")
        if found is None:
            return False
        with self._database.look() as store:
            row = store.execute("SELECT digest FROM keys WHERE id = ? AND revoked IS NULL", (found[1],)).fetchone()
        return row is not None and hmac.compare_digest(row[0], _digest(found[2]))

    def admit(self, authorization: str) -> str:
        """The id of the key in an Authorization header, one request counted; raises `ApiError` 401 or 429."""
        found = _KEY.match(authorization.strip())
        if found is None:
            raise _unknown("an API key is required: Authorization: Bearer ork_…")
        key_id, now = found[1], time.time()
        with self._database.change() as store:
            row = store.execute(
                "SELECT digest, revoked, per_minute, tokens, filled FROM keys WHERE id = ?", (key_id,)
            ).fetchone()
            # Compared also where there is none, so that the time tells nothing.
            right = hmac.compare_digest(row[0] if row else "", _digest(found[2]))
            if row is None or not right or row[1] is not None:
                raise _unknown("this API key is not valid")
            tokens = float(row[3])
            if row[2] is not None:
                # After a clock that was set back the minute begins again: else the key waits until it catches up.
                minutes = (now - row[4]) / 60 if now >= row[4] else 1.0
                tokens = min(float(row[2]), tokens + minutes * row[2])
                if tokens < 1:
                    wait_s = (1 - tokens) * 60 / row[2]
                    raise too_many(f"more than {row[2]} requests a minute", "rate_limit_exceeded", wait_s)
                tokens -= 1
            store.execute(
                "UPDATE keys SET tokens = ?, filled = ?, requests = requests + 1 WHERE id = ?", (tokens, now, key_id)
            )
        return key_id

    def _find(self, key_id: str) -> ApiKey:
        columns = "id, name, created, revoked, per_minute, budget_usd, period, spent_usd, requests, spent_in"
        with self._database.look() as store:
            row = store.execute(f"SELECT {columns} FROM keys WHERE id = ?", (key_id,)).fetchone()
        found = ApiKey(**dict(zip(columns.split(", ")[:-1], row[:-1], strict=True)))
        same = row[-1] == period_of(found.period, time.time())
        return found if same else found.model_copy(update={"spent_usd": Decimal(0)})


def operator_key(root: Path, keys: Keys) -> None:
    """Have a valid key for this workspace's own commands, in a file that its user alone may read."""
    if not keys.opens(own_key(root) or ""):
        atomic.write_private(root / OPERATOR_FILE, keys.create(OPERATOR)[1] + "\n")


def own_key(root: Path) -> str | None:
    """The operator's key, where there is one."""
    try:
        return (root / OPERATOR_FILE).read_text(encoding="ascii").strip()
    except OSError:
        return None


def _digest(secret: str) -> str:
    """The secrets are random and long: nothing slower is needed to hide them."""
    return hashlib.sha256(secret.encode()).hexdigest()


def _unknown(message: str) -> ApiError:
    return ApiError(401, message, kind="authentication_error", code="invalid_api_key")
