"""Whether the endpoints of real experts answer, take their keys, and list the models that the catalogue names."""

import os
import re
from collections.abc import Iterator, Mapping
from datetime import date
from typing import Any

from orchestra.cli.common import CheckResult
from orchestra.tools.catalogue.entry import Entry
from orchestra.tools.catalogue.price_check import NOTICE

ANSWER_S = 5.0
"""Seconds in which an endpoint should answer."""
REFUSED = (401, 403)
ANTHROPIC = re.compile(r"(.*\.)?anthropic\.com")
"""Hosts whose list takes no key as Bearer: that is for OpenAI's clients, and chat completions alone."""
SNAPSHOT = r"(-latest|[-@]\d{4}-?\d\d-?\d\d)?"
"""How the name of a model's snapshot ends, where a list holds only those."""
Listed = dict[str, date | None]
"""Names in a list of models, each with the day on which it shuts down, where the list says so."""


def check_endpoints(entries: Mapping[str, Entry], catalogue: str, today: date) -> Iterator[CheckResult]:
    """One request for each address and key that the environment holds, for the provider's list of models."""
    places: dict[tuple[str, str], list[Entry]] = {}
    for entry in entries.values():
        if entry.base_url_env and os.environ.get(entry.base_url_env):
            places.setdefault((entry.base_url_env, entry.api_key_env or ""), []).append(entry)
    for (address, key), some in sorted(places.items()):
        yield from _check(address, key, [one for one in some if one.implementation == "openai"], catalogue, today)


def _check(address: str, key: str, some: list[Entry], catalogue: str, today: date) -> Iterator[CheckResult]:
    """`some`: the experts there; none where the address is that of another tool, which has no list of models."""
    import httpx

    secret = os.environ.get(key, "") if key and some else ""
    url, headers = f"{os.environ[address].rstrip('/')}/models", {"Authorization": f"Bearer {secret}"} if secret else {}
    try:
        if secret and ANTHROPIC.fullmatch(httpx.URL(url).host):
            url += "?limit=1000"  # The most models a page.
            headers = {"x-api-key": secret, "anthropic-version": "2023-06-01"}
        reply = httpx.get(url, headers=headers, timeout=ANSWER_S)
    except (httpx.LocalProtocolError, UnicodeEncodeError):
        yield CheckResult("warning", "endpoint", f"{address}: its key or address cannot be sent", _check_key(key))
        return
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        what = f"{address} does not answer: {type(error).__name__}"
        yield CheckResult("warning", "endpoint", what, "check the address; it ends with /v1")
        return
    status = reply.status_code
    if some and status in REFUSED and (secret or not key):
        what = f"{address} refuses its key (HTTP {status})" if key else f"{address} wants a key (HTTP {status})"
        yield CheckResult("warning", "endpoint", what, _check_key(key))
        return
    if some and status == 404:
        what = f"{address} has no list of models (HTTP 404)"
        yield CheckResult("warning", "endpoint", what, "check the address; it ends with /v1")
        return
    listed = _listed(reply) if some and status == 200 else {}
    names = sorted({one.endpoint_model for one in some if one.endpoint_model})
    if missing := [name for name in names if listed and not _served(name, listed)]:
        fix = f"correct endpoint_model in {catalogue}, unless the provider serves more than it lists"
        yield CheckResult("warning", "endpoint", f"{address} does not list {', '.join(missing)}", fix)
    dated = {one.endpoint_model for one in some if one.retires is not None}
    ending = {name: day for name in names if name not in dated and (day := listed.get(name)) and day <= today + NOTICE}
    if ending:
        told = ", ".join(f"{name} on {day}" for name, day in ending.items())
        fix = f"name another model in {catalogue}"
        yield CheckResult("warning", "endpoint", f"{address} lists the end of {told}", fix)
    if not missing and not ending:
        yield CheckResult("ok", "endpoint", f"{address} answers (HTTP {status})")


def _check_key(key: str) -> str:
    return f"check ${key}" if key else "name the variable of its key: api_key_env"


def _served(name: str, listed: Listed) -> bool:
    """Whether a list holds the model, itself or as a dated snapshot."""
    wanted = re.compile(re.escape(name) + SNAPSHOT, re.IGNORECASE)
    return any(wanted.fullmatch(one.removeprefix("models/")) for one in listed)


def _listed(reply: Any) -> Listed:
    """The list in a reply, `{"data": [...]}` or the list alone; empty where it is another thing, or only a page."""
    try:
        told = reply.json()
        if isinstance(told, dict):
            told = [] if told.get("has_more") or told.get("next_page_token") else told["data"]
        return {str(one["id"]): _day(one.get("shutdown_date")) for one in told}
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return {}


def _day(text: Any) -> date | None:
    try:
        return date.fromisoformat(text)
    except (ValueError, TypeError):
        return None
