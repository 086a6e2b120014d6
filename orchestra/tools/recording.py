"""Stands in for a domain whose database is missing: it knows the golden calls of one example, and nothing else.

A golden call is accepted. With the last of them it says what the user must be told, which only the database knew. Any
other call has no effect. A judge reads the calls where they are not those of the known solution.
"""

import json
from collections.abc import Collection
from dataclasses import dataclass, field

from orchestra.types import Example, ToolCall

ACCEPTED = "done."
UNKNOWN = "nothing is recorded for this call: it has no effect."


def is_recorded(example: Example, domains: Collection[str]) -> bool:
    """Whether the example is judged since its domain is not among those that are here."""
    missing = example.domain is not None and example.domain not in domains
    return missing and example.verifier.kind == "judge" and bool(example.verifier.golden_calls)


@dataclass
class Recording:
    """The domain's tools in one episode."""

    golden: tuple[ToolCall, ...]
    communicate: tuple[str, ...]
    calls: list[ToolCall] = field(default_factory=list)
    """All that were made, in order."""

    def call(self, call: ToolCall) -> str:
        """What the model sees."""
        self.calls.append(call)
        if call not in self.golden:
            return UNKNOWN
        whole = all(one in self.calls for one in self.golden)
        return " ".join([ACCEPTED, *self.communicate]) if whole else ACCEPTED

    @property
    def same(self) -> bool:
        """Whether the calls are those of the known solution and no others, each as often, in any order."""
        return sorted(map(_text, self.calls)) == sorted(map(_text, self.golden))

    def attempt(self, answer: str) -> str:
        """What was done and said, for a judge."""
        return _told(self.calls, [answer])

    @property
    def solution(self) -> str:
        """The known solution, for a judge."""
        return _told(self.golden, self.communicate)


def _told(calls: Collection[ToolCall], said: Collection[str]) -> str:
    lines = [_text(call) for call in calls] or ["(no calls)"]
    return "\n".join([*lines, "Told to the user:", *(said or ["(nothing in particular)"])])


def _text(call: ToolCall) -> str:
    return f"{call.name}({json.dumps(call.arguments, sort_keys=True, ensure_ascii=False)})"
