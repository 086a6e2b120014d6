"""Small real worlds for tests: a toolkit over the shipped catalogue and the mock domain, a codec, a tiny model."""

import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from orchestra.config.schema import Params, load_params
from orchestra.tools.catalogue.catalogue import Catalogue
from orchestra.tools.toolkit import Toolkit
from orchestra.types import (
    Category,
    Charge,
    Component,
    Episode,
    Example,
    Preference,
    Price,
    Provenance,
    StopReason,
    ToolCall,
    ToolSpec,
    Turn,
    Verdict,
    Verifier,
)

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from orchestra.rollout.render import Codec

ROOT = Path(__file__).parents[2]
PUBLISHED = (
    "finance", "sport", "ecommerce", "medicine", "entertainment", "railway", "restaurant", "education", "travel",
    "weather",
)  # fmt: skip
"""The method's ten domains (PAPER.md), which are shipped; beside them a user may have more."""
NEUTRAL = Preference(kind="neutral", words="", outcome=1, compute=0.3, latency=0.1)
PRICE = Price(input_per_million=Decimal("0.2"), output_per_million=Decimal("0.2"))
"""Of the policy's own tokens."""
TEXTS = [
    "what is 37*24? calculator search gpt-5 every subject error: exact arithmetic private records of firms",
    "how much does Ovel owe? who holds book 13? lend book 12 to Mirel and say the due day",
    "<think>\nmusic\ngpt-5 $0.0123 096s\n</think>\n\n",
]


@lru_cache
def catalogue() -> Catalogue:
    return Catalogue.load(ROOT / "data/catalogue/tools.yaml", ROOT / "data/catalogue/prices.yaml", "2025-11-15")


def toolkit(folder: Path, domain: Path | None = None, **more: Any) -> Toolkit:
    """The shipped catalogue, the mock domain (or another named mock), one record and one expert question.

    `more` goes to `Toolkit`, such as a budget.
    """
    book = {"question": "who wrote Opal?", "topic": "music", "answer": "Tesk", "wrong": ["Burr", "Olm"]}
    record = {"id": "1", "title": "Norvik", "text": "Norvik was founded in 1911."}
    (folder / "answers.jsonl").write_text(json.dumps(book) + "\n", encoding="utf-8")
    (folder / "corpus.jsonl").write_text(json.dumps(record) + "\n", encoding="utf-8")
    return Toolkit(catalogue(), {"mock": domain or ROOT / "data/domains/mock"}, folder, **more)


@lru_cache
def kit(domain: str = "mock") -> Toolkit:
    """That of params.yaml, with that domain alone."""
    params = load_params(ROOT / "params.yaml")
    world = params.world.model_copy(update={"domains": [domain]})
    return Toolkit.from_params(params.model_copy(update={"world": world}), ROOT)


def synthesized(**changes: Any) -> Params:
    """params.yaml with the mock domain alone, and those values of `synthesize`."""
    shipped = load_params(ROOT / "params.yaml")
    return shipped.model_copy(
        update={
            "synthesize": shipped.synthesize.model_copy(update=changes),
            "world": shipped.world.model_copy(update={"domains": ["mock"]}),
        }
    )


