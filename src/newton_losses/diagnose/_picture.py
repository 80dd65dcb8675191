"""A report as a picture. matplotlib is asked for only here."""

from os import PathLike
from typing import TYPE_CHECKING, Any

from ..errors import ArgumentError

if TYPE_CHECKING:
    from ._report import Report


def draw(report: "Report", path: str | PathLike[str]) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ArgumentError("Report.plot needs matplotlib: pip install matplotlib") from None
    figure = Figure(figsize=(13, 4), layout="constrained")
    spectrum, norms, lines = figure.subplots(1, 3)
    _draw_spectrum(report, spectrum)
    _draw_norms(report, norms)
    _draw_lines(report, lines)
    figure.suptitle(f"{report.loss}: {report.verdict}")
    figure.savefig(path, dpi=150)


def _draw_spectrum(report: "Report", axes: Any) -> None:
    axes.set(title="eigenvalues of the curvatures", xlabel="index", ylabel="eigenvalue")
    axes.axhline(0, color="0.8", linewidth=1)
    if report.spectra is None:
        return
    for name, found, marker in (
        ("mean Hessian", report.spectra.hessian, "o"),
        ("empirical Fisher", report.spectra.fisher, "s"),
    ):
        if found is not None:
            axes.plot(range(1, len(found.values) + 1), found.values, marker, markersize=3, label=name)
    largest = max(abs(v) for found in (report.spectra.hessian, report.spectra.fisher) if found for v in found.values)
    # Both signs and several decades: linear only around zero.
    axes.set_yscale("symlog", linthresh=max(largest, 1e-12) * 1e-4)
    axes.legend()


def _draw_norms(report: "Report", axes: Any) -> None:
    axes.set(title="gradient norms", xlabel="samples, sorted", ylabel="norm of a sample's gradient")
    if report.gradients is None or not report.gradients.norms:
        return
    axes.plot(report.gradients.norms, ".", markersize=4)
    if report.gradients.maximum > 0:
        axes.set_yscale("log")


def _draw_lines(report: "Report", axes: Any) -> None:
    axes.set(title="loss along directions", xlabel="move (in spreads of the outputs)", ylabel="mean loss", xscale="log")
    descent = report.descent
    if descent is None:
        return
    chosen = report.recommendation
    lines = [descent.gradient]
    for kind in ("hessian", "fisher"):
        own = [c for c in descent.candidates if c.curvature == kind]
        if chosen is not None and chosen.curvature == kind:
            own = [c for c in own if c.factor == chosen.damping.factor]
        lines += [c.line for c in own if c.line.best == min(o.line.best for o in own)][:1]
    for line in lines:
        axes.plot(line.moves, line.losses, label=line.name)
    # Far along a line a loss may be astronomical; what matters is below the start.
    height = descent.start - descent.best
    if height > 0:
        axes.set_ylim(descent.best - 0.1 * height, descent.start + 0.3 * height)
    axes.axhline(descent.start, color="0.8", linewidth=1)
    axes.legend()
