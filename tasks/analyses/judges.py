"""Has another judge read the answers of a benchmark's stored results again; a killed run continues."""

import asyncio
import json
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path

from orchestra.accounting.budget import Budget
from orchestra.accounting.ledger import phase
from orchestra.config.judge import JudgeSettings
from orchestra.config.schema import Params
from orchestra.errors import DataError, JudgeError
from orchestra.evaluation.analyses import judges
from orchestra.evaluation.benchmarks.base import BENCHMARKS, Attempt
from orchestra.evaluation.benchmarks.models import digest_of, file_name
from orchestra.evaluation.benchmarks.report import ATTEMPTS, REPORTS, RESAMPLES, SEED, SUMMARY
from orchestra.files import atomic
from orchestra.files.jsonl import parse_line, read_jsonl, read_lines
from orchestra.rewards.judge import Judge
from orchestra.rewards.rubrics import rubric
from orchestra.system.workspace import alone
from orchestra.tools.experts.judging import JudgeEndpoint
from orchestra.tools.failure_log import FailureLog
from orchestra.tools.replay.cassette import Cassette, scope
from orchestra.tools.waiting import at_once
from orchestra.types import Judged, Record

AT_ONCE = 8


class JudgedItem(Record):
    """A line of work/analyse/judges-BENCHMARK/MODEL/DIGEST.jsonl."""

    model: str
    """The tested one."""
    item: str
    trial: int
    judged: Judged

    @property
    def key(self) -> judges.Key:
        return (self.model, self.item, self.trial)


def compared(
    root: Path, params: Params, benchmark: str, judge: str, price: str, cap_usd: Decimal | None
) -> judges.JudgeAnalysis:
    """The verdicts of the protocol's judge beside those of `judge`, whose price is the row `price` of the price book.

    Each judge has a ledger, and a file of verdicts for each of its settings and prices. Raises `DataError` where no
    verdict of the protocol's judge is stored, `ServiceError` where another command asks this judge, and `BudgetError`
    at the cap; what was asked is kept.
    """
    official = BENCHMARKS.find(benchmark).protocol.judge
    found = judges.judged(stored(root, benchmark))
    first = {key: one for key, one in found.items() if official is None or one.judge == official.model}
    if not first:
        fix = f"orchestra evaluate --benchmark {benchmark} --model MODEL"
        raise DataError("no verdict of the protocol's judge is stored", where=f"{REPORTS}/{benchmark}", fix=fix)
    settings = JudgeSettings.named(judge, price, params.world.judge)
    endpoint = JudgeEndpoint.of(settings, params.world, root)
    folder = root / "work" / "analyse" / f"judges-{benchmark}" / file_name(judge)
    file = folder / f"{digest_of(settings.model_dump_json(), endpoint.price.model_dump_json())}.jsonl"
    with alone(folder / "lock", folder, "with this judge"):
        kept = _kept(file, first)
        missing = {key: one for key, one in first.items() if key not in kept}
        if missing:
            budget = Budget(folder / "ledger.jsonl", cap_usd, "analysis")
            chat = endpoint.chat(budget, Cassette.from_environment())
            reader = Judge(chat, rubric(settings.rubric), settings.max_output_tokens)
            kept |= asyncio.run(_read(reader, missing, file))
            budget.close()
    return judges.compare(benchmark, first, kept, judge, RESAMPLES, SEED)


def _kept(file: Path, first: Mapping[judges.Key, Judged]) -> dict[judges.Key, Judged]:
    """The verdicts that were paid for; one on another answer of the same name is none on this one."""
    lines = read_lines(file, lenient=True) if file.exists() else []
    there = [one for line in lines if isinstance(one := parse_line(line, JudgedItem), JudgedItem)]
    return {one.key: one.judged for one in there if one.key in first and one.judged.prompt == first[one.key].prompt}


def stored(root: Path, benchmark: str) -> dict[str, list[Attempt]]:
    """The attempts of every result of a benchmark, by the result's name.

    A part and the whole of one evaluation hold the same attempts: each stands once, in the larger result.
    """
    folders = [file.parent for file in sorted((root / REPORTS / benchmark).glob(f"*/{SUMMARY}"))]
    found = {one: read_jsonl(one / ATTEMPTS, Attempt, fix="run the evaluation again") for one in folders}
    seen, made = set[tuple[str, str, int]](), dict[str, list[Attempt]]()
    for folder in sorted(folders, key=lambda one: -len(found[one])):
        whose = _identity(folder / SUMMARY)
        made[folder.name] = [one for one in found[folder] if (whose, one.item, one.trial) not in seen]
        seen |= {(whose, one.item, one.trial) for one in found[folder]}
    return {one.name: own for one in folders if (own := made[one.name])}


def _identity(file: Path) -> str:
    """What decided a result's answers; its name where the summary does not say."""
    try:
        return str(json.loads(file.read_text(encoding="utf-8")).get("identity") or file.parent.name)
    except (ValueError, AttributeError):
        raise DataError("not a summary", where=str(file), fix="run the evaluation again") from None


async def _read(reader: Judge, missing: Mapping[judges.Key, Judged], file: Path) -> dict[judges.Key, Judged]:
    """The other judge's verdicts, each on disk at once; an answer that it fails on is left out, and the log
    says why."""
    made, failures = dict[judges.Key, Judged](), FailureLog()
    file.parent.mkdir(parents=True, exist_ok=True)

    async def one(key: judges.Key, judged: Judged) -> None:
        model, item, trial = key
        with scope(f"{model}/{item}/{trial}/again"):
            try:
                found = await reader.under(rubric(judged.rubric)).read(judged.prompt)
            except JudgeError as error:
                failures.warn(error)
                return
        made[key] = found
        atomic.append_text(file, JudgedItem(model=model, item=item, trial=trial, judged=found).model_dump_json() + "\n")

    with phase("second judge"):
        try:
            await at_once((one(key, judged) for key, judged in missing.items()), AT_ONCE)
        finally:
            await reader.chat.aclose()
    return made
