"""Traces are read back by release, newest first, whatever a kill left behind."""

import json
import tracemalloc
from pathlib import Path

import pytest

from orchestra.serving.records import traces
from orchestra.serving.records.telemetry import Telemetry, served
from orchestra.serving.records.traces import TraceWriter, lines_backwards, trace_files
from tests.support.full_disk import no_larger_than
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


def test_a_full_disk_costs_the_traces_of_that_time_alone_and_they_are_counted(tmp_path: Path) -> None:
    telemetry, one = Telemetry(tmp_path), episode()

    def trace() -> None:
        telemetry.trace({"fingerprint": "f"}, episode=one)
        telemetry.traces.close()

    trace()
    (file,) = tmp_path.iterdir()
    with no_larger_than(file.stat().st_size + 50):
        trace()
        trace()
    trace()
    assert served(tmp_path, "f") == [one, one]
    assert telemetry.registry.get_sample_value("orchestra_traces_lost_total") == 2


def test_lines_of_other_releases_are_not_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    telemetry = Telemetry(tmp_path)
    for fingerprint in ["old"] * 50 + ["new"]:
        telemetry.trace({"fingerprint": fingerprint}, episode=episode())
    telemetry.close()
    parsed, loads = list[str](), json.loads

    def count(text: str) -> object:
        parsed.append(text)
        return loads(text)

    monkeypatch.setattr(json, "loads", count)
    assert len(served(tmp_path, "new")) == len(parsed) == 1, "right after a release nearly every line is of another"


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


def test_traces_stay_within_their_megabytes_and_come_back_newest_first(tmp_path: Path) -> None:
    first, second = (TraceWriter(tmp_path, days=14, megabytes=1) for _ in range(2))
    for number in range(150):
        # Two gateways of one workspace.
        writer = (first, second)[number // 10 % 2]
        writer.put({"number": number, "text": "x" * 20_000})
        if number % 10 == 9:
            writer.close()
            assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 1_000_000
    files = trace_files(tmp_path)
    assert 8 <= len(files) <= 11 and all(file.stat().st_mode & 0o077 == 0 for file in files)
    read = [json.loads(line)["number"] for file in files for line in lines_backwards(file) if line]
    assert read == list(range(149, 149 - len(read), -1)) and len(read) >= 40


def test_files_of_a_day_are_read_by_their_number(tmp_path: Path) -> None:
    names = [f"2026-11-{day}" for day in ("27.11", "27.10", "27.2", "27.1", "27", "26.1", "26")]
    for name in sorted(names):
        (tmp_path / f"{name}.jsonl").touch()
    assert [file.stem for file in trace_files(tmp_path)] == names


def test_a_large_file_is_read_backwards_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "BLOCK", 7)
    file = tmp_path / "2026-11-27.jsonl"
    for text in ("", "a", "\n", "a\n", "a\nb", "\n\n", "é\u2028é\n" * 9, "long line " * 9 + "\nb\n"):
        file.write_text(text, encoding="utf-8")
        assert list(lines_backwards(file)) == text.encode().split(b"\n")[::-1]
    monkeypatch.undo()
    file.write_bytes((b"x" * 999 + b"\n") * 40_000)
    tracemalloc.start()
    assert sum(1 for line in lines_backwards(file) if line) == 40_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20
