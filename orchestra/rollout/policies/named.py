"""The policies by name, besides checkpoints: a decorated function of this folder makes one."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from orchestra.register import Register
from orchestra.rollout.policies.base import Policy
from orchestra.rollout.render import Codec


@dataclass(frozen=True)
class PolicyWorld:
    """The model, data and settings that a policy may be made from."""

    root: Path
    """The workspace."""
    codec: Codec
    """The SFT model's: how conversations become token ids and back."""


Build = Callable[[PolicyWorld], Policy]

POLICIES: Register[Build] = Register("policy", "orchestra.rollout.policies", "evaluate.policies")


def policy(name: str) -> Callable[[Build], Build]:
    """Register what builds a policy: its name then works in `evaluate.policies`; the catalogue prices its tokens."""

    def register(build: Build) -> Build:
        POLICIES.add(name, build, build.__module__)
        return build

    return register
