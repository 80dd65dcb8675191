"""The picture of a report: its panels hold the report's data, as points and lines with names."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from catalogue import draw, steep_ranks

from newton_losses.diagnose import Report, diagnose

pytest.importorskip("matplotlib")

import matplotlib
from matplotlib.figure import Figure


@pytest.fixture(scope="module")
def report() -> Report:
    ranks = draw(40, 5, seed=1).argsort(1).argsort(1).float()
    return diagnose(steep_ranks, draw(40, 5, seed=0), ranks)


def drawn(report: Report, path: Path) -> Figure:
    """The figure that was written to the path."""
    figures: list[Figure] = []
    save = Figure.savefig

    def kept(figure: Figure, *arguments: Any, **options: Any) -> None:
        figures.append(figure)
        save(figure, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch, matplotlib.rc_context({"svg.fonttype": "none"}):
        patch.setattr(Figure, "savefig", kept)
        report.plot(path)
    (figure,) = figures
    return figure


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("picture") / "report.svg"


@pytest.fixture(scope="module")
def panels(report: Report, path: Path) -> list[Any]:
    return drawn(report, path).axes


def curves(axes: Any) -> Iterator[tuple[list[float], list[float]]]:
    for line in axes.get_lines():
        yield [float(x) for x in line.get_xdata()], [float(y) for y in line.get_ydata()]


def names(axes: Any) -> list[str]:
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_the_spectrum_is_in_the_first_panel(report: Report, panels: list[Any]) -> None:
    first, _, _ = panels
    heights = [y for _, y in curves(first)]
    assert list(report.spectra.hessian.values) in heights
    assert list(report.spectra.fisher.values) in heights
    assert len(names(first)) == 2


def test_the_gradient_norms_are_in_the_second(report: Report, panels: list[Any]) -> None:
    _, second, _ = panels
    assert list(report.gradients.norms) in [y for _, y in curves(second)]


def test_the_lines_are_in_the_third(report: Report, panels: list[Any]) -> None:
    """The gradient's, the Hessian's best and the one that is recommended."""
    _, _, third = panels
    shown = list(curves(third))
    gradient = report.descent.gradient
    assert (list(gradient.moves), list(gradient.losses)) in shown
    chosen = report.recommendation
    for candidate in report.descent.candidates:
        if (candidate.curvature, candidate.factor) == (chosen.curvature, chosen.damping.factor):
            assert (list(candidate.line.moves), list(candidate.line.losses)) in shown
    labels = names(third)
    assert len(labels) == 3
    for word in ("gradient", "hessian", "fisher"):
        assert sum(label.startswith(word) for label in labels) == 1
    # A legend may name what is not there: the curve of that name is the gradient's.
    (line,) = (line for line in third.get_lines() if line.get_label() == labels[0])
    assert list(line.get_ydata()) == list(gradient.losses)


def test_what_was_not_measured_leaves_its_panel_empty(report: Report, tmp_path: Path) -> None:
    first, second, third = drawn(
        replace(report, spectra=None, gradients=None, descent=None), tmp_path / "empty.svg"
    ).axes
    assert not list(curves(second))
    assert not list(curves(third))
    assert all(len(x) == 2 for x, _ in curves(first))  # the line at zero


def test_the_file_is_a_picture_with_titles(report: Report, panels: list[Any], path: Path) -> None:
    elements = ElementTree.parse(path).iter()
    texts = ["".join(element.itertext()) for element in elements if element.tag.endswith("}text")]
    for axes in panels:
        assert axes.get_title() in texts
        assert axes.get_xlabel() in texts
        assert axes.get_ylabel() in texts
    assert len({axes.get_title() for axes in panels}) == 3
    assert any(report.loss in text and report.verdict in text for text in texts)
