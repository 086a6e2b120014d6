"""Measured descriptions: run an expert on sampled examples, keep what came of it, and write what it is good at."""

import json
import random
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from decimal import Decimal
from pathlib import Path

from orchestra.accounting.ledger import at_price, phase
from orchestra.errors import CallError, ConfigError, DataError, JudgeError, ToolError
from orchestra.files import atomic
from orchestra.files.jsonl import read_jsonl
from orchestra.rewards.outcome import verify
from orchestra.rollout.policies.scripted import asking
from orchestra.text import digest
from orchestra.tools.base import UNSURE
from orchestra.tools.catalogue.catalogue import read_catalogue
from orchestra.tools.catalogue.entry import MASTERED, Entry
from orchestra.tools.catalogue.measured import ExpertMeasurement, MeasuredTopic, entry_hash
from orchestra.tools.experts.metered import PaidChat
from orchestra.tools.failures import ReplyError
from orchestra.tools.session import ToolSession
from orchestra.tools.toolkit import Toolkit
from orchestra.tools.waiting import at_once
from orchestra.types import (
    Charge,
    Component,
    Example,
    Message,
    Price,
    Record,
    ToolKind,
    ToolSpec,
    Usage,
    Usd,
    Verdict,
    add_up,
)

Judge = Callable[[Example, str, ToolSession], Verdict]
"""Whether an answer solves an example (`orchestra.rewards.outcome.verify`)."""
SOME = 0.5
"""Share of right answers from which a topic is named with reserve; from `MASTERED` without."""
GENERALIST = 0.4
"""Mean share over the topics from which an expert is described as a whole, not by its topics."""
NAMED = 3
"""Topics that a description names at most: of an expert that suits more it speaks as a whole."""
GRADES = {0.6: "strong", 0.5: "good", 0.3: "fair", 0.0: "weak"}
AT_ONCE = 16
"""Questions that are under way at the same time; a provider's own limit may be lower."""
LONGEST = 120
"""Characters of a description: it stands in every prompt."""
MAX_TOKENS = 6_000
"""Of the model that writes one: the thoughts of a reasoning model count too."""
WRITER = (
    "You describe a language model that others may call as a tool, from measurements only. Reply with one line of "
    f"plain text of at most {LONGEST} characters, no quotes, that says what it is good at and what not. Do not name it."
)


class Tried(Record):
    """What an expert made of one example; a line of the outcomes file."""

    expert: str
    example_id: str
    topic: str
    question: str
    reply: str | None
    """None when the call failed."""
    solved: bool | None
    """None when it is not known: the call failed, or its judge."""
    unsure: bool = False
    failure: str | None = None
    usage: Usage = Usage()
    cost_usd: Usd = Decimal(0)
    latency_s: float = 0.0
    simulated: bool = False
    entry: str = ""
    """Hash of the catalogue entry that was asked; empty in files of earlier versions."""
    price: Price | None = None
    """Under which `cost_usd` is reckoned; None in files of earlier versions."""

    def at(self, price: Price) -> "Tried":
        """The same at that price: what is kept may be of a day with another one."""
        if self.price == price:
            return self
        charge = Charge(component=Component.EXPERT, name=self.expert, usage=self.usage, cost_usd=self.cost_usd)
        spent = at_price(charge.model_copy(update={"latency_s": self.latency_s}), price, self.price)
        return self.model_copy(update={"price": price, "cost_usd": spent})


def sample(examples: Sequence[Example], count: int, seed: int) -> list[Example]:
    """`count` questions that only an expert answers, topics in turn; raises `DataError` when there are none."""
    by_topic: defaultdict[str, list[Example]] = defaultdict(list)
    for example in examples:
        if example.kind == "question" and example.needs_expert:
            by_topic[example.topic or "general"].append(example)
    if not by_topic:
        raise DataError("no example needs an expert", where="describe", fix="name other examples")
    rng = random.Random(f"describe/{seed}")
    drawn = [rng.sample(found, len(found)) for _, found in sorted(by_topic.items())]
    turns = [found[turn] for turn in range(max(map(len, drawn))) for found in drawn if turn < len(found)]
    return turns[:count]


