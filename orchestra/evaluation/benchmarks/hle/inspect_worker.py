"""Runs HLE with inspect_evals in its own environment: settings as JSON on stdin, a line of JSON for each sample.

Nothing of the library is imported here, since that environment lacks it: `PYTHON inspect_worker.py`. Task, prompts,
scorer, metrics and the judge's limits are those of the package's run_configs/original.yaml; the questions are the
user's copy of the published file, text-only.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

KEY, JUDGE_KEY = "ORCHESTRA_MODEL_KEY", "ORCHESTRA_JUDGE_KEY"
SERVICE = "orchestra"
GRADER = "grader"
RETRIES = 5
"""Of a request that fails, 3 s after the first try and twice as late each time; the library's default has no end."""
CLIENT = {"max_retries": 0}
"""The client below would try every one of these three times."""
MOST_FAILED, MOST_SHARE = 20, 0.05
"""Questions, and their share: where as many fail for good as the larger of both, the endpoint counts as dead."""


def rows_of(file: Path) -> list[dict[str, Any]]:
    """The published rows: JSON lines or Parquet."""
    if file.suffix == ".parquet":
        import pandas

        frame: Any = pandas.read_parquet(file)
        found: list[dict[str, Any]] = frame.to_dict("records")
        return found
    # In bytes: a text's lines would end at U+2028 too, which questions may hold.
    return [json.loads(line) for line in file.read_bytes().split(b"\n") if line.strip()]


def task_of(files: list[str], config: dict[str, Any]) -> Any:
    """The official task over the user's files, in place of the hub's."""
    import inspect_evals.hle.dataset as published
    from inspect_ai.dataset import MemoryDataset
    from inspect_evals.hle import hle

    rows = [row for file in files for row in rows_of(Path(file))]

    def brought(*, sample_fields: Any, **_: Any) -> Any:
        return MemoryDataset([sample_fields(row) for row in rows])

    published.hf_dataset = brought
    return hle(**(config["task"]["args"] | {"include_multi_modal": False}))


def evaluated(asked: dict[str, Any]) -> Any:
    """The log of the evaluation; inspect keeps it in `log_dir` too."""
    import inspect_evals.hle
    import yaml
    from inspect_ai import eval as evaluate
    from inspect_ai.model import GenerateConfig, get_model

    folder = Path(str(inspect_evals.hle.__file__)).parent
    config = yaml.safe_load((folder / "run_configs/original.yaml").read_text(encoding="utf-8"))
    judge = config["model_roles"][GRADER]
    # The authors ask their judge through chat completions.
    grader = get_model(
        judge["model"],
        base_url=asked["judge_url"],
        api_key=os.environ.get(JUDGE_KEY) or "none",
        config=GenerateConfig(**judge["config"], max_retries=RETRIES),
        responses_api=False,
        **CLIENT,
    )
    model = get_model(
        f"openai-api/{SERVICE}/{asked['model']}", base_url=asked["url"], api_key=os.environ.get(KEY) or "none", **CLIENT
    )
    task = task_of(asked["files"], config)
    questions = min(len(task.dataset), asked["limit"] or len(task.dataset))
    (log,) = evaluate(
        task,
        model=model,
        model_roles={GRADER: grader},
        limit=asked["limit"],
        log_dir=asked["log_dir"],
        max_connections=asked["concurrency"],
        max_samples=asked["concurrency"],
        max_retries=RETRIES,
        log_model_api=True,
        fail_on_error=max(MOST_FAILED, int(MOST_SHARE * questions)),
        display="none",
        ctl_server=False,
    )
    return log


def told(sample: Any) -> dict[str, Any]:
    """A sample: its answer, its score, and what both models were asked and said."""
    from inspect_ai.log import resolve_sample_attachments

    # Longer texts lie beside the sample, and its events name them.
    sample = resolve_sample_attachments(sample, "full")
    score = next(iter((sample.scores or {}).values()), None)
    value = score.value if score is not None and isinstance(score.value, dict) else {}
    calls = [event for event in sample.events if event.event == "model" and event.call is not None]
    ours = [event for event in calls if event.role != GRADER]
    judging = [event for event in calls if event.role == GRADER]
    said = (ours[-1].call.response or {}) if ours else {}
    return {
        "id": sample.metadata["uid"],
        "group": sample.metadata["category"],
        "answer": sample.output.completion if sample.output.choices else None,
        "score": value.get("score") if value.get("score") in ("C", "I") else None,
        "confidence": value.get("confidence"),
        "extracted": None if score is None else score.answer,
        "error": None if sample.error is None else sample.error.message,
        "orchestra": said.get("orchestra") or {},
        "usage": said.get("usage") or {},
        "seconds": sum(event.working_time or 0.0 for event in ours),
        "prompt": judging[-1].input[-1].text if judging else "",
        "reply": judging[-1].output.completion if judging else "",
        "judge_usage": (judging[-1].call.response or {}).get("usage") or {} if judging else {},
    }


def main() -> None:
    """One evaluation; the last line holds the official figures and versions."""
    from importlib.metadata import version

    # The library writes to stdout too.
    out, sys.stdout = sys.stdout, sys.stderr
    log = evaluated(json.load(sys.stdin))
    for sample in log.samples or []:
        print(json.dumps(told(sample)), file=out)
    scores = log.results.scores if log.results is not None else []
    figures = {name: metric.value for score in scores for name, metric in score.metrics.items()}
    versions = {name: version(name) for name in ("inspect_ai", "inspect_evals")}
    last = {"status": log.status, "figures": figures, "versions": versions}
    print(json.dumps(last | {"error": None if log.error is None else log.error.message}), file=out, flush=True)


if __name__ == "__main__":
    main()
