"""What a person is told while something takes long."""

import time

import pytest

from orchestra.system import progress
from orchestra.system.progress import while_waiting
from tests.support.waiting import soon


def test_what_takes_long_says_for_how_long(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SAY_EVERY_S", 0.02)
    said: list[str] = []

    def twice() -> bool:
        said.append(capsys.readouterr().err)
        return "".join(said).count("the model works (0 s)\n") > 1

    with while_waiting("the model works"):
        assert soon(twice)
    time.sleep(0.1)
    capsys.readouterr()
    time.sleep(0.1)
    assert capsys.readouterr() == ("", "")
