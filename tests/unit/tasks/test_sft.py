"""What the sft stage refuses before it trains."""

from pathlib import Path

import pytest
import yaml

from orchestra.config.schema import load_params
from orchestra.errors import DataError
from tasks.platform.stage import Stage
from tasks.sft import teach
from tests.integration.test_ranks import world


def test_a_teacher_whose_episodes_have_no_room_is_an_error_that_says_so(tmp_path: Path) -> None:
    world(tmp_path)
    params = yaml.safe_load((tmp_path / "params.yaml").read_text(encoding="utf-8"))
    params["rollout"]["max_tokens"] = 20
    params["model"]["base"] = "models/sft"
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
    stage = Stage("sft", load_params(tmp_path / "params.yaml"), tmp_path)
    with pytest.raises(DataError, match=r"none of the teacher's 8 episodes can be imitated: 8 end by token_limit"):
        teach(stage)
