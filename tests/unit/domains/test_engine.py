"""The domain engine: what tools return and change, what they refuse, and that a call is all or nothing."""

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.domains.engine import Domain, Session, load_domain
from orchestra.domains.guard import MAX_VALUE_BYTES
from orchestra.errors import CallError, DataError, ToolError

FOLDER = Path(__file__).parents[3] / "data" / "domains"
MOCK = load_domain(FOLDER / "mock")


@pytest.fixture
def session() -> Session:
    return MOCK.open()


def test_a_domain_says_what_it_offers() -> None:
    assert MOCK.name == "mock" and "two books" in MOCK.policy and len(MOCK.intents) == 6
    tool = MOCK.tools["lend_book"]
    assert tool.parameters == {
        "type": "object",
        "properties": {"book": {"type": "integer", "minimum": 1}, "reader": {"type": "string"}},
        "required": ["book", "reader"],
        "additionalProperties": False,
    }
    assert [name for name, t in MOCK.tools.items() if t.writes] == ["lend_book", "return_book", "pay_fine"]


def test_results_are_compact_text(session: Session) -> None:
    assert session.call("get_book", {"book": 11}) == "title: Amber, reader: Ovel, due: 52"
    assert session.call("get_book", {"book": 12}) == "title: Basil, reader: none, due: none"
    assert session.call("find_books", {"reader": "Brin"}) == "book: 13, title: Cedar"
    assert session.call("find_books", {}).count(";") == 2
    assert session.call("find_books", {"reader": "Mirel"}) == "none"


def test_a_change_shows_in_contents_and_in_touched(session: Session) -> None:
    before = session.contents()
    assert session.call("return_book", {"book": 13}) == "late: 7, fine: 14"
    after = session.contents()
    assert {table for table in after if after[table] != before[table]} == {"books", "readers"}
    assert session.touched == {("books", '"book" is 13'), ("readers", "\"reader\" is 'Brin'")}
    assert session.row("books", '"book" is 13') == {
        "book": 13,
        "title": "Cedar",
        "reader": None,
        "due": None,
        "copies": 1,
    }


def test_reading_touches_nothing(session: Session) -> None:
    session.call("get_book", {"book": 11})
    assert session.touched == frozenset()


def test_a_statement_that_two_tools_share_is_looked_at_twice(tmp_path: Path) -> None:
    free = "  - name: free\n    description: as pay\n    parameters: {reader: {type: string}}\n    statements:\n"
    domain = edited(tmp_path, free + "      - update readers set fine = 0 where reader = :reader\n")
    assert domain.tools["free"].changes == domain.tools["pay_fine"].changes != frozenset()


def test_every_session_has_its_own_copy() -> None:
    one, two = MOCK.open(), MOCK.open()
    one.call("pay_fine", {"reader": "Brin"})
    assert two.call("get_reader", {"reader": "Brin"}) == "city: Sorl, fine: 7"
    one.close()
    assert two.call("pay_fine", {"reader": "Brin"}) == "paid: 7"
    assert MOCK.open().call("get_reader", {"reader": "Brin"}) == "city: Sorl, fine: 7"


@pytest.mark.parametrize(
    ("tool", "arguments", "message"),
    [
        ("lend_book", {"book": 11, "reader": "Mirel"}, "book 11 is not free"),
        ("lend_book", {"book": 12, "reader": "Juno"}, "Juno owes more than 10"),
        ("lend_book", {"book": 99, "reader": "Nobody"}, "there is no reader Nobody"),
        ("pay_fine", {"reader": "Ovel"}, "Ovel owes nothing"),
        ("burn_book", {"book": 11}, "there is no tool burn_book"),
        ("get_book", {}, "get_book needs book"),
        ("get_book", {"book": "11"}, "book must be an integer"),
        ("get_book", {"book": True}, "book must be an integer"),
        ("get_book", {"book": 11.0}, "book must be an integer"),
        ("get_book", {"book": 0}, "book must be from 1"),
        ("get_book", {"book": 2**80}, "book must be from 1"),
        ("get_book", {"book": None}, "book must be an integer"),
        ("get_book", {"book": [11]}, "book must be an integer"),
        ("get_book", {"book": 11, "page": 3}, "no argument page"),
        ("get_reader", {"reader": "x" * 81}, "at most 80"),
        ("get_reader", {"reader": "a\0b"}, "must be a string"),
        ("get_reader", {"reader": "a\nb"}, "must be a string"),
        ("get_reader", {"reader": "a\u2028b"}, "must be a string"),
        ("get_reader", {"reader": "山田\u3000太郎"}, "there is no reader"),
        ("get_reader", {"reader": "a\xa0b"}, "there is no reader"),
    ],
)
def test_a_refused_call_changes_nothing(
    session: Session, tool: str, arguments: dict[str, object], message: str
) -> None:
    before = session.contents()
    with pytest.raises(CallError, match=message):
        session.call(tool, json.loads(json.dumps(arguments)))
    assert session.contents() == before and not session.touched


