"""Makes one example by hand: a question or a task, with the tools that it is offered."""

from collections.abc import Sequence

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
) -> Example:
    """An example whose toolbox holds `tools` of the catalogue, at list prices, and all tools of `domain`.

    In a domain, an episode is solved when it leaves the database as `solution` does and says `answer`. Elsewhere it is
    solved when its answer is `answer`; None leaves that to a judge. Raises `ConfigError` for an unknown tool or domain.
    """
    catalogue = toolkit.catalogue
    specs = [catalogue.spec(name) for name in tools]
    if domain is not None:
        specs += [catalogue.domain_spec(domain, tool) for tool in toolkit.domain(domain).tools.values()]
        said = (answer,) if answer is not None else ()
        verifier = Verifier(kind="database", answer=answer, golden_calls=tuple(solution), communicate=said)
    else:
        verifier = Verifier(kind="judge" if answer is None else "exact", answer=answer, golden_calls=tuple(solution))
    return Example(
        id=text,
        kind="question" if domain is None else "domain",
        category=Category.TOPIC if domain is None else Category.CHANGE,
        instruction=text,
        domain=domain,
        toolbox=tuple(specs),
        preference=preference,
        verifier=verifier,
        provenance=Provenance(source="by hand", licence="the caller's", generator="orchestra.question", seed=0),
    )
