"""Filters that every example must pass, from any writer: proven by execution, asked once, sometimes solved."""

import asyncio
import hashlib
import json
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from orchestra.config.schema import Rollout
from orchestra.rewards.answers import MIXED, POWER
from orchestra.synthesis.domain_tasks.evolve import MAX_WORDS
from orchestra.synthesis.domain_tasks.tasks import DomainTask, refuted
from orchestra.synthesis.draft import Refused
from orchestra.text import HYPHENS
from orchestra.tools.recording import is_recorded
from orchestra.tools.toolkit import Toolkit
from orchestra.types import Category, Example, Price
from orchestra.validation.replay import Copies, answerable
from orchestra.validation.rows import (
    all_simulated,
    answer_problem,
    golden_problem,
    length_problem,
    reference_problem,
    toolbox_problem,
)

if TYPE_CHECKING:
    from orchestra.rollout.policies.base import Policy
    from orchestra.rollout.render import Codec
    from orchestra.rollout.users import UserSimulator

TRIES = 8
"""Tries that the solver has: an example it never solves is not kept."""
BATCH = 32
"""Examples that the solver tries together."""
SIGNS = "_.+-*/%!#()[]{}"
"""Punctuation that tells two requests apart; symbols such as < and = do so, too."""


@dataclass(frozen=True)
class Solver:
    """A policy with its tokenizer that tries the examples."""

    policy: "Policy"
    codec: "Codec"
    toolkit: Toolkit
    limits: Rollout
    tries: int = TRIES
    user: "UserSimulator | None" = None
    """Who answers its questions; default: the script."""
    price: Price | None = None
    """Of the policy's own tokens; None: the orchestrator's."""

    def measured(self, examples: Sequence[Example]) -> list[Example]:
        """The examples with their difficulty; None where no try could be judged, since tools failed."""
        from orchestra.rollout.loop import RolloutOptions, run_episodes

        price = self.price or self.toolkit.catalogue.policy_price
        options = RolloutOptions(self.limits, price, samples=self.tries, user=self.user)
        episodes = asyncio.run(run_episodes(examples, self.policy, self.codec, self.toolkit, options))
        made = []
        for number, example in enumerate(examples):
            group = episodes[number * self.tries : (number + 1) * self.tries]
            counted = [episode.solved for episode in group if episode.counted]
            share = sum(counted) / len(counted) if counted else None
            made.append(example.model_copy(update={"difficulty": share}))
        return made


@dataclass
class Duplicates:
    """Remembers what was asked, at 16 bytes an example."""

    _asked: set[bytes] = field(default_factory=set)
    _solutions: set[bytes] = field(default_factory=set)

    def why(self, example: Example) -> str | None:
        """Why the example is a repetition of one before it; None when it is new, and it is then remembered.

        A repetition asks the same words in the same order, whatever its solution, or the same words in another order
        for the same golden calls and answer. Case, articles and punctuation but signs do not count.
        """
        world, words = example.domain or "", _words(example.asked)
        verifier = example.verifier
        calls = json.dumps(
            [verifier.answer, *(call.model_dump(mode="json") for call in verifier.golden_calls)], sort_keys=True
        )
        asked, solution = _mark(world, words), _mark(world, " ".join(sorted(words.split())), calls)
        if asked in self._asked:
            return "asked before"
        if solution in self._solutions:
            return "asked before in another order"
        self._asked.add(asked)
        self._solutions.add(solution)
        return None


def proven(example: Example, toolkit: Toolkit, max_words: int | None = MAX_WORDS) -> str | None:
    """Why execution does not prove an example; None when it does.

    A domain example by its own golden calls (see `refuted`), a question by its own too, and a topic question by the
    simulated experts of its toolbox, one of whom must know the answer; what real ones know is not asked here.
    """
    why = length_problem(example) or reference_problem(example, toolkit) or toolbox_problem(example)
    if why is not None:
        return why
    recorded = is_recorded(example, toolkit.domain_folders)
    alone = example.domain is None or recorded
    return _answered(example, toolkit) if alone else _refuted(example, toolkit, max_words)


def _answered(example: Example, toolkit: Toolkit) -> str | None:
    topic = example.category is Category.TOPIC
    if example.category is Category.DIRECT:
        return answer_problem(example, toolkit)
    if not topic and not example.verifier.golden_calls:
        return "it has no known solution"
    with Copies() as copies:
        why = answer_problem(example, toolkit) or asyncio.run(golden_problem(example, toolkit, copies))
    if why is None and topic and all_simulated(example, toolkit) and not answerable(example, toolkit):
        return "no expert of the toolbox knows the answer"
    return why


def _refuted(example: Example, toolkit: Toolkit, max_words: int | None) -> str | None:
    assert example.domain is not None
    verifier = example.verifier
    task = DomainTask(
        instruction=example.instruction,
        category="change" if example.category is Category.CHANGE else "lookup",
        golden_calls=verifier.golden_calls,
        communicate=verifier.communicate,
        answer=verifier.answer or " ".join(verifier.communicate),
        entities=example.entities,
        tools_needed=(),
        user=example.user,
    )
    return refuted(toolkit.domain(example.domain), task, max_words)


def kept(
    rows: Iterable[Example | Refused],
    toolkit: Toolkit,
    solver: Solver | None = None,
    duplicates: Duplicates | None = None,
    max_words: int | None = MAX_WORDS,
) -> Iterator[Example | Refused]:
    """The examples that pass, with their difficulty where there is a solver, and the others with the reason; what is
    refused already passes through.

    The filters: proven by execution (and of at most `max_words`, if it is about a domain); not asked before; solved in
    at least one of the solver's tries. The reader may stop at any time: nothing is taken ahead but a batch.
    """
    duplicates = duplicates or Duplicates()
    batch: list[Example] = []
    for row in rows:
        if isinstance(row, Refused):
            yield row
        elif (why := proven(row, toolkit, max_words) or duplicates.why(row)) is not None:
            yield refused(row, why)
        elif solver is None:
            yield row
        else:
            batch.append(row)
            if len(batch) == BATCH:
                yield from _solved(batch, solver)
                batch = []
    if solver is not None and batch:
        yield from _solved(batch, solver)


def _solved(batch: Sequence[Example], solver: Solver) -> Iterator[Example | Refused]:
    for tried in solver.measured(batch):
        if tried.difficulty:
            yield tried
        elif tried.difficulty is None:
            yield refused(tried, "no try could be judged")
        else:
            yield refused(tried, f"none of {solver.tries} tries of {solver.policy.name} solved it")


def refused(example: Example, why: str) -> Refused:
    """The example as one that is not taken."""
    return Refused(example.id, example.provenance.source, why, example.instruction)


def asked_words(text: str) -> list[str]:
    """The words of a request as they are compared: letters and digits with their marks, and signs, since 5+3 is not
    5-3; neither case nor spaces nor other punctuation, and nothing after its last word.
    """
    powers = MIXED.sub(" ", POWER.sub("^", text))
    plain = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", powers).casefold()).translate(HYPHENS)
    return [word for part in "".join(map(_counted, plain.rstrip(" ?.!"))).split() if (word := part.rstrip("."))]


@lru_cache(maxsize=1 << 13)
def _counted(one: str) -> str:
    return one if unicodedata.category(one)[0] in "LMNS" or one in SIGNS else " "


def _words(text: str) -> str:
    words = asked_words(text)
    return " ".join([word for word in words if word not in {"a", "an", "the"}] or words)


def _mark(*parts: str) -> bytes:
    return hashlib.sha256("\0".join(parts).encode()).digest()[:8]
