"""The failure vocabulary: one line for people, and whose fault."""

import base64
import html
import json
import random
import string
import subprocess
import sys
from collections.abc import Callable
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra import errors
from orchestra.errors import (
    CallError,
    ConfigError,
    DataError,
    Fault,
    JudgeError,
    OrchestraError,
    ServiceError,
    ToolError,
    without_secrets,
)
from orchestra.system.environment import required


def test_a_message_says_where_what_and_what_to_do() -> None:
    error = ConfigError("unknown key sft.epoch", where="params.yaml", fix="remove it")
    assert str(error) == "params.yaml: unknown key sft.epoch — remove it"
    assert (error.what, error.where, error.fix) == ("unknown key sft.epoch", "params.yaml", "remove it")


def test_where_and_fix_may_be_left_out() -> None:
    assert str(ServiceError("the port is taken")) == "the port is taken"


@given(st.text(), st.text(), st.text())
def test_it_is_one_line_whatever_went_in(what: str, where: str, fix: str) -> None:
    assert len(str(OrchestraError(what, where=where, fix=fix)).splitlines()) <= 1


def test_every_error_names_a_fault() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, OrchestraError)]
    assert len(kinds) > 5
    assert all(isinstance(kind.fault, Fault) and isinstance(kind.retryable, bool) for kind in kinds)


@pytest.mark.parametrize("kind", [ConfigError, errors.DataError, errors.BudgetError])
def test_what_the_caller_did_wrong_is_not_retried(kind: type[OrchestraError]) -> None:
    assert kind.fault is Fault.CALLER and not kind.retryable


def test_a_malformed_call_is_the_models_business_not_a_persons() -> None:
    assert not issubclass(CallError, OrchestraError)


LETTERS = string.ascii_letters + string.digits + "!$%&()*+,;=~^{}|\"'<>"
NAMES = [
    "OPENAI_API_KEY",
    "ORCHESTRA_MODEL_KEY",
    "HF_TOKEN",
    "AWS_SECRET_ACCESS_KEY",
    "ORCHESTRA_SMTP_PASSWORD",
    "PREFECT_API_AUTH_STRING",
]
SPELLINGS: list[Callable[[str], str]] = [
    str,
    lambda secret: json.dumps({"got": secret}),
    lambda secret: quote(secret, safe=""),
    lambda secret: base64.b64encode(f"user:{secret}".encode()).decode(),
    lambda secret: repr(secret),
    lambda secret: html.escape(secret),
]


