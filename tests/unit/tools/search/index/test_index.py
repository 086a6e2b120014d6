"""An index in a folder: bm25s's own scores, whole or refused, by words and by meaning."""

import asyncio
import copy
import json
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from orchestra.errors import ConfigError, DataError
from orchestra.tools.base import ToolContext
from orchestra.tools.search.corpus import NOTHING, Document, SearchIndex, words
from orchestra.tools.search.index import lexical, ranking
from orchestra.tools.search.index.build import build, current, settings_of
from orchestra.tools.search.index.dense import Embedder
from orchestra.tools.search.index.lexical import Lexical, LexicalWriter
from orchestra.tools.search.index.local import By, LocalIndex, fused
from orchestra.tools.search.index.manifest import IndexManifest
from orchestra.tools.search.index.tool import IndexSearch
from orchestra.tools.toolkit import Toolkit
from orchestra.types import Price
from tests.support.worlds import catalogue

ROWS = [
    {"id": "a", "title": "Borvane leader", "text": "The leader of Borvane is Kelmar."},
    {"id": "b", "title": "Borvane city", "text": "The city of Borvane is Tolish, a city of bridges."},
    {"id": "c", "title": "Kelmar home", "text": "The home of Kelmar is Osk\u2028vik."},
]
PROMPT = "which record says: "
"""What the model of these tests puts before a query."""
WORDS = st.sampled_from(["ab", "cd", "ef", "gh", "ij"])
TEXTS = st.lists(st.lists(WORDS, max_size=9).map(" ".join), min_size=1, max_size=40)


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def made(folder: Path, rows: list[dict[str, Any]] | None = None, model: str | None = None) -> Path:
    """The folder of an index over `rows`."""
    out = folder / "index"
    build([write(folder / "rows.jsonl", rows or ROWS)], out, settings_of(out, model=model))
    return out


@settings(max_examples=25, deadline=None)
@given(texts=TEXTS, chunk=st.integers(1, 30))
def test_the_files_hold_the_scores_that_bm25s_gives(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], chunk: int
) -> None:
    import bm25s

    folder, tokens = tmp_path_factory.mktemp("bm25"), [words(text) for text in texts]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lexical, "CHUNK", chunk)
        writer = LexicalWriter(folder)
        for text in texts:
            writer.add(text)
        if not any(tokens):
            with pytest.raises(DataError, match="no word"):
                writer.finish()
            return
        writer.finish()
    own, theirs = bm25s.BM25.load(folder, mmap=True), bm25s.BM25()
    theirs.index(tokens, show_progress=False)
    assert set(own.vocab_dict) == set(theirs.vocab_dict) - {""}
    for word in own.vocab_dict:
        assert own.get_scores([word]).tolist() == theirs.get_scores([word]).tolist()
    index = SearchIndex.build([Document(id=str(n), title="", text=text) for n, text in enumerate(texts)])
    for query in ("ab", "cd ef", "gh zz ab ab", "zz"):
        found, expected = Lexical(folder).top(query, 1), index.top(query)
        assert [str(number) for number, _ in found] == ([expected.id] if expected is not None else [])


@settings(max_examples=60, deadline=None)
@given(
    texts=TEXTS.map(lambda texts: texts * 3),
    query=st.lists(WORDS, min_size=1, max_size=5),
    count=st.integers(1, 9),
    groups=st.sampled_from([1, 4, 64]),
)
def test_the_best_are_those_of_a_full_sort_of_bm25s_s_scores(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], query: list[str], count: int, groups: int
) -> None:
    import bm25s

    tokens, folder = [words(text) for text in texts], tmp_path_factory.mktemp("best")
    assume(any(tokens))
    writer = LexicalWriter(folder)
    for text in texts:
        writer.add(text)
    writer.finish()
    engine = bm25s.BM25.load(folder)
    known = [word for word in query if word in engine.vocab_dict]
    scores = engine.get_scores(known).tolist() if known else []
    ranked = sorted((-score, number) for number, score in enumerate(scores) if score > 0)[:count]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranking, "FEW", 0)
        patch.setattr(ranking, "GROUPS", groups)
        assert Lexical(folder).top(" ".join(query), count) == [(number, -score) for score, number in ranked]


