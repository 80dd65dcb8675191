"""A small run of each task, alike in what matters: noise, a learning-rate step, a partial batch, a Newton step."""

from dataclasses import replace

from newton_losses_bench.config import PathsConfig, RunConfig, SortingConfig

_SORTING = SortingConfig(
    algorithm="softsort", curvature="fisher", data="digits", digits=1, n=3, augment=True, batch_size=4,
    validation_sets=20, test_sets=20, device="cpu",
)  # fmt: skip
_PATHS = PathsConfig(
    algorithm="fenchel-young", curvature="hessian", scale=2.0, num_samples=3, size=4, train_maps=10, test_maps=5,
    batch_size=4, device="cpu",
)  # fmt: skip


def small_runs(*, steps: int, eval_every: int, epochs: int) -> dict[str, RunConfig]:
    """Both, by the name of the task. An epoch of the paths has three steps, and an evaluation after it."""
    return {"sorting": replace(_SORTING, steps=steps, eval_every=eval_every), "paths": replace(_PATHS, epochs=epochs)}
