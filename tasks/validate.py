"""Stage validate: only examples that pass the suites go on; the others go to quarantine with the reason."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from fractions import Fraction
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestra.errors import DataError
from orchestra.files.jsonl import copy_lines, parse_line, read_jsonl, stream_lines
from orchestra.system.environment import cores, lasting
from orchestra.system.processes import die_with_parent
from orchestra.tools.experts.simulated import AnswerBook, BookEntry
from orchestra.tools.search.corpus import Document, SearchIndex
from orchestra.tools.toolkit import Toolkit
from orchestra.types import SPLITS, Category, Example
from orchestra.validation.frames import answers_frame, balance_frame, corpus_frame, examples_frame
from orchestra.validation.gate.decontamination import Gate, report
from orchestra.validation.page import Findings, Rule, chosen, page
from orchestra.validation.plots import PLOTTED, Plot, plots
from orchestra.validation.rows import Flattener
from orchestra.validation.survey import Survey, cut, survey
from tasks.platform.expectations import Checked, check
from tasks.platform.rules import suites
from tasks.platform.stage import Stage, run

if TYPE_CHECKING:
    import pandas as pd

INPUT, OUTPUT, QUARANTINE, DOCS = "data/generated", "data/validated", "data/quarantine", "reports/data_docs"
PAGE = "reports/data.html"
CARD = ("generator", "licence", "seed", "price_date", "cost_usd")
"""What the page repeats of data/generated/card.json."""
WRITTEN = (Category.LOOKUP, Category.CHANGE)
"""Categories without a generated row where a model writes all examples of domains."""
REASONS_NAMED = 3
FIX = "run the synthesize stage"


def main(stage: Stage, workers: int | None = None) -> None:
    """Write data/validated, data/quarantine, reports/data_docs, reports/data.html and reports/validate.json.

    `workers` processes read the rows (default: one a core); what is written is the same for any number of them. Raises
    `DataError` when more than `validate.max_quarantined` of the rows are refused, or a set as a whole is; then nothing
    is written to data/validated.
    """
    files: dict[str, Path] = {split: stage.root / INPUT / f"{split}.jsonl" for split in SPLITS}
    gate = Gate.open(stage.root)
    with lasting():
        toolkit, known = _load(stage)
    pieces = cut(files, fix=FIX)
    total = sum(chunk.lines for chunks in pieces.values() for chunk in chunks)
    if not total:
        raise DataError("no examples at all", where=INPUT, fix=FIX)
    meter = stage.progress(total, "rows")
    found = survey(pieces, Flattener(toolkit, gate.refuse), workers=workers or cores(), on_progress=meter.advance)
    stage.say(gate.note)
    stage.say("running the Great Expectations suites")
    every = examples_frame(found)
    frames = {"examples": every, "balance": balance_frame(every, found.uses, toolkit), **known}
    wanted = stage.params.synthesize
    theirs = WRITTEN if wanted.generator == "llm" else ()
    mix = {category.value: share for category, share in wanted.mix.items() if category not in theirs}
    # An empty set has no mix to compare; that it is empty is said of it.
    splits: dict[str, int] = {
        split: rows for split in SPLITS if (rows := int(every[f"{split}_category"].notna().sum()))
    }
    experts = [entry.simulated for entry in toolkit.catalogue.entries.values() if entry.simulated is not None]
    topics = sorted({topic for expert in experts for topic in expert.skills})
    # Drawn beside the suites, and again where these refuse rows, which are not shown.
    with (
        ProcessPoolExecutor(1, get_context("fork"), initializer=die_with_parent) as pool,
        stage.write_dir(DOCS) as docs,
    ):
        drawing = pool.submit(plots, every[list(PLOTTED)], SPLITS)
        checked = check(frames, suites(mix, splits, topics), docs)
    passed = every[~every["row"].isin(list(checked.rows))] if checked.rows else every
    if (failed := drawing.exception()) is not None:
        stage.say(f"drawing again: {type(failed).__name__}: {failed}")
    drawn = plots(passed, SPLITS) if checked.rows or failed else drawing.result()
    _quarantine(stage, files, checked)
    stopped = refusal(checked, total, stage.params.validate_.max_quarantined)
    stage.write_text(PAGE, _page(stage, files, found, every, passed, checked, stopped, drawn, toolkit))
    metrics = summary(checked, total) | {"gate": report(gate, _refused_by_gate(every))}
    stage.write_json("reports/validate.json", metrics)
    stage.log_metrics({key: float(value) for key, value in metrics.items() if isinstance(value, int | float)})
    for written in ("reports/validate.json", PAGE):
        stage.log_artifact(stage.root / written)
    for warning in checked.warnings:
        stage.say(f"warning: {warning.text}")
    if stopped is not None:
        raise DataError(stopped, where=INPUT, fix=f"see {PAGE}, {QUARANTINE}/rows.jsonl and {DOCS}/index.html")
    with stage.write_dir(OUTPUT) as output:
        for split, path in files.items():
            refused = {int(row.rpartition(":")[2]) for row in checked.rows if row.startswith(f"{split}:")}
            copy_lines(path, output / path.name, without=refused)
    stage.say(f"{total - len(checked.rows)} rows pass, {len(checked.rows)} in quarantine, see {PAGE}")


def summary(checked: Checked, total: int) -> dict[str, Any]:
    """Metrics for reports/validate.json and MLflow."""
    return {
        "rows": total,
        "quarantined": len(checked.rows),
        "quarantined_share": len(checked.rows) / total if total else 0.0,
        "expectations": len(checked.outcomes),
        "expectations_failed": sum(not outcome.passed for outcome in checked.outcomes),
        "warnings": len(checked.warnings),
        "warned_of": [warning.text for warning in checked.warnings],
        "reasons": dict(reasons(checked)),
        "refused_as_a_whole": checked.tables,
    }


def _refused_by_gate(every: "pd.DataFrame") -> Iterator[tuple[str, str, str]]:
    refused = every[every["gate_problem"].notna()]
    return zip(refused["gate_problem"], refused["source"], refused["id"], strict=True)


def reasons(checked: Checked) -> list[tuple[str, int]]:
    """Refused rows by first reason, without what is particular to a row; most frequent first."""
    counts = Counter(_general(found[0]) for found in checked.rows.values())
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def refusal(checked: Checked, total: int, max_share: float) -> str | None:
    """Why the data is too bad to go on; None when it is not."""
    found = []
    # As it is written: 0.29 of 100 rows is less than 29 in floats.
    if len(checked.rows) > Fraction(str(max_share)) * total:
        named = "; ".join(f"{reason} ({count})" for reason, count in reasons(checked)[:REASONS_NAMED])
        found.append(f"{len(checked.rows)} of {total} rows refused, more than {100 * max_share:g}%: {named}")
    if checked.tables:
        found.append(f"refused as a whole: {'; '.join(checked.tables)}")
    return "; ".join(found) or None


def _general(reason: str) -> str:
    return re.split(r" \(| '| at line ", reason, maxsplit=1)[0]


def _load(stage: Stage) -> "tuple[Toolkit, dict[str, pd.DataFrame]]":
    """The tools with all that they know, read once and before processes share it, and the frames to check it by."""
    folder = stage.root / INPUT
    entries = read_jsonl(folder / "answers.jsonl", BookEntry, fix=FIX)
    documents = read_jsonl(folder / "corpus.jsonl", Document, fix=FIX)
    index = SearchIndex.build(documents) if documents else None
    toolkit = Toolkit.from_params(stage.params, stage.root, folder, index=index, book=AnswerBook.of(entries))
    for name in toolkit.domain_folders:
        toolkit.domain(name)
    return toolkit, {"answers": answers_frame(entries), "corpus": corpus_frame(documents)}


def _page(
    stage: Stage,
    files: Mapping[str, Path],
    found: Survey,
    every: "pd.DataFrame",
    passed: "pd.DataFrame",
    checked: Checked,
    stopped: str | None,
    drawn: Sequence[Plot],
    toolkit: Toolkit,
) -> str:
    shown = chosen(passed)
    examples: dict[str, dict[str, list[Example]]] = {}
    for split, wanted in shown.items():
        for line, category in zip(_lines(files[split], wanted), wanted.values(), strict=True):
            example = parse_line(line, Example)
            assert isinstance(example, Example)
            examples.setdefault(category, {name: [] for name in files})[split].append(example)
    card = stage.root / INPUT / "card.json"
    told = json.loads(card.read_text(encoding="utf-8")) if card.is_file() else {}
    facts = {name: str(told[name]) for name in CARD if name in told} | {
        "domains": ", ".join(stage.params.world.domains) or "none",
        "answers that experts know": str(len(toolkit.book.entries)),
        "most rows that may be refused": f"{100 * stage.params.validate_.max_quarantined:g}%",
    }
    rules = [
        Rule(each.suite, each.column, each.reason, each.severity, each.passed, each.count) for each in checked.outcomes
    ]
    noted = [warning.text for warning in checked.warnings]
    findings = Findings(checked.rows, reasons(checked), noted, rules, stopped, facts)
    simulated = any(toolkit.catalogue.is_simulated(name) for name in toolkit.catalogue.entries)
    return page(every, passed, found.uses, dict(sorted(examples.items())), findings, drawn, simulated=simulated)


def _lines(path: Path, wanted: Mapping[int, str]) -> list[str]:
    """The lines of these numbers, which ascend."""
    last = max(wanted, default=0)
    found = []
    for number, line in stream_lines(path):
        if number > last:
            break
        if number in wanted:
            found.append(line)
    return found


def _quarantine(stage: Stage, files: Mapping[str, Path], checked: Checked) -> None:
    with stage.write_dir(QUARANTINE) as folder:
        with (folder / "rows.jsonl").open("w", encoding="utf-8") as file:
            for split, path in files.items():
                for number, line in stream_lines(path) if checked.rows else ():
                    why = checked.rows.get(f"{split}:{number}")
                    if why is not None:
                        record = {"file": f"{INPUT}/{path.name}", "line": number, "reasons": why, "row": line}
                        file.write(json.dumps(record) + "\n")
        (folder / "reasons.json").write_text(json.dumps(dict(reasons(checked)), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    run("validate", main)
