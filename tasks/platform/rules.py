"""The rules of the Great Expectations suites: what each data set must hold, in which words, and how bad a breach is.

A critical rule of the examples refuses rows; a critical rule of a set as a whole stops the flow; a warning only shows.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from orchestra.validation.rows import INSTRUCTION_CHARS, PROBLEMS

Severity = Literal["critical", "warning"]
Rules = list[Any]
"""Expectations; `meta.reason` says in words what a failure means."""

EXAMPLES = "examples"
"""The suite whose rows can be refused one by one."""
KINDS = ("question", "domain")
MAX_TOOLS = 64
PROBLEM_WORDS = {
    "schema_problem": "not an example",
    "reference_problem": "reference",
    "toolbox_problem": "toolbox",
    "answer_problem": "answer",
    "golden_problem": "known solution",
    "leak": "leak",
    "gate_problem": "gate",
}
"""What a refusal by a column of words is called."""
assert set(PROBLEM_WORDS) == set(PROBLEMS)

MAX_DIVERGENCE, NOTED_DIVERGENCE = 0.1, 0.03
"""Kullback-Leibler divergence of a split's categories from the mix of params.yaml, nats: refused, and shown."""
MAX_LEAKED = 0.02
"""Share of the rows that have something of the held-out ones: above it the splits are not disjoint."""
LONG_INSTRUCTION_CHARS = 1000
MANY_CALLS = 16
DEAR_USD, SLOW_S = 10, 600
"""Of one call."""
UNEVEN = (0.2, 5)
"""How often an expert is offered, against the mean of all."""
SELDOM = 0.05
"""How often a domain tool is needed, against the mean of its domain's."""
UNEVEN_DOMAIN, LOST_DOMAIN = (0.5, 2), 0.1
"""Examples of a domain against the mean of all: shown outside the first, refused below the second."""
LONG_RECORD_CHARS = 2000


def suites(mix: Mapping[str, float], splits: Mapping[str, int], topics: Sequence[str]) -> dict[str, Rules]:
    """The rules of each data set: `mix` is the wanted share by category, `splits` the rows that have to follow it, and
    `topics` are those that simulated experts know (empty: there is none, and answers may be about any)."""
    return {
        EXAMPLES: [
            *_rows(mix),
            *(rule for split, rows in splits.items() for rule in _mix(mix, split, rows)),
            _disjoint(),
        ],
        "balance": _balance(),
        "answers": _answers(topics),
        "corpus": _corpus(),
    }


def _rows(mix: Mapping[str, float]) -> Rules:
    import great_expectations.expectations as gxe

    known = sorted(category for category, share in mix.items() if share > 0)
    return [
        *(gxe.ExpectColumnValuesToBeNull(column=column, **_says(words)) for column, words in PROBLEM_WORDS.items()),
        gxe.ExpectColumnValuesToBeUnique(column="id", **_says("the id is not unique")),
        gxe.ExpectColumnValuesToBeInSet(column="made_here", value_set=known, **_says("a category that the mix lacks")),
        gxe.ExpectColumnValuesToBeInSet(column="kind", value_set=list(KINDS), **_says("an unknown kind")),
        _between("instruction_chars", "the instruction is empty or too long", *INSTRUCTION_CHARS),
        _between("tools", "no tools or too many", 1, MAX_TOOLS),
        _between("expert_usd_min", "an expert costs nothing", 0, above=True),
        _between("tool_usd_min", "a negative price", 0),
        _between("latency_s_min", "a negative latency", 0),
        _between("weight_min", "a preference weight outside [0, 1]", 0, 1),
        _between("weight_max", "a preference weight outside [0, 1]", 0, 1),
        _between("entities", "about no entity: it cannot be kept apart", 1),
        gxe.ExpectColumnValuesToBeUnique(column="request", **_says("the same request twice", "warning")),
        _between("instruction_chars", "a long instruction", None, LONG_INSTRUCTION_CHARS, severity="warning"),
        _between("golden_calls", "a known solution of many calls", None, MANY_CALLS, severity="warning"),
        _between("choices", "only one expert: nothing to choose", 2, severity="warning"),
        _between("tool_usd_max", "every tool is free: nothing to weigh", 0, above=True, severity="warning"),
        _between("expert_usd_max", "a very expensive expert", None, DEAR_USD, severity="warning"),
        _between("latency_s_max", "a very slow tool", None, SLOW_S, severity="warning"),
    ]


