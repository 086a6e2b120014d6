"""params.yaml: whatever is wrong in it is said in one line that names the key."""

import copy
import datetime
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from orchestra.config.overrides import _keys
from orchestra.config.renamed import RENAMED, REPLACED
from orchestra.config.schema import Params, load_params, parse_params
from orchestra.errors import ConfigError

ROOT = Path(__file__).parents[3]
GOOD: dict[str, Any] = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))


def edited(dotted: str, value: Any) -> dict[str, Any]:
    raw = copy.deepcopy(GOOD)
    *path, key = dotted.split(".")
    holder = raw
    for part in path:
        holder = holder[part]
    holder[key] = value
    return raw


def test_the_shipped_file_is_valid() -> None:
    assert isinstance(load_params(ROOT / "params.yaml"), Params)


@pytest.mark.parametrize(
    ("key", "value"),
    [("world.price_date", datetime.date(2025, 11, 15)), ("synthesize.price_dates", [datetime.date(2025, 11, 15)])],
)
def test_a_date_without_quotes_is_refused_since_dvc_cannot_keep_it(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match='the date 2025-11-15 stands without quotes: write "2025-11-15"'):
        parse_params(edited(key, value))


@pytest.mark.parametrize("content", [b"\xff\xfe", None], ids=["not text", "a folder"])
def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "params.yaml"
    file.mkdir() if content is None else file.write_bytes(content)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_params(file)


def test_a_key_that_is_there_twice_is_refused_with_both_lines(tmp_path: Path) -> None:
    file = tmp_path / "params.yaml"
    text = (ROOT / "params.yaml").read_text(encoding="utf-8").replace("  seed: 7\n", "  seed: 7\n  seed: 8\n", 1)
    file.write_text(text, encoding="utf-8")
    first = text.splitlines().index("  seed: 7") + 1
    with pytest.raises(ConfigError, match=f"key 'seed' twice, in lines {first} and {first + 1}"):
        load_params(file)


def test_the_environment_may_name_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(yaml.safe_dump(edited("profile", "other")), encoding="utf-8")
    monkeypatch.setenv("ORCHESTRA_PARAMS", str(other))
    assert load_params().profile == "other"


