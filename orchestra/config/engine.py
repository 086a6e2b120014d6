"""The parameters `grpo.server` and `evaluate.server`: the vLLM servers that play episodes."""

from typing import Annotated

from pydantic import Field

from orchestra.config.deploy import VllmServer
from orchestra.config.section import Factor, Positive


class PlayServer(VllmServer):
    """The server that a stage starts for its episodes."""

    timeout_s: Positive = 600
    """Seconds that one turn may take."""
    start_timeout_s: Positive = 900
    """Seconds that the server may take to start, or to start again."""


class RolloutServer(PlayServer):
    """The server of `grpo.engine: vllm`: started by the stage, or one that is named."""

    url: Annotated[str, Field(pattern=r"^https?://\S+$")] | None = None
    """A server that runs already and reads this workspace's files; null: the stage starts its own."""
    importance_cap: Factor = 2.0
    """Largest weight of a token by which the trainer finds it likelier than the server did (truncated importance
    sampling)."""
