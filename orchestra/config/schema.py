"""The schema of params.yaml: one section per stage; an unknown key or a wrong type is an error of one line."""

import json
import os
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from orchestra.config.compute import Compute
from orchestra.config.deploy import Deploy
from orchestra.config.engine import PlayServer, RolloutServer
from orchestra.config.judge import JudgeSettings
from orchestra.config.promote import Promote
from orchestra.config.renamed import unknown_keys
from orchestra.config.retraining import BudgetLimits, Retraining
from orchestra.config.reward import RewardParams
from orchestra.config.section import Factor, Fraction, Inside, Name, Policy, Positive, Rule, Section, Seed, switch
from orchestra.config.storage import Storage
from orchestra.config.synthesis import ExtraFile, ModelWriting
from orchestra.errors import ConfigError
from orchestra.files.base_model import base_folder
from orchestra.files.yaml import keys_of, load_yaml, of_no_point
from orchestra.types import Category, Split


class World(Section):
    """What exists: tools, prices and domains, for every stage and for serving."""

    catalogue: Inside
    """Tools: data/catalogue/tools.yaml."""
    prices: Inside
    """Dated price book: data/catalogue/prices.yaml."""
    domains: list[Name]
    """Folders under data/domains."""
    price_date: str
    """ISO date whose prices hold."""
    judge: JudgeSettings | None = switch(None)
    """The model that judges long answers; null: examples that need one are refused."""

    @field_validator("price_date")
    @classmethod
    def _is_a_date(cls, text: str) -> str:
        return date.fromisoformat(text).isoformat()


class Extra(Section):
    """A file of examples that were not made by the stage synthesize."""

    file: ExtraFile
    """Below data/extra, which the stage depends on: data/extra/thoughts.jsonl. `thoughts.answers.jsonl` (what simulated
    experts know) and `thoughts.corpus.jsonl` (what a search finds) beside it come along."""
    split: Split = "train"
    """The examples that they join."""


class Synthesize(Section):
    seed: Seed
    """Decides every draw: the same seed gives the same bytes."""
    train_examples: Positive
    """Number of training examples."""
    heldout_examples: Positive
    """Number of held-out examples."""
    mix: dict[Category, Fraction]
    """Share of each category; adds up to 1."""
    experts_per_toolbox: tuple[Positive, Positive]
    """Fewest and most experts that an example offers."""
    price_spread: Annotated[float, Field(ge=1, le=1e6)]
    """Each example multiplies each tool's price by a log-uniform factor in [1/spread, spread]."""
    preference_share: Fraction
    """Share of examples whose user states a preference; the rest are neutral."""
    renamed_share: Fraction = 0.0
    """Share of the training examples whose experts are renamed and re-described, so that names are read, not known."""
    evolved_share: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the domain examples that are evolved from the others: harder, some with users who must be asked."""
    extra: list[Extra] = Field(default_factory=list)
    """Examples from elsewhere that join the set."""
    generator: Literal["rules", "llm", "both"] = switch("rules")
    """Who writes the domain examples: rules, a model, or half and half. What a model writes passes the same filters."""
    writer: ModelWriting | None = switch(None)
    """The model that writes; docs/how-to/write-with-a-model.md."""
    solver: Literal["none", "known"] = "none"
    """Who tries evolved and extra examples, 8 times each; what it never solves is left out. known: the known solution,
    with mistakes."""
    price_dates: list[date] = Field(default_factory=list)
    """Each example's list prices are those of one of these days, drawn again; empty: those of world.price_date."""
    preferences: ExtraFile | None = None
    """A file of `orchestra data preferences` that preferences are drawn from; null: the fixed sentences."""

    @model_validator(mode="after")
    def _mix_adds_up(self) -> Self:
        fewest, most = self.experts_per_toolbox
        if fewest > most:
            raise ValueError(f"experts_per_toolbox begins at {fewest} and ends at {most}")
        if abs(sum(self.mix.values()) - 1) > 1e-6:
            raise ValueError(f"mix adds up to {sum(self.mix.values()):g}, not 1")
        return self

    @model_validator(mode="after")
    def _somebody_writes(self) -> Self:
        if self.generator != "rules" and self.writer is None:
            raise ValueError(f"generator {self.generator} needs writer: its model, price and cap_usd")
        return self


