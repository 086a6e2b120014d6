"""`python -m flows <flow>`: one flow in this process, with or without a Prefect server; `orchestra` runs it."""

import argparse
import contextlib
import importlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from flows._workspace import API_LOG, prefect_api, settings
from orchestra.config.overrides import apply, effective
from orchestra.config.profiles import profile_file, put_in_force
from orchestra.config.schema import load_params, params_file
from orchestra.errors import OrchestraError, without_secrets
from orchestra.system.ending import bug, told
from orchestra.system.runs import ASKED_BY, find, runs
from orchestra.system.storage import ROOM, check_storage, storage_named
from orchestra.system.workspace import Screen, check_proxies, check_surroundings, locked
from tasks.experiments.wanted import options as benchmark_options

MLFLOW = ("mlflow.tracking", "mlflow.store.tracking.sqlalchemy_store")
AHEAD = {
    "retrain": (*MLFLOW, "dvc.repo"),
    "release": MLFLOW,
    "answer": MLFLOW,
    "monitor": MLFLOW,
    "synthesize": (),
    "benchmark": MLFLOW,
    "sweep": MLFLOW,
}
"""Slow modules to import while Prefect's API starts."""
FILLS = ("retrain", "synthesize", "benchmark")
"""Flows that write much; the others must work on a disk that is nearly full."""


def main(arguments: list[str] | None = None) -> int:
    """Run a flow; the exit code is 0 also for a refusal by the gate, 2 for an error said in one line, 1 for a bug."""
    options = vars(_parser().parse_args(arguments))
    name, root, screen = options.pop("flow"), Path.cwd(), Screen()
    profile, assignments = options.pop("profile", None), options.pop("assignments", [])
    options = {"wanted": options} if name == "benchmark" else options
    signal.signal(signal.SIGTERM, _interrupt)
    began = time.monotonic()
    try:
        if name == "again":
            name, options = _again(root, **options)
        # Prefect and the libraries of the stages take seconds to load.
        screen(f"{name}: starting")
        check_surroundings(root)
        check_proxies()
        load_params(params_file(root) if name == "synthesize" else root / "params.yaml")
        check_storage(root, ROOM if name in FILLS else 0)
        settings(root)
        alone = contextlib.nullcontext() if name == "monitor" else locked(root)
        with storage_named(root, root / API_LOG), alone, prefect_api(root) as ready:
            if profile or assignments:
                _assign(root, profile, assignments, screen, promotes=options.get("until") is None)
            ahead = threading.Thread(target=lambda: [importlib.import_module(module) for module in AHEAD[name]])
            ahead.start()
            flow = getattr(importlib.import_module(f"flows.{name}"), name)
            ahead.join()
            ready()
            try:
                state: Any = flow(**options, return_state=True)
            finally:
                _send_logs()
            state.result()
    except OrchestraError as error:
        screen(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        screen("stopped; the same command continues from here")
        return 130
    except BrokenPipeError:
        raise  # `told` knows whether our own reader is gone.
    except Exception as error:
        file = root / ".state" / "logs" / "flow-error.log"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(without_secrets(traceback.format_exc()), encoding="utf-8")
        where = file.relative_to(root)
        screen(f"error: {name}: {bug(error)} — the traceback is in {where}")
        return 1
    ending = "" if state.name == "Completed" else f", {state.name.lower()}: {state.message}"
    screen(f"{name}: finished in {time.monotonic() - began:.0f} s{ending}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m flows", description=__doc__)
    flows = parser.add_subparsers(dest="flow", required=True)
    retrain = flows.add_parser("retrain", help="every stale stage, promote, deploy")
    retrain.add_argument("--until", metavar="STAGE", help="stop after this stage")
    retrain.add_argument("--force", metavar="STAGE", action="append", default=[], help="run it although it is current")
    retrain.add_argument("--profile", metavar="NAME", help="switch to this profile first")
    retrain.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], dest="assignments")
    retrain.add_argument("--asked", choices=["due", "now"], default="", help="answer what asks for a retraining")
    release = flows.add_parser("release", help="serve the champion again, another version, or the one before")
    release.add_argument("--rollback", action="store_true")
    release.add_argument("--to", metavar="VERSION", type=int)
    release.add_argument("--canary", metavar="PERCENT", type=float)
    release.add_argument("--shadow", metavar="PERCENT", type=float)
    release.add_argument("--why", metavar="TEXT", default="")
    answer = flows.add_parser("answer", help="approve or refuse a version that waits for a person")
    answer.add_argument("--version", metavar="VERSION", type=int)
    answer.add_argument("--refuse", action="store_false", dest="approve")
    answer.add_argument("--by", metavar="NAME", required=True)
    answer.add_argument("--reason", metavar="TEXT", default="")
    flows.add_parser("monitor", help="check what serves")
    flows.add_parser(
        "benchmark", parents=[benchmark_options()], help="a model on a benchmark, on the task runner of that setting"
    )
    sweep = flows.add_parser("sweep", help="retrain for each combination of values, in copies of the workspace")
    sweep.add_argument("--set", metavar="KEY=VALUE,VALUE", action="append", required=True, dest="overrides")
    again = flows.add_parser("again", help="what a run on record was asked for")
    again.add_argument("run", metavar="RUN")
    again.add_argument("--from", metavar="STAGE", dest="stage", help="run this stage although it is current")
    synthesize = flows.add_parser("synthesize", help="examples in shards, on the task runner of ORCHESTRA_TASK_RUNNER")
    synthesize.add_argument("--out", metavar="FOLDER", default="data/generated")
    synthesize.add_argument("--examples", metavar="N", type=int)
    synthesize.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], dest="overrides")
    return parser


def _again(root: Path, run: str, stage: str | None) -> tuple[str, dict[str, Any]]:
    """Flow and options of a run on record; a stage that it forced, and that came to its end, is not forced again."""
    record = find(runs(root), run)
    options: dict[str, Any] = dict(record.parameters)
    os.environ[ASKED_BY] = f"rerun of {record.name}"
    if record.flow == "retrain":
        left = [one for one in options.get("force") or [] if one not in record.stages or record.stages[one].unfinished]
        options["force"] = [stage] if stage else left
    return record.flow, options


def _assign(
    root: Path, profile: str | None, assignments: Sequence[str], screen: Callable[[str], None], *, promotes: bool
) -> None:
    """Make params.yaml the profile, with the assignments, for good, once all that it then names is there."""
    from tasks.platform.named import check_named

    file = root / "params.yaml"
    wanted = effective(file if profile is None else profile_file(root, profile), assignments)
    check_named(wanted, root, promotes=promotes)
    for line in put_in_force(root, profile) if profile is not None else []:
        screen(line)
    for line in apply(file, assignments):
        screen(f"params.yaml: {line}")


def _send_logs() -> None:
    """Prefect sends logs from a thread; what is left must go before the API ends."""
    from prefect.logging.handlers import APILogHandler

    APILogHandler().flush()


def _interrupt(_number: int, _frame: Any) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    with told():
        sys.exit(main())