def test_common_words_are_left_out_of_the_sum_where_they_cannot_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"text": f"the of w{n % 40} x{n}"} for n in range(400)]
    index = Lexical(made(tmp_path, rows))
    monkeypatch.setattr(ranking, "FEW", 20)
    looked_up: list[int] = []
    exact = ranking.Postings._exact

    def seen(self: ranking.Postings, terms: Any, near: Any) -> Any:
        looked_up.append(len(near))
        return exact(self, terms, near)

    monkeypatch.setattr(ranking.Postings, "_exact", seen)
    assert [number for number, _ in index.top("the w7 of", 3)] == [7, 47, 87] and looked_up == [10]


def test_jsonl_and_parquet_give_the_same_index(tmp_path: Path) -> None:
    write(tmp_path / "rows.jsonl", ROWS)
    rows = [{"name": row["id"], "head": row["title"], "body": row["text"], "else": 1} for row in ROWS]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    lines, table = tmp_path / "lines", tmp_path / "table"
    build([tmp_path / "rows.jsonl"], lines, settings_of(lines, model=None))
    build([tmp_path / "rows.parquet"], table, settings_of(table, id_="name", title="head", text="body", model=None))
    assert IndexManifest.read(lines).files == IndexManifest.read(table).files
    found = LocalIndex.open(table).search("home of kelmar")
    assert [each.passage for each in found] == [Document(**ROWS[2]), Document(**ROWS[0]), Document(**ROWS[1])]
    assert not list(tmp_path.glob(".*"))


def test_many_queries_in_threads_are_those_asked_one_by_one(tmp_path: Path) -> None:
    index = LocalIndex.open(made(tmp_path))
    queries = ["city", "kelmar", "quark", "of borvane"] * 5
    assert index.search_many(queries, 2) == [index.search(query, 2) for query in queries]
    assert index.search("quark") == []


def test_rows_without_ids_and_titles_are_numbered_over_all_sources(tmp_path: Path) -> None:
    sources = [write(tmp_path / f"{name}.jsonl", [{"text": f"{name} text"}]) for name in ("one", "two")]
    build(sources, tmp_path / "index", settings_of(tmp_path / "index", model=None))
    assert LocalIndex.open(tmp_path / "index").search("two")[0].passage == Document(id="2", title="", text="two text")


def test_the_same_input_is_unchanged_and_makes_the_same_version(tmp_path: Path) -> None:
    out = made(tmp_path)
    source, wanted = tmp_path / "rows.jsonl", settings_of(out, model=None)
    first = current([source], out, wanted)
    assert first is not None and build([source], out, wanted) == first
    assert current([source], out, settings_of(out, text="title", model=None)) is None
    assert current([source, source], out, wanted) is None
    write(source, ROWS[:2])
    assert current([source], out, wanted) is None
    assert build([source], out, wanted).version != first.version


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"id": "d"}, r"rows\.jsonl:2: field text: not text \(got None\)"),
        ({"text": 5}, r"rows\.jsonl:2: field text: not text \(got 5\)"),
        ({"text": "\ud800"}, r"rows\.jsonl:2: half a surrogate pair"),
        ({"text": "x", "title": ["y"]}, r"rows\.jsonl:2: field title: not text"),
    ],
)
def test_a_bad_row_is_named_and_the_old_index_stays(tmp_path: Path, row: dict[str, Any], said: str) -> None:
    out = made(tmp_path)
    version = IndexManifest.read(out).version
    bad = write(tmp_path / "rows.jsonl", [ROWS[0], row])
    with pytest.raises(DataError, match=said):
        build([bad], out, settings_of(out, model=None))
    assert IndexManifest.read(out).version == version and not list(tmp_path.glob(".*"))


