"""The front door: the public names, and the examples that use them."""

import ast
import runpy
from pathlib import Path

import pytest

import orchestra
from orchestra.system.processes import LOCALHOST, free_port

ROOT = Path(__file__).parents[2]
SAYS = {
    "1_ask": "A: ",
    "2_add_a_tool": "answer 26.22, solved: True",
    "3_add_a_domain": "spot 1 is not free",
    "4_own_policy": "of 6 solved",
    "5_train_ten_steps": "step 10: reward",
}


@pytest.mark.parametrize("name", SAYS)
def test_an_example_runs_and_says_that_experts_are_simulated(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = ROOT / "examples" / f"{name}.py"
    monkeypatch.setattr("sys.argv", [str(file)])
    # Nothing listens there: without it the example asks the gateway that `make pipeline` left in this workspace.
    monkeypatch.setenv("ORCHESTRA_URL", f"http://{LOCALHOST}:{free_port()}")
    runpy.run_path(str(file), run_name="__main__")
    said = capsys.readouterr().out
    assert SAYS[name] in said and "simulated" in said


def test_every_example_is_run_and_short() -> None:
    files = sorted((ROOT / "examples").glob("*.py"))
    assert [file.stem for file in files] == list(SAYS)
    assert all(len(file.read_text(encoding="utf-8").splitlines()) < 60 for file in files)


def test_every_public_name_is_there_for_users_and_for_the_type_checker() -> None:
    typed = {
        alias.name
        for node in ast.walk(ast.parse((ROOT / "orchestra/__init__.py").read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("orchestra.")
        for alias in node.names
    }
    assert sorted(typed) == sorted(orchestra.__all__)
    for name in orchestra.__all__:
        assert callable(getattr(orchestra, name)) and name in dir(orchestra)
        assert not (ROOT / "orchestra" / name).is_dir(), "a folder of that name would take its place"
    assert not hasattr(orchestra, "nothing")
    assert (ROOT / "orchestra/py.typed").is_file()


def test_the_page_of_the_reference_names_all_of_them() -> None:
    page = (ROOT / "docs/reference/python.md").read_text(encoding="utf-8")
    assert [name for name in orchestra.__all__ if f"`{name}`" not in page] == []
