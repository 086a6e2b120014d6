"""`orchestra chat`: a conversation with the served model in the terminal, each answer as it is written."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from orchestra.errors import ConfigError, OrchestraError, ServiceError
from orchestra.serving.client import MALFORMED, PATH, Called, charged, connected, model_card, refused
from orchestra.system.progress import while_waiting
from orchestra.text import one_line, plain

HELP = (
    "/preference WORDS, /budget USD, /new (forget the conversation), /quit,\n"
    "/compare QUESTION (beside the answer, the strongest expert's own reply; each side has half of the dollars)"
)

Write = Callable[[str], None]


def halved(usd: str) -> str:
    """Half of the dollars; what is no number stays, for the gateway to refuse."""
    try:
        return f"{Decimal(usd) / 2:f}"
    except ArithmeticError:
        return usd


@dataclass
class TerminalChat:
    """One conversation: what was said, and what the user has set."""

    url: str
    headers: dict[str, str]
    write: Write
    """Takes text as it comes, without a line break at its end."""
    preference: str | None = None
    budget_usd: str | None = None
    verify: bool = True
    goes_on: bool = True
    """After a failure, which a person sees; where nobody types, it ends the conversation."""
    messages: list[dict[str, str]] = field(default_factory=list)

    def greet(self) -> None:
        """The commands and, of a demonstration model, what it is. A gateway that is silent is told of at a question."""
        self.write(f"{HELP}\n")
        with suppress(ServiceError):
            notes = model_card(self.url, self.headers, self.verify).notes()
            self.write("".join(f"{note}\n" for note in notes))

    def say(self, line: str) -> bool:
        """A line of the user: a command, or a message that is answered. False where it ends the conversation."""
        word, _, rest = line.strip().partition(" ")
        match word:
            case "":
                return True
            case "/quit":
                return False
            case "/new":
                self.messages.clear()
            case "/preference":
                self.preference = rest.strip() or None
            case "/budget":
                self.budget_usd = rest.strip() or None
            case "/compare" if rest.strip():
                self._ask(rest.strip(), compare=True)
            case _ if word.startswith("/"):
                self.write(f"{HELP}\n")
            case _:
                self._ask(line.strip())
        return True

    def _ask(self, question: str, *, compare: bool = False) -> None:
        """Asks, writes what comes, and remembers it; a failure is told, and a question without an answer forgotten.

        `compare`: then the strongest expert's own reply. Raises `OrchestraError` where the conversation does not go on.
        """
        asked = [*self.messages, {"role": "user", "content": question}]
        body: dict[str, Any] = {"messages": asked, "stream": True}
        try:
            try:
                expert = self._strongest() if compare else None
                # Both sides of a comparison spend: together no more than was typed.
                body |= (
                    {"budget_usd": halved(self.budget_usd) if compare else self.budget_usd} if self.budget_usd else {}
                )
                answer = self._told(body | ({"preference": self.preference} if self.preference else {}))
                if answer:
                    self.messages = [*asked, {"role": "assistant", "content": answer}]
                if expert is not None:
                    self.write(f"{one_line(expert)}'s own reply:\n")
                    self._told(body | {"preference": {"tools_allowed": [expert], "prefer": [expert]}}, expert)
            except MALFORMED:
                self.write("\n")
                raise ServiceError("the answer is no chat completion", where=self.url) from None
        except OrchestraError as error:
            if not self.goes_on:
                raise
            self.write(f"error: {error}\n")

    def _strongest(self) -> str:
        """Raises `ConfigError` where the gateway names none."""
        expert = model_card(self.url, self.headers, self.verify).strongest_expert
        if expert is None:
            raise ConfigError("the catalogue has no expert, so that nothing can be compared", where=self.url)
        return expert

    def _told(self, body: dict[str, Any], expert: str | None = None) -> str:
        """Writes each event as it comes; the whole answer. With `expert`, its own reply stands for the answer."""
        answer, none = "", "no answer"
        if expert is not None:
            none = "no reply: the small model did not call it, or the call failed"
        with ExitStack() as waiting:  # Until the answer begins: a line within it would break it.
            waiting.enter_context(while_waiting("the model works"))
            for event in self._events(body):
                if "error" in event:
                    self.write("\n" if answer else "")
                    raise ServiceError(f"{event['error']['message']}{charged(event)}", where=self.url)
                cut_off = ""
                for choice in event["choices"]:
                    text = "" if expert else choice["delta"].get("content") or ""
                    answer += text
                    if text:
                        waiting.close()
                    self.write(plain(text))
                    cut_off = (
                        " … cut off" if answer and not expert and choice.get("finish_reason") == "length" else cut_off
                    )
                made = event.get("orchestra") or {}
                if "tool_call" in made:
                    call = Called.model_validate(made["tool_call"])
                    took = f"${call.cost_usd:.6f}, {call.latency_s:.1f} s"
                    self.write(f"   {one_line(call.name)} → {call.result[:100]}  [{took}]\n")
                    if call.name == expert and call.observation and not call.observation.startswith("error: "):
                        waiting.close()
                        self.write("\n" * bool(answer) + plain(call.observation))
                        answer = call.observation
                elif made:
                    stop = f" ({one_line(made['stop'])})"
                    self.write(cut_off + stop if cut_off else "" if answer else none + stop)
                    dropped = made["dropped_messages"]
                    cut = f", {dropped} earlier messages left out" if dropped else ""
                    self.write(f"\n   ${made['cost_usd']:.6f}, {made['wall_s']:.1f} s by the clock{cut}\n")
        return answer

    def _events(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Raises `ConfigError` for what the user can put right, `ServiceError` for all else."""
        with (
            connected(self.url, self.verify) as http,
            http.stream("POST", self.url + PATH, json=body, headers=self.headers) as reply,
        ):
            if reply.status_code != 200:
                message = json.loads(reply.read().decode("utf-8", "replace"))["error"]["message"]
                raise refused(reply.status_code, message, self.url)
            for line in reply.iter_lines():
                if line.startswith("data: ") and line != "data: [DONE]":
                    yield json.loads(line.removeprefix("data: "))
