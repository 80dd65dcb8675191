"""Charts: points are where their numbers say, and axes end on round numbers."""

import re

import pytest

from newton_losses_bench.report._chart import HEIGHT, WIDTH, Line, chart
from newton_losses_bench.report._figures import half_width
from newton_losses_bench.report._scale import Axis, around, number


def places(svg, kind):
    found = re.findall(rf'class="{kind}[^"]*" d="M([^"Z]+)', svg)
    return [[tuple(map(float, point.split())) for point in path.split("L")] for path in found if "h" not in path]


def test_points_are_where_their_numbers_say():
    svg = chart([Line("", [(0, 0), (5, 10), (10, 5)], 1)], Axis("x", 0, 10), Axis("y", 0, 10), "title", "words")
    ((left, top_of_zero), (middle, top), (right, half)) = places(svg, "line")[0]
    assert middle == pytest.approx((left + right) / 2, abs=0.06)
    assert half == pytest.approx((top + top_of_zero) / 2, abs=0.06)
    assert 0 < left < right < WIDTH
    assert 0 < top < top_of_zero < HEIGHT


def test_level_runs_lose_no_corner():
    points = [(0, 1), (1, 1), (2, 1), (3, 5), (4, 1), (5, 1), (6, 1), (7, 1)]
    svg = chart([Line("", points, 1)], Axis("x", 0, 7), Axis("y", 0, 5), "title", "words")
    assert len(places(svg, "line")[0]) == 5


def test_band_goes_there_and_back():
    line = Line("a", [(0, 2), (1, 3)], 1, band=[(0, 1, 3), (1, 2, 4)])
    svg = chart([line], Axis("x", 0, 1), Axis("y", 0, 5), "title", "words")
    (band,) = places(svg, "band")
    assert [x for x, _ in band] == [band[0][0], band[1][0], band[1][0], band[0][0]]
    assert band[0][1] < band[3][1]


def test_text_is_escaped():
    svg = chart([Line("<b>", [(0, 0), (1, 1)], 1)], Axis("<i>", 0, 1), Axis('"&', 0, 1), "<t>", '"')
    assert not re.search(r"<(b|i|t)>", svg)
    assert svg.count("&lt;") == 3


@pytest.mark.parametrize("values", [[3.0], [0.0, 0.0], [1e-5, 2e-5], [-4e4, 6e4], [float("nan"), 2.0], []])
def test_axes_hold_their_values_and_have_ticks(values):
    axis = around("y", values)
    assert axis.low < axis.high
    assert len(axis.ticks()) >= 3
    for value in values:
        if value == value:
            slack = 1e-9 * (axis.high - axis.low)  # the ends are multiples of a step, in floating point
            assert axis.low - slack <= value <= axis.high + slack


def test_logarithmic_ticks():
    assert [text for _, text in Axis("λ", 1e-3, 1e3, log=True).ticks()] == [
        "0.001",
        "0.01",
        "0.1",
        "1",
        "10",
        "100",
        "1,000",
    ]
    assert Axis("λ", 1e-3, 1e3, log=True).position(10**0.5) == pytest.approx(3.5 / 6)


def test_zero_has_no_sign():
    assert number(-1e-17, 0.1) == "0.0"
    assert number(-0.1, 0.1) == "−0.1"


def test_interval_of_a_mean():
    """Against the table of t: 2.262 for ten values."""
    assert half_width([float(k) for k in range(10)]) == pytest.approx(2.262 * 3.02765 / 10**0.5, rel=1e-3)
