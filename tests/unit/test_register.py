"""A register: what a contributor adds twice is named."""

import pytest

from orchestra.errors import ConfigError
from orchestra.register import Register


def test_a_name_that_is_taken_is_told_with_both_files() -> None:
    register: Register[int] = Register("tool", "orchestra.tools.implementations", "the catalogue")
    register.add("reverse", 1, "first")
    with pytest.raises(ConfigError) as error:
        register.add("reverse", 2, "second")
    said = "second: two have the name reverse: the tool of first, and this one — rename one of them"
    assert str(error.value) == said
