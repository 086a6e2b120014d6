"""What CONTRIBUTING adds in one file works: each of its examples is written beside the shipped files and used."""

import asyncio
import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from orchestra.config.schema import Rollout, load_params, parse_params
from orchestra.errors import ConfigError
from orchestra.evaluation.baselines.base import BASELINES, baseline_policy, find_rule, rivals
from orchestra.evaluation.baselines.knowledge import Knowledge
from orchestra.evaluation.claims.claims import claims
from orchestra.evaluation.claims.measures import SeedResult
from orchestra.evaluation.probes.base import PROBES
from orchestra.evaluation.probes.run import run_probes
from orchestra.evaluation.run import Contender, evaluate
from orchestra.register import Register
from orchestra.rewards import parts
from orchestra.rewards.group import group_rewards
from orchestra.rewards.registry import FEATURES
from orchestra.rollout.loop import RolloutOptions, rollout
from orchestra.rollout.policies.base import ScriptedPolicy
from orchestra.rollout.policies.named import POLICIES
from orchestra.tools.implementations.base import IMPLEMENTATIONS
from orchestra.tools.session import ToolSession
from orchestra.tools.toolkit import Toolkit
from orchestra.types import Category, Example, Preference, Price, ToolCall
from tasks.evaluate import check_names, contender
from tests.support.worlds import catalogue, codec, episode, example, toolkit

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```\w+\n# (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
"""A fenced example whose first line is a comment with the path of its file."""
LIMITS = Rollout(max_turns=5, max_turn_tokens=64, max_tokens=4000)


def snippets() -> dict[str, str]:
    """CONTRIBUTING's examples by path."""
    return dict(BLOCK.findall((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")))


def own(name: str) -> str:
    """The name of an example in this test: CONTRIBUTING's is taken where somebody has followed it to the letter."""
    return f"{name}_of_this_test"


@pytest.fixture
def add(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., None]]:
    """Put an example's file into its package, for this test alone."""
    before = set(sys.modules)

    def put(path: str, *registers: Register[object]) -> None:
        # Loads the shipped files first: a module that is imported during the test registers into the copy alone.
        for register in registers:
            len(register)  # Imports the shipped files first.
        stem = Path(path).stem
        file = (tmp_path / "added" / path).with_stem(own(stem))
        file.parent.mkdir(parents=True)
        file.write_text(snippets()[path].replace(f'"{stem}"', f'"{own(stem)}"'), encoding="utf-8")
        package = importlib.import_module(".".join(Path(path).parent.parts))
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(file.parent)])
        for register in registers:
            monkeypatch.setattr(register, "_entries", dict(register._entries))

    yield put
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def test_every_example_is_ten_lines_or_so() -> None:
    lengths = {path: len(code.strip().splitlines()) for path, code in snippets().items()}
    assert lengths and {path: count for path, count in lengths.items() if count > 20} == {}


def topic() -> Example:
    offered = [catalogue().spec("gpt-5"), catalogue().spec("gpt-5-mini")]
    made = example("e1", instruction="who wrote Opal?", answer="Tesk", toolbox=offered, category=Category.TOPIC)
    return made.model_copy(update={"topic": "music"})


def test_a_baseline(add: Callable[..., None], tmp_path: Path) -> None:
    name = own("fastest")
    with pytest.raises(ConfigError, match=rf"no baseline named {name} .*one of: .*always_strongest"):
        find_rule(name)
    add("orchestra/evaluation/baselines/fastest.py", BASELINES)
    policy = baseline_policy(name, Knowledge(catalogue()), codec().turn)
    (episode,) = rollout([topic()], policy, codec(), toolkit(tmp_path), RolloutOptions(LIMITS, Price()))
    asked = next(turn.call.name for turn in episode.turns if turn.call is not None)
    assert asked == min(topic().toolbox, key=lambda spec: spec.latency_s).name
    assert name in rivals(), "`orchestra learn` measures it"


def test_a_probe(add: Callable[..., None], tmp_path: Path) -> None:
    add("orchestra/evaluation/probes/order.py", PROBES)
    knowledge = Knowledge(catalogue())

    def build() -> ScriptedPolicy:
        return baseline_policy("always_cheapest", knowledge, codec().turn)

    found = run_probes(
        Contender("grpo", build, codec(), Price()), [topic()], toolkit(tmp_path), LIMITS,
        price_spread=3.0, seed=0, count=1, file=tmp_path / "probes.jsonl",
    )  # fmt: skip
    assert len(found.of(own("order"), "reversed")) == 1
    result = SeedResult(
        seed=0, minutes=1, dollars=0, probes=found, outcomes={name: () for name in ("grpo", "sft", *rivals())}
    )
    rows = {claim.name: claim for claim in claims([result], [topic()], bootstrap=10)}
    assert "any order of tools: accuracy kept" in rows
    assert rows["any order of tools: accuracy kept"].bar == "≥ 95 %"


def test_a_reward_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FEATURES, "turns", FEATURES["outcome"])  # The end of the test puts the register back.
    del FEATURES["turns"]
    exec(snippets()["orchestra/rewards/parts.py"], dict(vars(parts)))
    brief = Preference(kind="brief", words="", outcome=1, compute=0, latency=0, weights={"brevity": 0.4})
    episodes, shipped = [episode(calls={"search": count}) for count in (0, 3)], load_params(ROOT / "params.yaml").grpo
    short, long = group_rewards(episodes, brief)
    assert (short.parts["turns"], long.parts["turns"]) == pytest.approx((0.4, 0.0))
    short, long = group_rewards(episodes, brief, shape=shipped)
    assert shipped.unit == "fixed" and (short.parts["turns"], long.parts["turns"]) == pytest.approx((0.4, 0.1))


def test_a_reason_to_stop(tmp_path: Path) -> None:
    path = "orchestra/training/grpo/health.py"
    copy = tmp_path / "health_with_one_more.py"
    copy.write_text((ROOT / path).read_text(encoding="utf-8") + "\n\n" + snippets()[path], encoding="utf-8")
    spec = importlib.util.spec_from_file_location(copy.stem, copy)
    assert spec is not None and spec.loader is not None
    health = importlib.util.module_from_spec(spec)
    sys.modules[copy.stem] = health  # Its dataclasses look their module up.
    try:
        spec.loader.exec_module(health)
    finally:
        del sys.modules[copy.stem]
    step = {"valid": 1.0, "accuracy": 0.5, "entropy": 0.2, "tokens": 40.0}
    grown = [step] * health.WINDOW + [step | {"tokens": 400.0}] * health.WINDOW
    assert health.reason_to_stop(grown[: health.WINDOW], 0.2) is None and health.is_good(grown[: health.WINDOW], 0.2)
    reason = health.reason_to_stop(grown, 0.2)
    assert reason == "rambling: episodes have 10.0 times as many tokens over 20 steps" and health.declined(reason)
    assert health.trends(grown)["rambling"] == 10.0 and not health.is_good(grown, 0.2)


def test_a_tool(add: Callable[..., None], tmp_path: Path) -> None:
    parameters = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    name = own("reverse")
    changes = {"implementation": name, "parameters": parameters}
    entry = catalogue().entry("calculator").model_copy(update=changes)
    prices = {**catalogue().prices, name: catalogue().prices["calculator"]}
    made = replace(catalogue(), entries={**catalogue().entries, name: entry}, prices=prices)
    with pytest.raises(ConfigError, match=rf"no implementation named {name} .*one of: .*calculator"):
        Toolkit(made, {}, tmp_path)
    add("orchestra/tools/implementations/reverse.py", IMPLEMENTATIONS)
    session = ToolSession(Toolkit(made, {}, tmp_path), example(toolbox=[made.spec(name)]))
    outcome = asyncio.run(session.call(ToolCall(name=name, arguments={"text": "lapo"})))
    assert outcome.text == "opal" and outcome.error is None
    assert outcome.charge.cost_usd == made.spec(name).call_usd


def test_a_policy(add: Callable[..., None], tmp_path: Path) -> None:
    name = own("unsure")
    params = load_params(ROOT / "params.yaml")
    params = params.model_copy(update={"evaluate": params.evaluate.model_copy(update={"policies": [name]})})
    with pytest.raises(ConfigError, match=rf"no policy named {name} .*one of: grpo, sft"):
        check_names(params, tmp_path)
    add("orchestra/rollout/policies/unsure.py", POLICIES)
    check_names(params, tmp_path)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "sft").symlink_to(ROOT / "models/recipes/embedded")
    made = contender(name, tmp_path, Price())
    episodes = evaluate([made], [topic()], toolkit(tmp_path), LIMITS, file=tmp_path / "episodes.jsonl")
    assert [episode.answer for episode in episodes[name]] == ["I am not sure."]


def test_a_domain() -> None:
    raw = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    raw["world"] |= yaml.safe_load(snippets()["params.yaml"])["world"]
    tools = Toolkit.of(parse_params(raw).world, ROOT)
    assert tools.domain("mock").tools and tools.domain("ecommerce").tools
    raw["world"]["domains"] = ["nowhere"]
    with pytest.raises(ConfigError, match="no domain nowhere"):
        Toolkit.of(parse_params(raw).world, ROOT)
