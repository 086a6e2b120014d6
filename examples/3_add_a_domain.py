"""Adds a domain, a world with its own database: four files of data and no code; the database decides the verdict."""

import asyncio
import tempfile
from pathlib import Path

from orchestra import Codec, RolloutOptions, ScriptedPolicy, Toolkit, load_params, question, run_episodes
from orchestra.rollout.parse import format_answer, format_call
from orchestra.rollout.policies.base import Conversation
from orchestra.types import ToolCall

ROOT = Path(__file__).parents[1]
FILES = {
    "schema.sql": "create table spots (spot integer primary key, car text);\n",
    "entries/spots.csv": "spot,car\n1,red\n2,\n",
    "policy.md": "- A spot holds one car.\n",
    "tools.yaml": """\
tools:
  - name: park
    description: put a car on a free spot
    parameters: {spot: {type: integer}, car: {type: string}}
    preconditions:
      - query: select 1 from spots where spot = :spot and car is null
        otherwise: spot {spot} is not free
    statements:
      - update spots set car = :car where spot = :spot
      - select spot from spots where car = :car
""",
    "intents.yaml": "split_by: [spot]\nintents: []\n",
}


def decide(conversation: Conversation) -> str:
    """Try the taken spot, then the free one."""
    if len(conversation.turns) < 2:
        return format_call(ToolCall(name="park", arguments={"spot": len(conversation.turns) + 1, "car": "blue"}))
    return format_answer("it is on spot 2")


def main() -> None:
    params = load_params(ROOT / "params.yaml")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "entries").mkdir()
        for name, text in FILES.items():
            Path(folder, name).write_text(text, encoding="utf-8")
        catalogue = Toolkit.from_params(params, ROOT).catalogue
        toolkit = Toolkit(catalogue, {"parking": Path(folder)}, ROOT)
        known = [ToolCall(name="park", arguments={"spot": 2, "car": "blue"})]
        item = question("park the blue car; where is it?", toolkit, domain="parking", answer="2", solution=known)
        codec = Codec.load(ROOT / "models/base/embedded")
        options = RolloutOptions(params.rollout, catalogue.policy_price)
        policy = ScriptedPolicy("scripted", decide, codec.turn)
        (episode,) = asyncio.run(run_episodes([item], policy, codec, toolkit, options))
    print(*(f"park → {turn.observation}" for turn in episode.turns[:-1]), sep="\n")
    print(f"answer: {episode.answer}; solved: {episode.solved}\nno expert was asked; the shipped ones are simulated")


if __name__ == "__main__":
    main()
