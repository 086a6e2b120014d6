"""Texts of outside in a real MLflow: no name or value ends a run, and none becomes a link or an image there."""

import dataclasses
import random
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from orchestra.evaluation.benchmarks.report import Summary
from orchestra.promotion.approval import Answer, Approval, request
from orchestra.promotion.gate import Decision, GateCheck
from orchestra.promotion.parts import renewed_description
from orchestra.text import in_markdown, one_line
from tasks.analyses import run as analyses
from tasks.approval import now
from tasks.experiments import benchmark
from tasks.platform.dvc import Hashes
from tasks.platform.tracking import LONGEST_KEY, Recorder, allowed_key, allowed_model, connect, experiment, said
from tasks.promote import told
from tasks.records.models import logged_model
from tasks.records.releases import ACTOR, ReleaseRecord, record
from tests.support.generated import seeds

SECRET = "sk-Very5ecret0fMine"
LINKS = [
    "[click](http://evil.example/?a)", "![x](http://evil.example/p.png)", "<img src=//evil.example/p>", "<b>hi</b>",
    "<iframe src=http://evil.example></iframe>", "http://evil.example/x", "www.evil.example", "@someone", "a@b.example",
    "[a]: http://evil.example", "[x][a]", "<http://evil.example>", "&#91;x&#93;(http&#58;//evil.example)",
    "`a` [b](c:/d)", "` [x](http://evil.example)", "``` [x](y)", "a ` b `` c [x](y)", "mailto:a", "\n\n[click](http://evil.example)\n",
    "\n# headline\n![x](y)", "\\[x](http://evil.example)", "javascript:/x [a](javascript:b)", "![a][b]\n\n[b]: //x",
]  # fmt: skip
ODD = [
    "\0",
    "\x1b[2J",
    "\u202e",
    "\ud800",
    "\r",
    "\n",
    "\t",
    "…",
    "é",
    "名",
    "'",
    '"',
    "%",
    "$",
    "{}",
    "¨",
    "\u2028",
    "\ufffd",
]
PATHS = ["..", ".", "/", "//", "a/../b", "./", "~", " ", "a//b", "/etc/passwd", "x/.", "..x", "-", ""]