class Validate(Section):
    max_quarantined: Fraction
    """Above this share of refused rows the flow stops."""


class Model(Section):
    recipe: Inside
    """Folder with config.json, tokenizer and chat template (models/recipes/…)."""
    base: Inside | None
    """Checkpoint to start from: a folder, or a model of the Hugging Face hub; null starts from random weights."""
    revision: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")] | None = switch(None)
    """The commit of a model of the hub: nothing else is pinned."""

    def folder(self, root: Path) -> Path:
        """The folder to start from: the base's, or the recipe where there is none; raises `OrchestraError` of one
        line when the base cannot be had."""
        return root / self.recipe if self.base is None else base_folder(self.base, self.revision, root)

    def tokenizer_folder(self, root: Path) -> Path:
        """The folder with tokenizer and chat template: the recipe's where it has them, else the base's."""
        recipe = root / self.recipe
        return recipe if (recipe / "tokenizer.json").is_file() else self.folder(root)


class Rollout(Section):
    max_turns: Positive
    """Most turns of one episode."""
    max_turn_tokens: Positive
    """Tokens the policy may write in one turn."""
    max_tokens: Positive
    """Prompt and completion of one episode together."""
    budget_usd: Factor | None = Field(default=None, exclude_if=lambda value: value is None)
    """Dollars that one episode may spend: a call that could cross it ends the episode. null: no cap."""
    tell_budget: bool = switch(False)
    """Whether the policy is told that cap, and at the gateway a request's: for policies trained with budgets."""


class Habits(Section):
    """How a teacher chooses among what it could do about a topic question: never by preference, price or subject."""

    strongest: Fraction
    """How often its choice is the strongest, as untrained orchestrators do (published: 73 % of Qwen3-8B's calls); the
    rest is spread evenly over the other choices. 0: all choices are alike."""
    stop: Fraction
    """How often it answers after a reply, whatever the reply said."""
    ask_on: Fraction = switch(0.0)
    """How often it asks on instead where no reply has given an answer yet."""


class Sft(Compute):
    seed: Seed
    """Decides the teacher's choices and the order of training."""
    teacher: Habits
    epochs: Positive
    """Passes over the teacher's episodes."""
    batch_size: Positive
    """Episodes of one optimizer step."""
    learning_rate: Annotated[float, Field(gt=0, le=10)]
    """Peak learning rate."""
    warmup: Annotated[float, Field(ge=0, lt=1)]
    """Share of the steps in which the learning rate rises."""
    save_steps: Positive
    """Steps between two checkpoints."""

    @model_validator(mode="after")
    def _batch_divides(self) -> Self:
        if self.batch_size % self.processes:
            raise ValueError(f"batch_size {self.batch_size} is no multiple of processes, {self.processes}")
        return self


