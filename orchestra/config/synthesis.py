"""How a model writes examples in the flow, and where what comes from elsewhere lies."""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from orchestra.config.section import Positive, RequestSettings, Section, switch

MAX_OUTPUT_TOKENS = 6_000
"""Of one reply of the model that writes; a table of entries is the longest object."""


def _extra_file(text: str) -> str:
    if not re.fullmatch(r"data/extra/([\w-][\w.-]*/)*[\w-][\w.-]*\.jsonl", text):
        raise ValueError("must be a file below data/extra; put it there and name it: data/extra/NAME.jsonl")
    return text


ExtraFile = Annotated[str, AfterValidator(_extra_file)]
"""The stages depend on data/extra: what lies elsewhere could change unseen."""


class ModelWriting(Section):
    """The model that writes, what it may spend, and what it writes besides tasks. Its address is ORCHESTRA_WRITER_URL,
    its key ORCHESTRA_WRITER_KEY."""

    model: Annotated[str, Field(min_length=1)]
    """The model's name at the endpoint."""
    price: Annotated[str, Field(pattern=r"^[^/]+/.+$")]
    """Its provider/model in the price book."""
    cap_usd: Annotated[float, Field(gt=0)]
    """Dollars that the whole version may cost, whichever run spends them."""
    max_output_tokens: Positive = switch(MAX_OUTPUT_TOKENS)
    """Of one reply, its thoughts included; a reasoning model needs more."""
    settings: RequestSettings = switch({})
    """What else a request says, such as reasoning_effort; they hold over the writer's own: response_format, seed,
    temperature."""
    version: Annotated[str, Field(pattern=r"^data/versions/[\w-][\w.-]*$")] = switch("data/versions/flow")
    """Folder of what it wrote, with ledger and cassette."""
    cassette: Literal["auto", "record", "replay"] = switch("auto")
    """auto: replay recorded replies and record the rest; replay: ask nothing."""
    solver: Annotated[str, Field(pattern=r"^(none|known|chat:.+)$")] = switch("known")
    """Who tries what it wrote, 8 times each; what is never solved is left out. chat:EXPERT: that expert of the
    catalogue."""
    preferences: Annotated[int, Field(ge=0)] = switch(0)
    """Ways to state a preference that it writes; 0: the fixed sentences."""
    domains: dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")], str] = switch({})
    """Domains that it writes where data/domains lacks them, each with its subject; world.domains names those in use."""
    licence: str = switch("Apache-2.0")
    """Licence of what it writes."""
