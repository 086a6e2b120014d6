"""Which checkpoint a killed run continues from."""

from pathlib import Path

from orchestra.training.resume import MARKER, last_complete


def checkpoint(folder: Path, step: int, *, whole: bool) -> Path:
    path = folder / f"checkpoint-{step}"
    path.mkdir(parents=True)
    (path / "model.safetensors").write_bytes(b"x")
    if whole:
        (path / MARKER).touch()
    return path


def test_the_newest_whole_one_by_number(tmp_path: Path) -> None:
    for step in (9, 10, 100, 20):
        checkpoint(tmp_path, step, whole=True)
    assert last_complete(tmp_path) == tmp_path / "checkpoint-100"


def test_a_half_written_one_is_passed_over_and_deleted(tmp_path: Path) -> None:
    good, half = checkpoint(tmp_path, 10, whole=True), checkpoint(tmp_path, 20, whole=False)
    (tmp_path / "runs").mkdir()
    assert last_complete(tmp_path) == good
    assert not half.exists()
    assert (tmp_path / "runs").exists()


def test_nothing_to_continue_from(tmp_path: Path) -> None:
    assert last_complete(tmp_path / "absent") is None
    checkpoint(tmp_path, 5, whole=False)
    assert last_complete(tmp_path) is None
    assert list(tmp_path.iterdir()) == []
