"""What a domain's verdicts are worth: with one golden call dropped, swapped or changed, a task is to turn unsolved.

The answer given is always the known right one: what counts here is what was done.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pydantic import JsonValue

from orchestra.domains.compare import judge, mentions
from orchestra.domains.session import Domain, Session
from orchestra.errors import CallError
from orchestra.synthesis.domain_tasks.tasks import DomainTask
from orchestra.types import ToolCall

Mutation = Literal["drop", "swap", "change", "order"]
"""A golden call is left out; another tool that takes the same arguments is called instead; one argument is another
value that the domain's tasks give it; two neighbours that write change places."""
Calls = tuple[ToolCall, ...]
Values = dict[tuple[str, str], list[JsonValue]]
"""By tool and argument: the values that tasks give it, each once."""


@dataclass
class Worth:
    """Counts over the tasks of a domain."""

    tasks: int = 0
    replayed: int = 0
    """Solved by their golden calls."""
    idle: int = 0
    """Solved with no call at all."""
    mutants: Counter[Mutation] = field(default_factory=Counter)
    missed: Counter[Mutation] = field(default_factory=Counter)
    """Mutants that are judged solved all the same."""


def worth(domain: Domain, tasks: Sequence[DomainTask]) -> Worth:
    """Every task judged with its golden calls, with none, and with every mutation of them."""
    made, values = Worth(tasks=len(tasks)), _values(tasks)
    for task in tasks:
        made.replayed += _solved(domain, task, task.golden_calls)
        made.idle += _solved(domain, task, ())
        for mutation, calls in mutants(domain, task, values):
            made.mutants[mutation] += 1
            made.missed[mutation] += _solved(domain, task, calls)
    return made


def mutants(domain: Domain, task: DomainTask, values: Values) -> Iterator[tuple[Mutation, Calls]]:
    """The task's golden calls, mutated; the same ones every time."""
    golden, rng = task.golden_calls, random.Random(task.instruction)
    for at, call in enumerate(golden):
        before, after = golden[:at], golden[at + 1 :]
        yield "drop", before + after
        if others := [name for name in _takers(domain, call) if name != call.name]:
            yield "swap", (*before, ToolCall(name=rng.choice(others), arguments=call.arguments), *after)
        for name, value in call.arguments.items():
            if found := [one for one in values[call.name, name] if one != value]:
                changed = {**call.arguments, name: rng.choice(found)}
                yield "change", (*before, ToolCall(name=call.name, arguments=changed), *after)
        if after and domain.tools[call.name].writes and domain.tools[after[0].name].writes:
            exchanged = (*before, after[0], call, *after[1:])
            if not _as_good(domain, task, exchanged):
                yield "order", exchanged


def _values(tasks: Sequence[DomainTask]) -> Values:
    values: defaultdict[tuple[str, str], dict[JsonValue, None]] = defaultdict(dict)
    for call in (call for task in tasks for call in task.golden_calls):
        for name, value in call.arguments.items():
            values[call.name, name][value] = None
    return {key: list(found) for key, found in values.items()}


def _takers(domain: Domain, call: ToolCall) -> list[str]:
    return [
        tool.name
        for tool in domain.tools.values()
        if set(tool.file.parameters) - set(tool.file.optional) <= call.arguments.keys() <= tool.file.parameters.keys()
    ]


def _run(session: Session, calls: Calls) -> list[str]:
    """What each call showed; a refusal shows nothing, as in an episode."""
    shown = []
    for call in calls:
        try:
            shown.append(session.call(call.name, call.arguments))
        except CallError:
            continue
    return shown


def _solved(domain: Domain, task: DomainTask, calls: Calls) -> bool:
    session = domain.open()
    try:
        _run(session, calls)
        return judge(domain, session, task.golden_calls, task.communicate, task.answer).solved
    finally:
        session.close()


def _as_good(domain: Domain, task: DomainTask, calls: Calls) -> bool:
    """Whether another order is another solution: all calls run, the contents are the same, and what must be said is
    shown."""
    golden, other = domain.open(), domain.open()
    try:
        _run(golden, task.golden_calls)
        shown = _run(other, calls)
        said = f"{task.instruction} ; {' ; '.join(shown)}"
        complete = len(shown) == len(calls) and all(mentions(said, text) for text in task.communicate)
        return complete and other.contents() == golden.contents()
    finally:
        golden.close()
        other.close()