def test_nothing_else_is_overwritten_and_nothing_is_no_index(tmp_path: Path) -> None:
    (tmp_path / "index").mkdir()
    (tmp_path / "index/thesis.txt").write_text("dear")
    with pytest.raises(ConfigError, match="something other than an index"):
        made(tmp_path)
    assert (tmp_path / "index/thesis.txt").read_text() == "dear"
    with pytest.raises(DataError, match="no row in it"):
        build([write(tmp_path / "none.jsonl", [])], tmp_path / "x", settings_of(tmp_path / "x", model=None))
    with pytest.raises(DataError, match="no index here — orchestra index build SOURCE"):
        LocalIndex.open(tmp_path / "x")


def flip(name: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        content = bytearray((folder / name).read_bytes())
        content[-1] ^= 1
        (folder / name).write_bytes(content)

    return damage


def edit(**values: Any) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        raw = json.loads((folder / "manifest.json").read_text())
        (folder / "manifest.json").write_text(json.dumps(raw | values))

    return damage


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (flip("passages.jsonl"), "damaged: passages.jsonl is not what was built"),
        (flip("data.csc.index.npy"), "damaged: data.csc.index.npy is not what was built"),
        (flip("vocab.index.json"), "damaged: vocab.index.json is not what was built"),
        (flip("manifest.json"), "damaged: manifest.json"),
        (edit(passages=2), "damaged: manifest.json was changed"),
        (edit(format=0), "stale: an index of format 0"),
        (lambda folder: (folder / "indices.csc.index.npy").unlink(), "damaged: indices.csc.index.npy is missing"),
        (lambda folder: (folder / "passages.jsonl").write_bytes(b""), "damaged: passages.jsonl is not"),
        (lambda folder: (folder / "manifest.json").write_text("{"), "damaged: manifest.json cannot be read"),
        (lambda folder: (folder / "manifest.json").unlink(), "no index here"),
        (lambda folder: write(folder.parent / "rows.jsonl", ROWS[:2]), r"stale: \.\./rows.jsonl has changed since"),
        (lambda folder: (folder.parent / "rows.jsonl").unlink(), None),
    ],
)
def test_a_damaged_or_stale_index_is_refused_in_one_line(
    tmp_path: Path, damage: Callable[[Path], object], said: str | None
) -> None:
    out = made(tmp_path)
    damage(out)
    if said is None:
        assert LocalIndex.open(out).search("city")
        return
    with pytest.raises(DataError, match=said) as caught:
        LocalIndex.open(out)
    assert "\n" not in str(caught.value) and "orchestra index build" in str(caught.value)


def test_other_libraries_and_other_words_make_it_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = made(tmp_path)
    monkeypatch.setattr("importlib.metadata.version", lambda _: "0.99.0")
    with pytest.raises(DataError, match=r"stale: built with bm25s .*, and 0\.99\.0 is here"):
        LocalIndex.open(out)
    monkeypatch.undo()
    monkeypatch.setattr(lexical, "TOKENS", "letters")
    with pytest.raises(DataError, match="stale: words are cut"):
        LocalIndex.open(out)


def test_sizes_alone_are_compared_where_contents_are_not_read(tmp_path: Path) -> None:
    out = made(tmp_path)
    flip("data.csc.index.npy")(out)
    assert LocalIndex.open(out, contents=False).search("city")
    (out / "data.csc.index.npy").write_bytes(b"x")
    with pytest.raises(DataError, match="damaged"):
        LocalIndex.open(out, contents=False)


def test_memory_hardly_grows_with_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lexical, "CHUNK", 1 << 10)
    text = " ".join(f"w{n}" for n in range(20))

    def peak(rows: int) -> int:
        source = write(tmp_path / f"{rows}.jsonl", [{"text": f"{text} n{n % 50}"} for n in range(rows)])
        tracemalloc.start()
        try:
            build([source], tmp_path / "index", settings_of(tmp_path / "index", model=None))
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(10)
    assert peak(1200) - peak(200) < 1000 * 100


