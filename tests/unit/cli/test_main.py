"""The CLI as a person meets it: quick, and one line with exit code 2 for whatever is wrong."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from orchestra.cli import pipeline
from orchestra.cli.app import app
from orchestra.errors import ConfigError, OrchestraError
from orchestra.serving.releases.control_channel import close_channel, open_channel
from orchestra.serving.shared.database import STORE, Database
from orchestra.system import servers
from orchestra.system.processes import Service, free_port, remember, start_service, started_at
from orchestra.system.runs import RUNS
from orchestra.system.workspace import locked
from tests.support.endpoint import serving

ROOT = Path(__file__).parents[3]


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    for name in ("params.yaml", "dvc.yaml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def orchestra(
    folder: Path, *arguments: str, said: str | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    env = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(folder), **environment}
    command = [sys.executable, "-m", "orchestra.cli.main", *arguments]
    return subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False, input=said
    )


def error_of(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 2, done.stdout + done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: "), done.stderr
    return lines[0]


def refused(folder: Path, *arguments: str, **environment: str | None) -> str:
    """As `error_of(orchestra(…))`, in this process, in whose place nothing else can be started."""
    with contextlib.chdir(folder), pytest.MonkeyPatch.context() as patch:
        patch.delattr(os, "execv")
        for name in [name for name in os.environ if name.startswith("ORCHESTRA_")]:
            patch.delenv(name)
        done = CliRunner().invoke(app, arguments, env=environment)
    assert isinstance(done.exception, OrchestraError) and done.stderr == "", done.output
    line = f"error: {done.exception}"
    assert line.splitlines() == [line]
    return line


def test_help_names_every_command(tmp_path: Path) -> None:
    done = orchestra(tmp_path, "--help")
    assert done.returncode == 0
    commands = "run learn synthesize status ask stop doctor up release monitor data domains tools mcp"
    for command in commands.split():
        assert f" {command} " in done.stdout


def test_version(tmp_path: Path) -> None:
    assert orchestra(tmp_path, "--version").stdout == "orchestra 0.1.0\n"


def test_another_python_is_told_in_one_line(tmp_path: Path) -> None:
    # Without the packages of an environment, as the system's Python is.
    command = [sys.executable, "-S", "-m", "orchestra.cli.main", "status"]
    env = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert "no package pydantic — make setup, then .venv/bin/orchestra" in error_of(done)


def test_a_clone_without_its_parameters_is_told_so(workspace: Path) -> None:
    (workspace / "docs").mkdir()
    (workspace / "params.yaml").unlink()
    assert "params.yaml: no such file — git checkout params.yaml" in refused(workspace / "docs", "run")
    (workspace / "params.yaml").symlink_to("nowhere")
    assert "params.yaml: the link leads to no file — git checkout params.yaml" in refused(workspace, "ask", "what?")


def test_outside_a_workspace(tmp_path: Path) -> None:
    assert "no workspace here" in error_of(orchestra(tmp_path, "run"))
    for command in ("learn", "synthesize", "status", "stop", "doctor", "up", "monitor"):
        assert "no workspace here" in refused(tmp_path, command)


def test_it_works_from_a_folder_inside(workspace: Path) -> None:
    (workspace / "docs").mkdir()
    assert orchestra(workspace / "docs", "stop").stdout == "nothing runs\n"


def test_an_unknown_parameter_stops_a_run_before_anything_starts(workspace: Path) -> None:
    file = workspace / "params.yaml"
    file.write_text(file.read_text().replace("  epochs:", "  epoch:"))
    assert "unknown key sft.epoch" in refused(workspace, "run", "--set", "sft.seed=1")
    assert not (workspace / ".state").exists()


def test_set_must_name_a_key(workspace: Path) -> None:
    assert "no key sft.sed" in refused(workspace, "run", "--set", "sft.sed=1")


def test_a_stage_that_is_not_there_is_said_before_anything_is_written(workspace: Path) -> None:
    before = (workspace / "params.yaml").read_bytes()
    for option in ("--until", "--force"):
        assert "no stage promte" in refused(workspace, "run", "--set", "sft.seed=1", option, "promte")
    assert (workspace / "params.yaml").read_bytes() == before and not (workspace / ".state").exists()


@pytest.mark.parametrize(
    "words", [("run", "--until", "promote"), ("run", "--force", "deploy"), ("plan", "--from", "promote")]
)
def test_promote_and_deploy_run_each_time(workspace: Path, words: tuple[str, ...]) -> None:
    said = refused(workspace, *words)
    assert "promote and deploy run each time, after evaluate" in said and "one of: synthesize, validate" in said


def test_set_changes_nothing_beside_another_run_or_where_what_it_names_is_missing(workspace: Path) -> None:
    shutil.copytree(ROOT / "data/catalogue", workspace / "data/catalogue")
    before = (workspace / "params.yaml").read_bytes()
    done = orchestra(workspace, "run", "--set", "world.domains=[nope]", "--set", "evaluate.safety=null")
    assert done.returncode == 2 and "no domain named nope" in done.stderr
    with locked(workspace):
        done = orchestra(workspace, "run", "--set", "sft.seed=1")
    assert done.returncode == 2 and "works in this workspace" in done.stderr
    assert (workspace / "params.yaml").read_bytes() == before and not (workspace / ".state/runs").exists()


def test_another_parameter_file_cannot_be_slipped_past_dvc(workspace: Path) -> None:
    assert "ORCHESTRA_PARAMS" in refused(workspace, "run", ORCHESTRA_PARAMS="other.yaml")


def test_stop_ends_those_that_run_of_the_servers_named(workspace: Path) -> None:
    start_service(workspace, "mlflow", ["sleep", "600"], port=0, url="")
    done = orchestra(workspace, "stop", "worker", "mlflow", "gateway")
    assert done.returncode == 0 and "ended mlflow (pid " in done.stdout
    assert "worker: does not run\n" in done.stdout and done.stdout.endswith("gateway: does not run\n")
    said = refused(workspace, "stop", "mlflow", "nope")
    assert said == "error: stop: no server nope — one of: gateway, metrics, mlflow, prefect, vllm, worker"


def test_nothing_to_ask(workspace: Path) -> None:
    assert "nothing serves here" in refused(workspace, "ask", "what?")


def test_a_gateway_that_is_not_there(workspace: Path) -> None:
    assert "http://127.0.0.1:9" in refused(workspace, "ask", "what?", "--url", "http://127.0.0.1:9")


def test_an_address_as_clients_of_openai_write_it(workspace: Path) -> None:
    assert "http://127.0.0.1:9: " in refused(workspace, "ask", "what?", "--url", "http://127.0.0.1:9/v1/")


@pytest.mark.parametrize("url", ["notaurl", "ftp://host", "http://", "http://host:99999", "http://[::1", "http://h:0"])
@pytest.mark.parametrize("command", [("ask", "what?"), ("chat",), ("mcp",)])
def test_an_address_that_is_none_is_said_of_the_option(workspace: Path, command: tuple[str, ...], url: str) -> None:
    with pytest.raises(ConfigError, match=r"^--url: .* is no address — write http://HOST:PORT$"):
        CliRunner().invoke(app, [*command, "--url", url], catch_exceptions=False)


def test_a_chat_of_a_script_fails_with_it(workspace: Path) -> None:
    done = orchestra(workspace, "chat", "--url", "http://127.0.0.1:9", said="hi\n")
    assert "http://127.0.0.1:9: the gateway does not answer" in error_of(done) and "error" not in done.stdout


def test_notify_takes_an_address_or_removes(workspace: Path) -> None:
    assert "exclude each other" in refused(workspace, "notify", "http://x.y", "--remove")
    assert "neither an address nor --remove" in refused(workspace, "notify")


def test_an_option_s_values_are_said_in_one_line(workspace: Path) -> None:
    said = error_of(orchestra(workspace, "schedule", "nightly", "--cron", "0 3 * * *", "--flow", "bogus"))
    assert said == "error: --flow: no flow 'bogus' — one of: retrain, monitor, release"
    assert error_of(orchestra(workspace, "learn", "--split", "bogus")).startswith("error: --split: ")
    shutil.copytree(ROOT / "data/catalogue", workspace / "data/catalogue")
    assert f"error: {workspace}/params.yaml" in error_of(orchestra(workspace, "learn", "--set", "bogus=1"))


def test_an_owner_s_name_steers_no_terminal(workspace: Path) -> None:
    name = "bob\x1b[2J\n" + "x" * 200
    assert orchestra(workspace, "keys", "create", name).returncode == 0
    (line,) = (line for line in orchestra(workspace, "keys", "list").stdout.splitlines() if "bob" in line)
    assert "\x1b" not in line and "…" in line and len(line) < 160


def test_the_workspaces_own_key_is_replaced_once_it_is_revoked(workspace: Path) -> None:
    assert orchestra(workspace, "keys", "create", "bob").returncode == 0
    own = workspace / ".state/operator.key"
    secret = own.read_text()
    assert orchestra(workspace, "keys", "revoke", secret.split("_")[1]).returncode == 0
    assert own.read_text() != secret
    states = [line.split()[-1] for line in orchestra(workspace, "keys", "list").stdout.splitlines()[1:]]
    assert states == ["revoked", "valid", "valid"]


def test_a_backup_names_no_password_of_a_server(workspace: Path) -> None:
    (workspace / ".state").mkdir()
    Database(workspace / STORE).close()
    login = "user:s3cr3t-Pa55"
    where = {"MLFLOW_TRACKING_URI": f"https://{login}@mlflow.example", "PREFECT_API_URL": f"http://{login}@h/api"}
    done = orchestra(workspace, "backup", "kept.tar", **where)
    assert done.returncode == 0 and "mlflow.example" in done.stdout, done.stderr
    assert "s3cr3t" not in done.stdout


def test_a_sweep_refuses_a_wrong_key_before_anything_starts(workspace: Path) -> None:
    assert "no key grpo.stepz — did you mean grpo.steps?" in refused(workspace, "sweep", "--set", "grpo.stepz=1,2")


def test_a_budget_is_an_amount(workspace: Path) -> None:
    assert "--budget" in refused(workspace, "ask", "what?", "--budget", "much")


def test_a_folder_in_place_of_a_file_is_one_line(workspace: Path) -> None:
    assert f"{workspace}: it is a folder" in error_of(orchestra(workspace, "ledger", str(workspace)))
    (workspace / ".state").mkdir()
    Database(workspace / STORE).close()
    assert f"{workspace}: it is a folder" in error_of(orchestra(workspace, "backup", ""))


def test_a_key_has_an_owner(workspace: Path) -> None:
    assert "owner's name" in refused(workspace, "keys", "create", "")
    assert not (workspace / ".state").exists()


def test_a_busy_port_is_said_and_nothing_is_started(workspace: Path) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        port = sock.getsockname()[1]
        done = orchestra(workspace, "up", "--prefect-port", str(port))
    assert f"port {port} is taken" in error_of(done)
    assert not list(workspace.glob(".state/*.pid.json"))


def test_up_ends_in_prefect_what_its_own_server_missed(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, bool]] = []
    monkeypatch.chdir(workspace)
    monkeypatch.setattr(pipeline, "hand_over", lambda module, *, catch_up: told.append((module, catch_up)))
    monkeypatch.setattr(servers, "start", lambda *_, **__: iter(()))
    monkeypatch.setattr(servers, "prefect_client", lambda _root: {servers.PREFECT_URL: "http://127.0.0.1:4200/api"})
    for own, on_record in ((True, False), (False, True), (True, True)):
        monkeypatch.setattr(servers, "owns_prefect", lambda *_, own=own: own)
        if on_record:
            (workspace / RUNS).mkdir(parents=True, exist_ok=True)
            (workspace / RUNS / "a.json").write_text("{}")
        assert CliRunner().invoke(app, ["up"]).exit_code == 0
        assert told == ([("flows.schedule", True)] if own and on_record else [])


def test_stop_ends_what_runs_and_nothing_else(workspace: Path) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    made = start_service(workspace, "demo", command, port=1, url="http://127.0.0.1:1")
    assert "no server nothere — one of: demo, gateway" in refused(workspace, "stop", "nothere")
    assert orchestra(workspace, "stop").stdout == f"ended demo (pid {made.pid})\n"
    assert started_at(made.pid) is None or not made.running


def test_doctor_names_what_is_missing_and_what_mends_it(workspace: Path) -> None:
    done = orchestra(workspace, "doctor", "--json")
    found = {finding["what"]: finding for finding in json.loads(done.stdout)}
    assert done.returncode == 1
    assert found["git"]["level"] == "error" and "git init" in found["git"]["fix"]
    assert found["params.yaml"]["level"] == "ok" and found["python"]["level"] == "ok"
    assert found["data/catalogue/tools.yaml"]["level"] == "error"
    assert found["vllm"]["fix"] == "make setup-vllm"
    assert all(finding["fix"] for finding in found.values() if finding["level"] != "ok")


def test_surroundings_that_libraries_cannot_use_are_refused_and_told_by_doctor(workspace: Path) -> None:
    odd = Path(shutil.copytree(workspace, workspace / "50% off?"))
    for folder, environment, what in ((odd, {}, "folder"), (workspace, {"SSL_CERT_FILE": "/gone"}, "SSL_CERT_FILE")):
        named = str(odd) if folder == odd else what
        assert named in error_of(orchestra(folder, "run", **environment))
        for command in ("status", "up"):
            assert named in refused(folder, command, **environment)
        done = orchestra(folder, "doctor", "--json", **environment)
        assert done.returncode == 1 and [one["what"] for one in json.loads(done.stdout)] == [what]
        flow = [sys.executable, "-m", "flows", "retrain"]
        env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
        error_of(subprocess.run(flow, cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False))
        assert not (folder / ".state").exists()


def test_doctor_tells_a_port_of_ours_from_a_strangers(workspace: Path) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        port = sock.getsockname()[1]
        file = workspace / "params.yaml"
        file.write_text(file.read_text().replace("gateway_port: 8800", f"gateway_port: {port}"))
        for ours, says in ((False, "taken by another program"), (True, "ours: gateway")):
            if ours:
                remember(workspace, Service("gateway", os.getpid(), started_at(os.getpid()) or "", port, "", ""))
            assert f"port {port}: {says}" in orchestra(workspace, "doctor").stdout


def test_doctor_names_gateways_that_were_started_by_hand_at_whichever_port(workspace: Path) -> None:
    elsewhere = free_port()
    for port in (8800, elsewhere):
        open_channel(workspace, "http://127.0.0.1:1", f"http://127.0.0.1:{port}")
        told = f"port {port}: ours: gateway, started by hand (process {os.getpid()})"
        assert told in orchestra(workspace, "doctor").stdout
    close_channel(workspace)


def test_no_restore_beside_a_gateway_that_was_started_by_hand(workspace: Path) -> None:
    Database(workspace / STORE).close()
    assert orchestra(workspace, "backup", "kept.tar").returncode == 0
    open_channel(workspace, "http://127.0.0.1:1", "http://127.0.0.1:2")
    said = error_of(orchestra(workspace, "restore", "kept.tar"))
    assert f"the gateway at http://127.0.0.1:2 runs — end it as it was started (process {os.getpid()})" in said
    close_channel(workspace)
    assert orchestra(workspace, "restore", "kept.tar").returncode == 0


def test_examples_as_many_as_asked_for_where_asked_for(workspace: Path) -> None:
    for part in ("catalogue", "domains/mock"):
        shutil.copytree(ROOT / "data" / part, workspace / "data" / part)
    before = (workspace / "params.yaml").read_bytes()
    (workspace / "elsewhere").mkdir()
    options = ["--examples", "12", "--out", "set", "--workers", "1", "--seed", "3"]
    options += ["--set", "world.domains=[mock]", "--set", "synthesize.mix={topic: 0.8, lookup: 0.2}"]
    done = orchestra(workspace / "elsewhere", "synthesize", *options)
    assert done.returncode == 0, done.stderr
    assert "synthesize: 12/12 examples (100%)" in done.stdout
    card = json.loads((workspace / "elsewhere" / "set" / "card.json").read_text())
    assert card["seed"] == 3 and sum(card["counts"].values()) == 12 and card["domains"] == ["mock"]
    assert (workspace / "params.yaml").read_bytes() == before and not (workspace / "data/generated").exists()


def test_one_says_how_many_workers_once(workspace: Path) -> None:
    said = refused(workspace, "synthesize", "--workers", "2", "--runner", "processes:2")
    assert "--workers and --runner exclude each other" in said


@pytest.fixture
def with_domains(workspace: Path) -> Path:
    for name in ("data/catalogue", "data/domains/mock", "models/recipes/embedded"):
        shutil.copytree(ROOT / name, workspace / name)
    shutil.copy(ROOT / "data/licences.yaml", workspace / "data")
    return workspace


def test_domains_examples_by_rule_and_harder_ones(with_domains: Path) -> None:
    options = ("--solver", "none", "--version", "out")
    done = orchestra(with_domains, "domains", "examples", "mock", "--count", "8", *options)
    assert done.stdout.splitlines() == ["8 kept, 0 refused", "in out"], done.stderr
    done = orchestra(with_domains, "domains", "examples", "mock", "--evolve", "--count", "5", *options)
    assert done.stdout.startswith("5 kept, 0 refused"), done.stderr
    rows = (with_domains / "out/mock-train-evolved.jsonl").read_text().splitlines()
    assert all(json.loads(row)["provenance"]["parent"] for row in rows)
    assert "ended early" in orchestra(with_domains, "domains", "examples", "mock", "--count", "999", *options).stdout


def test_a_model_writes_examples_and_plays_their_users(with_domains: Path) -> None:
    """Over a double: one task with a fact that only the user knows, which the solver has to ask for."""
    written = {
        "instruction": "Hello, a reader (ask me which) pays the fine; how much is it?",
        "category": "change",
        "calls": [{"tool": "pay_fine", "arguments": {"reader": "Palla"}}],
        "communicate": ["5"],
        "answer": "It is 5.",
        "facts": {"reader": "Palla"},
    }

    def plays(request: dict[str, Any]) -> Any:
        return written if "response_format" in request else "It is Palla"

    options = ["--count", "1", "--model", "m-1", "--price", "openai/gpt-5-mini", "--model-user", "--version", "out"]
    with serving(plays) as double:
        address = {"ORCHESTRA_WRITER_URL": double.url}
        done = orchestra(with_domains, "domains", "examples", "mock", *options, **address)
        users = [request for request in double.asked if "response_format" not in request]
    assert done.stdout.startswith("1 kept, 0 refused"), done.stdout + done.stderr
    assert "mock-train: 1/1 written (100%)" in done.stderr
    assert users and all("the reader is Palla" in request["messages"][0]["content"] for request in users)
    (row,) = (with_domains / "out/mock-train.jsonl").read_text().splitlines()
    assert json.loads(row)["user"]["facts"] == {"reader": "Palla"} and 0 < json.loads(row)["difficulty"] <= 1
    charged = [json.loads(line)["component"] for line in (with_domains / "out/ledger.jsonl").read_text().splitlines()]
    assert charged.count("generator") == 1 and charged.count("user_simulator") == len(users)


def test_examples_whose_licence_is_not_on_the_list_are_refused(with_domains: Path) -> None:
    (with_domains / "data/licences.yaml").write_text("licences:\n  - {id: MIT}\n", encoding="utf-8")
    done = orchestra(
        with_domains, "domains", "examples", "mock", "--count", "3", "--solver", "none", "--version", "out"
    )
    assert "0 kept, 3 refused" in done.stdout and "3 x the licence Apache-2.0 is not on the list" in done.stdout


def test_domains_says_what_is_wrong(with_domains: Path) -> None:
    said = refused(with_domains, "domains", "check", "mock")
    assert "data/domains/mock: no intent calls find_books — write an intent in intents.yaml, or remove" in said
    assert "no domain nowhere" in refused(with_domains, "domains", "examples", "nowhere")
    writing = ("domains", "write", "library", "--subject", "books and readers", "--model", "m", "--price")
    assert "ORCHESTRA_WRITER_URL is not set" in refused(
        with_domains, *writing, "openai/gpt-5", ORCHESTRA_WRITER_URL=None
    )
    assert "no price" in refused(with_domains, *writing, "nobody/nothing")
    assert "--cap-usd" in refused(with_domains, *writing, "openai/gpt-5", "--cap-usd", "much")
    examples = ("domains", "examples", "mock")
    assert "--price" in refused(with_domains, *examples, "--model", "m")
    assert "--model-user" in refused(with_domains, *examples, "--model-user")
