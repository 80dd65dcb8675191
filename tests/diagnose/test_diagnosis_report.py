"""The text and the picture of a report against its data: every figure stands where it belongs."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from known_losses import centred, detached_weights, draw, honest_waves, smoothed, squares

from newton_losses.diagnose import Eigenvalues, Gradients, Noise, Precision, Report, Spectra, diagnose
from newton_losses.perturbed import Perturbed

NUMBER = r"[-−]?\d+(?:\.\d+)?(?:e[+-]?\d+)?"


@pytest.fixture(scope="module")
def report() -> Report:
    return diagnose(honest_waves, draw(30, 4, seed=0), draw(30, 4, seed=1))


def line_of(report: Report, label: str) -> str:
    """What is said about one measurement, without its label and without the breaks of the lines."""
    lines = str(report).splitlines()
    (start,) = (number for number, line in enumerate(lines) if line.strip().startswith(label))
    rest = lines[start + 1 :]
    until = next((number for number, line in enumerate(rest) if not line.startswith(" " * 23)), len(rest))
    return " ".join([lines[start].strip().removeprefix(label), *(line.strip() for line in rest[:until])])


def after(word: str, line: str) -> float:
    """The first number behind a word."""
    assert line.count(word) == 1
    return float(re.findall(NUMBER, line.partition(word)[2])[0].replace("−", "-"))


def test_norms_are_shown_under_their_names(report: Report) -> None:
    norms = Gradients(
        norms=(0.5, 2.0, 30.0), minimum=0.5, median=2.0, typical=3.0, p99=20.0, maximum=30.0, ratio=7.0,
        vanishing=0.25, exploding=0.75, nonfinite=0.0,
    )  # fmt: skip
    line = line_of(replace(report, gradients=norms), "gradient norms")
    assert (after("min", line), after("median", line), after("p99", line), after("max", line)) == (0.5, 2, 20, 30)
    assert (after("vanishing", line), after("exploding", line)) == (25, 75)


def test_measured_norms_are_those_of_the_data(report: Report) -> None:
    line, data = line_of(report, "gradient norms"), report.to_dict()["gradients"]
    for word, name in (("min", "minimum"), ("median", "median"), ("p99", "p99"), ("max", "maximum")):
        assert after(word, line) == pytest.approx(data[name], rel=0.06)  # two digits


def test_eigenvalues_are_shown_from_the_smallest_to_the_largest(report: Report) -> None:
    hessian = Eigenvalues((-3.0, 0.0, 1.0, 12.0), negative_share=0.1875, condition=40.0, rank=3)
    fisher = Eigenvalues((0.5, 7.0), negative_share=0.0, condition=14.0, rank=2)
    other = replace(report, spectra=Spectra(fisher, hessian, 1.0, 0.5, 30))
    for label, found in (("mean Hessian", hessian), ("empirical Fisher", fisher)):
        line = line_of(other, label)
        smallest, largest = re.findall(NUMBER, line[line.index("eigenvalues") :])[:2]
        assert (float(smallest), float(largest)) == (found.smallest, found.largest)
        assert (after("rank", line), after("condition", line)) == (found.rank, found.condition)
        assert after("negative", line) == pytest.approx(100 * found.negative_share, abs=0.5)


def test_measured_curvatures_have_their_lines(report: Report) -> None:
    data = report.to_dict()["spectra"]
    for label, name in (("mean Hessian", "hessian"), ("empirical Fisher", "fisher")):
        line = line_of(report, label)
        assert after("eigenvalues", line) == pytest.approx(data[name]["values"][0], rel=0.06)
        assert after(" to ", line) == pytest.approx(data[name]["values"][-1], rel=0.06)
        assert after("rank", line) == data[name]["rank"]


def test_losses_after_steps_have_their_line(report: Report) -> None:
    line, descent = line_of(report, "mean loss"), report.descent
    assert descent.best < descent.gradient.best < descent.start
    found = [float(number) for number in re.findall(NUMBER, line)]
    assert found == pytest.approx([descent.start, descent.gradient.best, descent.best], rel=1e-3)


def test_a_report_without_curvature_has_no_lines_for_it(report: Report) -> None:
    text = str(replace(report, spectra=None, descent=None))
    for label in ("mean Hessian", "empirical Fisher", "mean loss"):
        assert not any(line.strip().startswith(label) for line in text.splitlines())


def test_whether_samples_stay_apart() -> None:
    y, target = draw(20, 3, seed=0), draw(20, 3, seed=1)
    for loss, apart in ((squares, True), (centred, False)):
        report = diagnose(loss, y, target)
        assert report.separable is apart
        assert line_of(report, "independent samples").strip() == ("yes" if apart else "no")


def test_precision_and_noise_have_their_lines(report: Report) -> None:
    precision = Precision(error=0.03, wrong=0.4, p99_float32=5.0, p99_float64=4.0, broken=True)
    line = line_of(replace(report, precision=precision), "float32")
    assert (after("off by", line), after(";", line)) == (0.03, 40)
    line = line_of(replace(report, noise=Noise(gradient=0.2, hessian=3.0)), "noise")
    assert (after("gradient", line), after("Hessian", line)) == (0.2, 3.0)


def test_noise_is_measured_and_shown() -> None:
    ranks = draw(20, 3, seed=1).argsort(1).argsort(1)
    report = diagnose(smoothed(50), draw(20, 3, seed=0), ranks)
    line = line_of(report, "noise")
    assert after("gradient", line) == pytest.approx(report.noise.gradient, rel=0.06)
    assert after("Hessian", line) == pytest.approx(report.noise.hessian, rel=0.06)


def test_the_effects_have_their_lines(report: Report) -> None:
    descent = report.descent
    line = line_of(report, "normalises the batch")
    batches, fades = [float(n) for n in re.findall(NUMBER, line)][:2]
    assert (batches, fades) == (round(100 * descent.batches), pytest.approx(descent.fades, rel=0.06))
    for candidate, name in zip(descent.candidates, ("Fisher", "Hessian"), strict=True):
        assert after(name, line_of(report, "clips samples softly")) == pytest.approx(candidate.clipped, rel=0.06)
        assert after(name, line_of(report, "turns directions")) == round(candidate.turned)
        assert after(name, line_of(report, "lowers the loss")) == pytest.approx(descent.lead(candidate), abs=0.006)


def test_a_faulty_loss_has_no_effects() -> None:
    report = diagnose(lambda y: y.sqrt().sum(1), draw(30, 4, seed=0))
    assert report.verdict == "fix"
    assert "What a Newton loss would change" not in str(report)


def test_the_head_and_the_reasons(report: Report) -> None:
    first, *rest = str(report).splitlines()
    assert [int(number) for number in re.findall(r"\d+", first)] == [30, 4]
    assert report.loss in first
    text = " ".join(" ".join(rest).split())  # without the breaks of the lines
    for reason in report.reasons:
        assert " ".join(reason.split()) in text
    assert max(map(len, str(report).splitlines())) <= 100


# The picture --------------------------------------------------------------------------------------------------------


def drawn(report: Report, path: Path) -> Any:
    """The figure that was written to the path."""
    matplotlib = pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

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
    _, _, third = panels
    shown = list(curves(third))
    lines = [report.descent.gradient, *(candidate.line for candidate in report.descent.candidates)]
    for line in lines:
        assert (list(line.moves), list(line.losses)) in shown
    assert names(third) == ["gradient", "Fisher", "Hessian"]
    # A legend may name what is not there: the curve of that name is the gradient's.
    (curve,) = (curve for curve in third.get_lines() if curve.get_label() == "gradient")
    assert list(curve.get_ydata()) == list(report.descent.gradient.losses)


@pytest.mark.parametrize("scale", [1.0, 6.4, 1e-9, 1e12])
def test_no_labels_collide(report: Report, scale: float, tmp_path: Path) -> None:
    hessian = Eigenvalues(tuple(scale * v for v in (-3.0, -1e-5, 0.0, 1e-3, 12.0)), 0.2, 40.0, 4)
    spectra = Spectra(Eigenvalues((0.0, scale * 7.0), 0.0, 14.0, 1), hessian, 1.0, 0.5, 30)
    figure = drawn(replace(report, spectra=spectra), tmp_path / "report.png")
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    renderer = FigureCanvasAgg(figure).get_renderer()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            ticks = [t for t in axis.get_major_ticks() if low <= t.get_loc() <= high and t.label1.get_text()]
            boxes = [tick.label1.get_window_extent(renderer) for tick in ticks]
            assert not any(one.overlaps(other) for i, one in enumerate(boxes) for other in boxes[:i])


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
    assert any(report.loss in text for text in texts)


def test_the_text_counts_in_words_that_agree() -> None:
    y, target = draw(1, 1, seed=0), draw(1, 1, seed=1)
    assert "at 1 sample of 1 output\n" in str(diagnose(honest_waves, y, target))
    assert "at 2 samples of 3 outputs\n" in str(diagnose(honest_waves, draw(2, 3, seed=0), draw(2, 3, seed=1)))


def test_a_detached_part_is_said_before_what_it_makes_doubtful() -> None:
    report = diagnose(detached_weights, draw(32, 4, seed=0), draw(32, 4, seed=1))
    assert report.reasons[0].startswith("The gradient is not that of the value")
    assert "what follows is measured by values" in report.reasons[0]


def test_a_scalar_that_is_not_finite_may_be_one_samples_doing() -> None:
    target = draw(20, 3, seed=1)
    target[4, 0] = torch.nan
    (reason,) = diagnose(lambda y, t: (y - t).square().mean(), draw(20, 3, seed=0), target).reasons
    assert "one number for all samples" in reason
    assert "one value per sample" in reason


# What is not known, or no number -------------------------------------------------------------------------------------


def test_samples_are_not_called_independent_where_nothing_was_compared() -> None:
    ignored = diagnose(lambda y, t: t.square().sum(1), draw(16, 3, seed=0), draw(16, 3, seed=1))
    assert ignored.separable is None
    assert "does not depend on the outputs" in ignored.reasons[0]
    assert "Measured" not in str(ignored)
    for alike in (draw(1, 3, seed=0), torch.ones(16, 3)):
        report = diagnose(honest_waves, alike, torch.zeros_like(alike))
        assert report.separable is None
        assert line_of(report, "independent samples").strip().startswith("not checked")


def strict(report: Report) -> Any:
    """Through JSON that has no word for what is no number."""
    return json.loads(json.dumps(report.to_dict(), allow_nan=False))


def fourth(y: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (y - target).pow(4).sum(1)


@pytest.mark.parametrize("loss", [squares, fourth, lambda y, t: (y - t).pow(8).sum(1)])
@pytest.mark.parametrize("everywhere", [False, True])
def test_numbers_out_of_range_are_said_in_words(loss: Any, everywhere: bool) -> None:
    y, target = draw(16, 3, seed=0), draw(16, 3, seed=1)
    if everywhere:
        y = 1e30 * y
    y[0, 0], y[1, 0] = 1e30, torch.inf
    report = diagnose(loss, y, target)
    assert not re.search(r"\b(nan|inf)\b", str(report))
    strict(report)
    assert "No step lowers the loss" not in str(report)


def test_a_range_that_squares_leave_is_said_in_words() -> None:
    """Float64 outputs that float32 has no number for, and a Fisher whose own size float64 has none for."""
    text = str(diagnose(squares, 1e100 * draw(16, 3, seed=0).double(), draw(16, 3, seed=1).double()))
    assert "not compared: no gradient is in the range of numbers" in text
    assert not re.search(r"nan|inf%", text)


def test_one_sample_out_of_range_does_not_hide_the_rounding_of_the_others() -> None:
    y, target = draw(16, 3, seed=0), draw(16, 3, seed=1)
    usual = diagnose(fourth, y, target).precision.error
    y[0, 0], y[1, 0] = 1e30, torch.inf
    report = diagnose(fourth, y, target)
    assert usual / 2 < report.precision.error < 2 * usual
    assert re.search(r"finite norms: \S+ in float32, \S+e\+90 in float64", report.reasons[0])
    assert after("off by", line_of(report, "float32")) == pytest.approx(report.precision.error, rel=0.06)
    whole = diagnose(fourth, 1e30 * y, target)
    assert "no norm is finite in float32" in whole.reasons[0]
    assert "gradient not finite for most samples" in line_of(whole, "float32")


@pytest.mark.parametrize("entry", [torch.nan, torch.inf])
def test_a_target_that_is_no_number_leaves_plain_data(entry: float) -> None:
    target = draw(16, 3, seed=1)
    target[3, 1] = entry
    found = strict(diagnose(squares, draw(16, 3, seed=0), target))
    assert found["gradients"]["nonfinite"] == 1 / 16


def test_the_library_is_not_quoted_as_torch() -> None:
    def loss(y: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        generator = torch.Generator().manual_seed(0)  # the same draws each time, so that derivatives are looked at
        ranks = Perturbed(lambda y: y.argsort(-1).argsort(-1).float(), num_samples=50, generator=generator)
        return (ranks(y) - target).square().mean()

    obstacle = diagnose(loss, draw(8, 3, seed=0), draw(8, 3, seed=1)).derivatives.obstacle
    assert "is not differentiable twice. Perturbed: its Jacobian" in obstacle
