"""The summary that the retrain flow shows at its end."""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from orchestra.files import atomic
from orchestra.system.processes import services

FILE = ".state/last_run.json"


@dataclass(frozen=True)
class RunSummary:
    """The last finished run, as kept in `.state/last_run.json`."""

    outcomes: dict[str, str]
    """ran, restored or unchanged, by stage."""
    promoted: bool
    version: int
    reasons: list[str]
    table: str
    """The comparison of policies, Markdown."""
    url: str
    engine: str
    trace: str
    """One question asked of what serves: its tool calls and dollars."""
    mlflow_run: str
    approval: str = ""
    """What a person was asked or said; empty where nobody was."""
    waits: bool = False
    """Whether an answer is missing."""
    rolled_back: str = ""
    """What the canary found of a version that it took back; empty where it took none."""

    @classmethod
    def of(cls, root: Path, outcomes: dict[str, str], decision: Any, deployment: Any, mlflow_run: str) -> "RunSummary":
        table = root / "reports" / "evaluation" / "table.md"
        return cls(
            outcomes=outcomes,
            promoted=decision.promoted,
            version=decision.version,
            reasons=[f"{'passed' if check.passed else 'failed'}: {check.reason}" for check in decision.reasons],
            table=table.read_text(encoding="utf-8").strip() if table.is_file() else "",
            url=deployment.url,
            engine=deployment.engine,
            trace=str(deployment.trace),
            mlflow_run=mlflow_run,
            approval="" if decision.approval is None else decision.approval.line,
            waits=decision.waits,
            rolled_back=deployment.trial if deployment.outcome == "rolled_back" else "",
        )

    @classmethod
    def answer(cls, root: Path, approval: Any, rolled_back: str = "") -> None:
        """Put a person's answer, and what a canary then found, into the last run's record, if that is the run that
        asked."""
        last = cls.load(root)
        if last is not None and last.version == approval.version:
            promoted = approval.state == "approved"
            told = {"approval": approval.line, "waits": False, "rolled_back": rolled_back}
            replace(last, promoted=promoted, **told).save(root)

    def save(self, root: Path) -> None:
        atomic.write_text(root / FILE, json.dumps(asdict(self), indent=2))

    @classmethod
    def load(cls, root: Path) -> "RunSummary | None":
        file = root / FILE
        try:
            return cls(**json.loads(file.read_text(encoding="utf-8")))
        except (FileNotFoundError, ValueError, TypeError):
            return None  # No run yet, or one by another version of this program.

    @property
    def verdict(self) -> str:
        """In a word or three."""
        if self.promoted and self.rolled_back:
            return "rolled back by its canary"
        return "promoted" if self.promoted else "waits for approval" if self.waits else "refused"

    def text(self, root: Path) -> str:
        """The closing lines on the screen."""
        served = self.promoted and not self.rolled_back
        verdict = f"promoted as version {self.version}" if served else f"{self.verdict}; the champion serves on"
        lines = ["", self.table, "", f"Gate: {verdict}"]
        lines += [f"  - {reason}" for reason in self.reasons]
        lines += [line for one in (self.approval, self.rolled_back) if one for line in ("", one)]
        lines += ["", f"Serving: {self.url} ({self.engine})" if self.url else "Serving: nothing yet"]
        lines += [self.trace, "", "Where to look:"]
        return "\n".join(lines + [f"  {what:<14}{where}" for what, where in places(root, self.mlflow_run)] + [""])


def places(root: Path, mlflow_run: str) -> list[tuple[str, str]]:
    """Names and addresses of the pages about the last run; those of servers only while they run."""
    up = {service.name: service.url for service in services(root)}
    down = "`make up` starts it"
    mlflow = f"{up['mlflow']} (run {mlflow_run})" if "mlflow" in up else f"{down} (run {mlflow_run})"
    found = [("Prefect UI", up.get("prefect", down)), ("MLflow UI", mlflow)]
    files = {
        "Data page": "reports/data.html",
        "Data Docs": "reports/data_docs/index.html",
        "Decision page": "reports/decision.html",
    }
    return found + [(what, path) for what, path in files.items() if (root / path).is_file()]
