"""What a judge is asked and how its reply is read: the prompts of published benchmarks, word for word."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from orchestra.errors import ConfigError, JudgeError
from orchestra.types import Message, Record


class Ruling(Record):
    """What a judge's reply says."""

    solved: bool
    extracted: str | None = None
    """The final answer that the judge found in the response."""
    confidence: int | None = None
    """Percent, as the response states it."""


@dataclass(frozen=True)
class Rubric:
    """One way to judge: the prompt, the form of the reply, and how it is read."""

    name: str
    template: str
    """With {question}, {response} and {correct_answer}."""
    read: Callable[[str], Ruling]
    """Raises `ValueError` for a reply that says neither."""
    settings: Mapping[str, Any]
    """What else every request says."""

    @property
    def sha256(self) -> str:
        """Of the prompt: a protocol names it, so that no prompt changes unseen."""
        return hashlib.sha256(self.template.encode()).hexdigest()

    def messages(self, question: str, answer: str, expected: str) -> list[Message]:
        """The prompt of one verdict."""
        text = self.template.format(question=question, response=answer, correct_answer=expected)
        return [Message(role="user", content=text)]

    def ruling(self, reply: str) -> Ruling:
        """What the reply says; raises `JudgeError` when it cannot be read, which is never a score of 0."""
        try:
            return self.read(reply)
        except ValueError as error:
            what = f"the judge's reply cannot be read: {error} (got {reply!r:.120})"
            raise JudgeError(what, where=self.name, fix="judge it again, or with another model") from None


class _Extracted(BaseModel):
    """The object that the judge of HLE is asked for (`ExtractedAnswer` of centerforaisafety/hle)."""

    extracted_final_answer: str
    reasoning: str
    correct: Literal["yes", "no"]
    confidence: int
    strict: Literal[True] = True


class _Pairs(list[tuple[str, Any]]):
    """A JSON object with every key as often as it is there."""


FENCE = re.compile(r"\A\s*```(?:json)?\s*\n(.*?)\n?\s*```\s*\Z", re.DOTALL)


def read_extracted(reply: str) -> Ruling:
    """The JSON object, alone or in a code fence; a confidence outside [0, 100] is moved to its nearer end.

    A key that is there twice with two values is no verdict: JSON's readers keep the last without a word.
    """
    fenced = FENCE.match(reply)
    text = fenced[1] if fenced else reply
    try:
        said = _Extracted.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc'])) or 'the reply'}: {first['msg']}") from None
    seen: dict[str, Any] = {}
    for key, value in json.loads(text, object_pairs_hook=_Pairs):
        if seen.setdefault(key.strip().casefold(), value) != value:
            raise ValueError(f"{key}: said twice, and not the same")
    return Ruling(
        solved=said.correct == "yes",
        extracted=said.extracted_final_answer,
        confidence=max(0, min(100, said.confidence)),
    )


DECISION = re.compile(r"^\W*decision\W+(true|false)\b(?![^\n]*\b(?:true|false)\b)", re.IGNORECASE | re.MULTILINE)
"""A line that names both, as the form that is asked for does, decides nothing."""
SAID = re.compile(r"\bdecision\W+(?:is\W+)?(true|false)\b(?![^\n]*\b(?:true|false)\b)", re.IGNORECASE)
"""The same anywhere in a line: an answer that the judge quotes may hold such a line."""


def read_decision(reply: str) -> Ruling:
    """What the lines decide: `Decision: TRUE`, be it quoted or emphasised. Both decisions in one reply are none."""
    found = DECISION.findall(reply)
    if not found:
        raise ValueError("no line says Decision: TRUE or FALSE")
    if len({one.casefold() for one in (*found, *SAID.findall(reply))}) > 1:
        raise ValueError("it says both Decision: TRUE and Decision: FALSE")
    return Ruling(solved=found[-1].casefold() == "true")


