"""The text of a report against its data: every figure stands on the line, and behind the word, that it belongs to."""

import re
from dataclasses import replace

import pytest
from catalogue import centred, draw, honest_waves, smoothed, squares

from newton_losses.diagnose import Cost, Eigenvalues, Gradients, Noise, Precision, Report, Spectra, diagnose

NUMBER = r"[-−]?\d+(?:\.\d+)?(?:e[+-]?\d+)?"


@pytest.fixture(scope="module")
def report() -> Report:
    return diagnose(honest_waves, draw(30, 4, seed=0), draw(30, 4, seed=1))


def line_of(report: Report, label: str) -> str:
    """What is said about one measurement, without its label."""
    (line,) = (line.strip() for line in str(report).splitlines() if line.strip().startswith(label))
    return line.removeprefix(label)


def after(word: str, line: str) -> float:
    """The first number behind a word."""
    assert line.count(word) == 1
    return float(re.findall(NUMBER, line.partition(word)[2])[0].replace("−", "-"))


def test_costs_are_told_for_their_own_order(report: Report) -> None:
    cost = Cost(value=2e-3, gradient=6e-3, fisher=10e-3, hessian=140e-3, samples=30)
    line = line_of(replace(report, cost=cost), "cost")
    assert [after(word, line) for word in ("loss", "gradient", "Fisher", "Hessian")] == [2, 3, 5, 70]


def test_a_hessian_that_was_not_timed_has_no_figure(report: Report) -> None:
    line = line_of(replace(report, cost=Cost(2e-3, 6e-3, 10e-3, None, 30)), "cost")
    assert not re.search(r"\d", line[line.index("Hessian") :])


def test_norms_are_told_under_their_names(report: Report) -> None:
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


def test_eigenvalues_are_told_from_the_smallest_to_the_largest(report: Report) -> None:
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
        assert line_of(report, "samples apart").strip() == ("yes" if apart else "no")


def test_precision_and_noise_have_their_lines(report: Report) -> None:
    precision = Precision(error=0.03, wrong=0.4, p99_float32=5.0, p99_float64=4.0, broken=True)
    line = line_of(replace(report, precision=precision), "float32")
    assert (after("off by", line), after(";", line)) == (0.03, 40)
    line = line_of(replace(report, noise=Noise(gradient=0.2, hessian=3.0)), "noise")
    assert (after("gradient", line), after("Hessian", line)) == (0.2, 3.0)


def test_noise_is_measured_and_told() -> None:
    ranks = draw(20, 3, seed=1).argsort(1).argsort(1)
    report = diagnose(smoothed(50), draw(20, 3, seed=0), ranks)
    line = line_of(report, "noise")
    assert after("gradient", line) == pytest.approx(report.noise.gradient, rel=0.06)
    assert after("Hessian", line) == pytest.approx(report.noise.hessian, rel=0.06)


def test_the_head_and_the_reasons(report: Report) -> None:
    first, *rest = str(report).splitlines()
    assert [int(number) for number in re.findall(r"\d+", first)] == [30, 4]
    assert report.loss in first
    text = " ".join(" ".join(rest).split())  # without the breaks of the lines
    for reason in report.reasons:
        assert " ".join(reason.split()) in text
    assert str(report.recommendation) in text
