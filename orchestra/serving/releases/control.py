"""The running gateway from outside: start it, ask how it is, let it take a release."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx

import orchestra
from orchestra.config.deploy import Deploy
from orchestra.errors import ServiceError
from orchestra.serving.releases.control_channel import (
    GATEWAY,
    ControlChannel,
    address,
    close_channel,
    live_channels,
    started_by_hand,
)
from orchestra.serving.releases.state import Serving
from orchestra.serving.releases.vllm import Say, last_error
from orchestra.system.processes import (
    Service,
    listeners,
    remember,
    remembered,
    running,
    start_service,
    stop_services,
    wait_until,
)

LEAVING = "gateway-old"
"""Name of a gateway while its successor starts."""
ENDING = "gateway-ending"
"""Its name from then on, until it has answered its last request."""
STOP_S = 35.0
"""vLLM and the gateway each finish what they work on for up to 30 s."""


def start_gateway(root: Path, port: int, deploy: Deploy, say: Say) -> str:
    """Start a gateway over what `.state/serving.json` names; its address once it serves.

    One that runs already goes on answering until the new one does, on the same port, and also when that fails. Then it
    answers its last requests: see `Drain.gateway`.
    """
    # One that was started by hand is never ended.
    old = running(root, GATEWAY)
    paths = [str(Path(orchestra.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    env = {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, "-m", "orchestra.serving", "--root", str(root), "--port", str(port)]
    command += ["--host", deploy.host]
    url = address(deploy.host, port, tls=deploy.tls_key is not None)
    if old is not None:
        command.append("--takeover")
        remember(root, replace(old, name=LEAVING))
    # A log of its own: the old one may still write to its.
    (root / ".state/logs" / f"{GATEWAY}.log").unlink(missing_ok=True)
    service = start_service(root, GATEWAY, command, port=port, url=url, env=env)
    try:
        _wait_ready(root, service, deploy.start_timeout_s, say)
    except BaseException:
        settle(root)
        if old is None:
            stop_services(root, GATEWAY)
        raise
    if old is not None:
        remember(root, replace(old, name=ENDING))
        _forget(root, LEAVING, old)
        _let_end(root, old)
    return service.url


def _let_end(root: Path, old: Service) -> None:
    """Tell a gateway to end with its last answer."""
    close_channel(root, old.pid)
    # Itself alone: a child may run the tool of a request.
    with contextlib.suppress(ProcessLookupError):
        os.kill(old.pid, signal.SIGTERM)


def _forget(root: Path, name: str, service: Service) -> None:
    """That it has this name; another one may have it by now."""
    now = remembered(root, name)
    if now is not None and now.pid == service.pid:
        (root / ".state" / f"{name}.pid.json").unlink(missing_ok=True)


def succeeded(root: Path) -> bool:
    """Whether this process is a gateway whose successor answers, so that it has more time to end."""
    ending = running(root, ENDING)
    return ending is not None and ending.pid == os.getpid()


def settle(root: Path) -> None:
    """Undo a takeover that did not come to its end: the gateway that was leaving is the gateway again.

    One that a killed release did not tell to end is told, and takes no release any more.
    """
    leaving = running(root, LEAVING)
    if leaving is not None:
        now = remembered(root, GATEWAY)
        if now is not None and now.pid != leaving.pid:  # Else its successor was never started.
            stop_services(root, GATEWAY)
        remember(root, replace(leaving, name=GATEWAY))
        _forget(root, ENDING, leaving)
        _forget(root, LEAVING, leaving)
    if (ending := running(root, ENDING)) is not None:
        _let_end(root, ending)


def answers_with(channel: ControlChannel) -> Serving | None:
    """The release that a gateway answers with; None where it does not answer, or with model servers of others."""
    try:
        reply = _ask(channel, "GET", "serving", 5)
        told = Serving.model_validate(reply.json()) if reply.status_code == 200 else None
    except (httpx.HTTPError, ValueError):
        return None
    return None if channel.model_servers else told


def gateway_service(root: Path) -> Service | None:
    """The running gateway: that of a release, else one that was started by hand and answers."""
    return running(root, GATEWAY) or next((one for one in started_by_hand(root) if health(one.url)), None)


def of_other_code(root: Path, code: str) -> list[str]:
    """Addresses of the gateways of this workspace that run code of another hash."""
    live = live_channels(root).values()
    return [one.address or one.url for one in live if _health(one).get("code") not in (None, code)]


def _wait_ready(root: Path, service: Service, timeout_s: float, say: Say) -> None:
    """Until the new process answers on its own channel: on the port, the one that it takes over from may answer."""
    found: dict[str, Any] = {}

    def ready() -> bool:
        nonlocal found
        channel = live_channels(root).get(service.pid)
        found = {} if channel is None else _health(channel)
        return found.get("status") == "ok"

    def failed() -> str | None:
        if not service.running:
            return last_error(root / service.log)
        error = found.get("error", {})
        problem: str | None = error.get("message") if error.get("code") == "failed" else found.get("problem")
        return problem

    if not wait_until(
        ready,
        timeout_s,
        gone=lambda: bool(failed()),
        say=lambda spent: say(f"the gateway is starting ({spent:.0f} s)"),
    ):
        what = failed() or f"not ready after {timeout_s:.0f} s"
        raise ServiceError(f"the gateway does not serve: {what}", where=service.log, fix="see the log")


def reload(root: Path, service: Service, timeout_s: float) -> None:
    """Let every running gateway of this workspace serve what `.state/serving.json` and `.state/trial.json` name now.

    Raises `ServiceError` when one does not, after all were told, or when `service` has no channel.
    """
    channels = live_channels(root)
    if service.pid not in channels:
        raise ServiceError("the gateway cannot be told to load", where=service.url, fix="orchestra stop gateway")
    failures: list[ServiceError] = []
    for pid, channel in channels.items():
        try:
            reply = _ask(channel, "POST", "reload", timeout_s)
        except httpx.HTTPError as error:
            if pid != service.pid and isinstance(error, httpx.ConnectError):
                # That one has ended, and another process has its number.
                continue
            what = f"the gateway does not answer: {type(error).__name__}"
            failures.append(ServiceError(what, where=channel.url, fix="see its log"))
            continue
        if reply.status_code != 200:
            what = f"the gateway did not take the release: {reply.text[:300]}"
            failures.append(ServiceError(what, where=channel.url, fix="see its log"))
    if failures:
        raise failures[0]


@dataclass
class Drain:
    """The waits of one release: what served before ends with its last answer, or when `deploy.drain_s` is over."""

    root: Path
    limit_s: float
    """Of each wait."""
    say: Say
    seconds: float = field(default=0.0, init=False)
    """Waited, in all."""
    cut: list[str] = field(default_factory=list, init=False)
    """What still worked on requests when its wait was over."""
    sooner: bool = field(default=False, init=False)
    """Whether one of those ended before its wait was over."""
    given_up: bool = field(default=False, init=False)
    """Whether a person ended the wait."""

    def server(self, fingerprint: str | None, name: str, service: Service | None = None) -> None:
        """Until every gateway of this workspace has answered all that it works on with a release (None: with any that
        serves no more). `service` is its server, which another release may end sooner."""

        def done() -> bool:
            return not any(_answers(one, fingerprint) for one in live_channels(self.root).values())

        self._wait(done, name, gone=lambda: service is not None and not service.running)

    def gateway(self, ending: Service) -> None:
        """Until the gateway whose port was taken over has ended."""
        if ending.running:
            # A release that was killed may not have told it.
            _let_end(self.root, ending)
            self._wait(lambda: not ending.running, f"the gateway before (pid {ending.pid})")
        ending.end(grace_s=STOP_S)
        _forget(self.root, ENDING, ending)

    @property
    def figures(self) -> dict[str, float]:
        """For the record."""
        return {"drain.seconds": round(self.seconds, 3), "drain.cut": float(len(self.cut))}

    @property
    def told(self) -> str:
        """A sentence for people; empty where nothing was waited for."""
        if self.cut:
            after = "" if self.sooner else f" after {self.limit_s:g} s"
            return f"Requests were cut{after}: {', '.join(self.cut)}."
        if self.given_up:
            return f"The wait for the last requests to what served before was ended after {self.seconds:.0f} s."
        whole = f"Requests to what served before took {self.seconds:.0f} s more; none was cut."
        return whole if self.seconds >= 1 else ""

    def _wait(self, done: Callable[[], bool], name: str, gone: Callable[[], bool] = lambda: False) -> None:
        began = time.monotonic()
        try:
            ended = wait_until(
                done,
                self.limit_s,
                gone=gone,
                say=lambda spent: self.say(f"{name} answers its last requests ({spent:.0f} s of {self.limit_s:g} s)"),
            )
        finally:
            self.seconds += time.monotonic() - began
        if not ended and gone():
            self.sooner = True
            self.cut.append(f"{name}, which ended sooner")
            self.say(f"{name} ended before it had answered its last requests")
        elif not ended:
            self.cut.append(name)
            self.say(f"{name} is still busy after {self.limit_s:g} s: its requests are cut (deploy.drain_s)")


def _answers(channel: ControlChannel, fingerprint: str | None) -> bool:
    """Whether the gateway still works on requests of a release, or of any before. One that is too busy to say may."""
    try:
        draining = _ask(channel, "GET", "health", 5).json().get("draining")
    except httpx.TimeoutException:
        return True
    except (httpx.HTTPError, ValueError):
        return False
    return isinstance(draining, dict) and (bool(draining) if fingerprint is None else fingerprint in draining)


def all_serve(root: Path, fingerprint: str | None) -> bool:
    """Whether every gateway of this workspace serves that release; those with model servers of others apart."""
    channels = [one for one in live_channels(root).values() if not one.model_servers]
    return all(_health(one).get("fingerprint") == fingerprint for one in channels)


def _health(channel: ControlChannel) -> dict[str, Any]:
    """Empty where the gateway does not answer."""
    try:
        found = _ask(channel, "GET", "health", 5).json()
    except (httpx.HTTPError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _ask(channel: ControlChannel, method: str, what: str, timeout_s: float) -> httpx.Response:
    headers = {"Authorization": f"Bearer {channel.token}", "Content-Type": "application/json"}
    url = f"{channel.url}/admin/{what}"
    # Our own server, by its number: there is no name to hold its certificate to.
    return httpx.request(method, url, headers=headers, timeout=timeout_s, trust_env=False, verify=False)


def health(url: str) -> dict[str, Any]:
    """The gateway's /health, whatever its status; empty when it does not answer."""
    try:
        # Our own server, by its number: there is no name to hold its certificate to.
        found = httpx.get(f"{url}/health", timeout=5, trust_env=False, verify=False).json()
    except (httpx.HTTPError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def port_holder(port: int) -> str:
    """The processes that listen on a TCP port, as far as this user may see."""
    import psutil

    for one in listeners():
        # Another user's process has no number here; one may have just ended.
        with contextlib.suppress(psutil.Error):
            if one.laddr.port == port and one.pid is not None:
                return f"process {one.pid} ({' '.join(psutil.Process(one.pid).cmdline()).strip()[:80]})"
    return "a process that cannot be seen from here"
