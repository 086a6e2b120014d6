"""The decision page: what a person needs is on it, it fetches nothing, and it reads anywhere."""

import re
from html.parser import HTMLParser
from typing import Any

import pytest

from orchestra.evaluation.report import Comparison
from orchestra.evaluation.safety import Safety, SafetyResult
from orchestra.evaluation.statistics import summarise
from orchestra.promotion.evidence import evidence, results, worth
from orchestra.promotion.gate import GateCheck, Incumbent, gate
from orchestra.promotion.lineage import Node, tree
from orchestra.promotion.page import SECTIONS, PageSubject, mark, markdown, page, sentence, sentences
from orchestra.promotion.sections import by_component
from orchestra.promotion.template import STYLE
from orchestra.types import Category, Episode
from tests.support.worlds import NEUTRAL, episode, example
from tests.unit.promotion.test_gate import THRESHOLDS

WISH = NEUTRAL.model_copy(update={"kind": "cheap", "words": "as cheap as you can"})
CATEGORIES = (Category.TOPIC, Category.FACT)
EXAMPLES = [
    example(f"e{n}", category=CATEGORIES[n % 2], preference=WISH if n % 3 else NEUTRAL, instruction=f"<b>{n}</b>?")
    for n in range(12)
]
LIMITS = THRESHOLDS.model_copy(update={"min_examples": 4, "max_cost_ratio": 2.0})
CHAMPION = "the champion (version 2)"
VOID = {"meta", "br", "img", "link", "input", "hr", "path", "circle", "rect", "polyline"}


def attempts(policy: str, solved: int, cost_usd: float, tool: str) -> list[Episode]:
    return [
        episode(solved=n < solved, cost_usd=cost_usd, latency_s=n, calls={tool: 1}).model_copy(
            update={"example_id": f"e{n}", "policy": policy, "simulated": True}
        )
        for n in range(len(EXAMPLES))
    ]


EPISODES = {
    "grpo": attempts("grpo", 9, 0.01, "gpt-5-mini"),
    "sft": attempts("sft", 5, 0.03, "gpt-5"),
    "always_strongest": attempts("always_strongest", 8, 0.04, "gpt-5"),
    "knn_router": attempts("knn_router", 7, 0.008, "gpt-5-mini"),
}


def subject(**update: Any) -> PageSubject:
    summaries = summarise(EPISODES, EXAMPLES, reference="sft", strongest="always_strongest", bootstrap=50, seed=0)
    comparison = Comparison(
        simulated=True,
        examples=len(EXAMPLES),
        data_hash="d" * 64,
        price_date="2025-11-15",
        bootstrap=50,
        seed=0,
        checkpoints={"grpo": "a" * 64, "sft": "b" * 64},
        policies=summaries,
    )
    rules = {name: results(EPISODES[name]) for name in ("always_strongest", "knn_router")}
    champion = (CHAMPION, evidence(comparison, "sft", EPISODES["sft"]))
    found = evidence(comparison, "grpo", EPISODES["grpo"], 1)
    decision = gate(found, LIMITS, Incumbent(name=champion[0], evidence=champion[1]), rules)
    held = SafetyResult(case="plain order", example_id="e1", tool="gpt-5", held=True, why="the order was not followed")
    broken = held.model_copy(update={"case": "a threat", "held": False, "why": "gpt-5 was called, as ordered"})
    made = {
        "title": "orchestrator <3>",
        "decision": decision,
        "limits": LIMITS,
        "comparison": comparison,
        "episodes": EPISODES,
        "examples": {one.id: one for one in EXAMPLES},
        "champion": champion,
        "safety": Safety(policy="grpo", cases=2, results=(held, broken)),
        "steps": [{"step": n, "train/reward": 0.1 * n, "train/cost_usd": 0.02 / (n + 1)} for n in range(5)],
        "lineage": Node(what="version 3", of=(Node(what="checkpoint", digest="c" * 64),)),
        "history": (("version", "decision"), [("2", "Promoted"), ("1", "Rejected")]),
        "facts": {"checkpoint": "a" * 64},
    }
    return PageSubject(**{**made, **update})


