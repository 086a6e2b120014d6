"""One catalogue for all: what a server said at the import is what synthesis samples, a policy reads, serving offers."""

import random
from pathlib import Path

import pytest

from orchestra.config.schema import load_params
from orchestra.errors import Fault
from orchestra.rollout.parse import format_answer
from orchestra.serving.toolbox import toolbox
from orchestra.synthesis.assembly.toolbox import sample_toolbox
from orchestra.synthesis.draft import Draft
from orchestra.tools.session import ToolSession
from orchestra.tools.toolkit import Toolkit
from orchestra.types import Category, Component, Episode, Example, StopReason, ToolKind
from tests.support.mcp_world import fake, freezer, load, offers
from tests.support.scripts import call, play, says
from tests.support.worlds import ROOT, example, toolkit


@pytest.fixture
def kit(tmp_path: Path) -> Toolkit:
    """With the tool `add` of a server."""
    made = freezer(tmp_path)
    made.freeze("sums", fake(), offers(fake()), ["add"])
    plain = toolkit(tmp_path)
    return Toolkit(load(made), plain.domain_folders, tmp_path)


def offered(kit: Toolkit) -> Example:
    return example(toolbox=[kit.catalogue.spec("add"), kit.catalogue.spec("calculator")])


def run(kit: Toolkit, *texts: str) -> Episode:
    return play(kit, says(*texts), offered(kit))


def test_an_episode_calls_the_server_and_is_charged_for_it(kit: Toolkit) -> None:
    episode = run(kit, call("add", a=800, b=88), format_answer("888"))
    assert episode.solved and episode.turns[0].observation == "888"
    (charge,) = [charge for charge in episode.charges if charge.component is Component.MCP]
    assert charge.name == "add" and charge.latency_s > 0 and episode.tool_counts == {"add": 1}


def test_arguments_are_checked_here_before_the_server_hears_of_them(kit: Toolkit) -> None:
    episode = run(kit, call("add", a=800, b="88"), format_answer("888"))
    assert "b" in (episode.turns[0].observation or "") and episode.tool_counts == {}
    assert kit.resources.connections == {}, "no server was started"


def test_a_server_that_fails_is_an_episode_without_a_verdict(tmp_path: Path, kit: Toolkit) -> None:
    servers = {"sums": fake("exit")}
    broken = Toolkit(kit.catalogue, {}, tmp_path)
    broken.catalogue.mcp_servers.update(servers)
    episode = run(broken, call("add", a=800, b=88), format_answer("888"))
    assert episode.stop is StopReason.TOOL_FAILURE and episode.verdict is None


def test_training_and_serving_see_the_same_words(kit: Toolkit) -> None:
    imported = offers(fake())["add"]
    params = load_params(ROOT / "params.yaml").synthesize
    draft = Draft(Category.ARITHMETIC, "what is 1+2?", "3", "exact", (), tools_needed=("add",))
    sampled = sample_toolbox(draft, kit.catalogue, {}, params, random.Random(0))
    for specs in (sampled, toolbox(kit, "what is 1+2?", None, 3)):
        (spec,) = [spec for spec in specs if spec.name == "add"]
        assert (spec.kind, spec.description, spec.parameters) == (
            ToolKind.BASIC,
            "adds two numbers",
            imported.parameters,
        )


def test_a_refusal_says_whose_fault_it_is(kit: Toolkit) -> None:
    import asyncio

    from orchestra.types import ToolCall

    session = ToolSession(kit, offered(kit))
    outcome = asyncio.run(session.call(ToolCall(name="calculator", arguments={"expression": "1/0"})))
    assert outcome.error is Fault.MODEL
    assert asyncio.run(session.call(ToolCall(name="add", arguments={"a": 1, "b": 1}))).error is None