def _mix(mix: Mapping[str, float], split: str, rows: int) -> Rules:
    import great_expectations.expectations as gxe

    shares = {category: share / sum(mix.values()) for category, share in mix.items() if share > 0}
    target = {"values": list(shares), "weights": list(shares.values())}

    def rule(threshold: float, reason: str, severity: Severity = "critical") -> Any:
        return gxe.ExpectColumnKLDivergenceToBeLessThan(
            column=f"{split}_category",
            partition_object=target,
            threshold=threshold,
            tail_weight_holdout=1e-6,
            internal_weight_holdout=0,
            **_says(reason, severity),
        )

    return [
        rule(MAX_DIVERGENCE, f"the {split} set does not follow synthesize.mix"),
        rule(NOTED_DIVERGENCE, f"the {split} set follows synthesize.mix only roughly", "warning"),
        # The divergence of a set that lacks a small category is small.
        *(
            gxe.ExpectColumnDistinctValuesToContainSet(
                column=f"{split}_category", value_set=[category], **_says(f"the {split} set has no {category} example")
            )
            for category, share in shares.items()
            if share * rows >= 1
        ),
    ]


def _disjoint() -> Any:
    import great_expectations.expectations as gxe

    return gxe.ExpectColumnProportionOfNonNullValuesToBeBetween(
        column="leak", max_value=MAX_LEAKED, **_says("the splits are not disjoint")
    )


def _balance() -> Rules:
    """Over a row for each split, domain and tool: counts, and ratios to the mean where there are enough to tell."""
    return [
        _between("examples", "a set is empty", 1),
        _between("domain_ratio", "a domain is all but missing", LOST_DOMAIN),
        _between("domain_ratio", "the domains are uneven", *UNEVEN_DOMAIN, severity="warning"),
        _between("offered_ratio", "an expert is offered far more or less than the others", *UNEVEN, severity="warning"),
        _between("needed_ratio", "hardly any known solution needs a domain's tool", SELDOM, severity="warning"),
    ]


def _answers(topics: Sequence[str]) -> Rules:
    import great_expectations.expectations as gxe

    why = _says("an answer about a topic that no expert has")
    return [
        gxe.ExpectColumnValuesToBeUnique(column="question", **_says("two answers to one question")),
        *([gxe.ExpectColumnValuesToBeInSet(column="topic", value_set=list(topics), **why)] if topics else []),
        _between("answer_chars", "an empty answer", 1),
        _between("right_among_wrong", "a wrong answer that is the right one", None, 0),
        _between("wrong", "no plausible wrong answer", 1, severity="warning"),
    ]


def _corpus() -> Rules:
    import great_expectations.expectations as gxe

    return [
        gxe.ExpectColumnValuesToBeUnique(column="id", **_says("two records have one id")),
        _between("text_chars", "an empty record", 1),
        _between("text_chars", "a long record", None, LONG_RECORD_CHARS, severity="warning"),
    ]


def _says(reason: str, severity: Severity = "critical") -> dict[str, Any]:
    return {"meta": {"reason": reason}, "severity": severity}


def _between(
    column: str,
    reason: str,
    low: float | None,
    high: float | None = None,
    *,
    above: bool = False,
    severity: Severity = "critical",
) -> Any:
    import great_expectations.expectations as gxe

    return gxe.ExpectColumnValuesToBeBetween(
        column=column, min_value=low, max_value=high, strict_min=above, **_says(reason, severity)
    )
