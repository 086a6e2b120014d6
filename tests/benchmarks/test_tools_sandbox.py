"""The sandbox's benchmark measures every isolation of this machine and says which is missing."""

import pytest

from benchmarks import tools_sandbox
from orchestra.tools.sandbox.command import Isolation
from tests.support.sandboxes import WORKING


def test_the_sandbox_is_timed_cold_warm_and_two_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools_sandbox, "CALLS", 2)
    found = {what: (figure, bar) for what, figure, bar, _ in tools_sandbox.rows()}
    for isolation in WORKING:
        for how in ("cold", "warm", "back to back"):
            assert found[f"sandbox, {isolation}: a call, {how}"][0].startswith("p50 ")
        assert found[f"sandbox, {isolation}: two at once"][0].endswith(" calls/s")
        assert found[f"sandbox, {isolation}: a call, warm"][1] == "p50 ≤ 60 ms"
    assert len(found) == 4 * len(WORKING) + (len(Isolation) - len(WORKING))
