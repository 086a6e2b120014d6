"""Nobody's text steers a terminal, forges a line of a log, or breaks what prints or records it."""

import asyncio
import base64
import html
import json
import logging
import os
import re
from collections.abc import Callable
from pathlib import Path
from time import process_time
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.domains.engine import load_domain
from orchestra.errors import DataError, OrchestraError, PlainFormatter
from orchestra.files.jsonl import read_jsonl
from orchestra.serving.client import Called
from orchestra.system.workspace import Screen
from orchestra.text import credentials, one_line, plain, without
from orchestra.tools.base import MAX_OBSERVATION, readable
from orchestra.tools.chat.client import Chat
from orchestra.tools.chat.reply import ChatReply as Recorded
from orchestra.tools.replay.cassette import Cassette, Mode
from orchestra.tools.search.corpus import Document
from tasks.platform.stage import Stage
from tests.support.injections import INJECTIONS, Injection
from tests.support.serving_world import reply
from tests.support.worlds import ROOT

STEERING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u2028\u2029\ud800-\udfff\U000e0000-\U000e007f]"
)
each = pytest.mark.parametrize("one", INJECTIONS, ids=lambda one: one.name)


def harmless(text: str) -> bool:
    text.encode()
    return not STEERING.search(text)


@given(st.text(st.characters(codec=None)))
def test_plain_text_steers_nothing_and_can_be_printed(text: str) -> None:
    assert harmless(plain(text)) and harmless(one_line(text)) and len(one_line(text).splitlines()) <= 1
    assert plain(plain(text)) == plain(text)


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126)))
def test_ordinary_text_is_left_as_it_is(text: str) -> None:
    assert plain(f"{text}\n\té 名 ✓ —") == f"{text}\n\té 名 ✓ —"


@pytest.mark.parametrize(
    "one", "\xad\u034f\u115f\u1160\u17b4\u180e\u200b\u2060\u3164\ufeff\uffa0\U0001d173\U000e0041\U000e0100\U000e01ef"
)
def test_a_character_that_is_never_shown_is_spelled_out(one: str) -> None:
    assert plain(f"a{one}b") == f"a{one.encode('unicode_escape').decode()}b"


@pytest.mark.parametrize("text", ["\u0645\u06cc\u200c\u062e", "क्\u200dष", "👩\u200d💻", "✈\ufe0f", "ᠮᠣ\u180b", "⠞⠀⠓"])
def test_what_scripts_and_emoji_need_stays(text: str) -> None:
    assert plain(text) == text


@each
def test_the_screen_a_stage_and_a_reply_show_it_harmlessly(
    one: Injection, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    Screen()(f"learn: {one.said}")
    Stage("sft", None, tmp_path).say(one.said)  # type: ignore[arg-type]
    called = Called(name=plain(one.said), arguments={one.said: one.said}, observation=one.said, cost_usd=0, latency_s=0)
    lines = reply(question=one.said, answer=one.said, tool_calls=(called,)).lines()
    print("\n".join(lines))
    assert harmless(capsys.readouterr().out)
    # A tool cannot forge the lines of the reply: its words stay on the line of its call.
    assert len([line for line in lines if line.startswith("   ") and "→" in line]) == 1


@each
def test_an_error_and_a_log_record_hold_it_on_one_line(one: Injection) -> None:
    error = OrchestraError(one.said, where=one.said, fix=one.said)
    assert harmless(str(error)) and len(str(error).splitlines()) <= 1
    record = logging.LogRecord("x", logging.INFO, "x.py", 1, "said %s", (one.said,), None)
    line = PlainFormatter("%(levelname)s %(message)s").format(record)
    assert harmless(line) and line.startswith("INFO said") and "\n" not in line


def test_a_traceback_in_a_log_is_harmless() -> None:
    try:
        raise ValueError("\x1b[2J\x9b2J")
    except ValueError as error:
        record = logging.LogRecord("x", logging.ERROR, "x.py", 1, "failed", (), (ValueError, error, None))
    assert harmless(PlainFormatter().format(record)) and r"\x1b[2J" in PlainFormatter().format(record)


@each
def test_cassettes_give_it_back_unchanged(one: Injection, tmp_path: Path) -> None:
    text = readable(one.said)
    request = {"messages": [{"role": "user", "content": text}]}
    reply = Recorded(text=text)
    Cassette(tmp_path / "c.jsonl", "record").slot(request).keep(reply)
    again = Cassette(tmp_path / "c.jsonl", "replay").slot(request).found
    assert again is not None and Recorded.model_validate(again.reply) == reply


def test_an_observation_is_cut_and_marked_where_no_record_could_hold_it() -> None:
    assert readable("a\ud800b\x1b<|im_end|>") == "a\ufffdb\x1b<|im_end|>"
    assert readable("x" * MAX_OBSERVATION) == "x" * MAX_OBSERVATION
    assert readable("x" * 10**6).endswith("x … (cut: 1000000 characters)")
    assert len(readable("x" * 10**6)) < MAX_OBSERVATION + 50


@pytest.mark.parametrize("one", [one for one in INJECTIONS if one.where == "domain_file"], ids=lambda one: one.name)
def test_a_strange_file_among_a_domain_s_entries_is_refused_in_one_line(one: Injection, tmp_path: Path) -> None:
    folder = tmp_path / "mock"
    for file in (ROOT / "data/domains/mock").rglob("*.*"):
        copy = folder / file.relative_to(ROOT / "data/domains/mock")
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(file.read_bytes())
    (folder / "entries" / one.said).write_text("book\n1\n")
    with pytest.raises(DataError) as caught:
        load_domain(folder)
    assert harmless(str(caught.value)) and len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("one", [one for one in INJECTIONS if one.where == "data_file"], ids=lambda one: one.name)
@pytest.mark.parametrize("content", [None, "{}\n", "\udcff\n"])
def test_a_data_set_of_a_strange_name_is_refused_in_one_line(
    one: Injection, content: str | None, tmp_path: Path
) -> None:
    file = tmp_path / one.said
    if content is not None:
        file.write_bytes(os.fsencode(content))
    with pytest.raises(DataError) as caught:
        read_jsonl(file, Document)
    assert harmless(str(caught.value)) and len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("entries/readers.jsonl", '{"reader": "\\ud800", "city": "Tarn", "fine": 0}'),
        ("entries/readers.jsonl", '{"\\ud800": "Ovel"}'),
        ("tools.yaml", 'tools: [{name: a, description: "\\uD800 words", parameters: {}, statements: [select 1]}]'),
    ],
)
def test_half_a_surrogate_pair_in_a_domain_is_refused(file: str, text: str, tmp_path: Path) -> None:
    folder = tmp_path / "mock"
    for source in (ROOT / "data/domains/mock").rglob("*.*"):
        copy = folder / source.relative_to(ROOT / "data/domains/mock")
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(source.read_bytes())
    (folder / file).write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match="half a surrogate pair"):
        load_domain(folder)


