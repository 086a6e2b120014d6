"""What serves, as a file; and what makes a release a different one."""

import json
import shutil
from pathlib import Path

import pytest

from orchestra.errors import ConfigError, DataError
from orchestra.serving.releases.state import SERVING, Serving, gateway_code, read, serving_fingerprint, write
from tests.support.serving_world import params, workspace


def serving(root: Path, **fields: object) -> Serving:
    return Serving.model_validate(
        {
            "version": "1",
            "checkpoint": ".state/models/x",
            "checkpoint_hash": "x",
            "engine": "in_process",
            "params": json.loads(params().model_dump_json(by_alias=True)),
            "fingerprint": serving_fingerprint(root, "x", "in_process", params()),
            "code": gateway_code(params().deploy),
            **fields,
        }
    )


def test_written_is_read_and_nothing_is_none(tmp_path: Path) -> None:
    assert read(tmp_path / SERVING) is None
    made = serving(tmp_path)
    write(tmp_path, made)
    assert read(tmp_path / SERVING) == made and made.parsed == params()
    assert [file.name for file in (tmp_path / ".state").iterdir()] == ["serving.json"]


def test_parameters_of_other_code_ask_for_a_release(tmp_path: Path) -> None:
    made = serving(tmp_path)
    training = made.params["sft"]
    assert isinstance(training, dict) and isinstance(training["teacher"], dict)
    training["teacher"]["bias"] = 0.1
    write(tmp_path, made)
    again = read(tmp_path / SERVING)
    assert again is not None
    with pytest.raises(ConfigError, match=r"released by other code: sft\.teacher\.bias is gone.* — orchestra release$"):
        _ = again.parsed


@pytest.mark.parametrize("text", ["", "{", '{"version": "1"}', "\xff"])
def test_a_damaged_file_is_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / ".state").mkdir()
    (tmp_path / SERVING).write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError, match=r"serving\.json: not a serving file — rm"):
        read(tmp_path / SERVING)


def test_everything_that_decides_an_answer_is_in_the_fingerprint(tmp_path: Path) -> None:
    root = workspace(tmp_path / "a")
    wanted = params()
    prints = {serving_fingerprint(root, "x", "in_process", wanted)}
    assert serving_fingerprint(root, "x", "in_process", wanted) in prints
    moved = tmp_path / "b"
    shutil.copytree(root, moved)
    assert serving_fingerprint(moved, "x", "in_process", wanted) in prints
    prints |= {serving_fingerprint(root, "y", "in_process", wanted), serving_fingerprint(root, "x", "vllm", wanted)}
    longer = wanted.rollout.model_copy(update={"max_turns": 3})
    prints.add(serving_fingerprint(root, "x", "in_process", wanted.model_copy(update={"rollout": longer})))
    prints.add(serving_fingerprint(root, "x", "in_process", params(least_confidence=-0.5)))
    for name in ("data/generated/answers.jsonl", "data/catalogue/prices.yaml", "data/domains/mock/tools.yaml"):
        with (root / name).open("a", encoding="utf-8") as file:
            file.write("\n")
        prints.add(serving_fingerprint(root, "x", "in_process", wanted))
    assert len(prints) == 8
    server = wanted.deploy.model_copy(update={"vllm": wanted.deploy.vllm.model_copy(update={"dtype": "bfloat16"})})
    served = wanted.model_copy(update={"deploy": server})
    assert served != wanted and serving_fingerprint(root, "x", "in_process", served) == (
        serving_fingerprint(root, "x", "in_process", params())
    )
    assert serving_fingerprint(root, "x", "vllm", served) not in {
        *prints,
        serving_fingerprint(root, "x", "vllm", wanted),
    }
    other = wanted.grpo.model_copy(update={"steps": 1})
    assert serving_fingerprint(root, "x", "in_process", wanted.model_copy(update={"grpo": other})) in prints