@pytest.mark.parametrize("seed", range(120))
def test_no_error_says_a_secret_of_the_environment(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever repeats it, by any name, in an address or in none, and however it is spelled."""
    rng = random.Random(seed)
    secret = "".join(rng.choices(LETTERS, k=rng.randint(10, 40)))
    if seed % 3:
        monkeypatch.setenv(rng.choice(NAMES), secret)
    else:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://user:{quote(secret, safe='')}@127.0.0.1:1/")
    spelled = SPELLINGS[seed % len(SPELLINGS)](secret)
    kind = rng.choice([ConfigError, DataError, ServiceError, ToolError, JudgeError])
    error = kind(f"HTTP 401: {spelled}", where=f"tool {spelled}", fix=f"see {spelled}")
    assert secret not in str(error) and spelled not in str(error) and "[secret]" in str(error)
    assert spelled not in without_secrets(f"Traceback:\n  headers={{'x': {spelled}}}\n")


SHORT_LETTERS = string.ascii_letters + string.digits + "!$%&*+,;=~^|"
ECHOES = [
    "refused: {}",
    "got '{}'",
    'password="{}"',
    '{{"key": "{}"}}',
    "key={}, again",
    "({})",
    "{}",
    "login me:{} failed",
]
SHORT_SPELLINGS: list[Callable[[str], str]] = [
    str,
    lambda one: quote(one, safe=""),
    lambda one: json.dumps(one)[1:-1],
    html.escape,
]
WORDS_ECHOED = ["got '{}'", 'password="{}"', '{{"key": "{}"}}', "key={}, again"]


@pytest.mark.parametrize("seed", range(300))
def test_no_error_says_a_short_secret(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four to seven characters: a mixture of them wherever it stands alone, a word or a number as a value."""
    rng = random.Random(seed)
    kind = seed % 3
    letters = (SHORT_LETTERS, string.ascii_lowercase, string.digits)[kind]
    secret = "".join(rng.choices(letters, k=rng.randint(4, 6))) + ("q7" if kind == 0 else "x" if kind == 1 else "")
    secret = secret[-7:]
    if seed % 2:
        monkeypatch.setenv(rng.choice(NAMES), secret)
    else:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://user:{quote(secret, safe='')}@127.0.0.1:1/")
    spelled = rng.choice(SHORT_SPELLINGS)(secret)
    echo = rng.choice(WORDS_ECHOED if kind else ECHOES).format(spelled)
    error = rng.choice([ConfigError, DataError, ServiceError, ToolError, JudgeError])(echo, where=echo, fix=echo)
    assert spelled not in str(error) and str(error).count("[secret]") == 3


@pytest.mark.parametrize("seed", range(100))
def test_a_short_secret_that_is_a_word_spoils_no_line(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths, ports and sentences keep words and numbers that are somebody's password, and parts of words."""
    rng = random.Random(seed)
    word = rng.choice(
        ["data", "model", "train", "mlflow", "8080", "1234", "none", "EMPTY", "test", "sft", "a1", "a1b2"]
    )
    monkeypatch.setenv(rng.choice(NAMES), word)
    monkeypatch.setenv("SOME_ADDRESS", "ssh://git@host/x")
    for line in (
        "{w}/validated/x.jsonl: no such file",
        "{w}s are missing: the {w}",
        "params.yaml:{n}",
        "x{w}y",
        "'git'",
    ):
        text = line.format(w=word if word != "a1b2" else "xa1b2", n=word if word.isdigit() else "12")
        assert str(ConfigError(text)) == text


@pytest.mark.parametrize("name", ["PATH", "HOME", "TOKENIZERS_PARALLELISM", "KEYBOARD", "SSL_KEY", "MONKEY_HOUSE"])
def test_other_variables_are_no_secrets(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "/ordinary words")
    assert str(ConfigError("no such /ordinary words")) == "no such /ordinary words"


FOREIGN = """
import os, sys
os.environ["MLFLOW_TRACKING_URI"] = "http:" + "//user:{secret}@127.0.0.1:9"
from tasks.platform import commands
def main(arguments):
    address = os.environ["MLFLOW_TRACKING_URI"]
    {fails}
commands.run_command(main)
"""
FAILS = {
    "mlflow": "from mlflow.exceptions import MlflowException; raise MlflowException(f'to {address} failed')",
    "requests": "import requests; requests.get(address + '/x', timeout=1)",
    "sqlalchemy": "from sqlalchemy import create_engine; create_engine(address.replace('http', 'nothing'))",
    "httpx": "import httpx; httpx.get(address, timeout=1)",
    "a bug": "raise RuntimeError(address)",
    "a cause": "try:\n        raise RuntimeError(address)\n    except RuntimeError:\n        raise KeyError(address)",
}


@pytest.mark.parametrize("kind", list(FAILS))
def test_what_a_library_raises_ends_in_one_line_without_its_address_s_password(kind: str) -> None:
    secret = "s3cr3t-Pa55word"
    code = FOREIGN.format(secret=secret, fails=FAILS[kind])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode in (1, 2) and secret not in done.stderr + done.stdout
    lines = done.stderr.strip().splitlines()
    assert lines[-1].startswith("error: ")
    if not kind.startswith("a "):
        assert len(lines) == 1


@pytest.mark.parametrize(
    "value", ["sk-ключ", "sk-a b", "sk-a\nb", "sk-a\r\nX: y", "http://h:99999/v1", "http://h:x/", "http://h:0/", "\x7f"]
)
def test_a_key_or_address_that_no_request_can_carry_is_one_line(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", value)
    with pytest.raises(ConfigError, match="SOME_KEY holds") as caught:
        required("SOME_KEY", tool="search")
    assert len(str(caught.value).splitlines()) == 1 and value not in str(caught.value)
