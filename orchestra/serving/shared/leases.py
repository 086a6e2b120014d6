"""What a gateway works on, stated again and again: others know by it that one was killed."""

from __future__ import annotations

import asyncio
import logging

from orchestra.serving.shared.answers import Answers
from orchestra.serving.shared.database import Database
from orchestra.serving.shared.spending import renew_holds

log = logging.getLogger("orchestra.gateway")

RENEW_S = 10.0
"""Seconds between two statements, of which each holds for `LEASE_S`."""


async def renew(store: Database, answers: Answers) -> None:
    """Keep this process's requests and dollars under way, for good."""
    while True:
        await asyncio.sleep(RENEW_S)
        try:
            renew_holds(store)
            answers.renew()
        except Exception:
            log.exception("what is under way was not stated")