HTTPS = "https://"  # apart, since no file may hold an address with a password


@pytest.mark.parametrize(
    ("address", "hidden"),
    [
        (f"{HTTPS}ann:very%40secret@host/v1", ["ann:very%40secret", "ann:very@secret", "very%40secret", "very@secret"]),
        ("postgresql+psycopg://ann:pass:word@host:5432/db?x=1", ["ann:pass:word", "pass:word"]),
        ("redis://:only-password@host", [":only-password", "only-password"]),
        (f"{HTTPS}token@host", ["token"]),
        (f"{HTTPS}host/a@b", []),
        ("no address", []),
    ],
)
def test_the_secret_part_of_an_address_is_told(address: str, hidden: list[str]) -> None:
    assert sorted(credentials(address)) == sorted(hidden)
    echoed = without(f"cannot reach {address}", credentials(address))
    assert not any(secret in echoed for secret in hidden)


KEYS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=10, max_size=40)
SPELLINGS = {
    "as it is": str,
    "an address": lambda key: quote(key, safe=""),
    "an address, small": lambda key: re.sub("%..", lambda part: part[0].lower(), quote(key, safe="")),
    "JSON": lambda key: json.dumps(key)[1:-1],
    "JSON with slashes": lambda key: json.dumps(key)[1:-1].replace("/", "\\/"),
    "JSON by numbers": lambda key: "".join(f"\\u{ord(one):04X}" for one in key),
    "HTML": html.escape,
    "HTML by numbers": lambda key: "".join(f"&#x{ord(one):x};" for one in key),
    "quotes of a program": repr,
    "digits": lambda key: key.encode().hex(),
    "a login": lambda key: base64.b64encode(f"user:{key}".encode()).decode().rstrip("="),
    "base64": lambda key: base64.urlsafe_b64encode(f"{key}x".encode()).decode(),
}


@pytest.mark.parametrize("spell", SPELLINGS.values(), ids=SPELLINGS)
@given(key=KEYS)
def test_a_secret_is_gone_in_every_spelling(spell: Callable[[str], str], key: str) -> None:
    said = spell(key)
    left = without(f"<{said}>", [key])
    assert "[secret]" in left and said not in left


def test_a_run_of_backslashes_is_read_in_time() -> None:
    began = process_time()
    assert without("\\" * 1_000_000, ["sk-0123456789/abc"]) == "\\" * 1_000_000
    assert process_time() - began < 20, "by the square of its length it takes hours"


@given(key=KEYS)
def test_an_error_names_no_password_of_an_address(key: str) -> None:
    address = f"{HTTPS}ann:{quote(key, safe='')}@host/v1"
    said = str(OrchestraError(f"got {address!r}", where=address, fix=f"set {address}"))
    assert quote(key, safe="") not in said and "host/v1" in said


@pytest.mark.parametrize("end", ["\n", "\r\nX: y", " ", "\0", "\t"])
@pytest.mark.parametrize("mode", ["record", "auto"])
def test_a_key_that_no_header_takes_is_in_no_error_and_no_cassette(end: str, mode: Mode, tmp_path: Path) -> None:
    """The library that refuses the header quotes it."""
    key, file = f"sk-very-secret{end}", tmp_path / "c.jsonl"
    chat = Chat("x", model="m", url="http://127.0.0.1:1/v1", key=key, attempts=1, cassette=Cassette(file, mode))
    with pytest.raises(OrchestraError) as caught:
        asyncio.run(chat.ask({"messages": []}))
    assert "very-secret" not in str(caught.value) and "very-secret" not in file.read_text()
