"""Figures of the analyses: names keep off other points, titles name the set."""

from orchestra.evaluation.analyses.figure import name_points, panels, titled


def test_a_name_goes_to_the_left_where_a_point_is_in_the_way() -> None:
    _, (axes, _) = panels(8, 5, 2)
    axes.set_xlim(0, 10)
    axes.set_ylim(0, 1)
    name_points(axes, [("beside", 5.0, 0.5), ("here", 4.5, 0.51), ("above", 4.6, 0.9), ("far", 9.0, 0.5)])
    sides = {text.get_text(): text.get_horizontalalignment() for text in axes.texts}
    assert sides == {"here": "right", "beside": "left", "above": "left", "far": "left"}


def test_points_in_one_place_have_a_name_on_either_side() -> None:
    _, (axes,) = panels(8, 5, 1)
    name_points(axes, [("one", 0.5, 0.5), ("two", 0.5, 0.5)])
    assert [text.get_horizontalalignment() for text in axes.texts] == ["right", "left"]


def test_the_title_names_the_set_for_people() -> None:
    assert titled("Bias", "own", True) == "Bias, held-out examples (simulated experts)"
    assert titled("Bias", "hle", False) == "Bias, hle"
