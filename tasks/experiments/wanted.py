"""The options of `orchestra evaluate`. Imports nothing slow, because the flows read it first."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Wanted:
    """What the command asks for; a flow takes the same."""

    benchmark: str
    model: str
    data: Sequence[str] = ()
    only: Sequence[str] = ()
    user: str = "model"
    limit: int | None = None
    trials: int | None = None
    price: str | None = None
    judge: str | None = None
    judge_price: str | None = None
    agreement: int = 0
    cap_usd: str | None = None
    question_usd: str | None = None
    deadline: float = 3600.0
    concurrency: int = 8
    retry_failures: bool = False
    harness: str | None = None


def options() -> argparse.ArgumentParser:
    """The options of the command, for its module and for the flow."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--benchmark", required=True)
    parser.add_argument("--model", required=True)
    for name in ("--data", "--only"):
        parser.add_argument(name, action="append", default=[])
    parser.add_argument("--user", default=Wanted.user)
    for name in ("--limit", "--trials"):
        parser.add_argument(name, type=int)
    for name in ("--agreement", "--concurrency"):
        parser.add_argument(name, type=int, default=getattr(Wanted, name[2:]))
    parser.add_argument("--deadline", type=float, default=Wanted.deadline)
    for name in ("--price", "--judge", "--judge-price", "--cap-usd", "--question-usd", "--harness"):
        parser.add_argument(name)
    parser.add_argument("--retry-failures", action="store_true")
    return parser