@pytest.fixture(scope="module", params=["words", "qwen3"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny sentence-transformers model of random weights, with a prompt for queries."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, StaticEmbedding, Transformer
    from transformers import set_seed

    from tests.support.worlds import codec, tiny_model

    set_seed(0)
    folder = tmp_path_factory.mktemp(request.param)
    tokenizer = copy.deepcopy(codec().tokenizer)
    # With one, sentence-transformers would wrap each text in a conversation.
    tokenizer.chat_template = None
    if request.param == "words":
        modules: list[Any] = [StaticEmbedding(tokenizer, embedding_dim=16)]
    else:
        tiny_model().model.save_pretrained(folder / "body")
        tokenizer.save_pretrained(folder / "body")
        body = Transformer(str(folder / "body"))
        modules = [body, Pooling(body.get_embedding_dimension(), "lasttoken")]
    built = SentenceTransformer(modules=modules, prompts={"query": PROMPT, "document": ""}, device="cpu")
    built.save(str(folder / "model"))
    return folder / "model"


def test_search_by_meaning_ranks_by_cosine_with_the_model_s_own_prompts(tmp_path: Path, model: Path) -> None:
    out = made(tmp_path, model=str(model))
    index, embedder = LocalIndex.open(out), Embedder(str(model))
    texts = [f"{row['title']} {row['text']}" for row in ROWS]
    for query in ("city", texts[2]):
        cosines = embedder.passages(texts) @ embedder.passages([PROMPT + query])[0]
        found = index.search(query, 9, By.DENSE)
        assert [each.passage.id for each in found] == [ROWS[n]["id"] for n in np.argsort(-cosines)]
        assert [each.score for each in found] == pytest.approx(sorted(cosines, reverse=True), abs=1e-4)
    assert len(index.search("city", 9, By.HYBRID)) == 3 and index.search("city")[0].passage.id == "b"
    manifest = IndexManifest.read(out)
    assert manifest.settings.model is not None and manifest.settings.model.startswith("..")
    assert "sentence-transformers" in manifest.libraries


def test_another_model_under_the_same_name_is_stale(tmp_path: Path, model: Path) -> None:
    out = made(tmp_path, model=str(model))
    vectors = np.fromfile(out / "vectors.f32", dtype=np.float32)
    (-vectors).tofile(out / "vectors.f32")
    index = LocalIndex.open(out, contents=False)
    with pytest.raises(DataError, match=r"stale: .* gives other vectors than those of the index"):
        index.search("city", by=By.DENSE)


def test_no_model_and_no_vectors_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="no vectors to search by dense"):
        LocalIndex.open(made(tmp_path)).search("city", by=By.DENSE)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"no embedding model nowhere: .* — name its folder, or download it first"):
        made(Path(), model="./nowhere")
    assert LocalIndex.open(tmp_path / "index").search("city")


def test_fusion_prefers_what_both_rank_high() -> None:
    assert [number for number, _ in fused([(1, 9.0), (2, 8.0)], [(2, 0.9), (3, 0.8), (1, 0.7)])] == [2, 1, 3]


def context(price: str = "0.003") -> ToolContext:
    return ToolContext("", Price(per_call=Decimal(price)), 0.4)


def test_the_tool_gives_numbered_passages_at_the_price_of_this_example(tmp_path: Path) -> None:
    tool = IndexSearch(made(tmp_path), count=2, by=By.BM25)
    result = asyncio.run(tool.call({"query": "Kelmar"}, context()))
    assert (result.cost_usd, result.latency_s) == (Decimal("0.003"), 0.4)
    assert result.text == f"[1] Kelmar home\n{ROWS[2]['text']}\n\n[2] Borvane leader\n{ROWS[0]['text']}"
    assert asyncio.run(tool.call({"query": "?!"}, context())).text == NOTHING


def test_a_catalogue_entry_with_an_index_is_searched_and_one_without_is_the_corpus(tmp_path: Path) -> None:
    made(tmp_path)
    entry = catalogue().entry("search").model_copy(update={"index": "index", "results": 1})
    kit = Toolkit(replace(catalogue(), entries={"records": entry}), {}, tmp_path, root=tmp_path)
    assert asyncio.run(kit.tool("records").call({"query": "Tolish"}, context())).text.startswith("[1] Borvane city\n")
    flip("passages.jsonl")(tmp_path / "index")
    fresh = Toolkit(kit.catalogue, {}, tmp_path, root=tmp_path)
    with pytest.raises(DataError, match="damaged"):
        asyncio.run(fresh.tool("records").call({"query": "x"}, context()))
