"""The frames that the suites run over: examples, how they spread over domains and tools, answers, and records."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from orchestra.provenance import GENERATOR
from orchestra.tools.experts.simulated import BookEntry, question_key
from orchestra.tools.search.corpus import Document
from orchestra.tools.toolkit import Toolkit
from orchestra.types import ToolKind
from orchestra.validation.survey import Survey, Uses

if TYPE_CHECKING:
    import pandas as pd

ENOUGH = 50
"""Mean count from which a count says something; below it, ratios are null."""
BALANCE = ("row", "split", "name", "count", "examples", "domain_ratio", "offered_ratio", "needed_ratio")


def examples_frame(survey: Survey) -> "pd.DataFrame":
    """A row for each line of each split, and in `made_here` and a column for each split the categories of its generated
    rows.

    What came from elsewhere (`synthesize.extra`) is null there: only what is generated has a mix to follow.
    """
    frame: pd.DataFrame = survey.table.to_pandas()
    frame["made_here"] = frame["category"].where(frame["generator"] == GENERATOR)
    for split in survey.uses:
        frame[f"{split}_category"] = frame["made_here"].where(frame["split"] == split)
    return frame


def balance_frame(examples: "pd.DataFrame", uses: Mapping[str, Uses], toolkit: Toolkit) -> "pd.DataFrame":
    """A row for each split, and in it each domain, expert and domain tool: its count, and that over the mean.

    `examples` counts rows that could be read; a domain's count is that of the generated ones, an expert's of those that
    offer it, a domain tool's of those whose known solution calls it. A domain without intents is not compared: nothing
    is generated of it.
    """
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for split, used in uses.items():
        readable = examples[(examples["split"] == split) & examples["schema_problem"].isna()]
        rows.append({"row": split, "split": split, "name": split, "count": len(readable), "examples": len(readable)})
        domains = readable[readable["generator"] == GENERATOR]["domain"].value_counts()
        asked = [name for name in toolkit.domain_folders if toolkit.domain(name).intents]
        experts = toolkit.catalogue.names(ToolKind.EXPERT)
        rows += _ratios(split, "domain_ratio", {name: int(domains.get(name, 0)) for name in asked})
        rows += _ratios(split, "offered_ratio", {name: used.offered[name] for name in experts})
        for domain in asked:
            tools = [f"domain:{domain}/{name}" for name in toolkit.domain(domain).tools]
            rows += _ratios(split, "needed_ratio", {name: used.needed[name] for name in tools})
    frame = pd.DataFrame(rows, columns=list(BALANCE))
    # Numbers also where a column is empty: nothing to compare must not look like text.
    return frame.astype({name: "float64" for name in BALANCE if name.endswith("_ratio") or name == "examples"})


def _ratios(split: str, column: str, counts: Mapping[str, int]) -> Iterator[dict[str, Any]]:
    mean = sum(counts.values()) / len(counts) if counts else 0.0
    for name, count in counts.items():
        ratio = round(count / mean, 3) if mean >= ENOUGH else None
        yield {"row": f"{split}: {name}", "split": split, "name": name, "count": count, column: ratio}


def answers_frame(entries: Sequence[BookEntry]) -> "pd.DataFrame":
    """A row for each answer that simulated experts know."""
    import pandas as pd

    columns: dict[str, Iterable[Any]] = {
        "row": (f"answers:{number}" for number in range(1, len(entries) + 1)),
        "question": (question_key(entry.question) for entry in entries),
        "topic": (entry.topic for entry in entries),
        "answer_chars": (len(entry.answer.strip()) for entry in entries),
        "right_among_wrong": (int(entry.answer in entry.wrong) for entry in entries),
        "wrong": (len(entry.wrong) for entry in entries),
    }
    return pd.DataFrame({name: list(values) for name, values in columns.items()})


def corpus_frame(documents: Sequence[Document]) -> "pd.DataFrame":
    """A row for each record that searches find."""
    import pandas as pd

    columns: dict[str, Iterable[Any]] = {
        "row": (f"corpus:{number}" for number in range(1, len(documents) + 1)),
        "id": (document.id for document in documents),
        "text_chars": (len(document.text.strip()) for document in documents),
    }
    return pd.DataFrame({name: list(values) for name, values in columns.items()})
