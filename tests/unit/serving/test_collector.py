"""The collector of cycles looks at few objects, and seldom, once a release is loaded."""

import gc

from orchestra.serving import collector


def test_what_is_loaded_is_passed_over_and_what_requests_make_is_looked_at_seldom() -> None:
    before = gc.get_threshold()
    try:
        collector.spare()
        assert gc.get_freeze_count() > 10_000 and gc.get_threshold()[0] == collector.YOUNG > before[0]
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
