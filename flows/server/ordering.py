"""Makes Prefect's server hold an event back for its predecessor for 30 seconds at most, not for 15 minutes.

A run begins with an event that follows the making of its schedule, which Prefect 3.8 never tells. Where both are less
than five minutes apart, all events of the run are held back with it: nobody is told that it failed, and it seems to
give no heartbeat. The server of `orchestra up` finds this module by PREFECT_SERVER_EVENTS_CAUSAL_ORDERING.
"""

from datetime import UTC, datetime, timedelta

from prefect.server.events.ordering import PRECEDING_EVENT_LOOKBACK, memory
from prefect.server.events.schemas.events import ReceivedEvent

PATIENCE = timedelta(seconds=30)
"""An event that comes later than this after one that follows it is lost."""


class CausalOrdering(memory.CausalOrdering):
    """Prefect's own order of events, with less patience."""

    async def wait_for_leader(self, event: ReceivedEvent) -> None:
        if datetime.now(UTC) - event.received < PATIENCE:
            await super().wait_for_leader(event)

    async def record_follower(self, event: ReceivedEvent) -> None:
        await super().record_follower(event)
        # Prefect looks every few seconds for what has waited as long as it would.
        self._waitlist[event.id] = event.received - (PRECEDING_EVENT_LOOKBACK - PATIENCE)
