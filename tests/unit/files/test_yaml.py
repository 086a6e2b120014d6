"""YAML within bounds: text made to cost time, room or depth is refused before any value is made."""

import json
import re
import time
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestra.errors import ConfigError
from orchestra.files import yaml as yaml_files
from orchestra.files.yaml import MAX_CHARACTERS, MAX_DEPTH, MAX_VALUES, load_yaml, parse_yaml

ROOT = Path(__file__).parents[3]
PATIENCE_S = 10
"""Processor seconds; each of these texts takes PyYAML alone more, or more memory than there is."""


def merges(levels: int) -> str:
    lines = ["a0: &a0 {x: 1}"] + [f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}" for n in range(1, levels)]
    return "\n".join(lines)


def laughs(levels: int, wide: int) -> str:
    first = f"a0: &a0 [{', '.join(['x'] * wide)}]"
    return "\n".join([first, *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * wide)}]" for n in range(1, levels))])


HOSTILE = {
    "merge keys": merges(30),
    "aliases of aliases": laughs(9, 9),
    "aliases of one long list": f"a: &a [{','.join('x' * 4000)}]\nb: [{','.join(['*a'] * 4000)}]",
    "numbers in sixties": "a: 1" + ":59" * 130_000,
    "numbers in sixties, tagged": f"a: !!int '1{':59' * 130_000}'",
    "fractions in sixties": "a: 1" + ":59" * 130_000 + ".5",
    "a date without an end": f"a: !!timestamp '{'2' * 300_000}'",
    "digits": "a: " + "9" * 300_000,
    "brackets": "[" * 300_000,
    "braces": "{a: " * 90_000,
    "dashes": "- " * 100_000,
    "question marks": "? " * 100_000,
    "a value that holds itself": "a: &a [*a]",
    "a key that holds itself": "&a {*a : 1}",
    "many values": "- a\n" * (MAX_VALUES + 1),
    "many keys": "".join(f"k{n}: v\n" for n in range(MAX_VALUES)),
    "a long text": "#" * (MAX_CHARACTERS + 1),
    "many documents": "---\n" * 90_000,
    "an object": "a: !!python/object/apply:os.system [id]",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_costly_text_is_refused_in_one_line(text: str, tmp_path: Path) -> None:
    file = tmp_path / "params.yaml"
    file.write_text(text, encoding="utf-8")
    began = time.process_time()
    with pytest.raises(ConfigError) as caught:
        load_yaml(file, if_missing="make it")
    assert time.process_time() - began < PATIENCE_S
    assert len(str(caught.value).splitlines()) == 1 and "params.yaml" in str(caught.value)


scalars = st.one_of(st.none(), st.booleans(), st.integers(-(10**9), 10**9), st.text(max_size=8), st.dates())
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
)


@given(value=values)
def test_what_is_within_bounds_is_read_as_ever(value: object) -> None:
    assert parse_yaml(yaml.safe_dump(value)) == value


pieces = st.sampled_from(
    ["a", "&a ", "*a", "<<: ", "- ", "? ", ": ", "[", "]", "{", "}", ",", "\n", " ", "  ", "1:59", "!!int ", "!!set ",
     "!!binary ", "!!omap ", "'", '"', "|", ">", "#", "%", "---\n", "...", "2020-99-99", "0x", "\t", "!!merge "]
)  # fmt: skip


def assert_bounded(text: str) -> None:
    """Read or refused, quickly, and never of more values than the bound."""
    began = time.process_time()
    try:
        found = parse_yaml(text)
    except ValueError:
        found = None
    assert time.process_time() - began < PATIENCE_S
    assert len(json.dumps(found, default=str, skipkeys=True)) < 100 * (len(text) + MAX_VALUES)


@settings(max_examples=400, deadline=None)
@given(parts=st.lists(pieces, max_size=40))
def test_any_text_is_read_or_refused(parts: list[str]) -> None:
    assert_bounded("".join(parts))


@settings(max_examples=60, deadline=None)
@given(parts=st.lists(pieces, min_size=1, max_size=4), times=st.integers(1, 5_000))
def test_any_text_over_and_over_is_read_or_refused(parts: list[str], times: int) -> None:
    assert_bounded("".join(parts) * times)


@pytest.mark.slow
@settings(max_examples=5000, deadline=None)
@given(parts=st.lists(pieces, min_size=1, max_size=6), times=st.integers(1, 30_000))
def test_thousands_of_texts_are_read_or_refused(parts: list[str], times: int) -> None:
    assert_bounded(("".join(parts) * times)[:MAX_CHARACTERS])


def either(text: str) -> str:
    """What the two parsers make of it, which is the same."""
    found = []
    for apart in (yaml_files._APART, re.compile("")):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(yaml_files, "_APART", apart)
            try:
                found.append(repr(parse_yaml(text)))
            except ValueError:
                found.append("refused")
    assert found[0] == found[1]
    return found[0]


mixed = st.sampled_from(
    ["a", "b: ", "- ", "\n", "\n  ", " ", "[", "]", "{", "}", ",", ": ", "? ", "|", "|\n ", ">", ">-\n", "|2-\n", "'",
     '"', " #", "#", "&x ", "*x", "%YAML 1.1\n", "---\n", "...\n", "\t", "\ufeff", "1", "2.5", "~", "\\n", "\\x41", "é",
     "\u2028", "\x85", "\r\n", "\r", "@", "`", "\0", "key: value\n", "  - x\n", "\U0001f600", "''", "\\u263a", "!",
     "<<: "]
)  # fmt: skip


