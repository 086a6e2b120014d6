"""Whether this machine is ready for a profile: GPUs, memory, disk, base, data, keys, endpoints, prices."""

import os
import shutil
from collections.abc import Collection, Iterator
from datetime import date
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from orchestra.cli.common import CheckResult, Level
from orchestra.config.deploy import VllmServer
from orchestra.config.schema import Model, Params
from orchestra.errors import ConfigError, OrchestraError, ServiceError
from orchestra.files.base_model import cached, is_hub_name
from orchestra.system import machine
from orchestra.system.memory import GIB, ModelShape

if TYPE_CHECKING:
    from orchestra.tools.catalogue.catalogue import Catalogue

TRAINED_UNTIL: dict[str, tuple[str, ...]] = {"synthesize": (), "validate": (), "sft": ("sft",)}
"""The stages that train, up to each stage before the last of them."""


def examine_profile(root: Path, params: Params) -> Iterator[CheckResult]:
    """Every check of a profile's needs; none of them changes or downloads anything."""
    devices = machine.gpus()
    if devices:
        names = ", ".join(f"{one.name} ({one.memory / GIB:.0f} GiB)" for one in devices)
        alone = f"; compute mode {machine.EXCLUSIVE}" if any(one.exclusive for one in devices) else ""
        yield CheckResult("ok", "GPUs", f"{len(devices)}: {names}; driver {devices[0].driver}{alone}")
    elif params.profile != "embedded":
        yield CheckResult("warning", "GPUs", "none: everything runs on the CPU", "use a machine with a GPU")
    torch_devices = machine.torch_gpus()
    yield from _ranks(params, torch_devices)
    yield from _vllm(root, params)
    yield from _base(root, params.model)
    yield from _memory(root, params, torch_devices)
    yield from _extras(root, params)
    try:
        yield from _experts(root, params)
    except OrchestraError as error:
        yield CheckResult("error", "catalogue", error.what, error.fix)


def refuse(root: Path, params: Params, until: str | None = None) -> None:
    """Raises `ConfigError` with the number and the setting that helps when a stage cannot fit into this machine.

    With `until` no stage after that one counts: the others may run on another machine.
    """
    shape, stages = shape_of(root, params.model), TRAINED_UNTIL.get(until or "", machine.TRAINED)
    for need in machine.needs(params, shape, machine.torch_gpus()) if shape is not None and stages else ():
        if need.stage in stages and need.hopeless:
            raise ConfigError(machine.told(need), where="memory", fix=_fix(need))


def refuse_now(root: Path, params: Params, stages: Collection[str]) -> None:
    """Raises `ServiceError` where these stages, which run on this machine now, lack GPUs, their memory or DeepSpeed.

    What a killed stage left of its server is ended first.
    """
    from orchestra.serving.engines.orphans import end_orphans
    from orchestra.serving.releases.vllm import check_gpus

    if not stages:
        return
    end_orphans(root)
    devices, shape = machine.torch_gpus(), shape_of(root, params.model)
    for stage in machine.TRAINED:
        if stage in stages:
            machine.check_ranks(machine.compute_of(params, stage), stage, devices)
    if "grpo" in stages:
        machine.check_beside(params, devices)
    for need in machine.needs(params, shape, devices) if shape is not None else ():
        if need.stage in stages and need.crowded:
            raise ServiceError(machine.told(need), where=machine.GPU_MEMORY, fix=machine.frees(root))
    for name, settings in _servers(params).items():
        if name.partition(".")[0] in stages:
            check_gpus(root, settings, name)


def shape_of(root: Path, model: Model) -> ModelShape | None:
    """The model's shape, without a download; None when it is not known yet."""
    local = None if model.base is None or is_hub_name(model.base, root) else root / model.base
    for folder in filter(None, (local, root / model.recipe)):
        if (folder / "config.json").is_file():
            return ModelShape.load(folder)
    return None


def _vllm(root: Path, params: Params) -> Iterator[CheckResult]:
    """The servers of this profile that vLLM's build cannot run, or that have too few GPUs."""
    from orchestra.serving.releases.vllm import CPU_SETUP, GPU_SETUP, check_gpus, no_gpu_in, only_gpu_in

    servers, on_cpu = _servers(params), _servers(params, "cpu")
    if on_cpu and only_gpu_in(root):
        found = f"vLLM's own, where {', '.join(on_cpu)} has device cpu"
        yield CheckResult("error", "vllm wheel", found, CPU_SETUP)
    if servers and no_gpu_in(root):
        found = f"the build for CPUs, where {', '.join(servers)} has device gpu"
        yield CheckResult("error", "vllm wheel", found, GPU_SETUP)
    for name, settings in servers.items():
        try:
            check_gpus(root, settings, name)
        except OrchestraError as error:
            yield CheckResult("warning" if error.where == machine.GPU_MEMORY else "error", name, error.what, error.fix)


def _servers(params: Params, device: str = "gpu") -> dict[str, VllmServer]:
    """The vLLM servers of this profile that run on `device`, by the name of their section."""
    grpo, evaluate, deploy = params.grpo, params.evaluate, params.deploy
    servers: dict[str, tuple[bool, VllmServer]] = {
        "grpo.server": (grpo.engine == "vllm" and grpo.server.url is None, grpo.server),
        "evaluate.server": (evaluate.engine == "vllm", evaluate.server),
        "deploy.vllm": (deploy.engine != "in_process", deploy.vllm),
    }
    return {name: settings for name, (used, settings) in servers.items() if used and settings.device == device}