INJECTIONS = ["' or 1=1 --", "'; drop table readers; --", '" union select 1 --', "%", "Ovel' --", ":book", "null"]


@pytest.mark.parametrize("text", INJECTIONS)
def test_arguments_are_values_never_sql(session: Session, text: str) -> None:
    before = session.contents()
    with pytest.raises(CallError, match="owes nothing"):
        session.call("pay_fine", {"reader": text})
    assert session.contents() == before


@given(st.text(max_size=90), st.integers())
def test_any_argument_is_answered_or_refused(reader: str, book: int) -> None:
    session = MOCK.open()
    before = session.contents()
    try:
        session.call("lend_book", {"reader": reader, "book": book})
    except CallError:
        assert session.contents() == before
    finally:
        session.close()


def edited(folder: Path, tools: str, source: str = "mock") -> Domain:
    """A copy of the mock domain with one more tool (YAML, indented as in tools.yaml)."""
    shutil.copytree(FOLDER / source, folder / "world")
    file = folder / "world" / "tools.yaml"
    file.write_text(file.read_text() + tools)
    return load_domain(folder / "world")


def tool(*statements: str) -> str:
    lines = "".join(f"      - {json.dumps(statement)}\n" for statement in statements)
    return f"  - name: extra\n    description: one more\n    parameters: {{}}\n    statements:\n{lines}"


def test_a_statement_that_fails_takes_the_earlier_ones_back(tmp_path: Path) -> None:
    session = edited(tmp_path, tool("update readers set fine = 1", "update readers set fine = -1")).open()
    before = session.contents()
    with pytest.raises(CallError, match="refused: CHECK"):
        session.call("extra", {})
    assert session.contents() == before and not session.touched
    assert session.call("pay_fine", {"reader": "Brin"}) == "paid: 7"  # and the session goes on


@pytest.mark.parametrize(
    ("statement", "rows"),
    [
        ("update readers set reader = 'Zed' where reader = 'Mirel'", {"\"reader\" is 'Mirel'", "\"reader\" is 'Zed'"}),
        ("insert or replace into readers values ('Mirel', 'Tarn', 1)", {"\"reader\" is 'Mirel'"}),
        ("delete from readers where reader = 'Mirel'", {"\"reader\" is 'Mirel'"}),
        ("insert into readers values ('O''Neil', 'Tarn', 1)", {"\"reader\" is 'O''Neil'"}),
        ("insert into readers values ('Mirel', 'x', 0) on conflict do update set fine = 2", {"\"reader\" is 'Mirel'"}),
    ],
)
def test_every_kind_of_write_is_seen(tmp_path: Path, statement: str, rows: set[str]) -> None:
    session = edited(tmp_path, tool(statement)).open()
    assert session.call("extra", {}) == "done"
    assert session.touched == {("readers", row) for row in rows}
    for row in rows:
        session.row("readers", row)


def test_rows_changed_by_a_foreign_key_action_are_seen(tmp_path: Path) -> None:
    world = Path(shutil.copytree(FOLDER / "mock", tmp_path / "cascading"))
    schema, tools = world / "schema.sql", world / "tools.yaml"
    schema.write_text(schema.read_text().replace("(reader),", "(reader) on delete cascade,"))
    tools.write_text(tools.read_text() + tool("delete from readers where reader = 'Ovel'"))
    session = load_domain(world).open()
    session.call("extra", {})
    assert session.touched == {("readers", "\"reader\" is 'Ovel'"), ("books", '"book" is 11')}
    with pytest.raises(CallError, match="there is no book 11"):
        session.call("get_book", {"book": 11})


def test_a_dangling_reference_is_refused(tmp_path: Path) -> None:
    session = edited(tmp_path, tool("delete from readers where reader = 'Ovel'")).open()
    with pytest.raises(CallError, match="FOREIGN KEY"):
        session.call("extra", {})