def hostile(rng: random.Random) -> str:
    """A text of any length that means something to MLflow, to Markdown, to a path or to a terminal."""
    pieces = [rng.choice([*LINKS, *ODD, *PATHS, SECRET, "word", "a b"]) for _ in range(rng.randint(0, 6))]
    text = rng.choice(["", " ", "/", "."]).join(pieces)
    return rng.choice([text, text, text * 50, text + "x" * rng.choice([240, 500, 8_001, 20_000])])


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace whose MLflow has its tables, which take seconds to make."""
    root = tmp_path_factory.mktemp("workspace")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        connect(root).search_registered_models()
    return root


@pytest.fixture(autouse=True)
def own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("SOME_API_KEY", SECRET)


def summary(rng: random.Random) -> Summary:
    """A result on a benchmark whose subjects, files and model have any names."""
    groups = {hostile(rng): rng.random() for _ in range(rng.choice([3, 1_200]))}
    files = {hostile(rng): "0" * 64 for _ in range(rng.choice([2, 120]))}
    return Summary.model_construct(
        benchmark="own", protocol_version="1", split="test", model=hostile(rng), identity=hostile(rng),
        judge=hostile(rng), data_sha256=files, questions=1, whole=True, trials=1, scored=1, failures=0, accuracy=0.5,
        interval=None, rates=(), groups=groups, cost_usd=Decimal(1), latency_s=1.0, calls={hostile(rng): 1},
        judge_usd=Decimal(0), simulated=False, figures={hostile(rng): 0.5}, checkpoint="", agreement=None,
    )  # fmt: skip


def a_flow(rng: random.Random, root: Path) -> str:
    recorder = Recorder.open(root, f"flow-{rng.random()}", hostile(rng))
    recorder.tag(f"stage.{hostile(rng)}", hostile(rng))
    recorder.headline({hostile(rng): hostile(rng), "a b": 1, "a?b": 2, "a!b": [hostile(rng)]}, hostile(rng), "grpo")
    recorder.finish(recorder.parent, hostile(rng))
    return recorder.parent


def a_stage(rng: random.Random, root: Path) -> str:
    recorder = dataclasses.replace(Recorder.open(root, "flow", "brave"), root=root / "none")
    child = recorder.child(hostile(rng))
    recorder.metrics(child, {hostile(rng): rng.random() for _ in range(20)})
    values = {hostile(rng): hostile(rng) for _ in range(5)}
    paths = dict.fromkeys(values, "0" * 32)
    recorder.stage_done("sft", child, Hashes(paths, paths, {"params": values, "a?": 1, "a!": 2}))
    recorder.finish(child, hostile(rng))
    return child


def a_release(rng: random.Random, root: Path) -> str:
    words = {name: hostile(rng) for name in ("before", "wanted", "after", "why", "finding")}
    return record(root, ReleaseRecord(kind="canary", outcome="failed", **words), {"candidate.requests": 1.0})


def a_benchmark(rng: random.Random, root: Path) -> str:
    (root / "folder").mkdir(exist_ok=True)
    benchmark.log(root, summary(rng), root / "folder")
    return newest(root, benchmark.EXPERIMENT)


def an_analysis(rng: random.Random, root: Path) -> str:
    analyses._log(root, "bias", [], {hostile(rng): rng.random() for _ in range(rng.choice([5, 1_200]))})
    return newest(root, analyses.EXPERIMENT)


def newest(root: Path, name: str) -> str:
    client = connect(root)
    return str(client.search_runs([experiment(client, root, name)], max_results=1)[0].info.run_id)


WRITERS: list[Callable[[random.Random, Path], str]] = [a_flow, a_stage, a_release, a_benchmark, an_analysis]


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("seed", seeds(24, 8))
def test_no_text_ends_a_run_or_leaves_a_secret_or_a_link(
    write: Callable[[random.Random, Path], str], seed: int, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(f"{write.__name__}-{seed}")
    monkeypatch.setenv(
        ACTOR, "me" if seed % 4 == 0 else hostile(rng).replace("\0", "").encode(errors="replace").decode()
    )
    run = connect(root).get_run(write(rng, root))
    values = {**run.data.tags, **run.data.params}
    for value in values.values():
        assert SECRET not in value and not any(ord(one) < 32 and one not in "\n\t" for one in value), value
        assert len(value) <= 8_000
    assert not linked(run.data.tags.get("mlflow.note.content", ""))


@pytest.mark.parametrize("seed", seeds(60, 20))
def test_a_checkpoint_of_any_name_has_a_model(seed: int, root: Path) -> None:
    """`models/qwen3-0.6b` is a policy that params.yaml may name, and MLflow takes no dot."""
    rng = random.Random(seed)
    client, name = connect(root), "qwen3-0.6b" if seed == 0 else hostile(rng)
    made = logged_model(client, experiment(client, root), name, f"{seed:016x}")
    assert client.get_logged_model(made).name == allowed_model(name)
    assert logged_model(client, experiment(client, root), name, f"{seed:016x}") == made


@given(st.text(st.characters(codec=None), max_size=400))
def test_a_key_is_one_that_mlflow_takes_and_stays_as_it_is_where_it_is_one(text: str) -> None:
    from mlflow.utils.validation import _validate_tag_name

    key = allowed_key(text)
    _validate_tag_name(key)  # type: ignore[no-untyped-call]
    assert 0 < len(key) <= LONGEST_KEY and allowed_key(key) == key
    assert allowed_key("in.data/validated/train.jsonl") == "in.data/validated/train.jsonl"


def test_long_keys_that_differ_at_their_ends_stay_apart() -> None:
    assert allowed_key("a" * 300 + "1") != allowed_key("a" * 300 + "2")
    assert said("x" * 5_000).endswith("x…") and len(said("x" * 5_000)) == 4_000


RENDERERS = (MarkdownIt("commonmark"), MarkdownIt("js-default"))


def linked(text: str) -> bool:
    """Whether Markdown makes a link, an image or HTML of a text, or a bare address stands where one would be made."""
    for renderer in RENDERERS:
        for token in renderer.parse(text):
            if token.type == "html_block":
                return True
            for child in token.children or ():
                if child.type in ("link_open", "image", "html_inline"):
                    return True
                bare = child.content.lower() if child.type == "text" else ""
                if any(sign in bare for sign in (":/", "www.", "@", "mailto:")):
                    return True
    return False


@pytest.mark.parametrize("seed", range(400))
def test_a_decision_in_markdown_holds_no_link_of_outside(seed: int) -> None:
    """What a person gives as name and reason, and what checks say of experts, models and errors."""
    rng = random.Random(seed)
    asked = request(3, None, "0" * 16, now(), 5)
    by, reason = said(hostile(rng), 200) or "x", said(hostile(rng), 1000)
    answered: Approval = asked.answered(Answer(approve=True, by=by, reason=reason), now())
    before = f"**Waiting**\n\n{asked.line}\n\n{in_markdown(hostile(rng))}"
    checks = tuple(
        GateCheck(name=said(hostile(rng), 80), measured=0, bar=1, passed=rng.random() < 0.5, reason=hostile(rng))
        for _ in range(3)
    )
    for text in (
        renewed_description(before, answered, "Promoted"),
        told(Decision(promoted=False, reasons=checks)),
        f"who: {in_markdown(hostile(rng))} {in_markdown(hostile(rng))} {in_markdown(hostile(rng))}",
    ):
        assert not linked(text), text


@pytest.mark.parametrize(
    "text",
    [
        "All 7 checks passed.", "a solved question costs 2.40 times as much", "Approved by Ada on 2026-01-02: read it",
        "A person must answer by 2026-01-02 10:00 UTC: `orchestra approve 3` or `orchestra refuse 3`.",
        "12.5 % for 3 ¢", "version 3 is champion, but its files are lost; +1.0 points (0.1 to 2)",
        "models_grpo: 3/4 (75 %) — ok!",
    ],
)  # fmt: skip
def test_ordinary_sentences_stay_as_they_are(text: str) -> None:
    assert in_markdown(text) == text == one_line(text)
