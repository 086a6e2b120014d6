"""The toolkit: arguments checked, calls charged, faults told apart."""

import asyncio
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from orchestra.errors import CallError, ConfigError, DataError, ToolError
from orchestra.system.ending import bug
from orchestra.tools.arguments import ArgumentCheck, checker
from orchestra.tools.base import UNSURE, Tool, ToolContext, ToolResult
from orchestra.tools.replay.cassette import Cassette, Mode
from orchestra.tools.resources import MOST_CHECKS, Resources
from orchestra.tools.session import ToolOutcome, ToolSession
from orchestra.tools.toolkit import Toolkit
from orchestra.types import Component, Example, ToolCall, ToolSpec
from tests.support.worlds import ROOT, catalogue, example, toolkit


def call(kit: Toolkit, item: Example, name: str, arguments: dict[str, Any]) -> ToolOutcome:
    session = ToolSession(kit, item)
    try:
        return asyncio.run(session.call(ToolCall(name=name, arguments=arguments)))
    finally:
        session.close()


def test_basic_tools_answer_at_this_example_s_price(tmp_path: Path) -> None:
    kit = toolkit(tmp_path)
    spec = catalogue().spec("search", price_factor=3)
    found = call(kit, example(toolbox=[spec]), "search", {"query": "Norvik"})
    assert found.text == "Norvik was founded in 1911." and not found.error
    assert found.charge.cost_usd == spec.price.per_call and found.charge.component is Component.SEARCH
    assert call(kit, example(), "calculator", {"expression": "37*24"}).text == "888"


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("gpt-4", {}, "no tool named gpt-4; there are: calculator, search"),
        ("search", {}, "search: needs query; it takes query (string)"),
        ("calculator", {"expression": 5}, "calculator: expression must be a string, not 5; it takes"),
        ("search", {"query": "x", "k": 3}, "search: has no argument k; it takes query (string)"),
        ("python", {"code": "1"}, "no tool named python"),
    ],
)
def test_the_model_s_faults_are_said_briefly_and_cost_nothing(
    tmp_path: Path, name: str, arguments: dict[str, Any], said: str
) -> None:
    with pytest.raises(CallError) as error:
        call(toolkit(tmp_path), example(), name, arguments)
    assert said in str(error.value) and len(str(error.value)) < 200


def test_a_call_that_the_tool_refuses_is_an_observation_and_charged(tmp_path: Path) -> None:
    outcome = call(toolkit(tmp_path), example(), "calculator", {"expression": "1/0"})
    assert outcome.error and outcome.text == "error: division by zero"
    assert outcome.charge.cost_usd == Decimal("0.00001")


def test_an_expert_called_without_arguments_answers_the_instruction(tmp_path: Path) -> None:
    kit = toolkit(tmp_path)
    item = example(instruction="who wrote Opal?")
    outcome = call(kit, item, "gpt-5", {})
    assert outcome == call(kit, item, "gpt-5", {"question": "Who wrote Opal"})
    assert outcome.charge.simulated and outcome.charge.usage.output_tokens > 0
    assert outcome.text == kit.expert("gpt-5").reply(item.instruction)
    assert call(kit, item, "gpt-5", {"question": "who wrote Pearl?"}).text == UNSURE


def test_a_renamed_tool_runs_what_is_behind_the_name(tmp_path: Path) -> None:
    spec = catalogue().spec("calculator").model_copy(update={"name": "tool-1"})
    outcome = call(toolkit(tmp_path), example(toolbox=[spec]), "tool-1", {"expression": "2+3"})
    assert (outcome.text, outcome.charge.name) == ("5", "tool-1")


def test_domain_tools_run_on_the_episode_s_own_copy(tmp_path: Path) -> None:
    kit = toolkit(tmp_path)
    world = kit.domain("mock")
    specs = [catalogue().domain_spec("mock", tool) for tool in world.tools.values()]
    item = example(toolbox=specs, domain="mock")
    session, other = ToolSession(kit, item), ToolSession(kit, item)
    lend = ToolCall(name="lend_book", arguments={"book": 12, "reader": "Mirel"})
    done = asyncio.run(session.call(lend))
    again = asyncio.run(session.call(lend))
    assert not done.error and done.charge.component is Component.DOMAIN and done.charge.cost_usd == Decimal("0.0002")
    assert again.error and again.text.startswith("error: ")
    assert not asyncio.run(other.call(lend)).error
    session.close()
    session.close()
    other.close()


