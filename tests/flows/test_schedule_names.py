"""Names of schedules that would replace what `orchestra retraining on` deploys."""

from pathlib import Path

import pytest

from flows import schedule
from flows.schedule import add
from orchestra.errors import ConfigError

CRON = "0 3 * * *"


@pytest.mark.parametrize(("name", "flow"), [("asked", "retrain"), ("asked", "monitor"), ("watch", "retrain")])
def test_the_names_of_automatic_retraining_are_refused(tmp_path: Path, name: str, flow: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is a deployment of `orchestra retraining on` — write another name"):
        add(tmp_path, name, flow, CRON, "UTC", [])


def test_a_monitor_may_be_called_watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def reached(*_: object, **__: object) -> None:
        raise InterruptedError

    monkeypatch.setattr(schedule, "effective", reached)
    with pytest.raises(InterruptedError):
        add(tmp_path, "watch", "monitor", CRON, "UTC", [])
