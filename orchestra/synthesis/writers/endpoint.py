"""The endpoint of the model that writes data, under a cap of dollars."""

import os
from datetime import date
from pathlib import Path

from orchestra.accounting.budget import Budget
from orchestra.config.schema import World
from orchestra.config.synthesis import MAX_OUTPUT_TOKENS
from orchestra.errors import ConfigError
from orchestra.system.environment import required
from orchestra.tools.catalogue.catalogue import read_catalogue
from orchestra.tools.catalogue.price_book import PriceBook
from orchestra.tools.chat.client import Chat
from orchestra.tools.experts.metered import PaidChat
from orchestra.tools.rate_limits import limiter_of
from orchestra.tools.replay.cassette import Cassette
from orchestra.types import Component

URL, KEY = "ORCHESTRA_WRITER_URL", "ORCHESTRA_WRITER_KEY"
"""Environment variables of the endpoint that writes: its address up to `/v1`, and its key where it needs one."""
DEADLINE_S, SLOWEST = 300.0, 20
"""Seconds that a reply may take; more where it may hold more tokens than come at so many a second."""


def writing_chat(
    world: World,
    root: Path,
    model: str,
    price: str | None,
    budget: Budget,
    tape: Cassette | None = None,
    max_tokens: int = MAX_OUTPUT_TOKENS,
    setting: str = "",
) -> PaidChat:
    """The endpoint that writes, at its price of `world.price_date`; where all is replayed it needs no address.

    It has time for replies of `max_tokens`. `setting`: what leaves a parameter out of its requests, for errors; empty:
    nothing does. Raises `ConfigError` without a price, or where the address is not in the environment.
    """
    if price is None:
        raise ConfigError(
            "the model's price is unknown", where="--model", fix="name its row of the price book: --price"
        )
    found = PriceBook.load(root / world.prices).at(price, date.fromisoformat(world.price_date))
    url = "" if tape is not None and tape.mode == "replay" else required(URL, tool="writer")
    provider = limiter_of(price, read_catalogue(root / world.catalogue).providers)
    deadline_s, key = max(DEADLINE_S, max_tokens / SLOWEST), os.environ.get(KEY, "")
    chat = Chat(model, model=model, url=url, key=key, deadline_s=deadline_s, cassette=tape, provider=provider)
    return PaidChat(chat, found, budget, Component.GENERATOR, provider.limits.limit_parameter, setting=setting)
