"""The import: what a server says is in the catalogue afterwards, all else is as it was; nothing goes half way."""

import json
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestra.errors import ConfigError
from orchestra.tools.catalogue.import_mcp import Freezer
from orchestra.tools.mcp.spec import McpServer, ToolOffer
from orchestra.types import Component, ToolKind
from tests.support.generated import seeds
from tests.support.mcp_world import SMALL, freezer, load

SERVER = McpServer(command=("serve", "--all"), env={"TOKEN": "${SOME_TOKEN}"})
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}


def offer(name: str, words: str = "reads a file", schema: dict[str, Any] = SCHEMA) -> dict[str, ToolOffer]:
    return {name: ToolOffer(name=name, description=words, parameters=schema)}


def texts(made: Freezer) -> tuple[str, str]:
    return made.catalogue_path.read_text(encoding="utf-8"), made.prices_path.read_text(encoding="utf-8")


def test_an_import_adds_a_few_lines_and_changes_no_other(tmp_path: Path) -> None:
    made = freezer(tmp_path)
    before = texts(made)
    said = made.freeze("files", SERVER, offer("read_file"), [], per_call=Decimal("0.001"), latency_s=0.4)
    assert said == [
        "server files: serve --all",
        "read_file: added",
        "price mcp/files: 0.001 USD a call from 2025-11-15 (assumed)",
    ]
    for old, new in zip(before, texts(made), strict=True):
        kept = iter(new.splitlines())
        assert all(line in kept for line in old.splitlines()), "a line was lost or moved"
    catalogue = load(made)
    entry, spec = catalogue.entry("read_file"), catalogue.spec("read_file")
    assert (entry.kind, entry.component, entry.implementation) == (ToolKind.BASIC, Component.MCP, "mcp")
    assert (spec.description, spec.parameters, spec.latency_s) == ("reads a file", SCHEMA, 0.4)
    assert spec.call_usd == Decimal("0.001") and catalogue.mcp_servers == {"files": SERVER}
    # Basic tools stay together, before the experts.
    assert catalogue.names(ToolKind.BASIC) == ["calculator", "search", "python", "read_file"]
    assert list(catalogue.entries)[4] == "gpt-5"


def test_an_import_goes_where_a_link_leads(tmp_path: Path) -> None:
    made, kept = freezer(tmp_path, SMALL), tmp_path / "kept.yaml"
    made.catalogue_path.rename(kept)
    made.catalogue_path.symlink_to(kept)
    made.freeze("files", SERVER, offer("read_file"), [])
    assert made.catalogue_path.is_symlink() and "read_file" in kept.read_text()


def test_the_same_again_changes_nothing(tmp_path: Path) -> None:
    made = freezer(tmp_path, SMALL)
    made.freeze("files", SERVER, offer("read_file"), [])
    before = texts(made)
    assert made.freeze("files", SERVER, offer("read_file"), []) == [] and texts(made) == before


def test_what_was_edited_by_hand_stays_until_the_server_changes_it(tmp_path: Path) -> None:
    made = freezer(tmp_path, SMALL)
    made.freeze("files", SERVER, offer("read_file", "a very long story"), [])
    text = made.catalogue_path.read_text(encoding="utf-8")
    made.catalogue_path.write_text(text.replace("a very long story", "reads"), encoding="utf-8")
    other = {"type": "object", "properties": {}}
    assert made.freeze("files", SERVER, offer("read_file", "a very long story", other), []) == [
        "read_file: new parameters"
    ]
    assert (load(made).entry("read_file").description, load(made).entry("read_file").parameters) == ("reads", other)
    assert made.freeze("files", SERVER, offer("read_file", "new", other), []) == ["read_file: new description"]
    assert load(made).entry("read_file").description == "new"


def test_names_are_those_of_functions_and_collide_with_nothing(tmp_path: Path) -> None:
    made = freezer(tmp_path, SMALL)
    every = offer("search") | offer("files/read all") | offer("lend_book")
    made.freeze("docs", SERVER, every, [], reserved={"lend_book"})
    entries = load(made).entries
    assert {"docs_search", "files_read_all", "docs_lend_book"} <= set(entries)
    assert entries["search"].implementation == "search" and entries["docs_search"].mcp is not None
    with pytest.raises(ConfigError, match="mail_search is taken"):
        made.freeze("mail", McpServer(url="http://x/mcp"), offer("search"), [], reserved={"mail_search"})