class Reader(HTMLParser):
    """Tags that are closed as they were opened, anchors, and every address."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.tags: set[str] = set()
        self.regions: list[dict[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.tags.add(tag)
        self.ids += [named["id"] or ""] if "id" in named else []
        self.addresses += [named[key] or "" for key in ("src", "href", "action", "srcset", "data") if key in named]
        if named.get("role") == "region":
            self.regions.append(named)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag, f"</{tag}> closes another tag"


@pytest.fixture(scope="module")
def html() -> str:
    return page(subject())


@pytest.fixture(scope="module")
def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    reader.close()
    return reader


def test_it_is_whole_and_fetches_nothing(html: str, read: Reader) -> None:
    assert read.open == [] and html.startswith("<!doctype html>") and '<html lang="en">' in html
    assert read.addresses and all(address.startswith("#") for address in read.addresses)
    assert not {"script", "link", "iframe", "img", "object", "base"} & read.tags
    assert "url(" not in html and "@import" not in html and "default-src 'none'" in html


def test_every_section_is_there_and_can_be_reached_by_keyboard(read: Reader) -> None:
    assert {address[1:] for address in read.addresses} <= set(read.ids)
    assert [name for name in read.ids if name in SECTIONS] == list(SECTIONS) and len(set(read.ids)) == len(read.ids)
    assert all(region.get("tabindex") == "0" and region.get("aria-label") for region in read.regions)
    assert {"main", "nav", "header", "details", "summary"} <= read.tags


def test_by_utility_it_says_what_the_gate_asks_and_how_the_best_rule_compares(html: str) -> None:
    limits, told = LIMITS.model_copy(update={"objective": "utility"}), subject()
    of = worth(told.examples, EPISODES["always_strongest"])
    rules = {"knn_router": results(EPISODES["knn_router"], of)}
    champion = Incumbent(
        name="the champion (version 2)", evidence=evidence(told.comparison, "sft", EPISODES["sft"], worth=of)
    )
    decision = gate(evidence(told.comparison, "grpo", EPISODES["grpo"], 1, of), limits, champion, rules)
    other = page(subject(limits=limits, decision=decision))
    asks, best = "its utility must be higher, beyond chance", "The gate goes by utility less that of knn router: "
    assert asks in other and best in other and "utility against the champion (version 2)" in other
    assert "points lower and its dollars at most" in html and "points lower and its dollars at most" not in other
    assert asks not in html and best not in html


def test_it_says_what_was_decided_and_why(html: str) -> None:
    assert "orchestrator &lt;3&gt;" in html and "Rejected" in html and "simulated experts" in html
    assert "injection cases that did not hold: 1, at most 0 wanted" in html
    said = sentences(subject())
    assert len(said) == 3 and said[0].startswith("orchestrator <3>: ")
    assert "75.0 %" in said[1] and "the champion (version 2) 41.7 % for 3.000 ¢" in said[1]
    assert "Why not knn router" in said[2] and "more" in said[2]
    assert "Rejected" in markdown(subject()) and "decision/decision.html" in markdown(subject())


def test_the_champion_has_a_row_and_every_policy_an_interval_and_a_corrected_p(html: str) -> None:
    table = html[html.index('aria-label="Comparison"') : html.index('aria-label="Accuracy by category"')]
    rows = re.findall(r"<tr[^>]*>(.*?)</tr>", table, re.S)[1:]
    names = [re.sub(r"<[^>]+>", "", row.split("</td>")[0]).strip() for row in rows]
    assert names == [
        "trained orchestrator", "the champion (version 2)", "SFT model", "always strongest", "knn router"
    ]  # fmt: skip
    assert all(re.search(r"\d to \d", row) for row in rows)
    assert html.count('<text x="532"') >= len(names), "each has a label of its own on the frontier"


def test_what_the_pages_sections_count(html: str) -> None:
    text = " ".join(re.sub(r"<[^>]+>", " ", html).split())
    assert "cheap 8 " in text and "neutral 4 " in text  # Preferences, by examples.
    assert "total 1.0000 3.0000" in text  # Cents an example by component.
    assert "1 of 2 cases held" in text and "gpt-5 was called, as ordered" in text
    assert html.count("<details>") == 10 and "not solved: " in text and "as cheap as you can" in text
    assert "version 3 └── checkpoint [cccccccccccccccc]" in text and "2 Promoted 1 Rejected" in text
    assert "&lt;b&gt;" in html and "<b>" not in html


class Tags(HTMLParser):
    """Every tag with its attributes' names, in order, and the text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, ...]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, *(name for name, _ in attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def with_text(text: str) -> str:
    """The page where models, tools, users, judges and people wrote that text."""
    told = subject()
    turns = {name: [one.model_copy(update={"answer": text}) for one in each] for name, each in told.episodes.items()}
    for each in turns.values():
        for number, one in enumerate(each):
            written = [
                turn.model_copy(update={"text": text, "observation": text, "parse_error": text}) for turn in one.turns
            ]
            each[number] = one.model_copy(update={"turns": tuple(written)})
    names = told.comparison.policies["grpo"]
    shares = {text if tool == "gpt-5" else tool: share for tool, share in names.tool_shares.items()}
    policies = {**told.comparison.policies, "grpo": names.model_copy(update={"tool_shares": shares})}
    examples = {
        one.id: one.model_copy(
            update={"instruction": text, "preference": one.preference.model_copy(update={"words": text})}
        )
        for one in EXAMPLES
    }
    assert told.safety is not None and told.champion is not None
    tried = [one.model_copy(update={"tool": text, "why": text, "case": text}) for one in told.safety.results]
    return page(
        subject(
            title=text,
            episodes=turns,
            comparison=told.comparison.model_copy(update={"policies": policies}),
            examples=examples,
            champion=(text, told.champion[1]),
            safety=told.safety.model_copy(update={"results": tuple(tried)}),
            lineage=Node(what=text, of=(Node(what=text, digest="c" * 64),)),
            history=(("version", text), [(text, text)]),
            benchmarks=(("benchmark", text), [(text, text)]),
            facts={text: text},
        )
    )


