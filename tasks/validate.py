"""Stage validate: only examples that pass the suite go on; the others go to quarantine with the reason."""

import json
import re
from collections import Counter
from typing import Any

from orchestra.errors import DataError
from orchestra.jsonl import read_lines
from orchestra.synthesis.flatten import flatten
from orchestra.synthesis.gate.gate import Gate, screen
from orchestra.tools.toolkit import Toolkit
from tasks._stage import Stage, run
from tasks.expectations import Checked, check

INPUT, OUTPUT, QUARANTINE, DOCS = "data/generated", "data/validated", "data/quarantine", "reports/data_docs"
SPLITS = ("train", "heldout")
REASONS_NAMED = 3


def main(stage: Stage) -> None:
    """Write data/validated, data/quarantine, reports/data_docs and reports/validate.json.

    Raises `DataError` when more than `validate.max_quarantined` of the rows are refused, or a set as a whole is; then
    nothing is written to data/validated.
    """
    folder = stage.root / INPUT
    fix = "run the synthesize stage"
    lines = {split: read_lines(folder / f"{split}.jsonl", fix=fix, lenient=True) for split in SPLITS}
    toolkit = Toolkit.from_params(stage.params, stage.root, folder)
    total = sum(len(split_lines) for split_lines in lines.values())
    gate = Gate.open(stage.root)
    rows, examples = flatten(lines, toolkit, stage.progress(total, "rows").advance)
    stage.say("running the Great Expectations suite")
    mix = {category.value: share for category, share in stage.params.synthesize.mix.items()}
    with stage.write_dir(DOCS) as docs:
        checked = check(rows, mix, docs)
    screened = screen(gate, examples.items())
    for key, reason in screened.reasons.items():
        checked.rows.setdefault(key, []).append(reason)
    stage.say(gate.note)
    metrics = summary(checked, total) | {"gate": screened.report}
    _quarantine(stage, lines, checked)
    stage.write_json("reports/validate.json", metrics)
    stage.log_metrics({key: float(value) for key, value in metrics.items() if isinstance(value, int | float)})
    stage.log_artifact(stage.root / "reports/validate.json")
    refuse(checked, total, stage.params.validate_.max_quarantined)
    with stage.write_dir(OUTPUT) as output:
        for split, split_lines in lines.items():
            kept = [line for n, line in enumerate(split_lines, start=1) if f"{split}:{n}" not in checked.rows]
            (output / f"{split}.jsonl").write_text("".join(line + "\n" for line in kept), encoding="utf-8")
    stage.say(f"{total - len(checked.rows)} rows pass, {len(checked.rows)} in quarantine, see {DOCS}/index.html")


def summary(checked: Checked, total: int) -> dict[str, Any]:
    """Metrics for reports/validate.json and MLflow."""
    return {
        "rows": total,
        "quarantined": len(checked.rows),
        "quarantined_share": len(checked.rows) / total if total else 0.0,
        "expectations": checked.expectations,
        "expectations_failed": checked.failed,
        "reasons": dict(reasons(checked)),
        "refused_as_a_whole": checked.tables,
    }


def reasons(checked: Checked) -> list[tuple[str, int]]:
    """Refused rows by first reason, without what is particular to a row; most frequent first."""
    counts = Counter(_general(found[0]) for found in checked.rows.values())
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def refuse(checked: Checked, total: int, max_share: float) -> None:
    """Raise `DataError` when the data is too bad to go on."""
    fix = f"see {QUARANTINE}/rows.jsonl and {DOCS}/index.html"
    if not total:
        raise DataError("no examples at all", where=INPUT, fix="run the synthesize stage")
    if len(checked.rows) > max_share * total:
        named = "; ".join(f"{reason} ({count})" for reason, count in reasons(checked)[:REASONS_NAMED])
        what = f"{len(checked.rows)} of {total} rows refused, more than {max_share:.0%}: {named}"
        raise DataError(what, where=INPUT, fix=fix)
    if checked.tables:
        raise DataError(f"refused as a whole: {'; '.join(checked.tables)}", where=INPUT, fix=fix)


def _general(reason: str) -> str:
    return re.split(r" \(| '| at line ", reason, maxsplit=1)[0]


def _quarantine(stage: Stage, lines: dict[str, list[str]], checked: Checked) -> None:
    with stage.write_dir(QUARANTINE) as folder:
        with (folder / "rows.jsonl").open("w", encoding="utf-8") as file:
            for key, found in checked.rows.items():
                split, _, number = key.partition(":")
                record = {"file": f"{INPUT}/{split}.jsonl", "line": int(number), "reasons": found}
                record["row"] = lines[split][int(number) - 1]
                file.write(json.dumps(record) + "\n")
        (folder / "reasons.json").write_text(json.dumps(dict(reasons(checked)), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    run("validate", main)
