"""One name, one meaning: stages, profiles, dependencies and addresses agree wherever they are written."""

import ast
import re
import subprocess
import tomllib
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import pytest
import yaml

from flows._workspace import PREFECT_SETTINGS
from orchestra.config.schema import load_params, parse_params
from orchestra.system.code_hash import CODE, Result
from tasks import grpo, sft
from tasks.experiments.sealed import NO_YARDSTICK

ROOT = Path(__file__).parents[2]
STAGES = ["synthesize", "validate", "sft", "grpo", "evaluate"]
RELEASE = ["promote", "deploy"]
INDIFFERENT = (
    "orchestra/config",
    "orchestra/errors.py",
    "orchestra/files/atomic.py",
    "orchestra/files/base_model.py",
    "orchestra/files/yaml.py",
    "orchestra/register.py",
    "orchestra/system",
    "tasks/platform/ledger.py",
    "tasks/platform/stage.py",
)
"""How a result is read, written and reported: editing these changes no result and makes no stage stale."""


def read_yaml(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def tracked() -> list[Path]:
    """Files of the repository; in a copy without git, every file that is no output."""
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    return [ROOT / name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_a_flow_has_the_same_settings_of_prefect_however_it_is_deployed() -> None:
    for deployment in read_yaml("prefect.yaml")["deployments"]:
        env = deployment["work_pool"]["job_variables"]["env"]
        assert env == {"DO_NOT_TRACK": "true", **PREFECT_SETTINGS}


def test_dvc_has_the_stages_in_their_order() -> None:
    assert list(read_yaml("dvc.yaml")["stages"]) == STAGES


def test_each_stage_runs_its_file_as_dvcs_own_child() -> None:
    for name, stage in read_yaml("dvc.yaml")["stages"].items():
        assert stage["cmd"] == f"exec python -m tasks.{name}"
        assert f"tasks/{name}.py" in stage["deps"] and name in stage["params"]


def test_each_stage_has_its_section_of_parameters() -> None:
    assert {*STAGES, *RELEASE} <= set(read_yaml("params.yaml"))


@pytest.mark.parametrize("name", STAGES)
def test_each_stage_is_a_file_with_a_main_of_that_name(name: str) -> None:
    tree = ast.parse((ROOT / "tasks" / f"{name}.py").read_text(encoding="utf-8"))
    assert any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in tree.body)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    named = [call.args[0].value for call in calls if call.func.id == "run" and isinstance(call.args[0], ast.Constant)]  # type: ignore[attr-defined]
    assert named == [name]


@pytest.mark.parametrize("page", ["README.md", "docs/explanation/architecture.md", "docs/how-to/operate.md"])
def test_the_docs_name_every_stage(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert [name for name in [*STAGES, *RELEASE] if not re.search(rf"\b{name}\b", text)] == []


def test_dependencies_of_stages_are_there_or_made_by_another() -> None:
    stages = read_yaml("dvc.yaml")["stages"]
    made = {out for stage in stages.values() for out in [*stage.get("outs", []), *stage.get("metrics", [])]}
    recipe = load_params(ROOT / "params.yaml").model.recipe
    for name, stage in stages.items():
        for dep in stage["deps"]:
            path = dep.replace("${model.recipe}", recipe)
            assert path in made or (ROOT / path).exists(), f"{name}: {path}"


@pytest.mark.parametrize("module", [sft, grpo])
def test_a_training_depends_on_the_settings_of_deepspeed_that_it_reads(module: ModuleType) -> None:
    assert module.DEEPSPEED in read_yaml("dvc.yaml")["stages"][module.__name__.rpartition(".")[2]]["deps"]


def test_outputs_are_ignored_by_git() -> None:
    stages = read_yaml("dvc.yaml")["stages"]
    made = [out for stage in stages.values() for out in [*stage.get("outs", []), *stage.get("metrics", [])]]
    for path in [*made, ".state/x", "work/x"]:
        done = subprocess.run(["git", "check-ignore", "-q", "--no-index", path], cwd=ROOT, check=False)
        assert done.returncode in (0, 128), f"{path} is not in .gitignore"


@pytest.mark.parametrize("result", get_args(Result))
def test_the_list_of_code_names_every_file_that_a_result_imports(result: Result) -> None:
    """Editing code must make what it made stale; only what cannot change a result is left out."""
    start = {"score": "orchestra.rollout.loop", "gateway": "orchestra.serving.__main__"}.get(result, f"tasks.{result}")
    reached = [str(_file(module).relative_to(ROOT)) for module in _reached(start)]
    assert [path for path in reached if not covered(path, (*CODE[result], *INDIFFERENT))] == []


def test_the_list_of_code_names_only_what_exists() -> None:
    named = {part for parts in (*CODE.values(), INDIFFERENT) for part in parts}
    assert [part for part in sorted(named) if not (ROOT / part).exists()] == []


def test_dvc_watches_the_code_of_each_stage() -> None:
    for name, stage in read_yaml("dvc.yaml")["stages"].items():
        code = [dep for dep in stage["deps"] if dep.startswith(("orchestra", "tasks"))]
        assert code == sorted(CODE[name]), f"dvc.yaml: deps of {name}"


@pytest.mark.parametrize("start", ["tasks.experiments.learn", *(f"tasks.{name}" for name in STAGES)])
def test_what_a_sealed_measurement_runs_is_frozen_with_it(start: str) -> None:
    """A file left out of the world's hash may change between freeze and read, so it may not take part."""
    reached = [str(_file(module).relative_to(ROOT)) for module in _reached(start)]
    assert "orchestra/rollout/loop.py" in reached or start in {"tasks.synthesize", "tasks.validate"}
    assert [path for path in reached if covered(path, NO_YARDSTICK)] == []


def test_what_decides_a_score_makes_the_evaluation_stale() -> None:
    """Otherwise promote refuses an evaluation that DVC calls current, and no run ever changes that."""
    assert [part for part in CODE["score"] if not covered(part, CODE["evaluate"])] == []


def covered(path: str, parts: Iterable[str]) -> bool:
    return any(path == part or path.startswith(f"{part}/") for part in parts)


def _file(module: str) -> Path:
    path = ROOT / Path(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _reached(module: str) -> set[str]:
    """Our modules that one imports, directly or through others; package files hold only a docstring, and the
    library's own only names for users, which import at their first use."""
    seen = {"orchestra"}
    queue = [module]
    while queue:
        current = queue.pop()
        if current in seen or not _file(current).is_file():
            continue
        seen.add(current)
        for node in ast.walk(ast.parse(_file(current).read_text(encoding="utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Register":
                folder = ast.literal_eval(node.args[1])  # A register imports every file of its folder.
                names = [f"{folder}.{file.stem}" for file in _file(folder).parent.glob("*.py")]
            queue += [found for found in names if found.split(".")[0] in {"orchestra", "tasks"}]
    return {found for found in seen if _file(found).name != "__init__.py"}


def test_no_two_classes_share_a_name() -> None:
    places: dict[str, list[str]] = {}
    for file in sorted([*(ROOT / "orchestra").rglob("*.py"), *(ROOT / "tasks").rglob("*.py")]):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(f"{file.relative_to(ROOT)}:{node.lineno}")
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_the_micro_profile_is_valid_over_the_default_one() -> None:
    raw, micro = read_yaml("params.yaml"), read_yaml("tests/micro.yaml")
    for key, value in micro.items():
        raw[key] = {**raw[key], **value} if isinstance(value, dict) else value
    assert parse_params(raw).profile == "micro"


def test_the_constraints_hold_what_pyproject_asks_for() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").split()
    held = {name.lower().replace("_", "-"): version for name, _, version in (line.partition("==") for line in lines)}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    for wanted in [*project["dependencies"], *extras["serve"], *extras["dev"]]:
        name, _, pinned = wanted.partition("==")
        name = re.split(r"[\[<>=!~ ]", name)[0]
        found = {key.lower().replace("_", "-"): value for key, value in held.items()}.get(
            name.lower().replace("_", "-")
        )
        assert found is not None, f"{name} is not in constraints.txt"
        assert not pinned or found == pinned, f"{name}: {pinned} in pyproject.toml, {found} in constraints.txt"


def test_files_take_the_place_of_others_in_one_module() -> None:
    """What waits for the disk and what renames is there, so that no write forgets either."""

    def renames(call: ast.Call) -> bool:
        if not isinstance(call.func, ast.Attribute):
            return False
        # That of a text takes two arguments.
        replaces = call.func.attr == "replace" and (len(call.args) == 1 or ast.unparse(call.func.value) == "os")
        return call.func.attr in ("fsync", "rename", "renames") or (replaces and not call.keywords)

    found = {
        file.relative_to(ROOT).as_posix()
        for folder in ("orchestra", "tasks", "flows", "monitoring")
        for file in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and renames(node)
    }
    assert found == {"orchestra/files/atomic.py"}


@pytest.mark.parametrize("name", ["constraints.txt", "scripts/vllm-constraints.txt"])
def test_every_pinned_version_has_hashes_beside_it(name: str) -> None:
    def pins(file: str) -> dict[str, str]:
        lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
        found = (line.split()[0].partition("==") for line in lines if "==" in line and line[0] not in "# ")
        return {re.sub(r"[-_.]+", "-", key).lower(): version for key, _, version in found}

    beside = name.replace(".txt", "-hashes.txt")
    assert pins(beside) == pins(name), "scripts/freeze.sh hashes"
    text = (ROOT / beside).read_text(encoding="utf-8").replace("\\\n", "")
    bare = [line.split("==")[0] for line in text.splitlines() if "==" in line and "--hash=sha256:" not in line]
    assert bare == ["torch"], "its files differ by index: CPU and CUDA builds"


def test_no_code_in_the_folder_of_a_model_is_run() -> None:
    """Without a word transformers asks the terminal for leave."""
    found = [
        (str(file.relative_to(ROOT)), {one.arg: ast.unparse(one.value) for one in call.keywords})
        for file in (ROOT / "orchestra").rglob("*.py")
        for call in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "from_pretrained"
    ]
    assert found and not [name for name, given in found if given.get("trust_remote_code") != "False"]


def test_no_committed_file_holds_an_index_address_or_a_machine_path() -> None:
    address = re.compile(r"--(extra-)?index-url|find-links\s*=|file:///(opt|home|work)|https?://[^\s/]*:[^\s/@]+@")
    place = re.compile(r"(?<![\w.])/(home|work|root)/[\w.-]+/")
    kinds = {".py", ".toml", ".yaml", ".yml", ".txt", ".md", ".sh", ".json", ""}
    wrong = []
    for file in tracked():
        if file.suffix in kinds and file != Path(__file__):
            text = file.read_text(encoding="utf-8", errors="replace")
            found = [*address.finditer(text), *place.finditer(text)]
            wrong += [f"{file.relative_to(ROOT)}: {match[0]}" for match in found]
    assert wrong == []
