"""How the tests of estimators decide: against their own standard error, from independent repetitions."""

from torch import Tensor


def assert_unbiased(estimates: Tensor, expected: Tensor, resolution: float, what: str = "") -> None:
    """Repetitions `(R, ...)` agree with `expected`, and are many enough to notice an error of `resolution`.

    Five standard errors: with R ≥ 40 and some thousand comparisons in the suite, chance alone exceeds
    that about once in a thousand suites, and the seeds are fixed. The second assertion keeps the test
    from passing by sheer noise.
    """
    mean, error = estimates.mean(0), estimates.std(0) / estimates.shape[0] ** 0.5
    assert 5 * float(error.max()) < resolution, f"{what}: too noisy to notice {resolution}: {error}"
    assert bool(((mean - expected).abs() <= 5 * error + 1e-12).all()), f"{what}: {mean} ± {error}, not {expected}"
