"""The map of what flows: immutable, closed, and whole after a trip through JSON."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from orchestra.tools.base import ToolResult
from orchestra.types import (
    Charge,
    Component,
    Episode,
    Example,
    Message,
    Preference,
    Price,
    Record,
    StopReason,
    ToolCall,
    Turn,
    Usage,
    User,
    Verdict,
    Verifier,
)
from tests.support.worlds import example

ids = st.lists(st.integers(0, 1000), max_size=8).map(tuple)
turns = st.builds(
    Turn,
    ids=ids,
    text=st.text(max_size=20),
    call=st.none() | st.builds(ToolCall, name=st.sampled_from(["search", "calculator"])),
    observation=st.none() | st.text(max_size=10),
    observation_ids=ids,
    charges=st.lists(
        st.builds(
            Charge,
            component=st.sampled_from(Component),
            name=st.just("x"),
            cost_usd=st.decimals(0, 10, places=6),
            latency_s=st.floats(0, 100),
        ),
        max_size=3,
    ).map(tuple),
)
episodes = st.builds(
    Episode,
    example_id=st.text(min_size=1, max_size=5),
    policy=st.just("p"),
    prompt_ids=ids,
    turns=st.lists(turns, max_size=4).map(tuple),
    stop=st.sampled_from(StopReason),
    verdict=st.none() | st.builds(Verdict, solved=st.booleans(), why=st.text(max_size=5)),
)


@given(episodes)
def test_an_episode_survives_json(episode: Episode) -> None:
    assert Episode.model_validate_json(episode.model_dump_json()) == episode


@given(episodes)
def test_the_mask_marks_exactly_what_the_policy_wrote(episode: Episode) -> None:
    assert len(episode.mask) == len(episode.completion_ids)
    written = [i for i, own in zip(episode.completion_ids, episode.mask, strict=True) if own]
    assert written == [i for turn in episode.turns for i in turn.ids]


@given(episodes)
def test_an_episode_costs_what_its_charges_cost(episode: Episode) -> None:
    assert episode.cost_usd == sum((charge.cost_usd for turn in episode.turns for charge in turn.charges), Decimal(0))


@given(episodes)
def test_an_unknown_verdict_is_neither_solved_nor_counted(episode: Episode) -> None:
    assert episode.counted == (episode.verdict is not None)
    assert not (episode.solved and not episode.counted)


def test_only_calls_that_ran_are_counted() -> None:
    call, own = ToolCall(name="search"), Charge(component=Component.POLICY, name="policy")
    done = Turn(ids=(1,), text="", call=call, charges=(own, Charge(component=Component.SEARCH, name="search")))
    refused = Turn(ids=(1,), text="", call=call, observation="no such argument", charges=(own,))
    episode = Episode(
        example_id="a", policy="p", prompt_ids=(), turns=(done, refused, done), stop=StopReason.TURN_LIMIT
    )
    assert episode.tool_counts == {"search": 2}


def test_records_are_frozen_and_closed() -> None:
    message = Message(role="user", content="hi")
    with pytest.raises(ValidationError, match="frozen"):
        message.content = "no"  # type: ignore[misc]
    with pytest.raises(ValidationError, match="Extra inputs"):
        Message.model_validate({"role": "user", "content": "hi", "name": "x"})


@pytest.mark.parametrize("bad", [{"per_call": "-1"}, {"input_per_million": "NaN"}])
def test_a_price_is_a_finite_amount(bad: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        Price.model_validate(bad)


def test_dollars_are_text_in_json() -> None:
    assert Price(per_call=Decimal("0.1")).model_dump(mode="json")["per_call"] == "0.1"


def test_tokens_are_not_negative() -> None:
    with pytest.raises(ValidationError):
        Usage(input_tokens=-1)


def test_fields_that_came_later_are_written_only_where_they_say_something() -> None:
    """Rows made before them, and rows that do not use them, keep their bytes."""
    plain = example()
    text = plain.model_dump_json()
    assert not any(f'"{name}"' in text for name in ("user", "difficulty", "prompts"))
    assert '"parent":null' in text and Example.model_validate_json(text) == plain
    origin = plain.provenance.model_copy(update={"prompts": ("ab",)})
    user = User(facts={"reader": "Brin"})
    full = plain.model_copy(update={"provenance": origin, "user": user, "difficulty": 0.0})
    assert Example.model_validate_json(full.model_dump_json()) == full
    assert '"difficulty":0.0' in full.model_dump_json()


NOT_FINITE = [float("inf"), float("nan"), float("-inf"), 1e10, -1.0]


@pytest.mark.parametrize("seconds", NOT_FINITE)
def test_seconds_are_finite_and_bounded_wherever_they_are_told(seconds: float) -> None:
    """An infinite latency gave every other episode of its group an advantage of +3."""
    spec = example().toolbox[0]
    with pytest.raises(ValidationError, match="latency_s"):
        Charge(component=Component.EXPERT, name="x", latency_s=seconds)
    with pytest.raises(ValidationError, match="latency_s"):
        type(spec).model_validate({**spec.model_dump(), "latency_s": seconds})
    with pytest.raises(ValidationError, match="latency_s"):
        ToolResult(text="x", latency_s=seconds)


@pytest.mark.parametrize("usd", ["Infinity", "NaN", "-1", "1e16"])
@pytest.mark.parametrize("field", [name for name in Price.model_fields])
def test_prices_and_charges_are_finite_and_bounded(usd: str, field: str) -> None:
    with pytest.raises(ValidationError, match=field):
        Price.model_validate({field: usd})
    with pytest.raises(ValidationError, match="cost_usd"):
        Charge(component=Component.EXPERT, name="x", cost_usd=Decimal(usd))


def made(**changes: object) -> dict[str, object]:
    return {"kind": "any", "words": "", "outcome": 1.0, "compute": 0.1, "latency": 0.1, **changes}


@pytest.mark.parametrize("number", [float("inf"), float("nan")])
def test_no_record_holds_a_number_that_is_none(number: float) -> None:
    wrong: list[tuple[type[Record], dict[str, object]]] = [
        *((Preference, made(**{name: number})) for name in ("outcome", "compute", "latency")),
        *((Preference, made(**{name: {"x": number}})) for name in ("tools", "weights")),
        (Verifier, {"kind": "numeric", "tolerance": number}),
        (Turn, {"ids": (1,), "text": "", "logprobs": (number,)}),
        (Example, {**example().model_dump(), "difficulty": number}),
    ]
    for record, fields in wrong:
        with pytest.raises(ValidationError):
            record.model_validate(fields)


def test_a_tolerance_is_a_distance() -> None:
    with pytest.raises(ValidationError, match="tolerance"):
        Verifier(kind="numeric", tolerance=-1.0)