def test_what_is_missing_is_said_with_its_fix(tmp_path: Path) -> None:
    kit = Toolkit(catalogue(), {}, tmp_path)
    with pytest.raises(DataError, match="run the synthesize stage"):
        call(kit, example(), "search", {"query": "x"})
    with pytest.raises(ConfigError, match="no domain named mock"):
        ToolSession(kit, example(domain="mock"))
    with pytest.raises(ConfigError, match="calculator is not simulated"):
        kit.expert("calculator")


def test_a_system_out_of_files_fails_one_call_and_not_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kit = toolkit(tmp_path)

    async def full(*_: object) -> ToolResult:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(kit.tool("calculator"), "call", full)
    session = ToolSession(kit, example())
    with pytest.raises(ToolError, match=r"calculator: OSError: .*Too many open files"):
        asyncio.run(session.call(ToolCall(name="calculator", arguments={"expression": "1+1"})))


def test_from_params_reads_the_shipped_world() -> None:
    from orchestra.config.schema import load_params

    kit = Toolkit.from_params(load_params(ROOT / "params.yaml"), ROOT)
    assert kit.catalogue.entries == catalogue().entries and kit.data_dir == ROOT / "data/generated"
    shipped = load_params(ROOT / "params.yaml")
    world = shipped.world.model_copy(update={"domains": ["atlantis"]})
    with pytest.raises(ConfigError, match=r"no domain atlantis .* — use one of data/domains"):
        Toolkit.from_params(shipped.model_copy(update={"world": world}), ROOT)


def test_checks_of_schemas_that_strangers_send_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    resources, made = Resources(catalogue(), {}), []

    def counted(spec: ToolSpec) -> ArgumentCheck:
        made.append(spec.name)
        return checker(spec)

    monkeypatch.setattr("orchestra.tools.resources.checker", counted)
    own = catalogue().spec("search")
    for number in range(MOST_CHECKS + 50):
        schema = {"type": "object", "properties": {"x": {"const": number}}}
        resources.check(own.model_copy(update={"name": "theirs", "parameters": schema}), {"x": number})
        with pytest.raises(CallError, match="search: needs query"):
            resources.check(own, {})
    assert len(resources._checks) == MOST_CHECKS
    assert made.count(own.name) == 1, "what is used stays"


class Counting:
    """A tool of the caller's own, whose result is never the same twice."""

    component = Component.SEARCH

    def __init__(self) -> None:
        self.calls = 0

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        self.calls += 1
        return ToolResult(text=f"call {self.calls}", cost_usd=context.price.per_call)


def test_a_cassette_replays_tools_of_the_caller_where_their_entry_s_are_recorded(tmp_path: Path) -> None:
    own, item = Counting(), example(toolbox=[catalogue().spec(name) for name in ("python", "calculator")])

    def ask(mode: Mode) -> list[str]:
        kit = toolkit(tmp_path, tools={"python": own, "calculator": own}, cassette=Cassette(tmp_path / "tape", mode))
        kit = kit.with_data(None, kit.book)
        codes, sums = {"code": "print(1)"}, {"expression": "1"}
        return [call(kit, item, name, given).text for name, given in (("python", codes), ("calculator", sums))]

    assert ask("record") == ["call 1", "call 2"]
    assert ask("replay") == ["call 1", "call 3"]


