"""The sections `budget` and `retraining` of params.yaml: limits of runs, which decide no result."""

from typing import Annotated

from pydantic import Field

from orchestra.config.section import Factor, Positive, Section, switch
from orchestra.types import Usd


class BudgetLimits(Section):
    """What may be spent, dollars and hours. It decides no result, so it makes no stage stale."""

    run_usd: Usd | None = None
    """Dollars of one run of the pipeline, its stages together; a call that could cross it ends the run."""
    stage_hours: Factor = switch(24.0)
    """Hours after which a stage is ended, since it may hang; `orchestra rerun` goes on from its last checkpoint."""


class Retraining(Section):
    """When a run may begin that nobody typed. It decides no result, so it makes no stage stale."""

    cooldown_hours: Annotated[float, Field(ge=0, le=8760)] = 24.0
    """Hours from the beginning of one such run to that of the next."""
    monthly_usd: Usd | None = None
    """Dollars of such runs in a calendar month (UTC): each is capped by what is left. null: no cap of their own."""
    stale_price_days: Positive = 365
    """Days after which a price that nobody checked asks a person to do so."""
