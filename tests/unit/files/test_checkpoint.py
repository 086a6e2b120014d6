"""Checkpoints: the hash sees every byte and name, the manifest every change, and the store loses nothing."""

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestra.errors import DataError
from orchestra.files.checkpoint import (
    MANIFEST,
    CheckpointManifest,
    hash_dir,
    keep,
    verify_kept,
    verify_manifest,
    write_manifest,
)


def checkpoint(folder: Path, weights: bytes = b"weights") -> Path:
    (folder / "tokenizer").mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(weights)
    (folder / "tokenizer" / "vocab.json").write_text("{}")
    manifest(folder)
    return folder


def manifest(folder: Path) -> CheckpointManifest:
    return write_manifest(
        folder,
        base=None,
        data_hash="d",
        params={"seed": 1},
        git_commit="c",
        price_date="2025-11-15",
        extra={"loss": 0.5},
    )


def test_a_manifest_survives_its_own_check(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "m")
    found = verify_manifest(folder)
    assert found.params == {"seed": 1} and set(found.files) == {"model.safetensors", "tokenizer/vocab.json"}
    before = hash_dir(folder)
    manifest(folder)
    assert hash_dir(folder) == before


@settings(max_examples=30, deadline=None)
@given(at=st.integers(0, 6), bit=st.integers(0, 7))
def test_a_flipped_bit_is_seen(tmp_path_factory: pytest.TempPathFactory, at: int, bit: int) -> None:
    folder = checkpoint(tmp_path_factory.mktemp("c") / "m")
    before = hash_dir(folder)
    raw = bytearray((folder / "model.safetensors").read_bytes())
    raw[at] ^= 1 << bit
    (folder / "model.safetensors").write_bytes(bytes(raw))
    assert hash_dir(folder) != before
    with pytest.raises(DataError, match=r"model\.safetensors"):
        verify_manifest(folder)


def test_a_missing_an_unknown_and_a_renamed_file_are_seen(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "m")
    before = hash_dir(folder)
    (folder / "model.safetensors").rename(folder / "other.safetensors")
    assert hash_dir(folder) != before
    with pytest.raises(DataError, match=r"model\.safetensors.*missing"):
        verify_manifest(folder)
    (folder / "other.safetensors").rename(folder / "model.safetensors")
    (folder / ".hidden").write_text("x")
    assert hash_dir(folder) != before
    with pytest.raises(DataError, match="not in the manifest"):
        verify_manifest(folder)


def test_links_to_files_hash_as_their_content(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "m")
    before = hash_dir(folder)
    (folder / "model.safetensors").rename(tmp_path / "cached")
    (folder / "model.safetensors").symlink_to(tmp_path / "cached")
    assert hash_dir(folder) == before
    (tmp_path / "cached").unlink()
    with pytest.raises(DataError, match="neither a file"):
        hash_dir(folder)


def test_what_is_neither_a_file_nor_a_folder_of_the_checkpoint_is_refused(tmp_path: Path) -> None:
    """What lies behind a link to a folder would be in no hash."""
    (tmp_path / "elsewhere").mkdir()
    for name in ("linked", "pipe"):
        folder = checkpoint(tmp_path / name)
        (folder / "more").symlink_to(tmp_path / "elsewhere") if name == "linked" else os.mkfifo(folder / "more")
        with pytest.raises(DataError, match="more: neither a file nor a directory"):
            hash_dir(folder)


@pytest.mark.parametrize("content", ["", "{", '{"base": null}', '{"unknown": 1}'])
def test_a_corrupt_manifest_is_one_line(tmp_path: Path, content: str) -> None:
    folder = checkpoint(tmp_path / "m")
    (folder / MANIFEST).write_text(content)
    with pytest.raises(DataError, match="corrupt") as caught:
        verify_manifest(folder)
    assert "\n" not in str(caught.value)


def test_nothing_to_hash_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such directory"):
        hash_dir(tmp_path / "none")
    with pytest.raises(DataError, match="empty"):
        hash_dir(tmp_path)


def test_a_kept_copy_outlives_its_source_and_is_mended(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "m")
    (folder / "model.safetensors").chmod(0o444)
    kept = keep(folder, tmp_path / "store")
    assert kept.name == hash_dir(folder) and keep(folder, tmp_path / "store") == kept
    assert [path.name for path in (tmp_path / "store").iterdir()] == [kept.name]
    (kept / "model.safetensors").write_bytes(b"rot")
    with pytest.raises(DataError, match="damaged"):
        verify_kept(kept)
    assert verify_kept(keep(folder, tmp_path / "store")) == kept
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    assert verify_manifest(verify_kept(kept)).git_commit == "c"
