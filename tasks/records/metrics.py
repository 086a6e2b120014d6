"""`python -m tasks.records.metrics`: metrics of the workspace for Prometheus, computed at each scrape."""

import argparse
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from cronsim import CronSim
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from orchestra.config.schema import load_params
from orchestra.errors import OrchestraError
from orchestra.serving.releases.state import SERVING, read
from orchestra.system.artifacts import ask_place
from orchestra.system.processes import LOCALHOST, all_remembered
from orchestra.system.retraining import month_left, month_spent, unanswered
from orchestra.system.runs import RUNS, RunRecord, newest_by_flow, runs
from orchestra.system.servers import METRICS_PORT, MONITORED, answers, state
from orchestra.tools.catalogue.catalogue import read_catalogue
from orchestra.tools.catalogue.price_book import PriceBook
from orchestra.tools.catalogue.price_check import retired, stale_prices
from tasks.platform.aliases import aliases, made_at
from tasks.platform.commands import run_command
from tasks.records.judged import figures
from tasks.records.shared import KNOWN

OWN = "metrics"
"""The name of this server."""
TEAM = {"mlflow": "MLFLOW_TRACKING_URI", "prefect": "PREFECT_API_URL"}
"""Where servers of the team are; each has a page /health below it."""
Found = Iterator[GaugeMetricFamily]


def _gauge(name: str, text: str, value: float | None = None, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"orchestra_{name}", text, value=value, labels=labels or None)


def servers(root: Path) -> Found:
    """Servers that were started here and not stopped, and those of the team."""
    found = _gauge("server_up", "1 when a server answers", None, "server")
    for service in all_remembered(root):
        if service.name != OWN:
            found.add_metric([service.name], float(state(service) == "up"))
    for name, variable in TEAM.items():
        if (address := os.environ.get(variable, "")).startswith("http"):
            found.add_metric([name], float(answers(address.rstrip("/") + "/health")))
    yield found


def flow_runs(root: Path) -> Found:
    """How the newest run of each flow that is over ended, and how long a stage that keeps a log has said nothing."""
    failed = _gauge("run_failed", "1 when the newest run of a flow that is over failed", None, "flow")
    ended = _gauge("run_ended_timestamp_seconds", "When the newest run of a flow ended", None, "flow")
    silent = _gauge("run_silent_seconds", "Seconds since a stage under way last wrote to its log", None, "flow")
    records = runs(root)
    for one in records:
        if one.lives and (wrote := _wrote(root, one)) is not None:
            silent.add_metric([one.flow], max(0.0, datetime.now(UTC).timestamp() - wrote))
    for flow, one in newest_by_flow([one for one in records if not one.lives]).items():
        failed.add_metric([flow], float(one.failed))
        if one.ended is not None:
            ended.add_metric([flow], one.ended.timestamp())
    yield from (failed, ended, silent)


def watch(root: Path) -> Found:
    """How late the monitor is, where one is scheduled."""
    file = root / MONITORED
    if not file.is_file():
        return
    began = [one.began for one in runs(root) if one.flow == "monitor" and one.asked_by.startswith("schedule ")]
    last = max([datetime.fromtimestamp(file.stat().st_mtime, UTC), *began])
    if due := [_due(plan, last) for plan in json.loads(file.read_text(encoding="utf-8") or "[]")]:
        late = (datetime.now(UTC) - min(due)).total_seconds()
        yield _gauge("monitor_late_seconds", "Seconds since a scheduled run of the monitor was due", max(0.0, late))


def _due(plan: dict[str, Any], last: datetime) -> datetime:
    """When the first run after that time is due."""
    if "cron" not in plan:
        return last + timedelta(seconds=plan["every_s"])
    return next(CronSim(plan["cron"], last.astimezone(ZoneInfo(plan["timezone"]))))


def _wrote(root: Path, one: RunRecord) -> float | None:
    """When a run last changed its stage's log, or its record; None at a stage without a log, such as a push."""
    log = root / ".state/logs" / f"{one.stage}.log"
    if one.flow != "retrain" or not log.is_file():
        return None
    return max(file.stat().st_mtime for file in (log, root / RUNS / f"{one.id}.json") if file.is_file())


def disk(root: Path) -> Found:
    usage = shutil.disk_usage(root)
    yield _gauge("disk_free_bytes", "Free room on the workspace's disk", usage.free)
    yield _gauge("disk_size_bytes", "Size of the workspace's disk", usage.total)


def champion(root: Path) -> Found:
    """What the registry's aliases name, since when, and whether that serves."""
    model = load_params(root / "params.yaml").promote.model_name
    named = aliases(root, model)
    found = _gauge("alias_version", "The version that an alias names", None, "alias")
    for alias, version in named.items():
        found.add_metric([alias], version)
    yield found
    number, serving = named.get("champion"), read(root / SERVING)
    if number is None:
        return
    made = made_at(root, model, number)
    if made is not None:
        yield _gauge("champion_made_timestamp_seconds", "When the champion was registered", made)
    if serving is not None:
        yield _gauge("champion_served", "1 when the champion is what serves", float(serving.version == str(number)))