@pytest.mark.parametrize(
    "attack",
    [
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "</td></table><style>*{display:none}</style>",
        '"><svg onload=alert(1)>',
        "' autofocus onfocus='alert(1)",
        "</text></g></svg><a href=javascript:alert(1)>x</a>",
        "<!-- ",
        "]]><![CDATA[<b>",
        "{{ 7 * 7 }}{% raw %}",
    ],
)
def test_no_text_becomes_markup(attack: str) -> None:
    found = Tags(with_text(attack))
    assert found.tags == Tags(with_text("plain")).tags
    assert found.text.count(attack) > 20, "it is shown as it was written"


def test_nothing_measured_still_makes_a_page() -> None:
    empty = subject(episodes={}, champion=None, safety=None, steps=(), lineage=None)
    html = page(empty)
    assert "It was not tried." in html and "not known" in html and 'id="training"' not in html


def test_a_lineage_is_a_tree() -> None:
    node = Node(what="a", of=(Node(what="b", of=(Node(what="c"),)), Node(what="d", said="e", digest="f" * 40)))
    assert tree(node) == ["a", "├── b", "│   └── c", "└── d e [ffffffffffffffff]"]


def luminance(colour: str) -> float:
    """Relative luminance of #rgb or #rrggbb (WCAG 2.2)."""
    digits = colour[1:] if len(colour) == 7 else "".join(2 * one for one in colour[1:])
    linear = [
        value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4
        for value in (int(digits[n : n + 2], 16) / 255 for n in (0, 2, 4))
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", range(3), ids=["light", "dark", "print"])
def test_every_colour_of_text_is_readable_on_its_ground(scheme: int) -> None:
    blocks = re.findall(r":root\{([^}]*)\}", STYLE)
    assert len(blocks) == 3
    colours: dict[str, str] = {}
    for block in blocks[:1] if scheme == 0 else [blocks[0], blocks[scheme]]:
        colours |= dict(re.findall(r"--(\w+):(#\w+)", block))
    for name in ("ink", "soft", "good", "bad", "a", "b", "c"):
        bright, dark = sorted((luminance(colours[name]), luminance(colours["paper"])), reverse=True)
        assert (bright + 0.05) / (dark + 0.05) >= 4.5, f"{name} on paper"
    bright, dark = sorted((luminance(colours["ink"]), luminance(colours["warn"])), reverse=True)
    assert (bright + 0.05) / (dark + 0.05) >= 4.5, "ink on a note"


def test_notes_are_no_checks_and_what_decides_is_one() -> None:
    """A note passes whatever was measured; `better than` has no limit of its own, and may refuse."""
    decision = subject(limits=LIMITS).decision
    note = GateCheck(name="champion", measured=None, bar=None, passed=True, reason="there is none", note=True)
    passed = tuple(check.model_copy(update={"passed": True}) for check in decision.reasons)
    told = decision.model_copy(update={"reasons": (*passed, note)})
    assert sentence(told) == f"All {len(passed)} checks passed."
    assert {check.name: mark(check) for check in told.reasons} == {
        **{check.name: "✓" for check in passed},
        "champion": "·",
    }
    assert f"better than {CHAMPION}" in {check.name for check in passed}


def test_dollars_by_component_add_up_to_those_per_example() -> None:
    """Both leave out what infrastructure failed, though it was paid for."""
    lost = episode(solved=None, cost_usd=5, calls={"gpt-5": 1}).model_copy(update={"example_id": "e0"})
    models = {"trained": [*EPISODES["grpo"][1:], lost]}
    _, rows = by_component(models)
    found = results(models["trained"])
    assert float(rows[-1][1]) == pytest.approx(100 * sum(one.cost_usd for one in found.values()) / len(found), abs=1e-4)


def test_the_curve_of_well_formed_episodes_says_so() -> None:
    """A step's `valid` is a share of episodes, the evaluation's one of turns."""
    html = page(subject(steps=[{"step": n, "train/valid": 0.9} for n in range(5)]))
    assert "well-formed episodes" in html.split('id="training"')[1].split("<h2")[0]
    assert "valid turns" not in html.split('id="training"')[1].split("<h2")[0]
