"""The names of losses and columns, as a reader is to see them."""

TITLES = {
    "neuralsort": "NeuralSort",
    "softsort": "SoftSort",
    "logistic": "logistic network",
    "cauchy": "Cauchy network",
    "bellman-ford": "relaxed Bellman-Ford",
    "smoothed-loss": "smoothing of the loss",
    "smoothed-algorithm": "smoothing of the algorithm",
    "fenchel-young": "Fenchel-Young loss",
}
METHOD_TITLES = {
    "baseline": "baseline",
    "hessian": "Hessian",
    "fisher": "Fisher",
    "hessian-auto": "Hessian, auto λ",
    "fisher-auto": "Fisher, auto λ",
}
LOOP_TITLES = {"for-l1": "for, L₁", "for-l2": "for, L₂²", "while-l1": "while, L₁", "while-l2": "while, L₂²"}


def column_title(column: str) -> str:
    """A column's name in words.

    >>> column_title("softsort-n5"), column_title("smoothed-loss-10")
    ('SoftSort n=5', 'Smoothing of the loss, 10 samples')
    """
    algorithm = next(name for name in TITLES if column.startswith(name))
    title, detail = TITLES[algorithm], column.removeprefix(algorithm + "-")
    title = title[0].upper() + title[1:]
    if detail.startswith("n"):
        return f"{title} n={detail[1:]}"
    return f"{title}, {detail} samples" if detail.isdigit() else f"{title}, {LOOP_TITLES[detail]}"