def prices(root: Path) -> Found:
    """Prices in use that nobody checked for long, tools that are retired, and the day whose prices hold."""
    params, today = load_params(root / "params.yaml"), date.today()
    file, book = read_catalogue(root / params.world.catalogue), PriceBook.load(root / params.world.prices)
    stale = list(stale_prices(file, book, today, params.retraining.stale_price_days))
    yield _gauge("prices_stale", "Prices in use whose last check is too old", len(stale))
    yield _gauge("tools_retired", "Tools of the catalogue that are served no more", len(list(retired(file, today))))
    day = datetime.combine(date.fromisoformat(params.world.price_date), datetime.min.time(), UTC)
    yield _gauge("price_date_timestamp_seconds", "The day whose prices hold", day.timestamp())


def retraining(root: Path) -> Found:
    """What asks for a retraining, whom it waits for, and what such runs have cost."""
    limits, asking = load_params(root / "params.yaml").retraining, unanswered(root)
    found = _gauge("retraining_requests", "Requests that were not answered", None, "cause", "waits_for")
    counts: dict[tuple[str, str], int] = {}
    for one in asking:
        key = one.cause, "nothing" if one.state == "taken" else "person" if one.needs else "run"
        counts[key] = counts.get(key, 0) + 1
    for labels, count in counts.items():
        found.add_metric(labels, count)
    yield found
    if asking:
        oldest = min(one.asked for one in asking).timestamp()
        yield _gauge("retraining_oldest_timestamp_seconds", "When the oldest of them was asked", oldest)
    yield _gauge("retraining_month_usd", "Dollars that such runs cost this month", float(month_spent(root)))
    if limits.monthly_usd is not None:
        yield _gauge("retraining_month_cap_usd", "Dollars that they may cost in a month", float(limits.monthly_usd))
        spent = float(month_left(root, limits) == 0)
        yield _gauge("retraining_month_over", "1 when what is left of them pays for no further run", spent)


def spending(root: Path) -> Found:
    """What a solved request costs, by the monitor's sample, and what experts charge against the catalogue's prices."""
    found = figures(root)
    if found is None:
        return
    yield _gauge("judged_answers", "Served answers with a verdict that are compared", found.verdicts)
    per_solved = _gauge("usd_per_solved", "Dollars for each solved request", None, "side")
    for side, usd in (("served", found.usd_per_solved), ("evaluated", found.evaluated_usd_per_solved)):
        if found.by is not None:
            per_solved.add_metric([side], float("inf") if usd is None else usd)
    yield per_solved
    yield _gauge("usd_per_solved_rose", "1 when it is above the evaluation's beyond chance", float(found.rose))
    ratios = _gauge("price_ratio", "Dollars charged over dollars at today's price", None, "tool")
    for tool, ratio in found.price_ratios.items():
        ratios.add_metric([tool], float("inf") if ratio is None else ratio)
    yield ratios


def store(root: Path) -> Found:
    """Whether the store of params.yaml answers, and when this workspace last pushed or pulled."""
    storage = load_params(root / "params.yaml").storage
    if not storage.shared:
        return
    try:
        ask_place(storage.artifacts, storage, seconds=2)
    except OrchestraError:
        up = 0.0
    else:
        up = 1.0
    yield _gauge("store_up", "1 when the store of storage.url answers", up)
    if (root / KNOWN).is_file():
        pushed = (root / KNOWN).stat().st_mtime
        yield _gauge("store_pushed_timestamp_seconds", "When this workspace last pushed or pulled", pushed)


PARTS: dict[str, Callable[[Path], Found]] = {
    "servers": servers,
    "runs": flow_runs,
    "watch": watch,
    "disk": disk,
    "champion": champion,
    "prices": prices,
    "retraining": retraining,
    "spending": spending,
    "store": store,
}


class WorkspaceMetrics(Collector):
    """Every part; one that cannot be read says so and hides none of the others."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def collect(self) -> Found:
        unread = _gauge("unread", "1 when a part of the workspace cannot be read", None, "part")
        for name, part in PARTS.items():
            try:
                found = list(part(self.root))
            except Exception:
                found = []
                unread.add_metric([name], 1.0)
            else:
                unread.add_metric([name], 0.0)
            yield from found
        yield unread


def main(arguments: list[str]) -> None:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m tasks.records.metrics", description=__doc__)
    parser.add_argument("--port", type=int, default=METRICS_PORT)
    port = parser.parse_args(arguments).port
    registry = CollectorRegistry()
    registry.register(WorkspaceMetrics(Path.cwd()))
    ending = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ending)
    server, thread = start_http_server(port, LOCALHOST, registry)
    print(f"metrics: http://{LOCALHOST}:{port}/metrics", flush=True)
    signal.sigwait(ending)
    server.shutdown()
    thread.join()


if __name__ == "__main__":
    run_command(main)
