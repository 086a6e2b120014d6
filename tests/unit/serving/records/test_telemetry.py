"""Traces are read back by release, newest first, whatever a kill left behind."""

import json
from pathlib import Path

from orchestra.serving.records.telemetry import Telemetry, served
from tests.support.worlds import episode


def test_traces_come_back_by_release(tmp_path: Path) -> None:
    telemetry = Telemetry(tmp_path / "traces")
    assert served(tmp_path / "traces", "f1") == []
    made = [episode(cost_usd=str(cost)) for cost in range(4)]
    for number, one in enumerate(made):
        print_of = "f2" if number == 2 else "f1"
        telemetry.trace({"fingerprint": print_of}, episode=one)
    telemetry.trace({"fingerprint": "f1", "error": "vLLM is down"})
    telemetry.close()
    (file,) = (tmp_path / "traces").iterdir()
    assert file.stat().st_mode & 0o077 == 0 and file.parent.stat().st_mode & 0o077 == 0
    with file.open("a", encoding="utf-8") as out:
        out.write(json.dumps({"fingerprint": "f1"})[:9])
    assert served(tmp_path / "traces", "f1") == [made[3], made[1], made[0]]
    assert served(tmp_path / "traces", "f1", limit=2) == [made[3], made[1]]


def test_a_line_that_a_kill_cut_within_a_character_hides_no_other(tmp_path: Path) -> None:
    telemetry, one = Telemetry(tmp_path), episode()
    telemetry.trace({"fingerprint": "f"}, episode=one)
    telemetry.close()
    (file,) = tmp_path.iterdir()
    file.write_bytes('{"request": "café'.encode()[:-1] + b"\n" + file.read_bytes())
    assert served(tmp_path, "f") == [one]


def test_text_with_line_separators_stays_one_line(tmp_path: Path) -> None:
    telemetry = Telemetry(tmp_path)
    one = episode(answer="a\u2028b\nc")
    telemetry.trace({"fingerprint": "f"}, episode=one)
    telemetry.close()
    assert served(tmp_path, "f") == [one]