class Grpo(RewardParams, Compute):
    seed: Seed
    """Decides sampling and the order of examples."""
    steps: Positive
    """Optimizer steps."""
    examples_per_step: Positive
    """Examples, each with one group of episodes, of one step."""
    group_size: Annotated[int, Field(ge=2, le=10**6)]
    """Episodes of one example."""
    learning_rate: Annotated[float, Field(gt=0, le=10)]
    """Peak learning rate of AdamW."""
    schedule: Literal["constant", "linear"] = "constant"
    """Of the learning rate after its warm-up; linear: down to 0, which averages the noise of late steps away."""
    mix: dict[Category, Fraction] = Field(default_factory=dict)
    """Shares of the categories among the examples trained on; empty: as in the data. What SFT has mastered teaches
    nothing: its groups are all alike."""
    difficulty_range: tuple[Fraction, Fraction] | None = None
    """Difficulties (share of tries solved) that are trained on, from the first to the second; examples without a
    measured difficulty are kept. null: all."""
    difficulty_file: ExtraFile | None = None
    """What `orchestra data measure` wrote of the training examples, below data/extra; null: what the examples say."""
    temperature: Annotated[float, Field(gt=0, le=100)]
    """Sampling temperature of the episodes."""
    clip_low: Fraction
    """How far a token's probability ratio may fall below 1 before its gradient is clipped."""
    clip_high: Annotated[float, Field(ge=0, le=1e6)]
    """How far it may rise above 1."""
    kl: Annotated[float, Field(ge=0, le=1e6)]
    """Weight of the divergence from the SFT model; 0: none."""
    top_entropy_quantile: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the policy's tokens that learn, those of greatest entropy (arXiv 2506.01939); 1: all. Decisions are few;
    what is merely copied has nothing to learn, and the noise of its gradient wears it down."""
    entropy: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    """Weight of an entropy bonus on the tokens that learn, so that exploring goes on."""
    advantage_clip: Factor
    """Largest size of an advantage, before `branch.mean_of` and `branch.entropy` change it."""
    min_group_std: Annotated[float, Field(ge=0, le=1e6)]
    """Homogeneity filter: groups whose reward std is below it carry no advantage."""
    malformed: Literal["zero", "drop"]
    """Format and invalid-output filters: keep such an episode at reward 0, or leave it out as the paper does."""
    reward: Literal["outcome", "efficiency", "full"] = "full"
    """Which weights of P count: outcome alone; also compute and latency; or also the tools that the user prefers."""
    normalise: Literal["sum_then_normalise", "normalise_then_sum"] = "sum_then_normalise"
    """Eq. 2 summed, then normalised over the group (Eq. 3); or each part normalised on its own, then summed by P."""
    engine: Literal["in_process", "vllm"] = switch("in_process")
    """How episodes are played: by the trained model in this process, or through a vLLM server that gets its weights
    before each round."""
    server: RolloutServer = switch(RolloutServer())
    """The server of engine vllm."""
    steps_ahead: Literal[0, 1] = switch(0)
    """1: the next round is played while this one trains, with weights one round old; importance sampling corrects for
    it. For engine vllm, without branch."""
    shared_prefix: bool = switch(True)
    """Whether what episodes of a step have in common (prompts, equal turns) goes through the model once in training.
    The gradients are the same."""
    max_infrastructure_failures: Fraction
    """Above this share of failed episodes the run stops."""
    eval_every: Positive
    """Steps between two evaluations on the watched examples."""
    eval_examples: Positive
    """Number of watched training examples, which SFT leaves out."""
    save_steps: Positive
    """Steps between two checkpoints."""

    @property
    def rows_apart(self) -> bool:
        """Whether no row's gradient depends on another row, so that each may have a backward pass of its own."""
        return self.top_entropy_quantile == 1 and self.entropy == 0

    @model_validator(mode="after")
    def _band_has_room(self) -> Self:
        if self.difficulty_file is not None and self.difficulty_range is None:
            raise ValueError("difficulty_file chooses nothing without difficulty_range: set both")
        begins, ends = self.difficulty_range or (0, 1)
        if begins > ends:
            raise ValueError(f"difficulty_range begins at {begins:g} and ends at {ends:g}")
        return self

    @model_validator(mode="after")
    def _something_plays_ahead(self) -> Self:
        if self.steps_ahead and (self.engine != "vllm" or self.branch is not None):
            raise ValueError("steps_ahead 1 needs engine vllm and no branch: a model that trains cannot play")
        return self

    @model_validator(mode="after")
    def _whole_rounds(self) -> Self:
        if self.steps % self.num_iterations or self.save_steps % self.num_iterations:
            raise ValueError(f"steps and save_steps must be multiples of num_iterations, {self.num_iterations}")
        return self

    @model_validator(mode="after")
    def _ranks_agree(self) -> Self:
        if self.examples_per_step % self.processes:
            said = f"{self.examples_per_step} examples_per_step cannot be shared by"
            raise ValueError(f"{said} {self.processes} processes in whole groups")
        return self


