"""The gateway's traces in MLflow: read back as episodes, once each, the old ones gone."""

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from orchestra.config.deploy import Deploy, Tracing
from orchestra.serving.records.spans import Trace
from orchestra.serving.records.telemetry import TRACES, Telemetry
from orchestra.types import ToolCall
from tasks.platform.tracking import connect
from tasks.records import traces as records
from tasks.records.traces import EXPERIMENT, export
from tests.support.databases import make_database
from tests.support.serving_world import params
from tests.support.worlds import episode


@pytest.fixture(autouse=True)
def own_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    make_database(tmp_path)


def deploy(share: float = 1.0) -> Deploy:
    return params().deploy.model_copy(update={"tracing": Tracing(share=share, content="full")})


def keep(root: Path, *ids: str) -> None:
    telemetry = Telemetry(root / TRACES)
    turn = episode(cost_usd="0.25").turns[0].model_copy(update={"call": ToolCall(name="gpt-5"), "observation": "Tesk"})
    for trace_id in ids:
        record = {"trace_id": trace_id * 32, "version": "7", "wall_s": 1.5, "times": [(0.1, 0.4, 1.4)]}
        made = episode(cost_usd="0.25", answer="Tesk").model_copy(update={"turns": (turn,)})
        telemetry.trace(record, episode=made)
    telemetry.close()


def test_episodes_are_read_in_mlflow_once_each_and_old_ones_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(tmp_path, "a", "b")
    first = export(tmp_path, deploy())
    assert (first.seen, first.written, first.deleted) == (2, 2, 0)
    keep(tmp_path, "c")
    again = export(tmp_path, deploy())
    assert (again.seen, again.written) == (1, 1)
    assert export(tmp_path, deploy()).seen == 0

    client = connect(tmp_path)
    where = client.get_experiment_by_name(EXPERIMENT).experiment_id
    found = client.search_traces(locations=[where])
    assert len(found) == 3
    (one,) = [trace for trace in found if trace.info.trace_id.endswith("a" * 32)]
    spans = {span.name: span for span in one.data.spans}
    assert {"invoke_agent orchestrator", "chat orchestrator", "execute_tool gpt-5"} == set(spans)
    assert spans["execute_tool gpt-5"].span_type == "TOOL" and spans["chat orchestrator"].span_type == "CHAT_MODEL"
    assert spans["invoke_agent orchestrator"].get_attribute("orchestra.cost_usd") == 0.25
    tool = spans["execute_tool gpt-5"]
    assert (tool.end_time_ns - tool.start_time_ns) / 1e9 == pytest.approx(1.0) and tool.outputs == "Tesk"

    later = deploy().model_copy(update={"gateway": deploy().gateway.model_copy(update={"trace_days": 1})})
    monkeypatch.setattr(time, "time", lambda: (datetime.now(UTC) + timedelta(days=2)).timestamp())
    assert export(tmp_path, later).deleted == 3


def test_an_export_that_was_ended_goes_on_from_what_it_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "SEEN", 2)
    keep(tmp_path, "a", "b", "c")

    def sampled(trace: Trace, share: float) -> bool:
        if trace.record["trace_id"][0] == "c":
            raise TimeoutError
        return False

    with monkeypatch.context() as late, pytest.raises(TimeoutError):
        late.setattr(Trace, "sampled", sampled)
        export(tmp_path, deploy())
    assert export(tmp_path, deploy(share=0.0)).seen == 1


def test_a_day_s_file_that_was_deleted_by_hand_is_read_from_its_beginning(tmp_path: Path) -> None:
    keep(tmp_path, "a", "b", "c")
    assert export(tmp_path, deploy(share=0.0)).seen == 3
    for file in (tmp_path / TRACES).iterdir():
        file.unlink()
    keep(tmp_path, "d")
    assert export(tmp_path, deploy(share=0.0)).seen == 1


def test_what_is_not_sampled_is_read_but_not_written(tmp_path: Path) -> None:
    keep(tmp_path, "f")
    found = export(tmp_path, deploy(share=0.0))
    assert (found.seen, found.written) == (1, 0)
