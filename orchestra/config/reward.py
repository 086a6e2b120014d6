"""The switches of the reward: each default is the published Eq. 1-3 of arXiv 2511.21689."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from orchestra.config.section import Factor, Fraction, Positive, Section, switch

PositiveUsd = Annotated[float, Field(gt=0, le=1e6)]


class Constraint(Section):
    """The most accurate policy whose mean dollars stay within a limit: dual ascent finds what a dollar costs."""

    usd: Annotated[dict[str, PositiveUsd], Field(min_length=1)]
    """Mean dollars of an episode, by kind of preference; kinds that are not named keep their weight of compute."""
    rate: Factor = 0.1
    """How far a multiplier moves in one step in which twice the limit is spent."""
    most: Factor = 10.0
    """Upper bound of a multiplier."""


class Branch(Section):
    """One episode for each choice at a turn's choice point, in place of samples that share a choice."""

    at: Literal["expert", "word"]
    """expert: the name of the expert that the first turn calls; word: the choice that ends the first turn's thought."""
    words: list[Annotated[str, Field(pattern=r"^[\w-]{1,40}( [\w-]{1,40}){0,3}$")]] = Field(default_factory=list)
    """The words to try (word): choices of the teacher, such as cheapest, strongest, search."""
    weights: Literal["policy", "uniform"] = "policy"
    """How much a choice counts: as often as the policy makes it (the policy gradient), or all alike (the natural
    policy gradient on the choice, arXiv 1906.00190, which also moves choices that are hardly ever made)."""
    share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of a step's groups that try every choice; the others are sampled, so that later choices learn too."""
    later: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of those groups that try the choices of a later turn: when to answer, and whom to ask on. They begin with
    the turns of one sampled episode, so the same call must get the same reply."""
    starts: Literal["policy", "even"] = "policy"
    """How the episodes begin whose later turns are tried: as the policy samples them, or with every first choice alike
    (exploring starts), so that states are tried which the policy seldom reaches yet."""
    greedy: bool = False
    """Whether what follows a choice is decoded greedily: less noise, where later choices cost as much as the first."""
    min_chance: Annotated[float, Field(ge=0, lt=0.5)] = 0.0
    """A choice that the policy makes less often is not tried: it does not fit the question."""
    entropy: Annotated[float, Field(ge=0, le=1)] = 0.0
    """A choice earns this times minus the logarithm of its chance beside its reward (maximum entropy, arXiv
    1801.01290): chances end near exp(reward / entropy), so that no choice is given up over a difference that chance
    made."""
    mean_of: Annotated[int, Field(ge=0, le=100_000)] = 0
    """0: a choice earns what its group says. Otherwise it earns the mean of so many last groups whose thoughts said the
    same before the choice: a critic with one number a choice, since a single group says little of it."""
    own: Annotated[float, Field(ge=0, le=1)] = 0.25
    """With `mean_of`: the share that a group keeps of what it differs by from that mean, so that a choice can also
    learn from prices, seconds and subjects."""
    settled: Annotated[float, Field(gt=0.5, le=1)] = 1.0
    """Where the policy makes one choice more often than that, nothing is tried: with uniform weights its logit would
    grow without end, in other states too."""

    @model_validator(mode="after")
    def _words_are_named(self) -> Self:
        if (self.at == "word") != bool(self.words):
            raise ValueError("branch.words names the words to try where branch.at is word, and only there")
        if len(set(self.words)) != len(self.words) or len(self.words) == 1:
            raise ValueError("branch.words needs at least two words, each once")
        return self


class RewardParams(Section):
    """How rewards of a group become advantages."""

    published: bool = switch(False)
    """True: Eq. 1-3 as published, whatever the other switches say; `reward` and `num_iterations` stay as they are."""
    unit: Literal["group", "example", "fixed"] = switch("group")
    """The ends between which a feature is normalised. group: those of its group (Eq. 2). example: those of the example,
    from its cheapest or fastest expert to its most expensive or slowest; a dollar is then worth the same in all groups
    of an example. fixed: from 0 to `unit_ceiling` times `unit_usd` and `unit_s`; a dollar is then worth the same in all
    examples."""
    unit_usd: Annotated[float, Field(gt=0, le=1e6)] | None = switch(None)
    """With unit fixed: the dollars that, times `unit_ceiling`, P's weight of compute is for, such as the strongest
    expert's mean."""
    unit_s: Annotated[float, Field(gt=0, le=1e6)] | None = switch(None)
    """With unit fixed: the seconds that, times `unit_ceiling`, P's weight of latency is for."""
    unit_ceiling: Annotated[float, Field(ge=1, le=1e6)] = switch(2.0)
    """With unit example or fixed: the end that is worth 0 lies this many times the way from the cheap end to the most
    expensive call, or to the unit. With fixed and 1 a dollar is worth what it is in utility, with 2 half of that."""
    among: Literal["all", "solved"] = switch("all")
    """Whose dollars, seconds and tools set means and ends: those of every episode, or of solved ones alone."""
    spent: Literal["solved", "all"] = switch("solved")
    """solved: dollars and seconds of solved episodes count, as a gain from the expensive end (Eq. 2). all: those of
    every episode count, as a loss from the cheap end, without a bound."""
    homogeneity: Literal["group", "part"] = switch("group")
    """What `min_group_std` leaves out: groups whose summed rewards are alike (as published), or single parts whose
    normalised feature is alike, so that a group that is all solved still trains on its dollars."""
    scale: Literal["group", "batch", "none"] = switch("group")
    """What centred rewards are divided by (TRL's scale_rewards): the group's std (Eq. 3), the whole step's, or 1."""
    batch_normalise: bool = switch(False)
    """Whether the advantages of a step are normalised once more, together (GDPO, arXiv 2601.05242)."""
    liked: Literal["count", "use", "share"] = switch("count")
    """What a liked tool earns: its calls counted (Eq. 1), so that repeating it pays; its use, once; or its share in all
    calls, as in utility. With `use`, a preference against tools takes reward for using them, and gives none for using
    others."""
    weights: dict[str, Fraction] = switch({})
    """Weights of further reward parts, for preferences that state none."""
    constraint: Constraint | None = switch(None)
    """null: dollars count by the weight of compute (Eq. 2)."""
    branch: Branch | None = switch(None)
    """null: a group is `group_size` samples."""
    budget_share: Fraction = switch(0.0)
    """Share of the training examples that are told a budget, drawn between the cheapest and most expensive expert."""
    num_iterations: Positive = switch(1)
    """Optimizer steps on each step's episodes (TRL's word). With 1 every importance ratio is 1, and `clip_low` and
    `clip_high` do nothing; from 2 on they bound how far one generation's episodes may move the policy."""

    @model_validator(mode="after")
    def _fixed_units_are_given(self) -> Self:
        if self.unit == "fixed" and (self.unit_usd is None or self.unit_s is None):
            raise ValueError("unit_usd and unit_s are both given where unit is fixed")
        return self

    def resolved(self) -> Self:
        """The settings that count: `published` puts the switches of Eq. 1-3 back to their defaults."""
        fields = type(self).model_fields
        back = {one: fields[one].get_default(call_default_factory=True) for one in EQUATIONS if one in fields}
        return self.model_copy(update=back) if self.published else self


EQUATIONS = (
    "unit", "unit_usd", "unit_s", "among", "spent", "homogeneity", "scale", "batch_normalise", "liked", "weights",
    "constraint", "branch", "budget_share", "normalise",
)  # fmt: skip
"""The switches that Eq. 1-3 fix, at their defaults."""
PUBLISHED = RewardParams()
