"""The model servers of releases, blue and green by turns: one starts beside the one that serves, which then ends."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from orchestra.config.deploy import VllmServer
from orchestra.config.schema import Params
from orchestra.serving.engines.orphans import end_orphans
from orchestra.serving.releases import vllm
from orchestra.serving.releases.control import (
    ENDING,
    STOP_S,
    Drain,
    all_serve,
    answers_with,
    gateway_service,
    reload,
)
from orchestra.serving.releases.control_channel import live_channels
from orchestra.serving.releases.deployment import LAST
from orchestra.serving.releases.lock import alone
from orchestra.serving.releases.state import SERVING, Serving, read, write
from orchestra.system.processes import Service, port_busy, remembered, running, stop_services

COLOURS = ("vllm-blue", "vllm-green")
VLLM = VllmServer().model_dump(mode="json")
"""What a release without settings of vLLM was served with."""


def what_serves(root: Path, timeout_s: float, say: vllm.Say) -> Serving | None:
    """What `.state/serving.json` names; where a killed release wrote what no gateway took, it names again what serves.

    No release ends the server behind that, then. Raises `ServiceError` where the gateways cannot be made to agree.
    """
    named, told = read(root / SERVING), list(filter(None, map(answers_with, live_channels(root).values())))
    now = None if named is None else named.model_copy(update={"compared": ()})
    if all(one == now for one in told):
        return named
    if now not in told:
        named = now = told[0]
        say(f"a release was killed before a gateway took it: version {now.version} goes on serving")
        (root / LAST).unlink(missing_ok=True)
        write(root, now)
    if (gateway := gateway_service(root)) is not None:
        reload(root, gateway, timeout_s)
    return named


def serving_already(root: Path, params: Params, checkpoint_hash: str, old: Serving | None) -> Service | None:
    """The server of `old`, where it serves this checkpoint with these settings."""
    now = _server(root, old)
    if old is None or now is None or old.checkpoint_hash != checkpoint_hash:
        return None
    # Compared as written: an older release may hold parameters that no longer parse.
    deploy, wanted = old.params.get("deploy"), params.deploy.vllm.model_dump(mode="json")
    same = old.params.get("rollout") == params.rollout.model_dump(mode="json")
    same = same and (deploy.get("vllm", VLLM) if isinstance(deploy, dict) else VLLM) == wanted
    return now if same and vllm.healthy(now.url) else None


def start_beside(root: Path, params: Params, folder: Path, old: Serving | None) -> Service:
    """Start one of the checkpoint in `folder`, beside that of `old`; it is not yet healthy."""
    now = _server(root, old)
    idle = [colour for colour in COLOURS if now is None or colour != now.name]
    # What another release left behind; it finishes what it can.
    stop_services(root, *idle, grace_s=STOP_S)
    port = params.deploy.vllm_port
    if port and port_busy(port):
        # Two servers run side by side during a release: a fixed port is free for every other one only.
        port = 0
    settings = params.deploy.vllm
    end_orphans(root)
    vllm.check_gpus(root, settings)
    return vllm.launch(root, idle[0], folder, max_len=params.rollout.max_tokens, port=port, settings=settings)


def left_over(root: Path, serving: Serving | None, before: Sequence[Service] = ()) -> list[Service]:
    """The gateway before and the servers that serve no more, dead ones too; and gateways of `before` that still end."""
    now = None if serving is None else serving.vllm_service
    ending = [one for one in before if one.name == ENDING and one.running]
    found = (remembered(root, name) for name in (ENDING, *COLOURS) if name != now)
    return [*ending, *(there for there in found if there is not None and there not in ending)]


def retire(root: Path, left: Sequence[Service], old: Serving | None, drain: Drain, wait_s: float) -> None:
    """End each with its last request; `old` is what served before. Another release may end or replace them sooner.

    Waits at most `wait_s` for the lock. Never raises: what fails is told, and is left to the next release.
    """
    for service in left:
        name, fingerprint = service.name, None
        if old is not None and old.vllm_service == service.name:
            name, fingerprint = f"{service.name} (version {old.version})", old.fingerprint
        try:
            if service.name == ENDING:
                drain.gateway(service)
                continue
            if service.running:
                drain.server(fingerprint, name, service)
            with alone(root, wait_s):
                mine, serving = remembered(root, service.name) == service, read(root / SERVING)
                # A killed release may have written what no gateway took, and a gateway may not have gone back.
                if mine and service.running and not all_serve(root, None if serving is None else serving.fingerprint):
                    drain.say(f"{name} is left to the next release: a gateway does not serve what {SERVING} names")
                elif mine and stop_services(root, service.name, grace_s=STOP_S):
                    drain.say(f"{name} stopped")
        except Exception as error:
            drain.say(f"{name} is left to the next release: {error}")


def _server(root: Path, old: Serving | None) -> Service | None:
    return None if old is None or old.vllm_service is None else running(root, old.vllm_service)