def change(root: Path, **sections: dict[str, Any]) -> None:
    """Write values into sections of a workspace's params.yaml."""
    params = yaml.safe_load((root / "params.yaml").read_text(encoding="utf-8"))
    for name, values in sections.items():
        params[name] = {**params[name], **values}
    (root / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")


def printed(*arguments: str) -> str:
    """What `orchestra …` prints, run in this process; raises what it raises."""
    from typer.testing import CliRunner

    from orchestra.cli.app import app

    done = CliRunner().invoke(app, arguments)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.stdout


def example(
    name: str = "e1",
    *,
    instruction: str = "what is 37*24?",
    answer: str | None = "888",
    kind: str = "exact",
    toolbox: Sequence[ToolSpec] | None = None,
    preference: Preference = NEUTRAL,
    domain: str | None = None,
    category: Category = Category.ARITHMETIC,
    **verifier: Any,
) -> Example:
    specs = [catalogue().spec(tool) for tool in ("calculator", "search", "gpt-5", "gpt-5-mini")]
    return Example(
        id=name,
        kind="domain" if domain else "question",
        category=category,
        instruction=instruction,
        domain=domain,
        toolbox=tuple(specs if toolbox is None else toolbox),
        preference=preference,
        verifier=Verifier.model_validate({"kind": kind, "answer": answer, **verifier}),
        provenance=Provenance(source="test", licence="Apache-2.0", generator="tests/support/worlds.py", seed=0),
    )


def episode(
    *,
    solved: bool | None = True,
    cost_usd: Decimal | str | float = 0,
    latency_s: float = 0.0,
    calls: Mapping[str, int] | None = None,
    answer: str | None = "x",
    parse_error: str | None = None,
) -> Episode:
    """An episode with that outcome (None: unknown), dollars, seconds and expert calls by name."""
    done = [
        Turn(
            ids=(1,),
            text="",
            call=ToolCall(name=name),
            observation="seen",
            charges=(Charge(component=Component.EXPERT, name=name),),
        )
        for name, count in (calls or {}).items()
        for _ in range(count)
    ]
    spent = Charge(component=Component.POLICY, name="policy", cost_usd=Decimal(str(cost_usd)), latency_s=latency_s)
    stop = StopReason.TOOL_FAILURE if solved is None else StopReason.ANSWERED if answer else StopReason.MALFORMED
    return Episode(
        example_id="e1",
        policy="test",
        prompt_ids=(1,),
        turns=(*done, Turn(ids=(2,), text="", parse_error=parse_error, charges=(spent,))),
        stop=stop,
        answer=answer,
        verdict=None if solved is None else Verdict(solved=solved, why="right" if solved else "wrong answer"),
    )


@lru_cache
def codec() -> "Codec":
    """A tokenizer trained on a few lines, with the embedded recipe's chat template."""
    from orchestra.rollout.render import Codec
    from orchestra.training.tokenizer import train_tokenizer

    template = (ROOT / "models/recipes/embedded/chat_template.jinja").read_text(encoding="utf-8")
    return Codec(train_tokenizer(TEXTS, 400, template))


def tiny_model(
    seed: int = 0, *, hidden: int = 32, head_dim: int = 16, tied: bool = True, **config: Any
) -> "PreTrainedModel":
    """A random two-layer Qwen3 in float32 over `codec()`'s vocabulary."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    tokenizer = codec().tokenizer
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=hidden,
            intermediate_size=2 * hidden,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=head_dim,
            max_position_embeddings=2048,
            tie_word_embeddings=tied,
            initializer_range=hidden**-0.5,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            **config,
        )
    )
    made: PreTrainedModel = model.eval()
    return made


def same(one: "torch.nn.Module", other: "torch.nn.Module") -> bool:
    """Whether two models have the same weights."""
    import torch

    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def easy_example(name: str = "e1", preference: Preference = NEUTRAL) -> Example:
    """Any answer solves it, so that rewards differ by cost and latency alone; its prompt is short."""
    return example(
        name, instruction=f"say something, {name}", answer=None, kind="database", domain="mock", toolbox=(),
        preference=preference,
    )  # fmt: skip


def warm_model(seed: int = 0, *, head_dim: int = 16, tied: bool = True) -> "PreTrainedModel":
    """A tiny model that has learned to answer `easy_example` in a few tokens, of more than one length."""
    import copy

    return copy.deepcopy(_warm_model(seed, head_dim, tied))


@lru_cache
def _warm_model(seed: int, head_dim: int, tied: bool) -> "PreTrainedModel":
    import torch

    model = tiny_model(seed, head_dim=head_dim, tied=tied)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    batch = []
    for said in ("yes", "how much", "who holds book 13?"):
        prompt, turn = codec().prompt(easy_example("e1")), codec().turn(said)
        batch.append((torch.tensor([[*prompt, *turn]]), torch.tensor([[-100] * len(prompt) + turn])))
    for _ in range(30):
        optimizer.zero_grad()
        for ids, labels in batch:
            model(input_ids=ids, labels=labels).loss.backward()
        optimizer.step()
    return model