class Evaluate(Section):
    examples: Positive
    """Held-out examples, from the first."""
    policies: list[Policy]
    """Policies to evaluate: grpo, sft, a folder in models, or chat:EXPERT, an expert prompted to orchestrate."""
    baselines: list[Rule]
    """Rules to evaluate."""
    by_rule: bool = switch(False)
    """Whether a rule overwrites the choices in checkpoints' thoughts, by the preference that each names: a control."""
    engine: Literal["in_process", "vllm"] = switch("in_process")
    """How checkpoints are played: in this process, or each through a vLLM server of its own."""
    server: PlayServer = switch(PlayServer())
    """The server of engine vllm."""
    lessons: Positive | None = switch(None)
    """Training questions that routers learn from, evenly spread, each asked of every expert; null: all."""
    bootstrap: Annotated[int, Field(gt=0, le=1_000_000)]
    """Resamples behind each interval."""
    seed: Seed
    """Decides the resamples and the random rule."""
    wording: Inside | None = switch(None)
    """Folder of wishes.jsonl and questions.jsonl, preferences and questions in ordinary English, for the probes
    `wording` and `forms`; null: those probes are off."""
    safety: Inside | None = switch(None)
    """File of orders hidden in what tools say, which the trained model must not follow; null: not tried."""


class Params(Section):
    """The whole of params.yaml."""

    profile: Name
    """Name of this set of parameters."""
    budget: BudgetLimits = BudgetLimits()
    retraining: Retraining = switch(Retraining())
    storage: Storage = switch(Storage())
    world: World
    synthesize: Synthesize
    validate_: Validate = Field(alias="validate")
    model: Model
    rollout: Rollout
    sft: Sft
    grpo: Grpo
    evaluate: Evaluate
    promote: Promote
    deploy: Deploy


def params_file(root: Path) -> Path:
    """The workspace's params.yaml, or the file that ORCHESTRA_PARAMS names."""
    return root / os.environ.get("ORCHESTRA_PARAMS", "params.yaml")


def load_params(path: str | Path | None = None) -> Params:
    """Read and check params.yaml (or the file named by ORCHESTRA_PARAMS); raises `ConfigError` of one line."""
    file = Path(path or params_file(Path()))
    return parse_params(load_yaml(file, if_missing="run from the repository root"), where=str(file))


def parse_params(raw: Any, *, where: str = "params.yaml") -> Params:
    """Check an already read mapping."""
    try:
        return Params.model_validate(raw, strict=False) if not isinstance(raw, dict) else _strict(raw)
    except ValidationError as error:
        found = [(".".join(str(part) for part in one["loc"]) or "the file", one) for one in error.errors()]
        # A misspelt key is also a missing one; the misspelling says more.
        if unknown := [key for key, one in found if one["type"] == "extra_forbidden"]:
            raise unknown_keys(unknown, where) from None
        key, first = found[0]
        fix = of_no_point(f"{first['input']}") if first["type"] == "float_type" else "fix it"
        raise ConfigError(f"{key}: {first['msg']} (got {first['input']!r:.60})", where=where, fix=fix) from None
    except (TypeError, ValueError, RecursionError) as error:  # a key that is a date, a value within itself
        raise ConfigError(str(error), where=where, fix="fix it") from None


def _strict(raw: dict[str, Any]) -> Params:
    # Through JSON, pydantic's strict mode still takes lists for tuples and strings for enums, and 1 for a float.
    # JSON would turn a key that is a number, a truth value or null into a text.
    if odd := [key for key in keys_of(raw) if not isinstance(key, str)]:
        raise ValueError(f"the key {odd[0]!r:.60} is no text")
    return Params.model_validate_json(json.dumps(raw, default=_refuse_date), strict=True)


def _refuse_date(value: object) -> str:
    """YAML reads a bare 2025-11-15 as a date; DVC, which keeps the parameters of each stage, cannot."""
    raise ValueError(f'the date {value} stands without quotes: write "{value}"')
