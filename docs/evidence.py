"""Writes docs/evidence.md from what is in results/: `python docs/evidence.py`. No number is typed by hand."""

import json
from pathlib import Path

ROOT = Path(__file__).parent.parent
INTRODUCTION = """# Evidence

Measured with this library; every table names the command that printed it. Made from the files in
`results/` by `python docs/evidence.py`.
"""


def convex_layers(path: Path) -> str:
    found = json.loads(path.read_text())
    facts, runs = found["facts"], found["runs"]
    steps = len(runs[0]["baseline"]) - 1
    better = sum(run["fisher"][-1] < run["baseline"][-1] for run in runs)
    marks = sorted({0, steps // 5, 2 * steps // 5, 3 * steps // 5, 4 * steps // 5, steps})
    rows = [
        f"| {run['seed']} | {name} | " + " | ".join(f"{run[key][step]:.3f}" for step in marks) + " |"
        for run in runs
        for name, key in (("baseline", "baseline"), ("Fisher", "fisher"))
    ]
    lines = [
        "## Convex layers",
        "",
        "The paper's extension: two ReLU layers as convex problems and a linear layer, fitted to random numbers; "
        "300 samples, full batch, Adam at 1e-2, mean squared error, λ = 0.1 ([convex layers](convex.md)). Training "
        "loss after so many steps:",
        "",
        "| seed | | " + " | ".join(map(str, marks)) + " |",
        "|---|---|" + "---|" * len(marks),
        *rows,
        "",
        f"After {steps} steps Fisher is below the baseline on {better} of {len(runs)} seeds.",
        "",
        f"    {facts['command']}",
        "",
        "Python {python}, torch {torch}, cvxpy {cvxpy}, cvxpylayers {cvxpylayers}, on a CPU.".format(**facts),
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parts = [INTRODUCTION]
    relu = ROOT / "results" / "cvxpy" / "relu.json"
    if relu.is_file():
        parts.append(convex_layers(relu))
    (ROOT / "docs" / "evidence.md").write_text("\n".join(parts))


if __name__ == "__main__":
    main()
