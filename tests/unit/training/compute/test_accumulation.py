"""Steps in several parts: their rows on every rank, and their measures."""

from threading import Barrier, Thread

from hypothesis import given
from hypothesis import strategies as st

from orchestra.training.compute.accumulation import as_one, in_budget


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=12), st.integers(1, 30))
def test_ranks_have_parts_of_the_same_sizes(rows: list[tuple[int, int]], budget: int) -> None:
    """Each of two ranks has rows of its own lengths; `agree` is what ranks do with a collective."""
    meet, told = Barrier(2), [0, 0]
    found: list[list[range]] = [[], []]

    def rank(number: int) -> None:
        def agree(count: int) -> int:
            told[number] = count
            meet.wait(10)
            least = min(told)
            meet.wait(10)
            return least

        found[number] = in_budget(len(rows), budget, lambda first, end: tokens(number, range(first, end)), agree)

    def tokens(number: int, part: range) -> int:
        return sum(rows[row][number] for row in part)

    threads = [Thread(target=rank, args=(number,)) for number in (0, 1)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert found[0] == found[1]
    assert [row for part in found[0] for row in part] == list(range(len(rows)))
    assert all(len(part) == 1 or tokens(number, part) <= budget for number in (0, 1) for part in found[number])


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(1, 30))
def test_no_part_has_room_for_the_next_row(rows: list[int], budget: int) -> None:
    """Each pass more reads all weights once more."""
    found = in_budget(len(rows), budget, lambda first, end: sum(rows[first:end]))
    assert all(sum(rows[part.start : part.stop + 1]) > budget for part in found[:-1])


def test_measures_of_parts_become_one_by_their_tokens() -> None:
    measures = {"entropy": [9.0], "clip_ratio/low_min": [], "clip_ratio/high_max": [], "step_time": [1.0]}
    with as_one(measures, [3.0, 1.0]):
        for name, values in (("entropy", (2.0, 6.0)), ("clip_ratio/low_min", (4.0, 3.0))):
            measures[name] += values
        measures["clip_ratio/high_max"] += (4.0, 3.0)
        measures["kl"] = [0.0, 1.0]
    assert measures == {
        "entropy": [9.0, 3.0], "clip_ratio/low_min": [3.0], "clip_ratio/high_max": [4.0], "step_time": [1.0],
        "kl": [0.25],
    }  # fmt: skip


def test_parts_without_tokens_have_measures_too() -> None:
    measures: dict[str, list[float]] = {}
    with as_one(measures, [0.0, 0.0]):
        measures["entropy"] = [1.0, 2.0]
    assert measures == {"entropy": [0.0]}