@settings(max_examples=500, deadline=None)
@given(parts=st.lists(mixed, min_size=1, max_size=12))
def test_either_parser_reads_the_same(parts: list[str]) -> None:
    """libyaml takes what PyYAML's own parser and DVC's refuse: a tab, a byte order mark within, `|#`, `{a? }`."""
    either("".join(parts))


@pytest.mark.slow
@settings(max_examples=20_000, deadline=None)
@given(parts=st.lists(mixed, min_size=1, max_size=12))
def test_either_parser_reads_thousands_the_same(parts: list[str]) -> None:
    either("".join(parts))


def test_every_shipped_file_is_within_the_bounds_and_read_by_the_fast_parser() -> None:
    files = [file for folder in ("data", "models") for file in (ROOT / folder).rglob("*.yaml")]
    assert len(files) > 20
    for file in files:
        text = file.read_text(encoding="utf-8")
        assert either(text) != "refused" and not yaml_files._APART.search(text), file


def test_depth_is_counted_in_lists_and_mappings() -> None:
    assert parse_yaml("[" * (MAX_DEPTH - 1) + "1" + "]" * (MAX_DEPTH - 1))
    with pytest.raises(ValueError, match=f"nested more than {MAX_DEPTH} deep"):
        parse_yaml("[" * (MAX_DEPTH + 2) + "]" * (MAX_DEPTH + 2))


ODD = st.one_of(
    st.from_regex(r"[-+]?[1-9][0-9]?(:[0-5][0-9]){1,3}(\.[0-9])?", fullmatch=True),  # sixties
    st.from_regex(r"[-+]?0[0-7]{1,6}", fullmatch=True),  # octal
    st.from_regex(r"[-+]?0x[0-9a-fA-F]{1,6}", fullmatch=True),
    st.from_regex(r"[-+]?0b[01]{1,6}", fullmatch=True),
    st.from_regex(r"[-+]?[1-9]_[0-9_]{1,6}(\.[0-9_]{0,3})?", fullmatch=True),
    st.sampled_from(["yes", "Yes", "YES", "no", "No", "NO", "on", "On", "ON", "off", "Off", "OFF", "=", "<<"]),
    st.from_regex(r"-0{1,3}(\.0{0,3})?", fullmatch=True),
    st.from_regex(r"[-+]?0\.0{1,3}[1-9]e-[4-9][0-9]{2}", fullmatch=True),  # digits that are lost
    st.sampled_from([".inf", "-.inf", "+.INF", ".nan", ".NaN", "1.0e+999", "-1.0e+999"]),
    st.from_regex(r"20[0-9]{2}-1[0-2]-1[0-9][T ]1[0-9]:[0-5][0-9]:[0-5][0-9]( ?Z)?", fullmatch=True),
    st.sampled_from(["!!int '5'", "!!bool yes", "!!float 1", "!!str 5", "! 5", "!x 5", "!!set {a}", "!!null ''"]),
)
PLACES = st.sampled_from(["{}", "a: {}", "- {}", "[1, {}]", "{{a: {}}}", "a:\n  b:\n  - {}", "? {}\n: 1"])


@settings(max_examples=500, deadline=None)
@given(odd=ODD, place=PLACES)
def test_what_readers_read_differently_is_refused_wherever_it_stands(odd: str, place: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_yaml(place.format(odd))
    assert len(str(caught.value).splitlines()) == 1


@settings(max_examples=200, deadline=None)
@given(odd=ODD.filter(lambda odd: not odd.startswith("!")))
def test_in_quotes_it_is_the_text_that_it_is(odd: str) -> None:
    assert parse_yaml(f"a: '{odd}'") == {"a": odd} == parse_yaml(f'a: "{odd}"')


@settings(max_examples=300, deadline=None)
@given(value=st.integers(-(10**12), 10**12) | st.floats(allow_nan=False, allow_infinity=False) | st.booleans())
def test_a_plain_number_is_read_as_it_is(value: float) -> None:
    if value == 0 and str(value).startswith("-"):
        return
    found = parse_yaml(yaml.safe_dump(value))
    assert type(found) is type(value) and found == value


def test_what_dvc_writes_without_quotes_is_text(tmp_path: Path) -> None:
    file = tmp_path / "dvc.lock"
    file.write_text("a: on\nb: 12:30\nc: 5\n", encoding="utf-8")
    assert load_yaml(file, if_missing="", of_dvc=True) == {"a": "on", "b": "12:30", "c": 5}


def test_marks_of_a_merge_are_named(tmp_path: Path) -> None:
    file = tmp_path / "params.yaml"
    file.write_text("profile: a\nsft:\n<<<<<<< HEAD\n  seed: 1\n=======\n  seed: 2\n>>>>>>> other\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"params\.yaml: line 3: marks of a merge \(<<<<<<<\) — keep one side"):
        load_yaml(file, if_missing="")


def test_one_loader_reads_all_yaml() -> None:
    """PyYAML's own loaders take the spellings above; the worker of HLE runs in an environment without orchestra."""
    own = {ROOT / "orchestra/files/yaml.py", ROOT / "orchestra/evaluation/benchmarks/hle/inspect_worker.py"}
    for folder in ("orchestra", "tasks", "flows", "benchmarks", "scripts"):
        for file in set((ROOT / folder).rglob("*.py")) - own:
            text = file.read_text("utf-8")
            if "ruamel" not in text:  # it edits files, which the loader has read before
                assert not re.search(r"yaml\.(safe_|full_|unsafe_)?load(_all)?\(", text), file
