"""Runs policies over held-out examples through the one loop; episodes go to one file that a killed run continues."""

import asyncio
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from orchestra.config.schema import Rollout
from orchestra.files import atomic
from orchestra.rollout.loop import RolloutOptions, run_episodes
from orchestra.rollout.policies.base import Policy
from orchestra.rollout.render import Codec
from orchestra.tools.toolkit import Toolkit
from orchestra.types import Episode, Example, Price

CHUNK = 256
"""Examples attempted together and written together."""

OnProgress = Callable[[str, int, int], None]
"""Called with the policy's name, the examples done and the examples to do."""


@dataclass(frozen=True)
class Contender:
    """A policy to be measured; it is built only if it still has something to do."""

    name: str
    build: Callable[[], Policy]
    codec: Codec
    price: Price
    """Of the policy's own tokens."""


def evaluate(
    contenders: Sequence[Contender],
    examples: Sequence[Example],
    toolkit: Toolkit,
    limits: Rollout,
    *,
    file: Path,
    on_progress: OnProgress | None = None,
    chunk: int = CHUNK,
) -> dict[str, list[Episode]]:
    """Every contender once over every example, greedy or as the policy was built; episodes by policy, in order.

    `file` collects episodes as they come and always is a beginning of the whole: policy by policy, example by example.
    Whole chunks found there are used again, so a killed run continues; keep it in a folder named by the fingerprint of
    the inputs, for nothing here can tell a changed checkpoint from the same one.
    """
    # One event loop for all: tools and policies keep connections, and those belong to the loop that opened them.
    return asyncio.run(_evaluate(contenders, examples, toolkit, limits, file, on_progress, chunk))


async def _evaluate(
    contenders: Sequence[Contender],
    examples: Sequence[Example],
    toolkit: Toolkit,
    limits: Rollout,
    file: Path,
    on_progress: OnProgress | None,
    chunk: int,
) -> dict[str, list[Episode]]:
    plan = [
        (contender, examples[start : start + chunk])
        for contender in contenders
        for start in range(0, len(examples), chunk)
    ]
    done = resume(file, [(contender.name, [e.id for e in part]) for contender, part in plan])
    episodes: dict[str, list[Episode]] = {contender.name: [] for contender in contenders}
    built: dict[str, Policy] = {}
    file.parent.mkdir(parents=True, exist_ok=True)
    for index, (contender, part) in enumerate(plan):
        if index < len(done):
            found = done[index]
        else:
            if contender.name not in built:
                built = {contender.name: contender.build()}  # The one before may be a model: let it go.
            policy = built[contender.name]
            options = RolloutOptions(limits, contender.price)
            found = await run_episodes(part, policy, contender.codec, toolkit, options)
            append(file, found)
        episodes[contender.name] += found
        if on_progress is not None:
            on_progress(contender.name, len(episodes[contender.name]), len(examples))
    return episodes


def append(file: Path, episodes: Sequence[Episode]) -> None:
    """Add episodes, one line each, and wait until the disk has them."""
    atomic.append_text(file, "".join(episode.model_dump_json() + "\n" for episode in episodes))


def resume(file: Path, plan: Sequence[tuple[str, Sequence[str]]]) -> list[list[Episode]]:
    """The leading chunks of `plan` (policy, example ids) that `file` holds whole; the file is cut after them."""
    if not file.exists():
        return []
    lines = file.read_bytes().split(b"\n")[:-1]  # What follows the last line end was being written at a kill.
    chunks: list[list[Episode]] = []
    used = 0
    for name, ids in plan:
        wanted = [(name, example_id) for example_id in ids]
        found = _episodes(lines[used : used + len(wanted)])
        if [(episode.policy, episode.example_id) for episode in found] != wanted:
            break
        chunks.append(found)
        used += len(wanted)
    os.truncate(file, sum(len(line) + 1 for line in lines[:used]))
    return chunks


def data_hash(examples: Sequence[Example], toolkit_files: Mapping[str, str], limits: Rollout) -> str:
    """SHA-256 of everything but the policy that decides a score.

    `toolkit_files` are hashes by name: answer book, corpus, catalogue, prices. Toolboxes with their prices are part of
    the examples.
    """
    digest = hashlib.sha256()
    for example in examples:
        digest.update(example.model_dump_json().encode() + b"\n")
    digest.update(json.dumps([dict(sorted(toolkit_files.items())), limits.model_dump()], sort_keys=True).encode())
    return digest.hexdigest()


def _episodes(lines: Sequence[bytes]) -> list[Episode]:
    """Up to the first line that is no episode."""
    episodes = []
    for line in lines:
        try:
            episodes.append(Episode.model_validate_json(line))
        except ValidationError:
            break
    return episodes
