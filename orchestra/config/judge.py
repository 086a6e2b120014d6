"""The model that judges answers which no rule can check."""

from typing import Self

from orchestra.config.section import Positive, RequestSettings, Section, switch


class JudgeSettings(Section):
    """A pinned model; its address is $ORCHESTRA_JUDGE_URL, its key $ORCHESTRA_JUDGE_KEY."""

    model: str
    """As its endpoint names it, with its date where it has one: meta-llama/Llama-3.3-70B-Instruct-Turbo."""
    price: str
    """Its row of the price book, with a price on world.price_date: together/llama-3.3-70b-turbo, from 2026-07-24 on."""
    rubric: str = "frames"
    """What it is asked: hle or frames."""
    max_output_tokens: Positive = 4096
    """Of one reply, its reasoning included."""
    settings: RequestSettings = switch({})
    """What else a request says, over the rubric's own; `temperature: null` sends none, for models that refuse it."""

    @classmethod
    def named(cls, model: str, price: str, known: Self | None) -> Self:
        """The judge that a command names: where the `known` one is that model too, its limit and its settings hold."""
        if known is None or known.model != model:
            return cls(model=model, price=price)
        return known.model_copy(update={"price": price})
