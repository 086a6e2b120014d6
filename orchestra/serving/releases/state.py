"""The serving version, as one small file: read by the gateway, written by a release."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, JsonValue, ValidationError

from orchestra.config.deploy import Deploy, VllmServer
from orchestra.config.schema import Params, parse_params
from orchestra.errors import ConfigError, DataError
from orchestra.files import atomic
from orchestra.system.code_hash import code_hash
from orchestra.tools.catalogue.catalogue import catalogue_files
from orchestra.types import Record

SERVING = ".state/serving.json"

Engine = Literal["vllm", "in_process"]


class Serving(Record):
    """One way to serve: a checkpoint, an engine, and everything else that decides an answer."""

    version: str
    """The registry's version, or whatever names the checkpoint for people."""
    checkpoint: str
    """Its folder, relative to the root."""
    checkpoint_hash: str
    engine: Engine
    fell_back: bool = False
    """In process because vLLM, though installed, did not start."""
    vllm_url: str | None = None
    vllm_replicas: tuple[str, ...] = ()
    """Addresses of further servers of the same weights, which others keep up."""
    compared: tuple[str, ...] = Field(default=(), exclude_if=lambda urls: not urls)
    """Addresses of servers that others keep up, which the release compared with the checkpoint."""
    vllm_service: str | None = None
    """Name of the service behind `vllm_url` (see `orchestra.system.processes`)."""
    params: dict[str, JsonValue]
    """The whole of params.yaml as it was at the release."""
    fingerprint: str
    """Hash of all that decides an answer; equal means there is nothing to release."""
    code: str
    """What a gateway must run to serve this: see `gateway_code`."""

    @property
    def model_servers(self) -> list[str]:
        """Addresses; none in process."""
        return [*filter(None, (self.vllm_url,)), *self.vllm_replicas] if self.engine == "vllm" else []

    @property
    def parsed(self) -> Params:
        """Raises `ConfigError` where a release of another version of the program wrote them: only a release may."""
        try:
            return parse_params(self.params, where=SERVING)
        except ConfigError as error:
            raise ConfigError(f"released by other code: {error.what}", where=SERVING, fix="orchestra release") from None


def gateway_code(deploy: Deploy) -> str:
    """Hash of the gateway's code and of the settings that its process reads once, as it starts."""
    once = {"host", "hosts", "tls_certificate", "tls_key", "gateway", "tracing", "drain_s"}
    return hashlib.sha256((code_hash("gateway") + deploy.model_dump_json(include=once)).encode()).hexdigest()


def write(root: Path, serving: Serving) -> None:
    """Replace the file, whole or not at all."""
    atomic.write_text(root / SERVING, serving.model_dump_json(indent=1) + "\n")


def read(file: Path) -> Serving | None:
    """None when nothing was ever released; `DataError` when the file is damaged."""
    try:
        return Serving.model_validate_json(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (ValidationError, UnicodeDecodeError):
        raise DataError("not a serving file", where=str(file), fix=f"rm {file} and deploy again") from None


def serving_fingerprint(root: Path, checkpoint_hash: str, engine: Engine, params: Params) -> str:
    """SHA-256 over the checkpoint, the engine, the parameters and the data files that decide an answer."""
    world = params.world
    files = [*catalogue_files(root / world.catalogue), root / world.prices]
    files += [root / "data/generated" / name for name in ("corpus.jsonl", "answers.jsonl")]
    for domain in world.domains:
        files += sorted(file for file in (root / "data/domains" / domain).rglob("*") if file.is_file())
    settings: dict[str, Any] = {
        "checkpoint": checkpoint_hash,
        "engine": engine,
        "world": world.model_dump(mode="json"),
        "rollout": params.rollout.model_dump(mode="json"),
        "experts": params.synthesize.experts_per_toolbox,
    }
    if params.deploy.least_confidence is not None:
        settings["least_confidence"] = params.deploy.least_confidence
    if engine == "vllm" and params.deploy.vllm != VllmServer():
        settings["vllm"] = params.deploy.vllm.model_dump(mode="json")
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for file in files:
        content = file.read_bytes() if file.is_file() else b""
        digest.update(f"{file.relative_to(root)}\0".encode() + hashlib.sha256(content).digest())
    return digest.hexdigest()
