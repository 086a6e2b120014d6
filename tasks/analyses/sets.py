"""What an analysis attempts: the held-out examples, or a public benchmark's questions with toolboxes and preferences.

A public question gets a toolbox, prices and a preference as an imported one does, in held-out wording, and the judge of
the benchmark's protocol. The benchmark's own prompt and limits are not kept: such an analysis is no result of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from orchestra.errors import ConfigError
from orchestra.evaluation.benchmarks.base import BENCHMARKS, Question
from orchestra.evaluation.benchmarks.source import files_of
from orchestra.synthesis.draft import Draft
from orchestra.synthesis.imports.importer import ExampleImporter, RowOrigin
from orchestra.tools.catalogue.catalogue import Catalogue
from orchestra.tools.experts.simulated import AnswerBook
from orchestra.tools.toolkit import Toolkit
from orchestra.types import Category, Example, Verifier
from tasks.evaluate import heldout
from tasks.platform.stage import Stage

OWN = "own"
PUBLIC = ("hle", "frames")


@dataclass(frozen=True)
class AnalysedSet:
    """Examples, and the stage whose parameters name their judge."""

    name: str
    stage: Stage
    examples: list[Example]
    importer: ExampleImporter | None = None
    """Of public questions: it knows what simulated experts are to know of them."""

    def with_answers(self, toolkit: Toolkit) -> Toolkit:
        """The tools; simulated experts know the public questions too, so that they are as skilled as elsewhere."""
        if self.importer is None:
            return toolkit
        file = toolkit.data_dir / "answers.jsonl"
        book = AnswerBook.load(file) if file.is_file() else AnswerBook()
        for example in self.examples:
            if (entry := self.importer.entry(example)) is not None:
                book.add(entry)
        return toolkit.with_data(None, book)


def analysed(stage: Stage, name: str, files: Sequence[Path], count: int | None) -> AnalysedSet:
    """The first `count` examples of a set; raises `OrchestraError` of one line for one that there is not."""
    if name == OWN:
        return AnalysedSet(OWN, stage, heldout(stage)[:count])
    if name not in PUBLIC:
        raise ConfigError(f"no set named {name}", where="--benchmark", fix=f"one of: {', '.join((OWN, *PUBLIC))}")
    benchmark, params, root = BENCHMARKS.find(name), stage.params, stage.root
    protocol = benchmark.protocol
    questions = benchmark.load(files_of(protocol, root, files))[:count]
    world = params.world
    catalogue = Catalogue.load(root / world.catalogue, root / world.prices, world.price_date)
    importer = ExampleImporter(catalogue, params.synthesize, "heldout")
    source = protocol.source
    origin = (source.name, source.licence) if source is not None else (name, "the benchmark's")
    examples = [_example(one, importer, *origin) for one in questions]
    judged = params.model_copy(update={"world": world.model_copy(update={"judge": protocol.judge})})
    return AnalysedSet(name, replace(stage, params=judged), examples, importer)


def _example(question: Question, importer: ExampleImporter, source: str, licence: str) -> Example:
    draft = Draft(
        category=Category.TOPIC,
        instruction=question.question,
        answer=question.answer,
        verifier="exact",
        entities=(question.id,),
    )
    verifier = Verifier(kind="judge", answer=question.answer)
    return importer.example(question.id, draft, verifier, RowOrigin(source, licence, question.id))
