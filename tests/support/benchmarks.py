"""Hand-made answer pairs in the published schemas, and an endpoint that plays the model and the judge of each."""

import json
from pathlib import Path
from typing import Any

from orchestra.config.schema import load_params
from orchestra.evaluation.benchmarks.models import ModelSettings
from orchestra.evaluation.benchmarks.run import Evaluation
from tests.support.endpoint import completion

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests/data/benchmarks"
MODEL = "tested-1"

Row = dict[str, Any]


def pairs(benchmark: str) -> list[Row]:
    """100 questions with a response, a judge's reply, and the verdict of the official scorer."""
    lines = (DATA / f"{benchmark}_pairs.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def published(benchmark: str, folder: Path, rows: list[Row] | None = None) -> Path:
    """The questions in the benchmark's published schema."""
    rows = pairs(benchmark) if rows is None else rows
    if benchmark == "hle":
        file = folder / "test.jsonl"
        made = [
            {
                "id": row["id"], "question": f"{row['question']} ({row['id']})", "image": "", "answer": row["answer"],
                "answer_type": "exactMatch", "author_name": "nobody", "rationale": "made by hand",
                "raw_subject": "general", "category": "Math" if index % 2 else "Other", "canary": "none",
            }
            for index, row in enumerate(rows)
        ]  # fmt: skip
        file.write_text("".join(json.dumps(row) + "\n" for row in made), encoding="utf-8")
        return file
    file = folder / "test.tsv"
    lines = ["\tPrompt\tAnswer\twikipedia_link_1\treasoning_types\twiki_links"]
    for row in rows:
        cells = [row["id"], f"{row['question']} ({row['id']})", row["answer"], "", "Numerical reasoning | Tabular"]
        lines.append(
            "\t".join('"' + cell.replace('"', '""') + '"' for cell in [*cells, "['https://w/A', 'https://w/B']"])
        )
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def text_of(content: str | list[Row]) -> str:
    """What a message says: OpenAI's clients write it as one string or, as inspect does, in parts."""
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def player(benchmark: str) -> Any:
    """What the endpoint replies: the response to a question, and the judge's words about it; a few words to others."""
    rows = pairs(benchmark)

    def reply(request: Row) -> Any:
        said = text_of(request["messages"][-1]["content"])
        found = [row for row in rows if f"({row['id']})" in said]
        if not found:
            return (200, completion(request, "It is 2."), 0)
        (row,) = found
        return (200, completion(request, row["response"] if request["model"] == MODEL else row["reply"]), 0)

    return reply


def evaluation(benchmark: str, file: Path, root: Path, url: str = "http://127.0.0.1:9/v1", **more: Any) -> Evaluation:
    """The tested model, a chat endpoint with a price, on the questions of a file."""
    params = load_params(ROOT / "params.yaml")
    tape, priced = more.pop("tape", None), f"{MODEL}@{url}"
    model = ModelSettings(ROOT, params, priced, price="openai/gpt-5-mini", max_tokens=64, tape=tape)
    return Evaluation(root, params, benchmark, model, (file,), **more)
