"""Blue/green: a new server must load and match its checkpoint before traffic moves; then the old one drains."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from orchestra.accounting.budget import Budget
from orchestra.config.schema import Params
from orchestra.errors import ServiceError
from orchestra.files import atomic
from orchestra.files.checkpoint import verify_manifest
from orchestra.serving.client import ask
from orchestra.serving.releases import replicas, vllm
from orchestra.serving.releases.colours import left_over, retire, serving_already, start_beside, what_serves
from orchestra.serving.releases.control import (
    STOP_S,
    Drain,
    gateway_service,
    health,
    of_other_code,
    port_holder,
    reload,
    settle,
    start_gateway,
)
from orchestra.serving.releases.control_channel import GATEWAY, started_by_hand
from orchestra.serving.releases.deployment import LAST, Deployment, last_deployment
from orchestra.serving.releases.lock import RETIRING_S, alone
from orchestra.serving.releases.parity import Proof
from orchestra.serving.releases.state import SERVING, Engine, Serving, gateway_code, read, serving_fingerprint, write
from orchestra.serving.releases.trial import ReleaseTrial, end_trial, read_trial, write_trial
from orchestra.serving.releases.trial_run import CandidateWorse, TrialPlan, TrialRun
from orchestra.system.machine import beside_gpu, check_room, torch_gpus
from orchestra.system.processes import Service, free_port, port_busy, stop_services
from orchestra.types import Example


@dataclass(frozen=True)
class ReleaseCandidate:
    """The checkpoint to serve: a folder that stays for as long as it may serve."""

    version: str
    folder: Path
    checkpoint_hash: str


@dataclass
class Release:
    """One attempt to serve a candidate; whatever fails, what served before goes on serving."""

    root: Path
    params: Params
    candidate: ReleaseCandidate
    smoke: Sequence[Example]
    """Held-out examples that the new server must work through."""
    say: vllm.Say
    plan: TrialPlan | None = None
    """What is tried before the candidate takes over; None: nothing."""
    budget: Budget | None = None
    """Books what the smoke set spends."""
    note: str = ""
    old: Serving | None = None
    old_gateway: Service | None = None
    by_hand: bool = field(default=False, init=False)
    """Whether that gateway is one that a release neither starts nor stops."""
    recorded: Deployment | None = field(default=None, init=False)
    """The last deployment, while no record says what serves."""
    started: Service | None = field(default=None, init=False)
    """The vLLM server that this release started."""
    verdict: str = field(default="", init=False)
    """Of the trial."""
    figures: dict[str, float] = field(default_factory=dict, init=False)
    drain: Drain = field(init=False)
    left: list[Service] = field(default_factory=list, init=False)
    """What serves no more and may still answer."""

    def __post_init__(self) -> None:
        self.drain = Drain(self.root, self.params.deploy.drain_s, self.say)

    def run(self) -> Deployment:
        """`serve`, then `retire`."""
        try:
            return self.serve()
        finally:
            self.retire()

    def serve(self) -> Deployment:
        """Serve the candidate; a shadow is only tried. What serves no more is then to `retire`, whatever came of it.

        Raises `OrchestraError` after putting things back, `CandidateWorse` after a canary that did not pass.
        """
        with alone(self.root, RETIRING_S):
            settle(self.root)
            self.old = what_serves(self.root, self.params.deploy.start_timeout_s, self.say)
            self._end_trial()
            self.old_gateway = gateway_service(self.root)
            self.by_hand = self.old_gateway in started_by_hand(self.root)
            self.left, engine = left_over(self.root, self.old), self._engine()
            found = self._unchanged(engine)
            if found is not None:
                return found
            if self.plan is not None and (urls := replicas.model_servers(self.root)):
                what, fix = f"a gateway asks {urls[0]}, which has one version at a time", "release it without a trial"
                raise ServiceError(what, where=f"{self.plan.mode} trial", fix=fix)
            verify_manifest(self.candidate.folder)
            port = self._port()
            try:
                serving, smoke, question = self._proven(engine)
                if self.plan is not None:
                    self._try(serving, self.plan)
                if self.plan is not None and self.plan.mode == "shadow":
                    self._put_back(failed=False)
                    return self._made("tried", serving, "" if self.old_gateway is None else self.old_gateway.url)
                url = self._switch(serving, port)
                self.say("asking the gateway one question")
                words = question.preference.words or None
                sample = ask(question.instruction, words, domain=question.domain, root=self.root, url=url, check=True)
            except BaseException:
                self._put_back()
                raise
            self.left = left_over(self.root, serving, self.left)
            made = self._made("released", serving, url).model_copy(
                update={"sample": sample, "preference": words, "domain": question.domain, "smoke": smoke}
            )
            atomic.write_text(self.root / LAST, made.model_dump_json())
            return made

    def retire(self) -> None:
        """End what serves no more when its last request is answered; never raises.

        Without the lock: what serves is kept up meanwhile, and the next release does not wait.
        """
        retire(self.root, self.left, self.old, self.drain, self.params.deploy.start_timeout_s)

    def _made(self, outcome: Literal["released", "tried"], serving: Serving, url: str) -> Deployment:
        return Deployment(
            url=url,
            engine=serving.engine,
            version=serving.version,
            outcome=outcome,
            note=self.note,
            trial=self.verdict,
            figures=self.figures,
        )

    def _try(self, serving: Serving, plan: TrialPlan) -> None:
        """The trial, from beginning to end; raises `CandidateWorse` when the candidate does not pass."""
        gateway, old = self.old_gateway, self.old
        if gateway is None or old is None:
            fix = "release it without a trial"
            raise ServiceError("nothing serves that it could be compared with", where=f"{plan.mode} trial", fix=fix)
        if health(gateway.url).get("code") != serving.code:
            fix = "restart it" if self.by_hand else "serve the champion with the new code first: orchestra release"
            raise ServiceError("the gateway runs other code or settings", where=f"{plan.mode} trial", fix=fix)
        # The version that serves may be tried with other parameters: then another name is asked for.
        name = f"{serving.version}@{serving.fingerprint[:8]}" if serving.version == old.version else ""
        trial = ReleaseTrial(
            id=secrets.token_hex(8), mode=plan.mode, share=plan.share, serving=serving,
            settings=self.params.deploy.canary, name=name,
        )  # fmt: skip
        write_trial(self.root, trial)
        run = TrialRun(self.root, trial, old.version, gateway.url, plan, self.say)
        try:
            reload(self.root, gateway, self.params.deploy.start_timeout_s)
            self.say(f"{plan.mode}: version {trial.asked_as} beside version {old.version}, {plan.share:.0%}")
            found = run.run()
        finally:
            self.figures = run.figures()
            run.close()
        self.verdict = f"{found.verdict}: {found.why}"
        self.say(f"{plan.mode}: {self.verdict}")
        if found.verdict != "passed" and plan.mode == "canary":
            if found.verdict == "worse":
                raise CandidateWorse(found.why, where=f"version {serving.version}", fix="see the release in MLflow")
            fix = "orchestra release --canary, with more deploy.canary.minutes; or orchestra release --rollback"
            raise ServiceError(f"no verdict on its canary: {found.why}", where=f"version {serving.version}", fix=fix)
        if plan.mode == "canary":
            # Still beside the champion until the switch, which makes it the champion as it is.
            end_trial(self.root)

    def _engine(self) -> Engine:
        wanted = self.params.deploy.engine
        if wanted == "in_process":
            return "in_process"
        try:
            vllm.interpreter_for(self.root, self.params.deploy.vllm)
        except ServiceError as lacking:
            if wanted == "vllm":
                raise
            self.note = f"{lacking.what} ({lacking.fix}): serving in process"
            return "in_process"
        return "vllm"

    def _unchanged(self, engine: Engine) -> Deployment | None:
        """The last deployment, when it is this candidate and is well."""
        old, gateway = self.old, self.old_gateway
        if old is None or gateway is None or old.version != self.candidate.version:
            return None
        # Where vLLM is there but would not start, trying it at each run again would only cost time.
        fell_back = self.params.deploy.engine == "auto" and old.engine == "in_process" and old.fell_back
        if old.engine != engine and not fell_back:
            return None
        if not self.by_hand and self.params.deploy.gateway_port not in (0, gateway.port):
            return None
        found = health(gateway.url)
        fingerprint, code = self._fingerprint(old.engine), gateway_code(self.params.deploy)
        wanted = {"status": "ok", "fingerprint": fingerprint, "code": code}
        if any(found.get(key) != value for key, value in wanted.items()):
            return None
        # What else the monitor, a canary or the gateway reads of it.
        if old.params.get("deploy") != self.params.deploy.model_dump(mode="json", by_alias=True):
            return None
        made = last_deployment(self.root)
        return None if made is None else made.model_copy(update={"outcome": "unchanged", "url": gateway.url})

    def _fingerprint(self, engine: Engine) -> str:
        return serving_fingerprint(self.root, self.candidate.checkpoint_hash, engine, self.params)

    def _port(self) -> int:
        """The gateway's port; raises `ServiceError` when another program has it."""
        wanted, gateway = self.params.deploy.gateway_port, self.old_gateway
        if gateway is not None and (self.by_hand or wanted in (0, gateway.port)):
            return gateway.port
        if wanted == 0:
            return free_port()
        if port_busy(wanted, self.params.deploy.host):
            fix = "end it, or set deploy.gateway_port in params.yaml to another port (0: any)"
            what = f"port {wanted} is in use by {port_holder(wanted)}"
            raise ServiceError(what, where="deploy.gateway_port", fix=fix)
        return wanted

    def _proven(self, engine: Engine) -> tuple[Serving, str, Example]:
        """A server that was compared with its checkpoint; what the smoke set gave; an example to show."""
        serving, device = self._serving("in_process"), self.params.deploy.vllm.device
        if engine == "vllm" and device == "cpu":
            if idle := beside_gpu("vLLM serves", "set deploy.vllm.device to gpu"):
                self.say(idle)
            # Both at once: a server takes its time to start.
            serving = self._launch()
        self.say(f"working through {len(self.smoke)} held-out examples in process, for reference")
        weights = sum(file.stat().st_size for file in self.candidate.folder.glob("*.safetensors"))
        check_room(self.root, torch_gpus()[:1], weights, "the release's reference")
        proof = Proof.prepare(self.root, self.candidate.folder, self.params, self.smoke, self.budget)
        try:
            if engine == "vllm" and device == "gpu":
                # One after the other: a server leaves the checkpoint in this process no room on its GPU.
                serving = self._launch()
            if self.started is not None:
                took = vllm.wait_healthy(self.root, self.started, self.params.deploy.start_timeout_s, self.say)
                self.say(f"{self.started.name} is up ({took:.0f} s more)")
        except ServiceError as failure:
            if self.params.deploy.engine != "auto":
                raise
            self.note = f"vLLM did not start ({failure.what}): serving in process"
            self.say(self.note)
            if self.started is not None:
                stop_services(self.root, self.started.name)
            self.started, serving = None, self._serving("in_process", fell_back=True)
        smoke = proof.summary
        if serving.vllm_url is not None and serving.vllm_service is not None:
            result = proof.check(self.root, serving.vllm_url, serving.vllm_service)
            self.say(result)
            smoke = f"{smoke}; {result}"
        compared = replicas.compare(self.root, proof, serving, self.say)
        return serving.model_copy(update={"compared": compared}), smoke, proof.question

    def _launch(self) -> Serving:
        """Start vLLM beside the one that serves; the one that serves when it serves this checkpoint already."""
        now = serving_already(self.root, self.params, self.candidate.checkpoint_hash, self.old)
        if now is None:
            now = self.started = start_beside(self.root, self.params, self.candidate.folder, self.old)
            self.say(f"{now.name} is loading version {self.candidate.version}")
        return self._serving("vllm", now)

    def _serving(self, engine: Engine, service: Service | None = None, *, fell_back: bool = False) -> Serving:
        return Serving(
            version=self.candidate.version,
            checkpoint=os.path.relpath(self.candidate.folder, self.root),
            checkpoint_hash=self.candidate.checkpoint_hash,
            engine=engine,
            fell_back=fell_back,
            vllm_url=service.url if service is not None else None,
            vllm_service=service.name if service is not None else None,
            params=self.params.model_dump(mode="json", by_alias=True),
            fingerprint=self._fingerprint(engine),
            code=gateway_code(self.params.deploy),
        )

    def _switch(self, serving: Serving, port: int) -> str:
        """Move traffic; the gateway's address."""
        # Without a record of what serves, a release after a kill does all of it again, and ends the old server.
        self.recorded = last_deployment(self.root)
        (self.root / LAST).unlink(missing_ok=True)
        write(self.root, serving)
        gateway = self.old_gateway
        current = gateway is not None and gateway.port == port and health(gateway.url).get("code") == serving.code
        if gateway is not None and (self.by_hand or current):
            url = gateway.url
        else:
            url = start_gateway(self.root, port, self.params.deploy, self.say)
            gateway = gateway_service(self.root)
        if gateway is not None:
            reload(self.root, gateway, self.params.deploy.start_timeout_s)
        wanted, old = self.params.deploy.gateway_port, None if self.old is None else self.old.params.get("deploy")
        if self.by_hand and wanted not in (0, port) and isinstance(old, dict) and old.get("gateway_port") != wanted:
            self.say(
                f"the gateway at {url} goes on serving there, since no release started it: restart it at port {wanted}"
            )
        # One that served nothing before tells its code only now.
        for address in of_other_code(self.root, serving.code):
            self.say(f"the gateway at {address} runs other code or settings, and no release started it: restart it")
        return url

    def _put_back(self, *, failed: bool = True) -> None:
        """What served before serves again; never raises, so that the failure itself is what a person reads."""
        try:
            serves = self.old_gateway is not None
            self._end_trial()
            if not serves:
                # Nothing answered before (after `orchestra stop`, say): there is nothing to go back to.
                stop_services(self.root, GATEWAY, grace_s=STOP_S)
            if self.recorded is not None:
                atomic.write_text(self.root / LAST, self.recorded.model_dump_json())
            if self.old is None:
                (self.root / SERVING).unlink(missing_ok=True)
            elif read(self.root / SERVING) != self.old:
                # What was compared with the old weights may have others by now.
                write(self.root, self.old.model_copy(update={"compared": ()}))
                serves = self._taken_back(self.old.version)
            self.left = left_over(self.root, self.old, self.left)
            if failed and self.old is not None and serves:
                self.say(f"the release failed; version {self.old.version} goes on serving")
        except Exception as error:
            self.say(f"putting things back failed: {error}")

    def _taken_back(self, version: str) -> bool:
        """Let the gateways serve what served before; whether the release's own does. One that does not is told."""
        gateway = gateway_service(self.root)
        if gateway is None:
            return False
        try:
            reload(self.root, gateway, self.params.deploy.start_timeout_s)
        except ServiceError as error:
            self.say(f"a gateway does not go back to version {version}: {error}")
        return health(gateway.url).get("version") == version

    def _end_trial(self) -> None:
        """The candidate gets nothing any more; what it works on it still answers."""
        there = read_trial(self.root)
        end_trial(self.root)
        gateway = gateway_service(self.root)
        if gateway is not None and (there is not None or health(gateway.url).get("trial")):
            reload(self.root, gateway, self.params.deploy.start_timeout_s)
