"""`orchestra chat`: a conversation with the served model in the terminal, each answer as it is written."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx

from orchestra.errors import ConfigError, OrchestraError, ServiceError
from orchestra.serving.client import Called, charged
from orchestra.text import one_line, plain

HELP = "/preference WORDS, /budget USD, /new (forget the conversation), /quit"

Write = Callable[[str], None]


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
    timeout_s: float = 300.0
    goes_on: bool = True
    """After a failure, which a person sees; where nobody types, it ends the conversation."""
    messages: list[dict[str, str]] = field(default_factory=list)

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
            case _ if word.startswith("/"):
                self.write(f"{HELP}\n")
            case _:
                self._ask(line.strip())
        return True

    def _ask(self, question: str) -> None:
        """Asks, writes what comes, and remembers it; a failure is told, and the question forgotten.

        Raises `OrchestraError` where the conversation does not go on.
        """
        asked = [*self.messages, {"role": "user", "content": question}]
        body: dict[str, Any] = {"messages": asked, "stream": True}
        body |= {"preference": self.preference} if self.preference else {}
        body |= {"budget_usd": self.budget_usd} if self.budget_usd else {}
        try:
            try:
                answer = self._told(body)
            except (ValueError, KeyError, TypeError, AttributeError):
                self.write("\n")
                raise ServiceError("the answer is no chat completion", where=self.url) from None
        except OrchestraError as error:
            if not self.goes_on:
                raise
            self.write(f"error: {error}\n")
            return
        if answer:
            self.messages = [*asked, {"role": "assistant", "content": answer}]

    def _told(self, body: dict[str, Any]) -> str:
        """Writes each event as it comes; the whole answer."""
        answer = ""
        for event in self._events(body):
            if "error" in event:
                self.write("\n" if answer else "")
                raise ServiceError(f"{event['error']['message']}{charged(event)}", where=self.url)
            cut_off = ""
            for choice in event["choices"]:
                text = choice["delta"].get("content") or ""
                answer += text
                self.write(plain(text))
                cut_off = " … cut off" if answer and choice.get("finish_reason") == "length" else cut_off
            made = event.get("orchestra") or {}
            if "tool_call" in made:
                call = Called.model_validate(made["tool_call"])
                took = f"${call.cost_usd:.6f}, {call.latency_s:.1f} s"
                self.write(f"   {one_line(call.name)} → {call.result[:100]}  [{took}]\n")
            elif made:
                stop = f" ({one_line(made['stop'])})"
                self.write(cut_off + stop if cut_off else "" if answer else f"no answer{stop}")
                dropped = made["dropped_messages"]
                cut = f", {dropped} earlier messages left out" if dropped else ""
                self.write(f"\n   ${made['cost_usd']:.6f}, {made['wall_s']:.1f} s by the clock{cut}\n")
        return answer

    def _events(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Raises `ConfigError` for what the user can put right, `ServiceError` for all else."""
        try:
            with httpx.stream(
                "POST",
                f"{self.url}/v1/chat/completions",
                json=body,
                headers=self.headers,
                timeout=self.timeout_s,
                trust_env=False,
                verify=self.verify,
            ) as reply:
                if reply.status_code != 200:
                    message = json.loads(reply.read())["error"]["message"]
                    raise (ConfigError if reply.status_code < 500 else ServiceError)(message, where=self.url)
                for line in reply.iter_lines():
                    if line.startswith("data: ") and line != "data: [DONE]":
                        yield json.loads(line.removeprefix("data: "))
        except httpx.HTTPError as error:
            what = f"the gateway does not answer: {type(error).__name__}"
            raise ServiceError(what, where=self.url, fix="orchestra release") from None