async def run(expert: str, examples: Sequence[Example], toolkit: Toolkit, judge: Judge, file: Path) -> list[Tried]:
    """The expert's outcomes on these examples, each kept in `file` as it comes: what is there is not asked again, and
    costs what it costs at the present price.

    Examples are asked at the same time, within the provider's limits. Failed calls are asked again by the next run.
    Raises `BudgetError` where the toolkit's budget refuses the next call.
    """
    spec = toolkit.catalogue.spec(expert)
    if spec.kind is not ToolKind.EXPERT:
        raise ConfigError(f"{expert} is not an expert", where="the catalogue", fix="name one of kind expert")
    entry = entry_hash(toolkit.catalogue.entry(expert))
    earlier = read_jsonl(file, Tried, fix="fix or remove it") if file.exists() else []
    known = {one.example_id: one for one in earlier if one.expert == expert and one.failure is None}
    questions = {example.id: example.instruction for example in examples}  # Another set has other ones by the same ids.
    known = {
        name: one.at(spec.price)
        for name, one in known.items()
        if one.entry in (entry, "") and one.question == questions.get(name)
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8", buffering=1) as out:

        async def ask(example: Example) -> None:
            tried = await _try(expert, example, spec, toolkit, judge)
            known[example.id] = tried.model_copy(update={"entry": entry, "price": spec.price})
            out.write(known[example.id].model_dump_json() + "\n")

        await at_once((ask(example) for example in examples if example.id not in known), AT_ONCE)
    return [known[example.id] for example in examples]


async def measure(
    experts: Sequence[str],
    examples: Sequence[Example],
    toolkit: Toolkit,
    folder: Path,
    on: date,
    writer: PaidChat | None = None,
    say: Callable[[str], None] = print,
) -> dict[str, tuple[ExpertMeasurement, str]]:
    """What is measured of each expert, and a description of it; all of them are asked at the same time.

    Outcomes are kept in `folder`. An expert whose every call failed is said and left out. Raises as `run` does, and
    `DataError` when nothing is known of any.
    """

    async def one(expert: str) -> tuple[str, list[Tried]]:
        return expert, await run(expert, examples, toolkit, verify, folder / f"{expert}.jsonl")

    found: dict[str, tuple[ExpertMeasurement, str]] = {}
    for expert, tried in await at_once((one(expert) for expert in experts), len(experts)):
        say("\n".join([f"{expert}: {summary(tried)[0]}", *summary(tried)[1:]]))
        if not skills(tried):
            why = tried[0].failure
            say(f"{expert}: every call failed, so nothing is known of it ({why}): see {folder / expert}.jsonl")
            continue
        if writer is None:
            description = template(tried)
        else:
            with phase("write"):
                description = await written(tried, writer)
        found[expert] = measurement(tried, toolkit.catalogue.entry(expert), on), description
    if not found:
        raise DataError("every call failed", where="describe", fix=f"see the failures in {folder}")
    return found


def measurement(tried: Sequence[Tried], entry: Entry, on: date) -> ExpertMeasurement:
    """What the outcomes say of an expert, for the catalogue; raises `DataError` where nothing is known."""
    told = sorted((one for one in tried if one.solved is not None), key=lambda one: (one.topic, one.example_id))
    if not told:
        raise DataError("every call failed", where="describe", fix="see the failures in the outcomes file")
    topics = {topic: [one for one in told if one.topic == topic] for topic in dict.fromkeys(one.topic for one in told)}
    asked = "\n".join(one.question for one in sorted(told, key=lambda one: one.example_id))
    return ExpertMeasurement(
        entry=entry_hash(entry),
        on=on,
        questions=digest(asked),
        usage=Usage(
            input_tokens=round(sum(one.usage.input_tokens for one in told) / len(told)),
            output_tokens=round(sum(one.usage.output_tokens for one in told) / len(told)),
        ),
        latency_s=round(sum(one.latency_s for one in told) / len(told), 3),
        topics={topic: _topic(found) for topic, found in topics.items()},
    )


def _topic(told: Sequence[Tried]) -> MeasuredTopic:
    usd = add_up(one.cost_usd for one in told) / len(told)
    return MeasuredTopic(
        asked=len(told),
        right=sum(bool(one.solved) for one in told),
        unsure=sum(one.unsure for one in told),
        usd=usd.quantize(Decimal("0.00000001")),
        seconds=round(sum(one.latency_s for one in told) / len(told), 3),
    )


async def _try(expert: str, example: Example, spec: ToolSpec, toolkit: Toolkit, judge: Judge) -> Tried:
    asked = example.model_copy(update={"toolbox": (spec,)})
    told = Tried(
        expert=expert, example_id=example.id, topic=example.topic or "general", question=example.instruction,
        reply=None, solved=None,
    )  # fmt: skip
    # What a fallback answers is no merit of the expert: it is not asked, and what is down is waited for.
    fallback = toolkit.catalogue.entry(expert).fallback
    session = ToolSession(toolkit, asked, barred=frozenset() if fallback is None else frozenset({fallback}))
    try:
        outcome = await session.call(asking(spec, example.instruction))
        charge = outcome.charge
        update = {"reply": outcome.text, "unsure": outcome.text.strip() == UNSURE, "simulated": charge.simulated}
        update |= {"usage": charge.usage, "cost_usd": charge.cost_usd, "latency_s": charge.latency_s}
        told = told.model_copy(update=update)
        return told.model_copy(update={"solved": judge(asked, outcome.text, session).solved})
    except (CallError, ToolError) as failure:
        return told.model_copy(update={"failure": str(failure)})
    except JudgeError as failure:
        return told.model_copy(update={"failure": f"judge: {failure}"})
    finally:
        session.close()


def skills(tried: Sequence[Tried]) -> dict[str, tuple[int, int]]:
    """Right answers and known outcomes by topic, in alphabetical order."""
    found: dict[str, list[bool]] = {}
    for one in sorted(tried, key=lambda one: one.topic):
        if one.solved is not None:
            found.setdefault(one.topic, []).append(one.solved)
    return {topic: (sum(right), len(right)) for topic, right in found.items()}


def template(tried: Sequence[Tried]) -> str:
    """The description that the measured skills warrant, without a model; raises `DataError` where nothing is known."""
    shares = {topic: right / known for topic, (right, known) in skills(tried).items()}
    if not shares:
        raise DataError("every call failed", where="describe", fix="see the failures in the outcomes file")
    mean = sum(shares.values()) / len(shares)
    named = sorted((topic for topic in shares if shares[topic] >= SOME), key=lambda topic: -shares[topic])
    if not named or len(named) > NAMED or mean >= GENERALIST:
        return f"{next(word for floor, word in GRADES.items() if mean >= floor)} in every subject"
    words = [topic if shares[topic] >= MASTERED else f"some {topic}" for topic in named]
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


async def written(tried: Sequence[Tried], chat: PaidChat) -> str:
    """A model's description from the outcomes; raises `DataError` when it is none, `BudgetError` or `ToolError`."""
    measured = {topic: f"{right} of {known} right" for topic, (right, known) in skills(tried).items()}
    cases = [
        {"topic": one.topic, "question": one.question[:300], "reply": (one.reply or "")[:300], "right": one.solved}
        for one in tried
        if one.solved is not None
    ]
    said = json.dumps({"measured": measured, "cases": cases}, ensure_ascii=False)
    messages = [Message(role="system", content=WRITER), Message(role="user", content=said)]
    try:
        reply, _ = await chat.ask(messages, max_tokens=MAX_TOKENS)
    except ReplyError as error:
        fix = "name another model, or take the template: leave --model out"
        raise DataError(error.what, where=chat.chat.name, fix=fix) from None
    text = reply.text.strip().strip('"')
    if not text or len(text) > LONGEST or "\n" in text or "<|" in text:
        what = f"no description of one line of at most {LONGEST} characters: {text[:60]!r}"
        raise DataError(what, where=chat.chat.name, fix="ask again, or take the template: leave --model out")
    return text


def summary(tried: Sequence[Tried]) -> list[str]:
    """What was measured, for a person."""
    simulated = " (simulated)" if any(one.simulated for one in tried) else ""
    failed = sum(one.solved is None for one in tried)
    known = len(tried) - failed
    right, unsure = sum(bool(one.solved) for one in tried), sum(one.unsure for one in tried)
    cost = sum((one.cost_usd for one in tried), Decimal(0))
    head = f"{right} of {known} right, {unsure} unsure, {failed} failed; {cost:f} USD{simulated}"
    return [head, *(f"  {topic}: {right} of {asked}" for topic, (right, asked) in skills(tried).items())]


def with_description(text: str, expert: str, description: str) -> tuple[str, str, str]:
    """tools.yaml's text with another description of the expert, its line before, and its line now.

    Nothing else of the file changes, comments least of all. Raises `ConfigError` where the line cannot be found.
    """
    found = re.search(rf"(?m)^  {re.escape(expert)}:(?: &\S+)?\n(?:    .*\n)*?(    description: .*\n)", text)
    if found is None:
        raise ConfigError(f"no line with a description of {expert}", where="the catalogue", fix="write it by hand")
    line = f"    description: {json.dumps(description, ensure_ascii=False)}\n"
    if re.fullmatch(r"[A-Za-z][\w ,.;()%-]*", description):
        line = f"    description: {description}\n"
    return text[: found.start(1)] + line + text[found.end(1) :], found[1].rstrip("\n"), line.rstrip("\n")


def write(path: Path, descriptions: Mapping[str, str]) -> None:
    """Put the descriptions of experts into the catalogue at `path`, all of them or none."""
    text = path.read_text(encoding="utf-8")
    for expert, description in descriptions.items():
        text, _, _ = with_description(text, expert, description)
    with atomic.whole_file(path) as partial:
        partial.write_text(text, encoding="utf-8")
        tools = read_catalogue(partial).tools
        if any(tools[expert].description != description for expert, description in descriptions.items()):
            raise ConfigError("the line would be read as something else", where=str(path), fix="write it by hand")
