"""What a workspace is called among others, and its surroundings: path, certificates and repository."""

import fcntl
import os
import shutil
import socket
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import certifi
import pytest

from orchestra.errors import ConfigError, ServiceError
from orchestra.system import workspace
from orchestra.system.workspace import (
    CERTIFICATES,
    ID,
    LOCK,
    WORKERS_RUN,
    after_run,
    check_proxies,
    check_surroundings,
    git_refusal,
    locked,
    workspace_id,
)
from tests.support.worlds import ROOT


@pytest.fixture(autouse=True)
def without_certificates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CERTIFICATES, raising=False)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("a?b", r"the character \?"),
        ("a%20b", "the character %"),
        ("""q'u"o""", "both kinds of quotes"),
        ("m\udcfc", "cannot be read here"),
    ],
)
def test_a_path_that_libraries_cannot_hold_is_refused(name: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as refused:
        check_surroundings(Path("/work") / name)
    assert str(refused.value).encode() and "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["a b", "it's", 'an "inch"', "ünï", "a#b", "[x]", "a&b;c"])
def test_other_paths_are_not(name: str) -> None:
    check_surroundings(Path("/work") / name)


def test_certificates_that_are_none_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "notes").write_text("no certificate")
    for file, why in ((tmp_path / "gone.pem", "No such file"), (tmp_path / "notes", "no certificate or crl found")):
        monkeypatch.setenv(CERTIFICATES, str(file))
        with pytest.raises(ConfigError, match=f"SSL_CERT_FILE: {file} is no file of certificates: .*{why}.* — unset"):
            check_surroundings(tmp_path)
    for good in ("", certifi.where()):
        monkeypatch.setenv(CERTIFICATES, good)
        check_surroundings(tmp_path)


def test_a_socks_proxy_without_its_package_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    found = dict[str, object]()
    monkeypatch.setattr(workspace, "find_spec", found.get)
    monkeypatch.setenv("ALL_PROXY", "http://proxy.example:3128")
    check_proxies()
    monkeypatch.setenv("ALL_PROXY", "socks5h://user:password@proxy.example:1080")
    with pytest.raises(ConfigError, match="ALL_PROXY: it is a SOCKS proxy") as refused:
        check_proxies()
    assert "password" not in str(refused.value)
    for hosts, used in (("*", False), ("localhost, *", False), ("*.example.com", True)):
        monkeypatch.setenv("no_proxy", hosts)
        with pytest.raises(ConfigError, match="SOCKS") if used else nullcontext():
            check_proxies()
    found["socksio"] = object()
    check_proxies()


def test_why_git_tells_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "a b"
    root.mkdir()
    what, fix = git_refusal(root) or ("", "")
    assert what == "this folder is not a repository" and fix.startswith("git init")
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    assert git_refusal(root) is None
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    what, fix = git_refusal(root) or ("", "")
    assert "belongs to another user" in what and fix == f"git config --global --add safe.directory '{root}'"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_refusal(root) == ("not installed", "sudo apt-get install git")


def test_a_container_with_another_host_name_is_the_same_workspace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = workspace_id(tmp_path)
    monkeypatch.setattr(socket, "gethostname", lambda: "another")
    assert workspace_id(tmp_path) == found and (tmp_path / ID).stat().st_mode & 0o777 == 0o600


def test_a_copy_has_an_id_of_its_own_also_at_the_same_path_of_another_machine(tmp_path: Path) -> None:
    place, copy, moved = tmp_path / "a", tmp_path / "b", tmp_path / "c"
    found = workspace_id(place)
    shutil.copytree(place, copy)
    place.rename(moved)
    others = {workspace_id(copy), workspace_id(moved), workspace_id(place)}  # The last is another machine's own.
    shutil.rmtree(place)
    shutil.copytree(moved, place)
    assert len({found, *others, workspace_id(place)}) == 5
    shutil.rmtree(place)
    moved.rename(place)
    assert workspace_id(place) == found


SAYS = """
import sys
from orchestra.system.workspace import Screen
sys.stdin.read()
for line in ("sft: step 1", "sft: step 2"):
    Screen()(line)
open("done", "w").close()
"""


@pytest.mark.parametrize("by_worker", [True, False])
def test_a_run_goes_on_without_the_worker_that_started_it(tmp_path: Path, by_worker: bool) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT)} | ({WORKERS_RUN: "a"} if by_worker else {})
    pipe = subprocess.PIPE
    child = subprocess.Popen(
        [sys.executable, "-c", SAYS], cwd=tmp_path, env=env, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL
    )
    assert child.stdin is not None and child.stdout is not None
    child.stdout.close()  # Its reader was killed.
    child.stdin.close()
    child.wait()
    assert (tmp_path / "done").exists() is by_worker


def test_what_comes_after_a_run_is_done_when_its_lock_is_free_however_it_ends(tmp_path: Path) -> None:
    done: list[bool] = []

    def look() -> None:
        with (tmp_path / LOCK).open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            done.append(True)

    with pytest.raises(ValueError, match="it fails"), locked(tmp_path):
        with locked(tmp_path):
            after_run(tmp_path, look)
        assert not done, "the outermost holder gives it back"
        raise ValueError("it fails")
    assert done == [True]
    after_run(tmp_path, look)
    assert done == [True, True], "without a lock there is nothing to wait for"


def test_the_lock_is_held_alone_and_its_file_names_its_holder_alone(tmp_path: Path) -> None:
    (tmp_path / LOCK).parent.mkdir()
    (tmp_path / LOCK).write_text("99999999")  # A run that ended.
    with locked(tmp_path), (tmp_path / LOCK).open() as file:
        assert file.read() == str(os.getpid())
        with pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    with (tmp_path / LOCK).open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(ServiceError, match=f"a run with pid {os.getpid()} works in this workspace"):
            locked(tmp_path).__enter__()
