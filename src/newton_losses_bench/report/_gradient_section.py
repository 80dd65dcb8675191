"""What the gradient pictures show: the figure, its numbers in a table, and the two claims that they decide."""

from ._blocks import Block, Cell, Figure, Heading, Panel, Paragraph, Table, Verdict
from ._rules import Part, judge
from .gradients import DAMPING, SETTINGS, SPREAD, VARIANTS, Picture, pictures

FACTOR = 10.0  # a gradient that grows by more than this with the spread "explodes"


def gradient_section() -> list[Block]:
    """The section of the report about the paper's last appendix."""
    panels = tuple(
        Panel(picture.name, f"{picture.setting.title}, {picture.variant.title}", picture.svg, _words(picture))
        for picture in pictures()
    )
    return [
        Heading(2, "Gradients", "gradients"),
        Paragraph(
            "The paper’s last appendix shows the gradients of two losses for five scores, of which x₁ moves past the "
            "others, which are in their right order. The paper does not give its scores. Ours are "
            f"{SETTINGS[0].gap:g} apart for NeuralSort (τ = 1) and {SETTINGS[1].gap:g} for the logistic network "
            f"(β = 10), and {SPREAD:g} times as far for the larger spread; λ = {DAMPING}."
        ),
        Figure(
            panels,
            "Gradients in float32. The paper’s numerics, probabilities and their cross-entropy, explode at the larger "
            "spread; the same formula in log space does not. The paper does not say of which batch its Fisher is: "
            "that of each point alone divides every gradient by its own square and bounds it; one Fisher for all "
            "points, as in training, bounds them too, and leaves next to nothing of the ordinary ones. The axes "
            "differ from picture to picture.",
        ),
        _table(),
    ]


def gradient_verdicts() -> list[Verdict]:
    """The appendix’s two claims; the first is decided in float32, in double precision and in log space."""
    return [
        Verdict(
            "NeuralSort and the logistic network have exploding gradients when the scores are far apart.",
            "appendix, gradient visualisations",
            f"The largest gradient is more than {FACTOR:g} times as large with {SPREAD:g} times the spread, for both.",
            (
                judge("float32, the paper’s numerics", _explosions("spread", exact=False)),
                judge("double precision, the same", _explosions("spread", exact=True)),
                judge("float32, in log space", _explosions("stable", exact=False)),
            ),
        ),
        Verdict(
            "The empirical Fisher recovers from the exploding gradients.",
            "appendix, gradient visualisations",
            f"The largest Newton gradient at the larger spread is at most {FACTOR:g} times the largest plain gradient "
            "of scores close together, for both.",
            (
                judge("Fisher of each point alone", _recoveries("fisher")),
                judge("one Fisher for all points", _recoveries("fisher-batch")),
            ),
        ),
    ]


def _explosions(variant: str, *, exact: bool) -> list[Part]:
    parts = []
    for setting in SETTINGS:
        plain, spread = _picture(setting.name, "plain"), _picture(setting.name, variant)
        before, after = (plain.exact, spread.exact) if exact else (plain.largest, spread.largest)
        parts.append(Part(after > FACTOR * before, f"{setting.title} {_number(before)} to {_number(after)}"))
    return parts


def _recoveries(variant: str) -> list[Part]:
    parts = []
    for setting in SETTINGS:
        plain, newton = _picture(setting.name, "plain").largest, _picture(setting.name, variant).largest
        spread = _picture(setting.name, "spread").largest
        words = f"{setting.title} {_number(spread)} becomes {_number(newton)}, and is {_number(plain)} close together"
        parts.append(Part(newton <= FACTOR * plain, words))
    return parts


def _table() -> Table:
    rows = tuple(
        (
            Cell(variant.title),
            *(
                Cell(_number(value), value)
                for setting in SETTINGS
                for picture in (_picture(setting.name, variant.name),)
                for value in (picture.largest, picture.exact)
            ),
        )
        for variant in VARIANTS
    )
    return Table(
        "largest-gradients",
        "The largest gradient of each picture, in float32 and in double precision. Where the two differ, float32 shows "
        "rounding error.",
        ("picture", *("float32", "double precision") * len(SETTINGS)),
        rows,
        groups=(("", 1), *((setting.title, 2) for setting in SETTINGS)),
    )


def _picture(setting: str, variant: str) -> Picture:
    return next(one for one in pictures() if (one.setting.name, one.variant.name) == (setting, variant))


def _words(picture: Picture) -> str:
    return f"The largest gradient is {_number(picture.largest)}."


def _number(value: float) -> str:
    """Three digits, thousands parted.

    >>> _number(43980.2), _number(0.26956)
    ('43,980', '0.27')
    """
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}" if value < 1 else f"{value:.3g}"
