"""Makes one example by hand: a question or a task, with the tools that it is offered."""

from collections.abc import Sequence
from typing import Literal

from pydantic import ValidationError

from orchestra.errors import ConfigError
from orchestra.tools.catalogue.price_book import first_problem
from orchestra.tools.toolkit import Toolkit
from orchestra.types import Category, Example, Preference, Provenance, ToolCall, Verifier

NEUTRAL = Preference(kind="neutral", words="", outcome=1.0, compute=0.3, latency=0.1)
"""What a user wants who states no preference."""


def question(
    text: str,
    toolkit: Toolkit,
    *,
    tools: Sequence[str] = (),
    domain: str | None = None,
    answer: str | None = None,
    solution: Sequence[ToolCall] = (),
    preference: Preference = NEUTRAL,
    id: str | None = None,
) -> Example:
    """An example whose toolbox holds `tools` of the catalogue, at list prices, and all tools of `domain`.

    In a domain, an episode is solved when it leaves the database as `solution` does and says `answer`. Elsewhere it is
    solved when its answer is `answer`; with None nothing can decide, and there is no verdict. `id` (default: the text)
    tells examples apart in a training. Raises `ConfigError` for an unknown tool or domain, one that is offered twice,
    and what is no example.
    """
    catalogue = toolkit.catalogue
    specs = [catalogue.spec(name) for name in tools]
    if domain is not None:
        specs += [catalogue.domain_spec(domain, tool) for tool in toolkit.domain(domain).tools.values()]
    names = [spec.name for spec in specs]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"{twice} is offered twice", where="question", fix="name each tool once")
    kind: Literal["exact", "database", "judge"] = "judge" if answer is None else "exact"
    kind = kind if domain is None else "database"
    said = (answer,) if domain is not None and answer is not None else ()
    try:
        return Example(
            id=text if id is None else id,
            kind="question" if domain is None else "domain",
            category=Category.TOPIC if domain is None else Category.CHANGE,
            instruction=text,
            domain=domain,
            toolbox=tuple(specs),
            preference=preference,
            verifier=Verifier(kind=kind, answer=answer, golden_calls=tuple(solution), communicate=said),
            provenance=Provenance(source="by hand", licence="the caller's", generator="orchestra.question", seed=0),
        )
    except ValidationError as error:
        raise ConfigError(first_problem(error), where="question", fix="give each argument its own type") from None
