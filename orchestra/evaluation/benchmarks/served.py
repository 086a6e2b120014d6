"""What a gateway serves: asked before an evaluation, so that another gateway or release gets results of its own."""

import httpx

from orchestra.errors import ServiceError
from orchestra.text import digest
from orchestra.tools.chat.retries import RETRIED
from orchestra.tools.replay.cassette import Cassette
from orchestra.types import Record

ANSWER_S = 30.0


class Served(Record):
    """A gateway's release."""

    fingerprint: str
    """Digest of all that decides its answers; of its address where the server does not say."""
    version: str = ""
    """As its answers name it; empty where the server does not say."""

    @property
    def name(self) -> str:
        """What reports call it."""
        return "-".join(filter(None, ("gateway", self.version, self.fingerprint[:8])))


ANY = Served(fingerprint="")
"""What a plain model serves."""


def served(url: str, cassette: Cassette | None) -> Served:
    """What the gateway at `url` (up to `/v1`) serves; a replay reads what was recorded.

    Raises `ServiceError` while it cannot say: another fingerprint would pay for every question again.
    """
    if cassette is None:
        return _ask(url)
    slot = cassette.slot({"address": digest(url)}, "what a gateway serves")
    if cassette.mode == "replay":
        assert slot.found is not None
        return Served.model_validate(slot.found.reply)
    found = _ask(url)
    slot.keep(found)
    return found


def _ask(url: str) -> Served:
    address = f"{url.rstrip('/').removesuffix('/v1')}/health"
    unknown = ServiceError("the gateway does not say what it serves", where=address, fix="see that it answers there")
    try:
        response = httpx.get(address, timeout=ANSWER_S)
    except (httpx.HTTPError, httpx.InvalidURL):
        raise unknown from None
    try:
        said = response.json()
    except ValueError:
        said = None
    if isinstance(said, dict) and isinstance(said.get("fingerprint"), str):
        return Served(fingerprint=said["fingerprint"], version=str(said.get("version") or ""))
    if response.status_code in RETRIED:
        raise unknown
    return Served(fingerprint=digest(url))