@pytest.mark.parametrize(
    ("dotted", "value", "says"),
    [
        ("sft.epoch", 3, "unknown key sft.epoch"),
        ("extra", 3, "unknown key extra"),
        ("sft.epochs", "three", "sft.epochs"),
        ("sft.epochs", 1.5, "sft.epochs"),
        ("sft.epochs", True, "sft.epochs"),
        ("sft.epochs", 0, "sft.epochs"),
        ("sft.epochs", None, "sft.epochs"),
        ("sft.warmup", 1.0, "sft.warmup"),
        ("grpo.malformed", "maybe", "grpo.malformed"),
        ("grpo.learning_rate", -1.0, "grpo.learning_rate"),
        ("grpo.learning_rate", "1e-4", "(got '1e-4') — write 1.0e-4: YAML reads it as a text without the point"),
        ("grpo.learning_rate", "fast", "(got 'fast') — fix it"),
        ("grpo.learning_rate", None, "(got None) — fix it"),
        ("grpo.group_size", 1, "grpo.group_size"),
        ("grpo.processes", 3, "16 examples_per_step cannot be shared by 3 processes"),
        ("grpo.strategy", "zero3", "set optimizer to adamw"),
        ("grpo.attention", "flash_attention_2", "set precision to bfloat16"),
        ("synthesize.mix", {"arithmetic": 0.5}, "mix adds up to 0.5"),
        ("synthesize.mix", {"poetry": 1.0}, "synthesize.mix"),
        ("deploy.host", "example.org", "no IP address"),
        ("deploy.hosts", ["https://a.example.org"], "write the name alone"),
        ("deploy.hosts", ["a.example.org:443"], "write the name alone"),
        ("deploy.hosts", ["a.example.org/v1"], "write the name alone"),
        ("deploy.hosts", ["a b"], "write the name alone"),
        ("deploy.gateway_port", 99999, "deploy.gateway_port"),
        ("world", None, "world"),
        ("world.price_date", "2025-99-99", "world.price_date"),
        ("synthesize.experts_per_toolbox", [5, 3], "experts_per_toolbox begins at 5 and ends at 3"),
        ("synthesize.seed", -1, "synthesize.seed"),
        ("synthesize.extra", [{"file": "mine/a.jsonl"}], "must be a file below data/extra; put it there and name it"),
        ("grpo.difficulty_file", "data/extra/a.csv", "must be a file below data/extra"),
        ("grpo.difficulty_file", "data/extra/a.jsonl", "chooses nothing without difficulty_range: set both"),
        ("evaluate.bootstrap", 10**12, "evaluate.bootstrap"),
        ("deploy.start_timeout_s", 10**9, "deploy.start_timeout_s"),
    ],
)
def test_a_wrong_value_is_one_line_with_its_key(dotted: str, value: Any, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_params(edited(dotted, value))
    line = str(caught.value)
    assert says in line and line.startswith("params.yaml") and len(line.splitlines()) == 1


def test_every_key_of_an_older_version_is_told_by_its_name_now() -> None:
    raw = edited("grpo.deciding", 0.2)
    raw["grpo"] |= {"band": [0.1, 0.9], "wrong": 1}
    raw["promote"]["min_accuracy_gain"] = 0.0
    with pytest.raises(ConfigError) as caught:
        parse_params(raw)
    for said in (
        "grpo.deciding is called grpo.top_entropy_quantile now",
        "grpo.band is called grpo.difficulty_range now",
        "promote.min_accuracy_gain is gone; in its place: promote.accuracy_gain",
        "unknown key grpo.wrong",
        "write the new name; ",
        "; remove it or check its spelling",
    ):
        assert said in str(caught.value)
    raw = edited("extra", 1) | {f"more{number}": 1 for number in range(20)}
    with pytest.raises(ConfigError, match=r"unknown key more6, 13 more — remove it or check its spelling$"):
        parse_params(raw)


def test_the_names_of_today_are_keys_and_the_old_ones_are_not() -> None:
    assert not {*RENAMED, *REPLACED} & {*_keys(Params)} and {*RENAMED.values()} <= {*_keys(Params)}
    assert {key for instead in REPLACED.values() for key in re.split(", | and ", instead)} <= {*_keys(Params)}


OPTIONAL = ("budget", "retraining", "storage")


@pytest.mark.parametrize("section", [key for key in GOOD if isinstance(GOOD[key], dict) and key not in OPTIONAL])
def test_a_missing_section_is_named(section: str) -> None:
    raw = {key: value for key, value in GOOD.items() if key != section}
    with pytest.raises(ConfigError, match=section):
        parse_params(raw)


@pytest.mark.parametrize(
    "text", ["[1, 2]", "just words", "", "a: [", "a: b: c", "a: 2020-99-99", "2020-01-01: a", "a: &a [*a]"]
)
def test_a_file_that_is_no_mapping_is_one_line(text: str, tmp_path: Path) -> None:
    file = tmp_path / "params.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_params(file)
    assert len(str(caught.value).splitlines()) == 1


def test_no_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load_params(tmp_path / "params.yaml")


def test_whole_numbers_are_taken_for_floats_but_not_the_other_way() -> None:
    assert parse_params(edited("grpo.temperature", 1)).grpo.temperature == 1.0


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(junk)
def test_no_document_raises_anything_else(raw: Any) -> None:
    with pytest.raises(ConfigError):
        parse_params(raw)


@given(st.sampled_from([(s, k) for s, v in GOOD.items() if isinstance(v, dict) for k in v]), junk)
def test_no_value_raises_anything_else(where: tuple[str, str], value: Any) -> None:
    raw = copy.deepcopy(GOOD)
    raw[where[0]][where[1]] = value
    try:
        assert isinstance(parse_params(raw), Params)
    except ConfigError as error:
        assert len(str(error).splitlines()) == 1


SWITCHES: list[tuple[str, Any]] = [
    ("published", True), ("unit", "example"), ("unit_ceiling", 3.0), ("among", "solved"), ("homogeneity", "part"),
    ("scale", "none"), ("batch_normalise", True), ("liked", "use"), ("weights", {}),
    ("constraint", {"usd": {"cheap": 0.01}}), ("branch", {"at": "expert"}),
    ("branch", {"at": "word", "words": ["a", "b"]}), ("budget_share", 0.5), ("num_iterations", 2),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), SWITCHES)
