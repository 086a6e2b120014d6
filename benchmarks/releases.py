"""Releases, a killed model server and corrupt checkpoints while users ask: `python -m benchmarks.releases`.

A workspace of its own is served by the real release, gateway process and model server. Version 1 is the shipped base;
version 2 is the base with another last norm, so that each release starts a model server of its own. What must hold:
a release or a rollback fails no request; a model server ended by SIGKILL causes typed failures only and comes back by
itself; a corrupt checkpoint is refused while the champion answers every request. `--quick` does four releases. On
SIGTERM or Ctrl-C it ends its servers first.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.command import run_benchmark, usage
from benchmarks.ending import cleaned_up
from benchmarks.load import UserLoad
from orchestra.config.schema import Params, load_params
from orchestra.errors import OrchestraError
from orchestra.files.checkpoint import hash_dir, keep
from orchestra.serving.releases import vllm
from orchestra.serving.releases.release import Release, ReleaseCandidate
from orchestra.serving.releases.state import SERVING, read
from orchestra.system.processes import remembered, stop_services
from tests.support.serving_world import SMOKE, manifest, workspace

if TYPE_CHECKING:
    from torch import Tensor

ROOT = Path(__file__).parents[1]
BASE = ROOT / "models/base/embedded"
QUESTIONS = ("what is 37*24?", "who wrote Opal?", "what is 12+30?", "what is 9*9?", "when was Norvik founded?")
WEIGHTS, NORM = "model.safetensors", "model.norm.weight"
NUDGE = 1.0009765625
"""Factor of version 2's last norm: exact in binary, and too small to change what the model says."""


@dataclass
class CaseRow:
    """A line of the table."""

    case: str
    requests: int
    failed: int
    """Requests that got neither an answer nor a failure of the model's own."""
    untyped: int
    notes: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    """What must not be."""

    @classmethod
    def of(cls, case: str, load: UserLoad, notes: Sequence[str] = ()) -> CaseRow:
        failed = [reply for reply in load.replies if reply.failed]
        untyped = sum(reply.untyped for reply in failed)
        codes = ", ".join(f"{code} {count}" for code, count in load.codes().most_common())
        row = cls(case, len(load.replies), len(failed), untyped, [*notes, f"codes: {codes}"])
        if untyped:
            row.faults.append(f"{untyped} requests failed without a typed error")
        if not load.replies:
            row.faults.append("nothing was asked")
        return row


@dataclass(frozen=True)
class Site:
    """A served workspace: its two versions, and how to release one."""

    root: Path
    params: Params
    versions: tuple[ReleaseCandidate, ReleaseCandidate]
    users: int

    def release(self, candidate: ReleaseCandidate) -> str:
        """Serve the candidate; the gateway's address. Raises `OrchestraError`."""
        return Release(self.root, self.params, candidate, SMOKE, lambda line: print(f"  {line}", flush=True)).run().url

    def load(self, url: str) -> UserLoad:
        return UserLoad(url, QUESTIONS, self.users, pause_s=0.05)


def nudged(base: Path, folder: Path) -> Path:
    """The base with another last norm."""
    return changed(base, folder, lambda weight: weight * NUDGE)


def changed(base: Path, folder: Path, change: Callable[[Tensor], Tensor]) -> Path:
    """A copy of a checkpoint whose last norm is changed; its manifest agrees."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(base, folder)
    tensors = load_file(folder / WEIGHTS)
    tensors[NORM] = change(tensors[NORM])
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    manifest(folder)
    return folder


def kept(root: Path, folder: Path, version: str) -> ReleaseCandidate:
    """The folder as a release takes it."""
    return ReleaseCandidate(version, keep(folder, root / ".state/models"), hash_dir(folder))


def settings(engine: str, start_timeout_s: float) -> Params:
    """The shipped parameters over the mock domain, with any free port."""
    params = load_params(ROOT / "params.yaml")
    own = {"engine": engine, "gateway_port": 0, "start_timeout_s": start_timeout_s}
    world = params.world.model_copy(update={"domains": ["mock"]})
    return params.model_copy(update={"world": world, "deploy": params.deploy.model_copy(update=own)})


@contextmanager
def served(engine: str, users: int, start_timeout_s: float = 600, base: Path = BASE) -> Iterator[tuple[Site, str]]:
    """A workspace whose version 1 serves, and the gateway's address; everything in it is ended afterwards."""
    with tempfile.TemporaryDirectory() as name:
        root = workspace(Path(name))
        if engine == "vllm":
            (root / ".venv-vllm").symlink_to(ROOT / ".venv-vllm")
        shutil.copytree(base, root / "models/1")
        first = kept(root, root / "models/1", "1")
        second = kept(root, nudged(base, root / "models/2"), "2")
        site = Site(root, settings(engine, start_timeout_s), (first, second), users)
        try:
            yield site, site.release(first)
        finally:
            stop_services(root)


