"""The gateway's process: what it listens on, and one line for what is wrong."""

import logging
import resource
import subprocess
import sys
from pathlib import Path
from typing import TextIO, cast

import pytest

from orchestra.serving import __main__ as process
from orchestra.serving.__main__ import LogHandler, main
from orchestra.serving.releases.state import write
from tests.support.serving_world import backend, params
from tests.support.worlds import ROOT


def released(root: Path, **deploy: object) -> None:
    raw = params(**deploy).model_dump(mode="json", by_alias=True)
    write(root, backend(root).serving.model_copy(update={"params": raw}))


def refused(root: Path, *arguments: str) -> str:
    with pytest.raises(SystemExit) as caught:
        main(["--root", str(root), *arguments])
    line = str(caught.value)
    assert line.startswith("Error: ") and "\n" not in line
    return line


@pytest.mark.parametrize("host", ["localhost", "orchestra.example.org", "127.0.0.1:8800", "[::1]"])
def test_a_host_is_an_address(host: str, tmp_path: Path) -> None:
    assert refused(tmp_path, "--port", "0", "--host", host).startswith(f"Error: --host: {host} is no IP address")


def test_without_a_port_that_of_what_is_served_is_needed(tmp_path: Path) -> None:
    assert "nothing was released, so no port is known" in refused(tmp_path)
    released(tmp_path, gateway_port=0)
    assert refused(tmp_path).startswith("Error: deploy.gateway_port: it is 0, so no port is known — --port 8800")


def test_the_settings_hold_unless_the_command_says_otherwise(tmp_path: Path) -> None:
    text = (ROOT / "params.yaml").read_text(encoding="utf-8")
    assert "host: 127.0.0.1" in text
    (tmp_path / "params.yaml").write_text(text.replace("host: 127.0.0.1", "host: 10.9.8.7"), encoding="utf-8")
    assert "10.9.8.7 is open to others" in refused(tmp_path), "before the first release those of params.yaml hold"
    released(tmp_path, host="0.0.0.0", gateway_port=8800)
    assert "0.0.0.0 is open to others" in refused(tmp_path)
    assert "192.0.2.1 is open to others" in refused(tmp_path, "--host", "192.0.2.1")


def test_a_certificate_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "cert.pem").write_text("no certificate", encoding="utf-8")
    released(tmp_path, gateway_port=8800, tls_certificate="cert.pem", tls_key="/none/key.pem")
    assert refused(tmp_path).startswith("Error: deploy.tls_key: /none/key.pem: No such file or directory")
    released(tmp_path, gateway_port=8800, tls_certificate="/none/cert.pem", tls_key="cert.pem")
    assert refused(tmp_path).startswith("Error: deploy.tls_certificate: /none/cert.pem: No such file")
    released(tmp_path, gateway_port=8800, tls_certificate="cert.pem", tls_key="cert.pem")
    assert "cert.pem are no certificate and its key" in refused(tmp_path)


def test_the_process_may_open_all_the_files_that_the_system_grants_it() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    source = (
        "import resource as r, sys; r.setrlimit(r.RLIMIT_NOFILE, (200, r.getrlimit(r.RLIMIT_NOFILE)[1]))\n"
        "from orchestra.serving.__main__ import main\n"
        "try: main(['--root', '/', '--host', 'x'])\n"
        "except SystemExit: print(*r.getrlimit(r.RLIMIT_NOFILE))"
    )
    found = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert found.stdout.split() == [str(hard), str(hard)]


def logged(root: Path, file: Path, mode: str = "a") -> None:
    """A gateway of the workspace writes 100 lines to the file."""
    with file.open(mode, encoding="utf-8") as out:
        handler = LogHandler(cast(TextIO, out), root)
        for number in range(100):
            handler.emit(logging.LogRecord("x", logging.INFO, "", 0, f"line {number} " + "x" * 50, None, None))


@pytest.mark.parametrize("mode", ["a", "w"])
def test_the_log_is_bounded_and_the_one_before_is_kept(
    tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "MAX_LOG", 1000)
    logs = tmp_path / ".state/logs"
    logs.mkdir(parents=True)
    logged(tmp_path, logs / "gateway.log", mode)
    files = sorted(file.name for file in logs.iterdir())
    assert files == ["gateway.log", "gateway.log.1"]
    lines = [line for name in files[::-1] for line in (logs / name).read_text(encoding="utf-8").splitlines()]
    assert all(len((logs / name).read_bytes()) <= 1100 for name in files)
    assert [int(line.split()[1]) for line in lines] == list(range(100 - len(lines), 100)) and len(lines) > 15


def test_no_line_of_a_log_is_lost_that_cannot_be_kept_or_is_not_the_workspaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "MAX_LOG", 1000)
    own, foreign = tmp_path / ".state/logs/gateway.log", tmp_path / "shared.log"
    # Where the copy would be is a folder.
    own.with_name("gateway.log.1").mkdir(parents=True)
    for file in (own, foreign):
        file.write_text("of another program\n", encoding="utf-8")
        logged(tmp_path, file)
        assert len(file.read_text(encoding="utf-8").splitlines()) == 101
    assert {file.name for file in tmp_path.iterdir()} == {".state", "shared.log"}


def test_a_log_is_copied_again_only_when_it_has_grown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk would have every line copy the whole log."""
    tries = []
    monkeypatch.setattr(process, "MAX_LOG", 1000)

    def full(source: str, target: str) -> None:
        tries.append(target)
        raise OSError("No space left on device")

    monkeypatch.setattr("shutil.copyfile", full)
    own = tmp_path / ".state/logs/gateway.log"
    own.parent.mkdir(parents=True)
    logged(tmp_path, own)
    assert 3 <= len(tries) <= 6


def test_a_release_gives_up_the_wait_for_the_gateway_before_that_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deploy = params(drain_s=90).deploy
    assert process._patience_s(tmp_path, deploy, 7) == process._patience_s(tmp_path, None, 7) == 7
    monkeypatch.setattr(process, "succeeded", lambda _: True)
    assert process._patience_s(tmp_path, deploy, 7) > deploy.drain_s


@pytest.mark.parametrize("said", ["0", "-5", "1.5", "long"])
def test_a_grace_that_is_no_number_of_seconds_is_refused(
    said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        process.main(["--root", str(tmp_path), f"--grace-s={said}"])
    assert f"'{said}' is not a whole number of seconds above 0" in capsys.readouterr().err
