"""Model servers that others keep up (`--vllm-url`): no release starts them, so that it compares what they serve."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from orchestra.errors import ServiceError
from orchestra.rollout.policies.vllm import VllmPolicy
from orchestra.serving.releases import vllm
from orchestra.serving.releases.control_channel import live_channels
from orchestra.serving.releases.parity import Proof
from orchestra.serving.releases.state import Serving


def asked_at(urls: Sequence[str], serving: Serving, now: Serving | None) -> Serving:
    """`serving` by the model servers at `urls`, by its own where there are none.

    `now` is what the gateway serves: a first load believes that the servers have the checkpoint. Raises `ServiceError`
    where they may have another one's weights.
    """
    own = serving.model_copy(update={"compared": ()})
    if not urls:
        return own
    if now is not None and now.checkpoint_hash != serving.checkpoint_hash and not set(urls) <= set(serving.compared):
        what = f"no release compared them with version {serving.version}: version {now.version} serves on"
        fix = "start them with its checkpoint, then restart this gateway"
        raise ServiceError(what, where=f"model servers {', '.join(urls)}", fix=fix)
    first, *others = urls
    elsewhere = {"engine": "vllm", "vllm_url": first, "vllm_replicas": tuple(others), "vllm_service": None}
    return own.model_copy(update=elsewhere)


def model_servers(root: Path) -> list[str]:
    """Addresses of those that this workspace's gateways ask and others keep up."""
    return sorted({url for channel in live_channels(root).values() for url in channel.model_servers})


def compare(root: Path, proof: Proof, version: str, say: vllm.Say) -> tuple[str, ...]:
    """Put each of them to the proof; their addresses. Raises `ServiceError` where one does not serve this version."""
    urls = model_servers(root)
    for url in urls:
        say(f"comparing the model server {url}, which a gateway asks")
        server = VllmPolicy(url, vllm.SERVED_NAME, name=url, api_key=vllm.api_key(root))
        try:
            say(proof.check(server))
        except ServiceError as failure:
            where, fix = f"model server {url}", f"start it with version {version}'s checkpoint, then release again"
            raise ServiceError(failure.what, where=where, fix=fix) from None
    return tuple(urls)