def test_every_switch_of_the_reward_is_a_parameter_of_grpo(name: str, value: Any) -> None:
    assert getattr(parse_params(edited(f"grpo.{name}", value)).grpo, name) is not None
    assert name in GOOD["grpo"], "--set changes keys that are there"


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("scale", "std", "scale"),
        ("unit_ceiling", 0.5, "unit_ceiling"),
        ("unit_ceiling", float("inf"), "unit_ceiling"),
        ("constraint", {"usd": {"cheap": 0.0}}, "constraint.usd.cheap"),
        ("constraint", {"usd": {}}, "constraint.usd"),
        ("branch", {"at": "word"}, "names the words"),
        ("branch", {"at": "expert", "words": ["a", "b"]}, "names the words"),
        ("branch", {"at": "word", "words": ["a", "a"]}, "each once"),
        ("budget_share", 1.5, "budget_share"),
        ("num_iterations", 0, "num_iterations"),
        ("num_iterations", 7, "multiples of num_iterations, 7"),
    ],
)
def test_a_switch_that_says_nothing_clear_is_refused(name: str, value: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_params(edited(f"grpo.{name}", value))


def leaves(raw: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    if isinstance(raw, dict | list):
        for key, inner in raw.items() if isinstance(raw, dict) else enumerate(raw):
            yield from leaves(inner, (*path, key))
    else:
        yield path, raw


LEAVES = list(leaves(GOOD))
NUMBERS = [path for path, value in LEAVES if isinstance(value, int | float) and not isinstance(value, bool)]
TEXTS = [path for path, value in LEAVES if isinstance(value, str)]
ENORMOUS = [math.inf, -math.inf, math.nan, 1e300, -1e300, 10**400, 10**12, -(10**12), -1]
ELSEWHERE = [
    "../../etc", "/etc/passwd", "..", ".", "a/../b", "a//b", "/", "a\n/b", "a\x00b", "x" * 400, "", "..\\x",
    "a/./b", "../x", "\u202e",
]  # fmt: skip
MAY_BE_LOW = {("promote", "accuracy_gain"), ("promote", "saving"), ("deploy", "least_confidence")}
"""-1 is a value of theirs."""


def at(path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    raw = copy.deepcopy(GOOD)
    holder: Any = raw
    for part in path[:-1]:
        holder = holder[part]
    holder[path[-1]] = value
    return raw


@pytest.mark.parametrize("path", NUMBERS, ids=lambda path: ".".join(map(str, path)))
def test_no_number_is_infinite_or_enormous(path: tuple[Any, ...]) -> None:
    for value in ENORMOUS:
        if value == -1 and path in MAY_BE_LOW:
            continue
        with pytest.raises(ConfigError) as caught:
            parse_params(at(path, value))
        assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: ".".join(map(str, path)))
def test_no_text_leads_out_of_the_workspace(path: tuple[Any, ...]) -> None:
    for text in ELSEWHERE:
        with pytest.raises(ConfigError) as caught:
            parse_params(at(path, text))
        assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("name", ["'", '"', "a'b", "a b", "a;b", "a/b", "%", "é", "-x", ".x", "x" * 65])
def test_a_registry_s_name_is_plain(name: str) -> None:
    with pytest.raises(ConfigError, match="model_name"):
        parse_params(edited("promote.model_name", name))


@pytest.mark.parametrize("path", NUMBERS, ids=lambda path: ".".join(map(str, path)))
def test_no_number_is_a_truth_value_a_text_or_a_negative_zero(path: tuple[Any, ...]) -> None:
    for value in (True, False, -0.0, "1", "0.5", [1], {"a": 1}):
        with pytest.raises(ConfigError) as caught:
            parse_params(at(path, value))
        assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("key", [1, 1.5, True, None])
def test_a_key_that_is_no_text_is_refused(key: Any) -> None:
    with pytest.raises(ConfigError, match="is no text"):
        parse_params(GOOD | {"grpo": GOOD["grpo"] | {"weights": {key: 0.5}}})
