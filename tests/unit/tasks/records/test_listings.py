"""Names that a store lists: only those that stay below their folder."""

import random

import pytest

from orchestra.errors import DataError
from tasks.records.listings import check_inside
from tests.support.generated import seeds

GOOD = ["a", "model.safetensors", "..a", "a..", "...", ".hidden", "ä b", "~", "C:", "\\..\\a", "%2e%2e"]
BAD = ["", ".", ".."]


@pytest.mark.parametrize("seed", seeds(200, 20))
def test_a_name_with_one_part_that_leads_elsewhere_is_refused(seed: int) -> None:
    rng = random.Random(seed)
    parts = rng.choices(GOOD, k=rng.randint(1, 5))
    check_inside("/".join(parts), "store")
    parts.insert(rng.randint(0, len(parts)), rng.choice(BAD))
    with pytest.raises(DataError, match="leaves its folder") as refused:
        check_inside("/".join(parts), "store")
    assert len(str(refused.value).splitlines()) == 1
