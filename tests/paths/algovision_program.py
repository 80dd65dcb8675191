"""The peer: algovision's relaxed Bellman-Ford, written as in its public example."""

import path_maps
import torch
from algovision import Algorithm, For, Input, LEq, Let, Output, Var, While
from torch.nn import functional

STEPS = path_maps.STEPS[8]


def relax(distance, cost, beta):
    windows = functional.unfold(distance[:, None], 3).mT
    around = torch.cat([windows[..., :4], windows[..., 5:]], -1).reshape(*cost.shape, 8)
    weights = functional.softmin(beta * around, -1)
    return functional.pad((weights * around).sum(-1) + cost, (1, 1, 1, 1), value=1e12), weights


def move(position, weights):
    height, width = position.shape[1:]
    moved = functional.pad(position[..., None] * weights, (0, 0, 1, 1, 1, 1))
    return sum(moved[:, 1 - i : 1 - i + height, 1 - j : 1 - j + width, k] for k, (i, j) in enumerate(STEPS))


def algovision_path(beta, iterations, loop, conorm="probabilistic"):
    """The shortest-path program of algovision's public example, in its own instructions."""
    gather = {
        "probabilistic": lambda path, position: path + position - path * position,
        "yager": lambda path, position: 1 - torch.relu(1 - path - position),
    }[conorm]
    body = (Let("path", gather), Let("position", lambda position, weights: move(position, weights)))
    back = {
        "for": lambda: For("k", iterations, *body),
        "while": lambda: While(LEq(lambda path: path[:, 0, 0], 1.0), *body),
    }[loop]()
    return Algorithm(
        Input("cost"),
        Var("distance", lambda cost: cost.new_full((cost.shape[1] + 2, cost.shape[2] + 2), 1e12)),
        Var("weights", lambda cost: cost.new_zeros(*cost.shape[1:], 8)),
        Var("position", lambda cost: cost.new_zeros(cost.shape[1:])),
        Var("path", lambda cost: cost.new_zeros(cost.shape[1:])),
        Let("distance", [1, 1], 0.0),
        Let("position", [-1, -1], 1.0),
        For(
            "i",
            iterations,
            Let(["distance", "weights"], lambda distance, cost: relax(distance, cost, beta)),
            Let("distance", [1, 1], 0.0),
        ),
        back,
        Output("path"),
        beta=beta,
        max_iter=iterations,
    )