def releases(site: Site, url: str, count: int) -> CaseRow:
    """Version 2, back to version 1, and so on, so many times; each must take over and fail no request."""
    wrong = []
    with site.load(url) as load:
        for number in range(count):
            candidate, began = site.versions[(number + 1) % 2], time.monotonic()
            site.release(candidate)
            print(f"release {number + 1} of {count}: {time.monotonic() - began:.0f} s", flush=True)
            if load.await_answer(time.monotonic(), 120, candidate.version) is None:
                wrong.append(f"version {candidate.version} did not answer after release {number + 1}")
    row = CaseRow.of(f"{count} releases and rollbacks", load)
    row.faults += wrong
    if row.failed:
        row.faults.append(f"{row.failed} requests failed")
    return row


def killed(site: Site, url: str) -> CaseRow:
    """SIGKILL to the model server; every failure is typed, and the gateway starts it again."""
    serving = read(site.root / SERVING)
    assert serving is not None and serving.vllm_service is not None
    before = remembered(site.root, serving.vllm_service)
    assert before is not None
    wait_s = site.params.deploy.start_timeout_s
    with site.load(url) as load:
        assert load.await_answer(0, 120) is not None, "nothing answered before the kill"
        os.kill(before.pid, signal.SIGKILL)
        struck = time.monotonic()
        back = None
        while back is None and time.monotonic() < struck + wait_s:
            now = remembered(site.root, serving.vllm_service)
            if now is not None and now.pid != before.pid:
                back = load.await_answer(time.monotonic(), 1)
            time.sleep(0.2)
    row = CaseRow.of("model server killed", load)
    if back is None:
        row.faults.append(f"not back within {wait_s:.0f} s")
    else:
        row.notes.insert(0, f"answers again {back.at - struck:.0f} s after the kill")
        if not row.failed and back.at - struck > 5:
            row.faults.append("no request saw the kill: it struck something else")
    return row


def corrupted(site: Site) -> Iterator[tuple[str, ReleaseCandidate]]:
    """Checkpoints that must be refused, by what is wrong with them."""
    first = site.versions[0]

    def spoiled(name: str, change: Callable[[bytes], bytes], *, agrees: bool) -> ReleaseCandidate:
        folder = site.root / "models" / name
        shutil.copytree(first.folder, folder)
        (folder / WEIGHTS).write_bytes(change((folder / WEIGHTS).read_bytes()))
        if agrees:
            manifest(folder)
        return ReleaseCandidate(name, folder, hash_dir(folder))

    yield (
        "a bit flipped",
        spoiled("flipped", lambda data: data[:-5] + bytes([data[-5] ^ 0x40]) + data[-4:], agrees=False),
    )
    yield "half of the weights, manifest agrees", spoiled("half", lambda data: data[: len(data) // 2], agrees=True)
    folder = changed(first.folder, site.root / "models/nan", lambda weight: weight * float("nan"))
    yield "weights that are no numbers, manifest agrees", ReleaseCandidate("nan", folder, hash_dir(folder))


def refused(site: Site, url: str) -> CaseRow:
    """Corrupt checkpoints are released; the champion answers throughout."""
    serving = read(site.root / SERVING)
    assert serving is not None
    taken, notes = [], []
    with site.load(url) as load:
        for what, candidate in corrupted(site):
            try:
                site.release(candidate)
                taken.append(f"released: {what}")
            except OrchestraError as error:
                notes.append(f"{what}: {error.what}")
            if load.await_answer(time.monotonic(), 120, serving.version) is None:
                taken.append(f"version {serving.version} did not answer after: {what}")
    row = CaseRow.of("corrupt checkpoints", load, notes)
    others = sorted({reply.version for reply in load.replies if reply.version} - {serving.version})
    row.faults += taken + [f"version {version} answered" for version in others]
    if row.failed:
        row.faults.append(f"{row.failed} requests failed")
    return row


def table(rows: Sequence[CaseRow]) -> str:
    """For people."""
    lines = ["| case | requests | failed | untyped | end |", "|---|---:|---:|---:|---|"]
    for row in rows:
        end = f"FAULT: {'; '.join(row.faults)}" if row.faults else "as it must be"
        lines.append(f"| {row.case} | {row.requests} | {row.failed} | {row.untyped} | {end} |")
    return "\n".join([*lines, *(f"{row.case}: {note}" for row in rows for note in row.notes)])


def main(given: Sequence[str] | None = None) -> int:
    parser = usage(__doc__)
    parser.add_argument("--engine", choices=("vllm", "in_process"), default="vllm")
    parser.add_argument("--releases", type=int, default=20)
    parser.add_argument("--users", type=int, default=4)
    parser.add_argument("--quick", action="store_true", help="four releases, two users")
    args = parser.parse_args(given)
    count, users = (4, 2) if args.quick else (args.releases, args.users)
    if args.engine == "vllm" and vllm.interpreter(ROOT) is None:
        print("vLLM is not installed: bash scripts/setup_vllm.sh, or --engine in_process")
        return 2
    with cleaned_up(), served(args.engine, users) as (site, url):
        rows = [refused(site, url), releases(site, url, count)]
        if args.engine == "vllm":
            rows.append(killed(site, url))
    print(table(rows))
    return 1 if any(row.faults for row in rows) else 0


if __name__ == "__main__":
    run_benchmark(main)
