"""Runs the Great Expectations suites over frames: what is refused and why, what is only noted, and the Data Docs."""

import html
import logging
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestra.errors import OrchestraError
from tasks.platform.rules import EXAMPLES, PROBLEM_WORDS, Rules, Severity

if TYPE_CHECKING:
    import pandas as pd

NAMED = 3
"""Rows that a finding names."""


@dataclass(frozen=True)
class SuiteResult:
    """The findings of one rule."""

    suite: str
    column: str
    reason: str
    severity: Severity
    passed: bool
    count: int = 0
    """Rows that break it; 0 too where the set as a whole does."""
    named: tuple[str, ...] = ()
    """The first of them, with what they hold: `train:17 (2500)`."""

    @property
    def text(self) -> str:
        """The finding in one line: `the domains are uneven: train:domain sport (0.3), … (2)`."""
        if not self.named:
            return self.reason
        more = ", …" if self.count > len(self.named) else ""
        return f"{self.reason}: {', '.join(self.named)}{more} ({self.count})"


@dataclass(frozen=True)
class Checked:
    """The findings of the suites."""

    rows: dict[str, list[str]]
    """Reasons by refused row, in the order of the rows."""
    outcomes: tuple[SuiteResult, ...]
    """Every rule's, in the order of the suites."""

    @property
    def tables(self) -> list[str]:
        """What is wrong with a set as a whole: no row to refuse."""
        broken = [outcome for outcome in self.outcomes if not outcome.passed and outcome.severity == "critical"]
        return [outcome.text for outcome in broken if outcome.suite != EXAMPLES or not outcome.count]

    @property
    def warnings(self) -> list[SuiteResult]:
        """What is only shown."""
        return [outcome for outcome in self.outcomes if not outcome.passed and outcome.severity == "warning"]


def check(frames: "Mapping[str, pd.DataFrame]", suites: Mapping[str, Rules], docs: Path) -> Checked:
    """Run each suite on the frame of its name and write the Data Docs into `docs`.

    Every frame has a column `row` that names its rows. Raises `OrchestraError` when an expectation itself raised.
    """
    os.environ.setdefault("DO_NOT_TRACK", "true")
    import great_expectations as gx

    logging.getLogger("great_expectations").setLevel(logging.ERROR)
    refused: dict[str, list[str]] = {}
    outcomes: list[SuiteResult] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        context = gx.get_context(mode="ephemeral")
        context.variables.progress_bars = {"globally": False}  # type: ignore[assignment]
        _only_site(context, docs)
        source = context.data_sources.add_pandas("generated")
        for name, rules in suites.items():
            suite = context.suites.add(gx.ExpectationSuite(name=name, expectations=rules))
            for result in _run(context, source, suite, frames[name]):
                outcomes.append(_read(name, result, refused))
        context.build_data_docs()
    order = {row: number for number, row in enumerate(frames[EXAMPLES]["row"])} if refused else {}
    return Checked(dict(sorted(refused.items(), key=lambda item: order[item[0]])), tuple(outcomes))


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


def _run(context: Any, source: Any, suite: Any, frame: "pd.DataFrame") -> Any:
    import great_expectations as gx

    batch = source.add_dataframe_asset(suite.name).add_batch_definition_whole_dataframe("all")
    definition = context.validation_definitions.add(gx.ValidationDefinition(name=suite.name, data=batch, suite=suite))
    # Every metric copies the frame: only what the rules look at.
    columns = dict.fromkeys(["row", *(rule.column for rule in suite.expectations)])
    result_format = {
        "result_format": "COMPLETE",
        "unexpected_index_column_names": ["row"],
        "partial_unexpected_count": 20,
    }
    parameters = {"dataframe": frame[list(columns)].apply(_escaped)}
    return definition.run(batch_parameters=parameters, result_format=result_format).results


def _read(suite: str, result: Any, refused: dict[str, list[str]]) -> SuiteResult:
    """The outcome of one expectation; reasons of rows that it refuses are added to `refused`."""
    expectation = result.expectation_config
    column = str(expectation.kwargs.get("column"))
    reason = str((expectation.meta or {}).get("reason", expectation.type))
    severity = expectation.severity.value
    raised = _raised(result.exception_info)
    if raised is not None:
        raise OrchestraError(
            f"the check {expectation.type} on {column} could not run: {raised}",
            where="validate",
            fix="fix tasks/platform/rules.py; the data are not at fault",
        )
    if result.success:
        return SuiteResult(suite, column, reason, severity, passed=True)
    found = result.result.get("unexpected_index_list") or []
    if suite == EXAMPLES and severity == "critical":
        for entry in found:
            said = _unescaped(entry.get(column))
            text = f"{reason}: {said}" if column in PROBLEM_WORDS else f"{reason} ({said})"
            refused.setdefault(_unescaped(str(entry["row"])), []).append(text)
    named = tuple(_unescaped(f"{entry['row']} ({_short(entry.get(column))})") for entry in found[:NAMED])
    return SuiteResult(suite, column, reason, severity, passed=False, count=len(found), named=named)


def _escaped(column: "pd.Series") -> "pd.Series":
    """GX writes values into its pages as they are: what the data says must be no markup, nor name GX's templates."""
    import pandas as pd

    if pd.api.types.is_numeric_dtype(column):
        return column
    safe = {value: html.escape(value).replace("$", "&#36;") for value in column.unique() if isinstance(value, str)}
    changed = {value for value, text in safe.items() if text != value}
    return column.where(~column.isin(changed), column.map(safe)) if changed else column


def _unescaped(value: Any) -> Any:
    return html.unescape(value) if isinstance(value, str) else value


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _raised(info: Any) -> str | None:
    """The exception behind an outcome, if it is one; GX gives one record, or one for each metric."""
    if not isinstance(info, Mapping):
        return None
    records = [info] if "raised_exception" in info else [value for value in info.values() if isinstance(value, Mapping)]
    for record in records:
        if record.get("raised_exception"):
            return str(record.get("exception_message") or "no message").strip().splitlines()[-1]
    return None
