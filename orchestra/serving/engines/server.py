"""The server of a training stage: started, started again when it dies, ended with the stage."""

from __future__ import annotations

import shutil
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from orchestra.config.compute import Lora
from orchestra.config.engine import PlayServer, RolloutServer
from orchestra.errors import ServiceError
from orchestra.serving.engines.orphans import end_orphans, forget_own, remember_own
from orchestra.serving.releases.vllm import (
    SERVED_NAME,
    Say,
    api_key,
    check_gpus,
    command,
    environment,
    healthy,
    interpreter_for,
    last_error,
    wait_healthy,
    working_folder,
)
from orchestra.system.machine import beside_gpu
from orchestra.system.processes import (
    LOCALHOST,
    Service,
    free_port,
    kill_tree,
    spawn,
    started_at,
    wait_until,
)

if TYPE_CHECKING:
    import subprocess

RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Adapter ranks that vLLM reserves room for."""
LEAST_BATCH = 4096
"""Tokens of prompts that a CPU takes at once."""
IDLE_S = 30.0
"""Seconds until requests that were given up have left the server."""
MOST_RESTARTS = 5
"""Of one training; a server that dies more often has a cause that starting again does not remove."""


class Server:
    """A vLLM server's address and the requests of a training. One that is named is only waited for."""

    def __init__(self, root: Path, url: str, settings: PlayServer) -> None:
        self.root, self.url, self.settings = root, url, settings
        self.key = api_key(root)
        self.restarts = 0

    def post(self, path: str, body: dict[str, Any], timeout_s: float | None = None) -> Any:
        """The answer's JSON, None for an empty one; raises `ServiceError`. `timeout_s`: default `start_timeout_s`."""
        try:
            reply = httpx.post(
                f"{self.url}{path}", json=body, timeout=timeout_s or self.settings.start_timeout_s, trust_env=False,
                headers={"Authorization": f"Bearer {self.key}"},
                # Reading the certificates takes 20 ms, at each of a sync's requests.
                verify=self.url.startswith("https:"),
            )  # fmt: skip
        except httpx.HTTPError as error:
            raise self._failure(f"{path}: {type(error).__name__} {error}".strip()) from None
        if reply.status_code != 200:
            raise self._failure(f"{path}: HTTP {reply.status_code}: {reply.text[:200]}")
        try:
            return reply.json()
        except ValueError:
            return None

    def scores(self, model: str, sequences: Sequence[Sequence[int]], *, together: bool) -> list[float]:
        """Log-probability of every token but the first of each sequence; all of one request, or of one each.

        vLLM 0.32 scores no two prompts with adapters together: its head takes one adapter a sequence, not a token.
        """
        prompts = [list(ids) for ids in sequences]
        found: list[float] = []
        for some in [prompts] if together else [[ids] for ids in prompts]:
            body = {"model": model, "prompt": some, "max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0}
            choices = sorted(self.post("/v1/completions", body)["choices"], key=lambda one: int(one["index"]))
            for ids, choice in zip(some, choices, strict=True):
                rows = zip(choice["prompt_logprobs"][1:], ids[1:], strict=True)
                found += [row[str(token)]["logprob"] for row, token in rows]
        return found

    def forget_prompts(self) -> None:
        """Empty the cache of prompts, whose keys are those of older weights.

        Raises `ServiceError` where requests hold parts of it for long: the server says so with status 200.
        """

        def emptied() -> bool:
            said = self.post("/reset_prefix_cache", {})
            return not (isinstance(said, dict) and said.get("success") is False)

        if not wait_until(emptied, IDLE_S):
            what = f"after {IDLE_S:.0f} s requests still hold its prefix cache, with keys of old weights"
            raise self._failure(what)

    def wait_for(self, model: str) -> None:
        """Return when the server serves `model`; raises `ServiceError` when it does not in time."""

        def ready() -> bool:
            self.check()
            return healthy(self.url) and model in self._models()

        if not wait_until(ready, self.settings.start_timeout_s):
            raise self._failure(f"it does not serve {model} after {self.settings.start_timeout_s} s")

    def check(self) -> None:
        """Raise what ended the server for good, if anything did."""

    def close(self) -> None:
        """A named server serves on."""

    def _models(self) -> list[str]:
        try:
            reply = httpx.get(
                f"{self.url}/v1/models", timeout=5, trust_env=False, headers={"Authorization": f"Bearer {self.key}"},
                verify=self.url.startswith("https:"),
            )  # fmt: skip
            return [one["id"] for one in reply.json()["data"]]
        except (httpx.HTTPError, ValueError, KeyError):
            return []

    def _failure(self, what: str) -> ServiceError:
        return ServiceError(what, where=f"rollout server at {self.url}", fix="see its log, then run the stage again")


class OwnServer(Server):
    """A child of this process, which a thread of its own starts and starts again: no child outlives its thread."""

    def __init__(
        self, root: Path, work: Path, model_dir: Path, settings: PlayServer, *, max_len: int, lora: Lora | None,
        say: Say, direct: bool = False,
    ) -> None:  # fmt: skip
        """`direct`: it takes weights over CUDA IPC too."""
        python, port = interpreter_for(root, settings), free_port()
        super().__init__(root, f"http://{LOCALHOST}:{port}", settings)
        self.port, self.log, self.say = port, work / "vllm.log", say
        self.command = command(python, port, max_len, settings, extra=_flags(lora, settings, max_len, direct=direct))
        # Two commands may have servers in one work folder at a time.
        self.folder, self.model_dir = work / f"server-{port}", model_dir.resolve()
        self.adapters, self.direct = lora is not None, direct
        self.adapter: tuple[str, str] | None = None
        """Name and folder of the adapters that a server started again must load."""
        self.refresh: Callable[[], None] | None = None
        """Writes the model's files before it is started again, where they are older than its weights."""
        self._child: subprocess.Popen[str] | None = None
        self._runs = False
        """Whether it has been healthy since its last start."""
        self._failed: Exception | None = None
        self._ended, self._first = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._supervise, daemon=True, name="rollout server")

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    def start(self) -> None:
        """Return when it is healthy; raises `ServiceError`."""
        if self.settings.device == "cpu" and (idle := beside_gpu("vLLM runs", "set the server's device to gpu")):
            self.say(idle)
        end_orphans(self.root)
        check_gpus(
            self.root, self.settings, "grpo.server" if isinstance(self.settings, RolloutServer) else "evaluate.server"
        )
        self._thread.start()
        self._first.wait()
        self.check()

    def check(self) -> None:
        if self._failed is not None:
            raise self._failed

    def restart(self) -> None:
        """End its process, which is then started again as after any death, unless it starts already."""
        if self.pid is not None and self._runs:
            kill_tree(self.pid, grace_s=2.0)

    def close(self) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _supervise(self) -> None:
        try:
            while not self._ended.is_set():
                self._launch()
                self._first.set()
                while self._child is not None and self._child.poll() is None and not self._ended.wait(0.2):
                    pass
                if self._ended.is_set():
                    break
                forget_own(self.root, self.port)
                self.restarts += 1
                if self.restarts > MOST_RESTARTS:
                    raise self._failure(f"it died {self.restarts} times: {last_error(self.log)}")
                self.say(f"the rollout server died; it is started again ({self.restarts} of {MOST_RESTARTS})")
        except Exception as error:
            self._failed = error
        finally:
            self._first.set()
            if self._child is not None and self._child.poll() is None:
                kill_tree(self._child.pid, grace_s=2.0)
                self._child.wait()
            forget_own(self.root, self.port)

    def _launch(self) -> None:
        self._runs = False
        if self.refresh is not None:
            self.refresh()
        env = without_rank(own_settings(self.root, self.settings, adapters=self.adapters, direct=self.direct))
        working_folder(self.folder, self.model_dir)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("a", encoding="utf-8") as out:
            # Killed, it would leave its engine and that one's workers; at SIGTERM it ends them.
            self._child = spawn(self.command, cwd=self.folder, env=env, stdout=out, orphaned=signal.SIGTERM)
        pid = self._child.pid
        service = Service("rollout server", pid, started_at(pid) or "", self.port, self.url, str(self.log))
        remember_own(self.root, service)
        wait_healthy(self.root, service, self.settings.start_timeout_s, self.say, setting="server.start_timeout_s")
        if self.adapter is not None:
            name, folder = self.adapter
            self.post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": folder})
        self._runs = True


