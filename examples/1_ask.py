"""Asks one question: of the gateway, if one runs here, else of the shipped base model in this process."""

import asyncio
import os
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from orchestra import Codec, OrchestraError, RolloutOptions, Toolkit, TransformersPolicy, ask

from orchestra import load_params, question, run_episodes  # isort: skip
from orchestra.tools.experts.simulated import AnswerBook, BookEntry

ROOT = Path(__file__).parents[1]
KNOWN = BookEntry(question="who wrote Opal?", topic="music", answer="Tesk", wrong=("Burr", "Olm"))
"""What the simulated experts know here; `make pipeline` makes thousands of such answers."""


def in_process(text: str) -> None:
    """Run one episode with the shipped base and print its turns."""
    params, base = load_params(ROOT / "params.yaml"), ROOT / "models/base/embedded"
    toolkit = Toolkit.from_params(params, ROOT, book=AnswerBook.of([KNOWN]))
    item = question(text, toolkit, tools=["calculator", "gpt-5", "gpt-5-mini"])
    options = RolloutOptions(params.rollout, toolkit.catalogue.policy_price, judge=False)
    policy = TransformersPolicy(base, name="base")
    (episode,) = asyncio.run(run_episodes([item], policy, Codec.load(base), toolkit, options))
    for turn in episode.turns:
        if turn.call is not None:
            print(f"   {turn.call.name}({turn.call.arguments}) → {turn.observation}")
    print(f"A: {episode.answer}\n   ${episode.cost_usd:f}, {episode.latency_s:.1f} s; the experts are simulated")


def main() -> None:
    text = " ".join(sys.argv[1:]) or "what is 37*24?"
    print(f"Q: {text}")
    try:
        print("\n".join(ask(text, root=ROOT).lines()[1:]))
    except OrchestraError as error:
        print(f"   ({error.what}: asking the base model in this process)")
        in_process(text)


if __name__ == "__main__":
    main()