def _ranks(params: Params, devices: list[machine.Gpu]) -> Iterator[CheckResult]:
    checks = [partial(machine.check_ranks, machine.compute_of(params, stage), stage) for stage in machine.TRAINED]
    for check in (*checks, partial(machine.check_beside, params)):
        try:
            check(devices)
        except OrchestraError as error:
            yield CheckResult("error", error.where, error.what, error.fix)


def _base(root: Path, model: Model) -> Iterator[CheckResult]:
    if model.base is None:
        yield CheckResult("ok", "base", "random weights of the recipe")
    elif is_hub_name(model.base, root) and not cached(model.base, model.revision):
        fix = "export HF_HUB_OFFLINE=0, and the run downloads it; or set model.base to a folder"
        yield CheckResult("warning", "base", f"{model.base} is not on this machine", fix)
    else:
        yield CheckResult("ok", "base", f"{model.base} is there")


def _memory(root: Path, params: Params, devices: list[machine.Gpu]) -> Iterator[CheckResult]:
    try:
        shape = shape_of(root, params.model)
    except OrchestraError as error:
        yield CheckResult("error", "memory forecast", str(error))
        return
    if shape is None:
        yield CheckResult("warning", "memory forecast", "the model's config.json is not there", "see: base")
        return
    for need in machine.needs(params, shape, devices):
        level: Level = "error" if need.hopeless else "warning" if need.crowded or not need.fits else "ok"
        fix = machine.frees(root) if need.crowded else "" if need.fits else _fix(need)
        yield CheckResult(level, "memory forecast", machine.told(need), fix)
    if devices:
        (ranks, wanted), room = machine.loaded(params, shape, devices), machine.host_memory()
        found = f"{ranks} x model and examples need {wanted / GIB:.1f} GiB beside the GPUs, of {room / GIB:.1f} GiB"
        fix = "" if wanted < room else "lower synthesize.train_examples, or use a machine with more memory"
        yield CheckResult("error" if fix else "ok", "memory forecast", found, fix)
    wanted, free = machine.checkpoint_bytes(params, shape), shutil.disk_usage(root).free
    found = f"checkpoints need {wanted / GIB:.1f} GiB, {free / GIB:.0f} GiB are free"
    yield (
        CheckResult("ok", "disk forecast", found)
        if wanted < free
        else CheckResult("error", "disk forecast", found, "free some space, or work on a larger disk")
    )


def _fix(need: machine.Need) -> str:
    return need.helps or "use a smaller model, or GPUs with more memory"


def _extras(root: Path, params: Params) -> Iterator[CheckResult]:
    missing = [extra.file for extra in params.synthesize.extra if not (root / extra.file).is_file()]
    if missing:
        fix = f"orchestra data import … --to {missing[0]} (docs/how-to/add-data.md), or take it out of synthesize.extra"
        yield CheckResult("error", "data", f"not there: {', '.join(missing)}", fix)


def _catalogue(root: Path, params: Params) -> "Catalogue":
    from orchestra.tools.catalogue.catalogue import Catalogue

    world = params.world
    return Catalogue.load(root / world.catalogue, root / world.prices, world.price_date)


def _variables(catalogue: "Catalogue") -> list[str]:
    named = {name for one in catalogue.entries.values() for name in (one.base_url_env, one.api_key_env) if name}
    return sorted(named)


def expert_variables(root: Path, params: Params) -> list[str]:
    """Names of the environment variables that the real experts need: keys and addresses."""
    return _variables(_catalogue(root, params))


def _experts(root: Path, params: Params) -> Iterator[CheckResult]:
    """Keys, endpoints, measurements and prices of real experts; nothing where all are simulated."""
    from orchestra.cli.endpoints import check_endpoints
    from orchestra.tools.catalogue.catalogue import read_catalogue
    from orchestra.tools.catalogue.measured import MEASURE
    from orchestra.tools.catalogue.price_book import PriceBook
    from orchestra.tools.catalogue.price_check import check_prices, retired, retiring

    world, catalogue = params.world, _catalogue(root, params)
    if catalogue.all_simulated:
        yield CheckResult("ok", "experts", "simulated: no key is needed")
        return
    wanted = _variables(catalogue)
    if missing := [name for name in wanted if not os.environ.get(name)]:
        fix = f"export {missing[0]}=… (see {world.catalogue}), or take its experts out of the catalogue"
        yield CheckResult("error", "keys", f"not set: {', '.join(missing)}", fix)
    else:
        yield CheckResult("ok", "keys", f"{len(wanted)} variables are set")
    today = date.today()
    yield from check_endpoints(catalogue.entries, world.catalogue, today)
    if unknown := catalogue.unmeasured():
        fix = f"{MEASURE}, with {world.catalogue} as world.catalogue in params.yaml"
        yield CheckResult("warning", "experts", f"nothing is known of {', '.join(unknown)}", fix)
    file, book = read_catalogue(root / world.catalogue), PriceBook.load(root / world.prices)
    leaving = [*retired(file, today), *retiring(file, today)]
    if leaving:
        found = "; ".join(one.what for one in leaving)
        yield CheckResult("warning", "models", found, f"name others in {world.catalogue}")
    every = check_prices(file, book, today, params.retraining.stale_price_days)
    if issues := [one for one in every if one not in leaving]:
        more = f", and {len(issues) - 1} more" if len(issues) > 1 else ""
        yield CheckResult("warning", "prices", f"{issues[0].what}{more}", "orchestra prices check")