RANK_VARIABLES = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
)  # fmt: skip
RANK_PREFIXES = ("TORCHELASTIC_", "GROUP_", "ROLE_")
"""What torchrun tells its ranks; TORCHELASTIC_USE_AGENT_STORE makes a server wait for a store that nobody opens."""


def without_rank(env: Mapping[str, str]) -> dict[str, str]:
    """The environment without a rank's own variables, which would have a server join the training."""
    kept = {name: value for name, value in env.items() if name not in RANK_VARIABLES}
    return {name: value for name, value in kept.items() if not name.startswith(RANK_PREFIXES)}


def own_settings(root: Path, settings: PlayServer, *, adapters: bool, direct: bool = False) -> dict[str, str]:
    """The environment of a server whose weights, or only its adapters, are replaced."""
    own = {"VLLM_SERVER_DEV_MODE": "1"}  # the endpoints that replace weights
    if adapters:
        # Not always: vLLM files compiled code by it too, and a release without it shares the evaluation's.
        own["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    if direct:
        # It unpickles the handles of shared memory, from a trainer that has its key.
        own["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"
    return environment(root, settings) | own


def open_server(
    root: Path, work: Path, model_dir: Path, settings: PlayServer, *, max_len: int, say: Say, lora: Lora | None = None,
    direct: bool = False,
) -> Server:  # fmt: skip
    """The named server once it is healthy, or the stage's own."""
    if not isinstance(settings, RolloutServer) or settings.url is None:
        own = OwnServer(root, work, model_dir, settings, max_len=max_len, lora=lora, say=say, direct=direct)
        own.start()
        return own
    named = Server(root, settings.url.rstrip("/"), settings)
    named.wait_for(SERVED_NAME)
    return named


def _flags(lora: Lora | None, settings: PlayServer, max_len: int, *, direct: bool = False) -> list[str]:
    # Importance sampling needs the probabilities that tokens were drawn with: after the temperature.
    flags = ["--logprobs-mode", "processed_logprobs"]
    if settings.device == "cpu":
        # vLLM 0.32 dies where the prompt of a turn with a seed comes in chunks: a CPU's generator has no offset.
        flags += ["--no-enable-chunked-prefill", "--max-num-batched-tokens", str(max(max_len, LEAST_BATCH))]
    if lora is not None:
        rank = next(one for one in RANKS if one >= lora.rank)
        flags += ["--enable-lora", "--max-lora-rank", str(rank), "--max-loras", "2"]
    if direct:
        flags += ["--weight-transfer-config", '{"backend": "ipc"}']
    return flags
