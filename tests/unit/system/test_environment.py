"""The switches that keep every library quiet and offline."""

import gc
import getpass
import os
import platform
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from orchestra.system.environment import GARBAGE, LOGINS, SPINS, SWITCHES, cores, keep_loaded, machine, nameless, quiet
from tests.support.endpoint import idle_proxy, serving
from tests.support.worlds import ROOT

ASKS = """
import sys, urllib.request
from orchestra.system.environment import quiet
quiet()
import httpx, httpx2, requests
url = sys.argv[1]
login = {"Authorization": "Basic secret"}
asked = [urllib.request.urlopen(urllib.request.Request(url, headers=login)).status]
print(*asked, *(client.get(url, headers=login).status_code for client in (httpx, httpx2, requests)))
"""


def test_every_switch_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SWITCHES:
        monkeypatch.delenv(name, raising=False)
    quiet()
    assert {name: os.environ[name] for name in SWITCHES} == SWITCHES


@pytest.mark.parametrize(
    ("told", "spins"),
    [({}, SPINS), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, None)],
)
def test_threads_that_wait_sleep_soon_unless_the_user_says_how_they_wait(
    told: dict[str, str], spins: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        # Set first, so that what `quiet` sets is taken back after the test.
        monkeypatch.setenv(name, told.get(name, ""))
        if name not in told:
            monkeypatch.delenv(name)
    quiet()
    assert os.environ.get("GOMP_SPINCOUNT") == spins


def test_what_the_user_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    quiet()
    assert os.environ["HF_HUB_OFFLINE"] == "0"


@pytest.mark.parametrize(
    ("told", "home", "login"),
    [({}, "/", nameless()), ({"HOME": "/srv", "USER": "ada"}, "/srv", "ada")],
)
def test_libraries_find_a_home_and_a_login_of_a_user_without_an_account(
    told: dict[str, str], home: str, login: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr("pwd.getpwuid", unknown)
    for name in ("HOME", *LOGINS):
        # Set first, so that what `quiet` sets is taken back after the test.
        monkeypatch.setenv(name, told.get(name, ""))
        if name not in told:
            monkeypatch.delenv(name)
    quiet()
    assert (str(Path.home()), getpass.getuser()) == (home, login)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, "127.0.0.1,localhost,::1"),
        ({"NO_PROXY": "intern.example, .corp"}, "intern.example,.corp,127.0.0.1,localhost,::1"),
        ({"no_proxy": "localhost,a", "NO_PROXY": "b"}, "localhost,a,127.0.0.1,::1"),
        ({"no_proxy": ""}, "127.0.0.1,localhost,::1"),
        ({"NO_PROXY": "*"}, "*"),
    ],
)
def test_this_machine_is_asked_past_every_proxy(
    monkeypatch: pytest.MonkeyPatch, before: dict[str, str], after: str
) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, before.get(name, ""))
        if name not in before:
            monkeypatch.delenv(name)
    for _ in range(2):
        quiet()
        assert (os.environ["no_proxy"], os.environ["NO_PROXY"]) == (after, after)
        assert urllib.request.proxy_bypass("127.0.0.1:4200")


def test_a_proxy_receives_nothing_that_is_asked_of_this_machine() -> None:
    """Nor a password: every client that the project and its libraries have, with every variable for proxies."""
    with idle_proxy() as proxies, serving([]) as server:
        server.health = (200, {})
        done = subprocess.run(
            [sys.executable, "-c", ASKS, f"http://127.0.0.1:{server.server_port}/health"],
            cwd=ROOT, env=proxies, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (0, "200 200 200 200\n"), done.stderr


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_character_that_the_output_cannot_show_is_spelled_out(encoding: str) -> None:
    program = "from orchestra.system.environment import quiet; quiet(); print('5 \u00b7 7 \u2192')"
    env = os.environ | {"PYTHONIOENCODING": encoding}
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=env, capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == {"ascii": b"5 \\xb7 7 \\u2192\n", "latin-1": b"5 \xb7 7 \\u2192\n"}[encoding]


def test_garbage_is_looked_for_less_often() -> None:
    try:
        gc.set_threshold(700)
        quiet()
        assert gc.get_threshold()[0] == GARBAGE
    finally:
        gc.set_threshold(GARBAGE)


def test_what_is_loaded_is_passed_over() -> None:
    gc.unfreeze()
    try:
        keep_loaded()
        assert gc.get_freeze_count() > 10_000
    finally:
        gc.freeze()


def test_no_library_may_phone_home() -> None:
    wanted = {
        "DO_NOT_TRACK": "true",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DVC_NO_ANALYTICS": "1",
    }
    assert wanted.items() <= SWITCHES.items()


def test_there_is_a_core() -> None:
    assert cores() >= 1


def test_a_machine_is_told_by_its_processor_and_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    told = "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz: v4\nflags\t\t: fpu sse4_2 avx avx2\n"
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: told)
    assert machine() == f"Some CPU @ 2 GHz: v4, avx2, {cores()} cores"
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: told.replace("avx2", "avx2 avx512f"))
    assert ", avx512f, " in machine()
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "")
    assert machine() == f"{platform.machine()}, {cores()} cores"
