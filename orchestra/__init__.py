"""A small model that solves tasks by calling tools and larger models: run it, add to it, reward it, train it, ask it.

A name is imported at its first use, so that `import orchestra` costs nothing; docs/reference/python.md describes each.
"""

import importlib._bootstrap_external as loader
import os
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestra.config.schema import load_params
    from orchestra.errors import OrchestraError
    from orchestra.rewards.advantages import advantages
    from orchestra.rewards.group import group_rewards, weights
    from orchestra.rollout.loop import RolloutOptions, run_episodes
    from orchestra.rollout.policies.base import ScriptedPolicy
    from orchestra.rollout.policies.transformers import TransformersPolicy
    from orchestra.rollout.question import question
    from orchestra.rollout.render import Codec
    from orchestra.serving.client import ask
    from orchestra.tools.catalogue.catalogue import Catalogue
    from orchestra.tools.toolkit import Toolkit
    from orchestra.training.grpo.trainer import train_grpo

__version__ = "0.1.0"
__all__ = [
    "Catalogue",
    "Codec",
    "OrchestraError",
    "RolloutOptions",
    "ScriptedPolicy",
    "Toolkit",
    "TransformersPolicy",
    "advantages",
    "ask",
    "group_rewards",
    "load_params",
    "question",
    "run_episodes",
    "train_grpo",
    "weights",
]
_HOME = {
    "Catalogue": "tools.catalogue.catalogue",
    "Codec": "rollout.render",
    "OrchestraError": "errors",
    "RolloutOptions": "rollout.loop",
    "ScriptedPolicy": "rollout.policies.base",
    "Toolkit": "tools.toolkit",
    "TransformersPolicy": "rollout.policies.transformers",
    "advantages": "rewards.advantages",
    "ask": "serving.client",
    "group_rewards": "rewards.group",
    "load_params": "config.schema",
    "question": "rollout.question",
    "run_episodes": "rollout.loop",
    "train_grpo": "training.grpo.trainer",
    "weights": "rewards.group",
}
"""The module below this package that each name is from."""

if not TYPE_CHECKING:  # A misspelled name stays an error of the type checker.

    def __getattr__(name: str) -> object:
        if name not in _HOME:
            raise AttributeError(f"module 'orchestra' has no attribute {name!r}")
        return getattr(import_module(f"orchestra.{_HOME[name]}"), name)


def _write_whole(path: str, data: bytes, mode: int = 0o666) -> None:
    """Write a module's byte code whole or not at all.

    A full disk takes only the beginning, which Python 3.11 keeps: from then on no process could import the module.
    """
    _write(path, data, mode)
    if os.stat(path).st_size != len(data):
        os.unlink(path)


if vars(loader)["_write_atomic"].__name__ != _write_whole.__name__:  # Not where this module is imported again.
    _write = vars(loader)["_write_atomic"]
    vars(loader)["_write_atomic"] = _write_whole


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
