"""The gateway's traces in MLflow, where a person reads episodes: `python -m tasks.records.traces`."""

import argparse
import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestra.config.deploy import Deploy
from orchestra.config.schema import load_params
from orchestra.errors import ServiceError
from orchestra.files import atomic
from orchestra.serving.records.spans import Trace, spans
from orchestra.serving.records.telemetry import TRACES
from orchestra.serving.records.traces import trace_files
from tasks.platform.commands import run_command
from tasks.platform.tracking import connect, experiment, tracking_uri

EXPERIMENT = "orchestra-serving"
PLACE = ".state/traces.place.json"
"""How far every file was read: bytes by name."""
BATCH = 50
"""Traces that are written at once."""
SEEN = 5_000
"""Traces after which the place is kept, though few are sampled: a monitor that ran out of time goes on there."""


@dataclass(frozen=True)
class Exported:
    """What a run of `export` did."""

    seen: int
    written: int
    deleted: int

    @property
    def line(self) -> str:
        """For a person."""
        gone = f"; {self.deleted} old ones deleted" if self.deleted else ""
        return f"{self.written} of {self.seen} new traces written to MLflow's experiment {EXPERIMENT}{gone}"


def export(root: Path, deploy: Deploy) -> Exported:
    """Write what is sampled of the traces since the last time, and delete those older than `deploy.gateway.trace_days`.

    Repeated after a kill it writes the same traces again under the same ids. Raises `ServiceError` when MLflow does not
    take them.
    """
    from mlflow.exceptions import MlflowException

    client, reader = connect(root), _Reader(root)
    seen = written = 0
    try:
        where = experiment(client, root, EXPERIMENT)
        batch: list[Trace] = []
        for trace in reader.new():
            seen += 1
            batch += [trace] if trace.sampled(deploy.tracing.share) else []
            if len(batch) == BATCH or seen % SEEN == 0:
                written += _write(root, where, batch, deploy)
                batch = []
                reader.save()
        written += _write(root, where, batch, deploy)
        reader.save()
        before_ms = int(1000 * (time.time() - 86_400 * deploy.gateway.trace_days))
        deleted = int(client.delete_traces(where, max_timestamp_millis=before_ms))
    except MlflowException as error:
        raise ServiceError(
            f"MLflow did not take the traces: {error}",
            where=tracking_uri(root),
            fix="see the log of MLflow's server; orchestra status",
        ) from None
    return Exported(seen, written, deleted)


class _Reader:
    """Reads every whole line that was not read before."""

    def __init__(self, root: Path) -> None:
        self._root = root
        try:
            self.place: dict[str, int] = json.loads((root / PLACE).read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            self.place = {}

    def new(self) -> Iterator[Trace]:
        """Half a line, of a gateway that was killed, is passed over."""
        for file in reversed(trace_files(self._root / TRACES)):
            # The gateway may give it up meanwhile.
            with contextlib.suppress(FileNotFoundError), file.open("rb") as lines:
                if self.place.setdefault(file.name, 0) > file.stat().st_size:
                    self.place[file.name] = 0  # It was deleted by hand, and the gateway began it again.
                lines.seek(self.place[file.name])
                for line in lines:
                    if not line.endswith(b"\n"):
                        break
                    self.place[file.name] += len(line)
                    with contextlib.suppress(ValueError, KeyError):
                        yield Trace.parse(line.decode())

    def save(self) -> None:
        """What was read is not read again; files that are gone are forgotten."""
        there = {name: size for name, size in self.place.items() if (self._root / TRACES / name).is_file()}
        atomic.write_text(self._root / PLACE, json.dumps(there))


def _write(root: Path, where: str, traces: list[Trace], deploy: Deploy) -> int:
    """Their spans, by the way that MLflow's server takes OTLP."""
    if not traces:
        return 0
    from mlflow.entities.span import Span
    from mlflow.tracking._tracking_service.utils import _get_store
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

    made: list[Any] = [span for trace in traces for span in spans(trace, deploy.tracing.content)]
    found = [
        Span.from_otel_proto(span, resource=resource.resource)
        for resource in encode_spans(made).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    store: Any = _get_store
    store(tracking_uri(root)).log_spans(where, found)
    return len(traces)


def main(arguments: list[str]) -> None:
    """Export once."""
    argparse.ArgumentParser(prog="python -m tasks.records.traces", description=main.__doc__).parse_args(arguments)
    root = Path.cwd()
    print(export(root, load_params(root / "params.yaml").deploy).line)


if __name__ == "__main__":
    run_command(main)