def test_an_import_into_a_file_that_extends_another_heeds_what_that_one_holds(tmp_path: Path) -> None:
    base, path = freezer(tmp_path, SMALL), tmp_path / "mine.yaml"
    base.freeze("files", SERVER, offer("read_file"), [])
    path.write_text("extends: tools.yaml\n", encoding="utf-8")
    made, other = Freezer(path, base.prices_path, base.price_date), McpServer(command=("other",))
    before = texts(made)
    with pytest.raises(ConfigError, match=rf"read_file is in {base.catalogue_path} — set world\.catalogue"):
        made.freeze("files", SERVER, offer("read_file"), [])
    assert texts(made) == before
    made.freeze("mail", other, offer("calculator") | offer("read_file"), [])
    assert made.freeze("files", SERVER, offer("copy"), ["copy"]) == ["copy: added"]
    catalogue = load(made)
    assert catalogue.entries["calculator"].implementation == "calculator"
    assert set(catalogue.entries) - set(load(base).entries) == {"mail_calculator", "mail_read_file", "copy"}
    assert catalogue.mcp_servers == {"files": SERVER, "mail": other}


def test_a_later_import_can_take_more_of_the_server_s_tools(tmp_path: Path) -> None:
    made = freezer(tmp_path, SMALL)
    every = offer("read_file") | offer("write_file", "w" * 400)
    made.freeze("files", SERVER, every, ["read_file"])
    assert "write_file" not in load(made).entries
    assert made.freeze("files", SERVER, every, []) == []
    (said,) = made.freeze("files", SERVER, every, ["write_file"])
    assert said.startswith("write_file: added; its description has 400 characters")


@pytest.mark.parametrize(
    ("offers", "tools", "said"),
    [
        (offer("read_file"), ["write_file"], "no tool write_file — there are: read_file"),
        (offer("read_file", schema={"type": "string"}), [], "read_file: the schema is not of type object"),
        (
            offer("read_file", schema={"type": "object", "properties": {"a": {"$ref": "http://x/y"}}}),
            [],
            "the schema refers to another document, http://x/y",
        ),
    ],
)
def test_what_cannot_be_imported_leaves_both_files_alone(
    tmp_path: Path, offers: dict[str, ToolOffer], tools: list[str], said: str
) -> None:
    made = freezer(tmp_path, SMALL)
    before = texts(made)
    with pytest.raises(ConfigError) as caught:
        made.freeze("files", SERVER, offers, tools)
    assert said in str(caught.value) and texts(made) == before and len(list(tmp_path.iterdir())) == 2


def test_a_description_of_any_text_comes_back_as_it_was(tmp_path: Path) -> None:
    made = freezer(tmp_path, SMALL)
    words = 'a: "b"\n- #c \t{d} <tool_call> é 漢 \\n \x07'
    made.freeze("files", SERVER, offer("read_file", words), [])
    assert load(made).entry("read_file").description == words
    assert json.dumps(yaml.safe_load(made.catalogue_path.read_text(encoding="utf-8"))["tools"]["read_file"])


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"command": ("a",), "url": "http://x"},
        {"url": "http://x", "env": {"A": "b"}},
        {"command": ("a",), "headers": {"a": "b"}},
    ],
)
def test_a_server_is_reached_in_one_way(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"server has either|belong"):
        McpServer(**fields)


WORDS = [
    "", "on", "Yes", "no", "null", "~", "12:30", "0777", "1_000", "1e3", ".5", "0x1f", "true", "<<", "*a", "&b", "!c",
    "-",    "a: b", "# c", "'", '"', "a\x00b", "\x1b[2J", "\x85", "\u2028", "row\n| gpt-5 | 0.0000 | 001 |", " ", "{",
    "名", "y" * 300,    "calculator", "gpt-5", "search", "..", "@x", "%x", "`x`",
    "2025-11-15", "=", "- a", "? b", "|", ">", "---", "...",
]  # fmt: skip


@pytest.mark.parametrize("seed", seeds(120, 40))
def test_whatever_a_server_says_is_read_back_as_it_said_it(seed: int, tmp_path: Path) -> None:
    """Names, words and schemas that YAML reads otherwise, our own tools' names, and none: all become tools, or none."""
    rng, made = random.Random(seed), freezer(tmp_path, SMALL)
    properties = {rng.choice(WORDS): {"enum": rng.sample(WORDS, 4), "default": rng.choice(WORDS)} for _ in range(3)}
    schema: dict[str, Any] = {"type": "object", "properties": properties, "description": rng.choice(WORDS)}
    name, words = rng.choice([*WORDS, "x/y", "n" * 500]), rng.choice([one for one in WORDS if one])
    made.freeze("srv", SERVER, offer(name, words, schema), [])
    catalogue = load(made)
    (key,) = (key for key, entry in catalogue.entries.items() if entry.mcp is not None)
    spec, behind = catalogue.spec(key), catalogue.entries[key].mcp
    assert behind is not None and behind.tool == name
    assert (spec.description, spec.parameters) == (words, schema)
    assert len(catalogue.entries) == 4 and catalogue.entries["calculator"].mcp is None
    assert offer(name, words, schema)[name].change(behind) is None
