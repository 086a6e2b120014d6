"""Runs asynchronous work for callers that have no event loop, or cannot wait in theirs."""

import asyncio
import contextvars
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def waited_for(work: Coroutine[Any, Any, T]) -> T:
    """The result of the work; in a thread of its own where this one has a running loop, as a notebook's has.

    An interrupt then takes effect once the work is done.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(contextvars.copy_context().run, asyncio.run, work).result()
    return asyncio.run(work)
