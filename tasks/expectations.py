"""The Great Expectations suite over flattened examples: which rows it refuses and why, and its Data Docs."""

import logging
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestra.errors import OrchestraError
from orchestra.synthesis.flatten import COLUMNS, Row

KINDS = ("question", "domain")
INSTRUCTION_CHARS = (3, 2000)
MAX_TOOLS = 64
PROBLEMS = {
    "schema_problem": "not an example",
    "toolbox_problem": "toolbox",
    "answer_problem": "answer",
    "golden_problem": "known solution",
    "leak": "leak",
}
"""Columns that say in words what is wrong, and what a refusal by them is called."""
MAX_DIVERGENCE = 0.1
"""Kullback-Leibler divergence of a split's categories from the mix of params.yaml, nats."""


@dataclass(frozen=True)
class Checked:
    """What the suite found."""

    rows: dict[str, list[str]]
    """Reasons by refused row."""
    tables: list[str]
    """What is wrong with a set as a whole: no row to blame."""
    expectations: int
    failed: int


def check(rows: list[Row], mix: Mapping[str, float], docs: Path) -> Checked:
    """Run the suite and write its Data Docs into `docs`; raises `OrchestraError` when an expectation itself raised."""
    os.environ.setdefault("DO_NOT_TRACK", "true")
    import great_expectations as gx
    import pandas as pd

    logging.getLogger("great_expectations").setLevel(logging.ERROR)
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        context = gx.get_context(mode="ephemeral")
        context.variables.progress_bars = {"globally": False}  # type: ignore[assignment]
        _only_site(context, docs)
        result = _run(context, frame, mix)
    return _read(result)


def suite(mix: Mapping[str, float], splits: list[str]) -> Any:
    """The expectations; each one's `meta.reason` says in words what a failure means."""
    import great_expectations as gx
    import great_expectations.expectations as gxe

    def between(column: str, reason: str, low: float, high: float | None = None, *, above: bool = False) -> Any:
        return gxe.ExpectColumnValuesToBeBetween(
            column=column, min_value=low, max_value=high, strict_min=above, meta={"reason": reason}
        )

    wanted = {category: share for category, share in mix.items() if share > 0}
    expectations = [
        *(gxe.ExpectColumnValuesToBeNull(column=column, meta={"reason": words}) for column, words in PROBLEMS.items()),
        gxe.ExpectColumnValuesToBeUnique(column="id", meta={"reason": "the id is not unique"}),
        gxe.ExpectColumnValuesToBeInSet(
            column="category", value_set=sorted(wanted), meta={"reason": "a category that the mix lacks"}
        ),
        gxe.ExpectColumnValuesToBeInSet(column="kind", value_set=list(KINDS), meta={"reason": "an unknown kind"}),
        between("instruction_chars", "the instruction is empty or too long", *INSTRUCTION_CHARS),
        between("tools", "no tools or too many", 1, MAX_TOOLS),
        between("expert_usd_min", "an expert costs nothing", 0, above=True),
        between("tool_usd_min", "a negative price", 0),
        between("latency_s_min", "a negative latency", 0),
        between("weight_min", "a preference weight outside [0, 1]", 0, 1),
        between("weight_max", "a preference weight outside [0, 1]", 0, 1),
        between("entities", "about no entity: it cannot be kept apart", 1),
    ]
    for split in splits:
        expectations.append(
            gxe.ExpectColumnKLDivergenceToBeLessThan(
                column=f"{split}_category",
                partition_object={
                    "values": list(wanted),
                    "weights": [s / sum(wanted.values()) for s in wanted.values()],
                },
                threshold=MAX_DIVERGENCE,
                tail_weight_holdout=1e-6,
                internal_weight_holdout=0,
                meta={"reason": f"the {split} set does not follow synthesize.mix"},
            )
        )
    return gx.ExpectationSuite(name="examples", expectations=expectations)


def _only_site(context: Any, docs: Path) -> None:
    for name in list(context.get_site_names()):
        context.delete_data_docs_site(name)
    backend = {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(docs)}
    config = {
        "class_name": "SiteBuilder",
        "store_backend": backend,
        "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"},
        "show_how_to_buttons": False,
    }
    context.add_data_docs_site(site_name="docs", site_config=config)


def _run(context: Any, frame: Any, mix: Mapping[str, float]) -> Any:
    import great_expectations as gx

    splits = [str(split) for split in frame["split"].unique()]
    for split in splits:
        frame[f"{split}_category"] = frame["category"].where(frame["split"] == split)
    asset = context.data_sources.add_pandas("generated").add_dataframe_asset("examples")
    batch = asset.add_batch_definition_whole_dataframe("all")
    definition = gx.ValidationDefinition(name="examples", data=batch, suite=context.suites.add(suite(mix, splits)))
    context.validation_definitions.add(definition)
    checkpoint = gx.Checkpoint(
        name="validate",
        validation_definitions=[definition],
        actions=[gx.checkpoint.UpdateDataDocsAction(name="docs")],
        result_format={
            "result_format": "COMPLETE",
            "unexpected_index_column_names": ["row"],
            "partial_unexpected_count": 20,
        },
    )
    context.checkpoints.add(checkpoint)
    results = checkpoint.run(batch_parameters={"dataframe": frame})
    return next(iter(results.run_results.values()))


def _read(result: Any) -> Checked:
    rows: dict[str, list[str]] = {}
    tables: list[str] = []
    failed = 0
    for outcome in result.results:
        expectation = outcome.expectation_config
        reason = str((expectation.meta or {}).get("reason", expectation.type))
        raised = _raised(outcome.exception_info)
        if raised is not None:
            raise OrchestraError(
                f"the check {expectation.type} on {expectation.kwargs.get('column')} could not run: {raised}",
                where="validate",
                fix="mend tasks/expectations.py: this says nothing about the data",
            )
        if outcome.success:
            continue
        failed += 1
        found = outcome.result.get("unexpected_index_list") or []
        if not found:
            tables.append(reason)
        column = expectation.kwargs.get("column")
        for entry in found:
            said = entry.get(column)
            text = f"{reason}: {said}" if column in PROBLEMS else f"{reason} ({said})"
            rows.setdefault(str(entry["row"]), []).append(text)
    return Checked(rows=rows, tables=tables, expectations=len(result.results), failed=failed)


def _raised(info: Any) -> str | None:
    """The exception behind an outcome, if it is one; GX gives one record, or one for each metric."""
    if not isinstance(info, Mapping):
        return None
    records = [info] if "raised_exception" in info else [value for value in info.values() if isinstance(value, Mapping)]
    for record in records:
        if record.get("raised_exception"):
            return str(record.get("exception_message") or "no message").strip().splitlines()[-1]
    return None