HLE = Rubric(
    name="hle",
    # Source: hle_eval/run_judge_results.py of centerforaisafety/hle (MIT), its slips included.
    template=r"""Judge whether the following [response] to [question] is correct or not based on the precise and unambiguous [correct_answer] below.

[question]: {question}

[response]: {response}

Your judgement must be in the format and criteria specified below:

extracted_final_answer: The final exact answer extracted from the [response]. Put the extracted answer as 'None' if there is no exact, final answer to extract from the response.

[correct_answer]: {correct_answer}

reasoning: Explain why the extracted_final_answer is correct or incorrect based on [correct_answer], focusing only on if there are meaningful differences between [correct_answer] and the extracted_final_answer. Do not comment on any background to the problem, do not attempt to solve the problem, do not argue for any answer different than [correct_answer], focus only on whether the answers match.

correct: Answer 'yes' if extracted_final_answer matches the [correct_answer] given above, or is within a small margin of error for numerical problems. Answer 'no' otherwise, i.e. if there if there is any inconsistency, ambiguity, non-equivalency, or if the extracted answer is incorrect.


confidence: The extracted confidence score between 0|\%| and 100|\%| from [response]. Put 100 if there is no confidence score available.""",  # noqa: E501
    read=read_extracted,
    settings={
        "response_format": {
            "type": "json_schema",
            "json_schema": {
                "name": "ExtractedAnswer",
                "strict": True,
                "schema": {
                    "type": "object",
                    "properties": {
                        "extracted_final_answer": {"type": "string"},
                        "reasoning": {"type": "string"},
                        "correct": {"type": "string", "enum": ["yes", "no"]},
                        "confidence": {"type": "integer"},
                        "strict": {"type": "boolean", "const": True},
                    },
                    "required": ["extracted_final_answer", "reasoning", "correct", "confidence", "strict"],
                    "additionalProperties": False,
                },
            },
        }
    },
)
FRAMES = Rubric(
    name="frames",
    # Source: the autorater's prompt in the paper's appendix (arXiv 2409.12941).
    template="""===Task===
I need your help in evaluating an answer provided by an LLM against a ground truth answer. Your task is to determine if the ground truth answer is present in the LLM's response. Please analyze the provided data and make a decision.
===Instructions===
1. Carefully compare the "Predicted Answer" with the "Ground Truth Answer".
2. Consider the substance of the answers \u2013 look for equivalent information or correct answers. Do not focus on exact wording unless the exact wording is crucial to the meaning.
3. Your final decision should be based on whether the meaning and the vital facts of the "Ground Truth Answer" are present in the "Predicted Answer:"
===Input Data===
- Question: {question}
- Predicted Answer: {response}
- Ground Truth Answer: {correct_answer}
===Output Format===
Provide your final evaluation in the following format:
"Explanation:" (How you made the decision?)
"Decision:" ("TRUE" or "FALSE" )
Please proceed with the evaluation.""",  # noqa: E501
    read=read_decision,
    settings={"temperature": 0},
)
CALLS = Rubric(
    name="calls",
    # Ours, for tasks whose database is missing.
    template="""A user asked an assistant for something. The assistant has tools, but the database behind them is not here. Decide whether what the assistant did and said amounts to the known solution.
===Request===
{question}
===Known solution===
{correct_answer}
===What the assistant did and said===
{response}
===Rules===
1. Every change of the known solution must be made, to the same things and with the same values, and no other change.
2. Reading more, or in another order, does no harm. The same value in another form (a date, a number, upper case) is the same.
3. What the known solution tells the user must stand in what the assistant told.
===Output Format===
"Explanation:" (How you made the decision?)
"Decision:" ("TRUE" or "FALSE")""",  # noqa: E501
    read=read_decision,
    settings={"temperature": 0},
)
RUBRICS: Mapping[str, Rubric] = {rubric.name: rubric for rubric in (HLE, FRAMES, CALLS)}


def rubric(name: str) -> Rubric:
    """Raises `ConfigError` with the names that exist."""
    if name not in RUBRICS:
        raise ConfigError(f"no rubric named {name}", where="the judge", fix=f"one of: {', '.join(RUBRICS)}")
    return RUBRICS[name]