CROSS = "select count(*) from " + ", ".join(f"books b{i}" for i in range(12))


@pytest.mark.timeout(60)  # to the end it would run for years
def test_a_call_that_runs_too_long_is_stopped(tmp_path: Path) -> None:
    session = edited(tmp_path, tool("update readers set fine = 1", CROSS)).open()
    before = session.contents()
    with pytest.raises(ToolError, match="interrupted"):
        session.call("extra", {})
    assert session.contents() == before


def test_too_many_rows_and_too_large_values_are_refused(tmp_path: Path) -> None:
    session = edited(tmp_path, tool("select a.book from books a, books b")).open()
    with pytest.raises(CallError, match="more than 20 rows"):
        session.call("extra", {})
    long = edited(tmp_path / "long", tool("select printf('%03000d', fine) as x from readers")).open()
    with pytest.raises(CallError, match="more than 2000 characters"):
        long.call("extra", {})
    # Each half stays below the limit of a value: only what they make together is beyond it.
    half = MAX_VALUE_BYTES - 1
    huge = f"select printf('%{half}d', 1) || printf('%{half}d', fine) as x from readers"
    with pytest.raises(ToolError, match="too big"):
        edited(tmp_path / "huge", tool(huge)).open().call("extra", {})


def test_a_database_cannot_grow_without_bound(tmp_path: Path) -> None:
    names = "printf('%s%d%09000d', a.reader, b.book, c.book)"
    grow = f"insert into readers select {names}, 'x', 0 from readers a, books b, books c"
    session = edited(tmp_path, tool(grow)).open()
    before = session.contents()
    with pytest.raises(ToolError, match="full"):
        session.call("extra", {})
    assert session.contents() == before


@pytest.mark.parametrize("rewinds", [True, False])
def test_a_statement_that_returns_too_many_rows_takes_all_back(tmp_path: Path, rewinds: bool) -> None:
    grow = "insert into readers select a.reader || b.reader, 'x', 0 from readers a, readers b returning reader"
    grow = grow.replace("readers b", "(select reader from readers union all select title from books) b")
    session = edited(tmp_path, tool(grow)).open(rewinds=rewinds)
    before = session.contents()
    for _ in range(2):
        with pytest.raises(CallError, match="more than 20 rows"):
            session.call("extra", {})
        assert session.contents() == before


def test_a_copy_rewinds_to_what_was_loaded() -> None:
    copy, start = MOCK.open(rewinds=True), MOCK.open().contents()
    for _ in range(2):
        other = MOCK.open()
        assert copy.call("return_book", {"book": 13}) == other.call("return_book", {"book": 13})
        with pytest.raises(CallError):
            copy.call("return_book", {"book": 13})  # it is back; what was done before stays
        assert copy.contents() == other.contents() != start and copy.touched == other.touched != frozenset()
        assert copy.rewind() and copy.contents() == start
        assert not copy.touched and not copy.seen


def test_a_copy_that_was_stopped_rewinds_where_sqlite_did_not_roll_all_back(tmp_path: Path) -> None:
    reads, writes = tool("update readers set fine = 1", CROSS), tool(f"update readers set fine = ({CROSS})")
    for number, (stopped, rewinds) in enumerate([(reads, True), (writes, False)]):
        copy = edited(tmp_path / str(number), stopped).open(rewinds=True)
        start = copy.contents()
        with pytest.raises(ToolError, match="interrupted"):
            copy.call("extra", {})
        assert copy.contents() == start and copy.rewind() == rewinds


def test_a_copy_that_checks_at_the_commit_does_not_rewind(tmp_path: Path) -> None:
    shutil.copytree(FOLDER / "mock", tmp_path / "mock")
    schema = tmp_path / "mock" / "schema.sql"
    text = schema.read_text(encoding="utf-8")
    schema.write_text(text.replace("(reader),", "(reader) deferrable initially deferred,"), encoding="utf-8")
    copy = load_domain(tmp_path / "mock").open(rewinds=True)
    assert copy.call("pay_fine", {"reader": "Brin"}) == "paid: 7" and not copy.rewind()
    assert not MOCK.open().rewind()


def test_a_missing_folder_is_one_line() -> None:
    with pytest.raises(DataError, match=r"nowhere: no such domain folder — check world.domains"):
        load_domain(FOLDER / "nowhere")