def test_what_stands_in_for_a_tool_records_nothing_twice(tmp_path: Path) -> None:
    class Shouting(Counting):
        def __init__(self, tool: Tool) -> None:
            self.tool = tool

        async def call(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
            result = await self.tool.call(arguments, context)
            return result.model_copy(update={"text": result.text.upper()})

    tape = tmp_path / "tape"
    kit = toolkit(tmp_path, tools={"python": Counting()}, cassette=Cassette(tape, "auto"))
    loud = kit.with_tools({"python": Shouting(kit.tool("python"))}).with_data(None, kit.book)
    item = example(toolbox=[catalogue().spec("python")])
    assert call(loud, item, "python", {"code": "print(1)"}).text == "CALL 1"
    assert len(tape.read_text(encoding="utf-8").splitlines()) == 1


@pytest.mark.parametrize("taped", [False, True])
@pytest.mark.parametrize(
    ("result", "said"),
    [
        (None, "python: the tool's call gave back NoneType — return a ToolResult"),
        ("hi", "python: the tool's call gave back str — return a ToolResult"),
        ({"text": "hi"}, "python: the tool's call gave back dict — return a ToolResult"),
        (ToolResult(text="hi"), "python: the tool's call is not asynchronous — write async def call"),
    ],
)
def test_a_tool_of_the_caller_that_is_not_as_it_must_be_is_named(
    tmp_path: Path, result: Any, said: str, taped: bool
) -> None:
    class Odd:
        component = Component.SANDBOX

        def call(self, arguments: dict[str, Any], context: ToolContext) -> Any:
            async def later() -> Any:
                return result

            return result if isinstance(result, ToolResult) else later()

    kit = toolkit(tmp_path, tools={"python": Odd()}, cassette=Cassette(tmp_path / "tape", "auto") if taped else None)
    with pytest.raises(ConfigError) as error:
        call(kit, example(toolbox=[catalogue().spec("python")]), "python", {"code": "print(1)"})
    assert str(error.value) == said


def test_a_tool_of_the_caller_has_an_entry(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="python9"):
        toolkit(tmp_path, tools={"python9": Counting()})


@pytest.mark.parametrize("taped", [False, True])
def test_a_tool_without_an_answer_fails_its_call_at_the_deadline_of_its_entry(tmp_path: Path, taped: bool) -> None:
    class Waiting(Counting):
        async def call(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
            self.calls += 1
            await asyncio.sleep(60)
            return ToolResult(text="late")

    shipped = catalogue()
    entry = shipped.entry("python").model_copy(update={"deadline_s": 0.05})
    found = replace(shipped, entries={**shipped.entries, "python": entry})
    own, modes = Waiting(), list[Mode | None](["auto", "replay"] if taped else [None, None])
    for mode in modes:
        tape = Cassette(tmp_path / "tape", mode) if mode else None
        kit = Toolkit(found, {}, tmp_path, tools={"python": own}, cassette=tape)
        with pytest.raises(ToolError, match=r"python: no answer within 0.05 s — see deadline_s of its entry") as late:
            call(kit, example(toolbox=[found.spec("python")]), "python", {"code": "print(1)"})
        assert [charge.cost_usd for charge in late.value.charges] == [found.prices["python"].per_call]
    assert own.calls == (1 if taped else 2)


def test_the_sandbox_has_limits_of_its_own(tmp_path: Path) -> None:
    shipped = catalogue()
    entry = shipped.entry("python").model_copy(update={"deadline_s": 0.001})
    kit = Toolkit(replace(shipped, entries={**shipped.entries, "python": entry}), {}, tmp_path)
    made = call(kit, example(toolbox=[shipped.spec("python")]), "python", {"code": "print(6 * 7)"})
    assert made.text == "42"


@pytest.mark.parametrize("taped", [False, True])
def test_an_error_that_a_tool_of_the_caller_never_meant_names_the_tool_once(tmp_path: Path, taped: bool) -> None:
    class Broken(Counting):
        async def call(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
            return ToolResult(text=str(arguments["txt"]))

    kit = toolkit(tmp_path, tools={"python": Broken()}, cassette=Cassette(tmp_path / "tape", "auto") if taped else None)
    with pytest.raises(KeyError) as error:
        call(kit, example(toolbox=[catalogue().spec("python")]), "python", {"code": "print(1)"})
    said = "KeyError: 'txt' — in a call of python: correct the tool, or raise ToolError where it fails"
    assert bug(error.value) == said


def test_no_tool_of_the_catalogue_has_the_name_of_a_domain_s(tmp_path: Path) -> None:
    shipped = catalogue()
    found = replace(shipped, entries={**shipped.entries, "get_book": shipped.entry("calculator")})
    kit = Toolkit(found, {"mock": ROOT / "data/domains/mock"}, tmp_path)
    with pytest.raises(ConfigError, match="the catalogue and the domain mock both have a tool get_book — rename one"):
        kit.domain("mock")
