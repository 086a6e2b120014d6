"""Model servers that others keep up (`--vllm-url`): no release starts them, so that it compares what they serve.

A gateway that starts compares them itself, with the turns that the release noted: it has no room for the checkpoint.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from orchestra.errors import ServiceError
from orchestra.files import atomic
from orchestra.rollout.policies.base import Conversation, Generation
from orchestra.rollout.policies.vllm import VllmPolicy
from orchestra.serving.releases import vllm
from orchestra.serving.releases.control_channel import live_channels
from orchestra.serving.releases.parity import CANARY_TOKENS, Proof
from orchestra.serving.releases.state import SERVING, Serving, read
from orchestra.types import Category, Example, Preference, Provenance, Record, Verifier

log = logging.getLogger("orchestra.gateway")

REFERENCES = ".state/references"
"""One file a checkpoint, by its hash."""
PATIENCE_S = 60.0
"""Seconds that a server may take for one of them."""


class NotedTurn(Record):
    """What a checkpoint writes after a prompt, in a release's own process."""

    prompt: tuple[int, ...]
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]


class CheckpointReference(Record):
    """Turns of one checkpoint: all of a release's canary, since its limits are meant for so many."""

    turns: tuple[NotedTurn, ...]
    tokens: int
    """That each may have."""


async def asked_at(root: Path, urls: Sequence[str], serving: Serving, now: Serving | None) -> Serving:
    """`serving` by the model servers at `urls`, by its own where there are none.

    `now` is what the gateway serves; at a first load it compares them. Raises `ServiceError` where they have, or may
    have, another checkpoint's weights.
    """
    own = serving.model_copy(update={"compared": ()})
    if not urls:
        return own
    if now is None:
        await asyncio.gather(*(_compare_noted(root, url, serving) for url in urls))
    elif now.checkpoint_hash != serving.checkpoint_hash and not set(urls) <= set(serving.compared):
        what = f"no release compared them with version {serving.version}: version {now.version} serves on"
        fix = "start them with its checkpoint, then restart this gateway"
        raise ServiceError(what, where=f"model servers {', '.join(urls)}", fix=fix)
    first, *others = urls
    elsewhere = {"engine": "vllm", "vllm_url": first, "vllm_replicas": tuple(others), "vllm_service": None}
    return own.model_copy(update=elsewhere)


def model_servers(root: Path) -> list[str]:
    """Addresses of those that this workspace's gateways ask and others keep up."""
    return sorted({url for channel in live_channels(root).values() for url in channel.model_servers})


def compare(root: Path, proof: Proof, serving: Serving, say: vllm.Say) -> tuple[str, ...]:
    """Put each of them to the proof, and note it for gateways that start later; their addresses.

    Raises `ServiceError` where one does not serve this version.
    """
    urls = model_servers(root)
    for url in urls:
        say(f"comparing the model server {url}, which a gateway asks")
        try:
            say(proof.check(root, url, url))
        except ServiceError as failure:
            fix = f"start it with version {serving.version}'s checkpoint and {_type(serving)}, then release again"
            raise ServiceError(failure.what, where=f"model server {url}", fix=fix) from None
    _note(root, proof, serving.checkpoint_hash)
    return tuple(urls)


def _note(root: Path, proof: Proof, checkpoint_hash: str) -> None:
    """Keep turns of this checkpoint, and those of the one that serves, to which a failed release goes back."""
    pairs = ((proof.codec.prompt(one), canary) for one, canary in zip(proof.examples, proof.canaries, strict=True))
    noted = tuple(
        NotedTurn(prompt=tuple(prompt), ids=tuple(made.ids), logprobs=tuple(made.logprobs)) for prompt, made in pairs
    )
    now, file = read(root / SERVING), _file(root, checkpoint_hash)
    atomic.write_text(file, CheckpointReference(turns=noted, tokens=CANARY_TOKENS).model_dump_json())
    kept = {file} if now is None else {file, _file(root, now.checkpoint_hash)}
    for other in set(file.parent.glob("*.json")) - kept:
        other.unlink(missing_ok=True)


async def _compare_noted(root: Path, url: str, serving: Serving) -> None:
    """Raises `ServiceError` for a server of other weights; one that gives no turn is passed over, and is logged."""
    try:
        noted = CheckpointReference.model_validate_json(_file(root, serving.checkpoint_hash).read_bytes())
    except (FileNotFoundError, ValidationError):
        return  # Released by another version of this program.
    server = VllmPolicy(url, vllm.SERVED_NAME, name=url, timeout_s=PATIENCE_S, api_key=vllm.api_key(root))
    try:
        asked = [Conversation(_ASKED, list(one.prompt)) for one in noted.turns]
        served = await vllm.generate(server, asked, noted.tokens)
    except ServiceError as failure:
        log.warning("not compared with the checkpoint: %s", failure)
        return
    ours = [Generation(list(one.ids), list(one.logprobs), "length") for one in noted.turns]
    why = vllm.disagreement(ours, served, vllm.TOLERANCES[serving.parsed.deploy.vllm.dtype])
    if why is not None:
        what = f"it does not serve version {serving.version}: {why}"
        fix = f"start it with that version's checkpoint and {_type(serving)}"
        raise ServiceError(what, where=f"model server {url}", fix=fix)


_ASKED = Example(
    id="noted",
    kind="question",
    category=Category.TOPIC,
    instruction="",
    toolbox=(),
    preference=Preference(kind="neutral", words="", outcome=1, compute=0, latency=0),
    verifier=Verifier(kind="judge"),
    provenance=Provenance(source="release", licence="", generator="release", seed=0),
)
"""Whose turns they are; a server is asked for the prompt alone."""


def _type(serving: Serving) -> str:
    """The type that a server must have, as its option."""
    return f"type (--dtype {serving.parsed.deploy.vllm.dtype})"


def _file(root: Path, checkpoint_hash: str) -> Path:
    return root / REFERENCES / f"{checkpoint_hash}.json"
