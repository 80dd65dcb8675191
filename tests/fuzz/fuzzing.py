"""Running fuzzed calls: a call ends in a result that was checked, or in one of the project's own errors with words."""

import signal
import warnings
from collections import Counter
from types import FrameType

import fuzz_backends
import fuzz_brute_force
import fuzz_newton
import fuzz_paths
import fuzz_refused
import fuzz_smoothing
import fuzz_sorting
import torch
from drawing import Draw

import newton_losses as nl

# Each call as often as it is listed; those of the Newton loss take the most time.
CALLS = (
    *fuzz_newton.CALLS, *fuzz_brute_force.CALLS, *fuzz_refused.CALLS, *2 * fuzz_backends.CALLS, *2 * fuzz_sorting.CALLS,
    *2 * fuzz_paths.CALLS, *2 * fuzz_smoothing.CALLS,
)  # fmt: skip
SECONDS_A_CALL = 30


def run(seed: int, index: int) -> tuple[str, str]:
    """The name of the call, and "result" or the name of the error that it was refused with. Anything else raises.

    A result that could not be compared with anything is counted under the reason for it.
    """
    draw = Draw(seed, index)
    call = draw.pick(CALLS)
    try:
        how = call(draw)
    except nl.NewtonLossesError as error:
        if len(str(error).split()) < 4:
            raise AssertionError(f"an error without words: {error!r}") from error
        return call.__name__, type(error).__name__
    return call.__name__, how or "result"


def run_many(seed: int, first: int, count: int, stop_after: int = 20) -> tuple[Counter[tuple[str, str]], list[str]]:
    """How often each call ended how, and a line for each failure, with what repeats it."""
    ended: Counter[tuple[str, str]] = Counter()
    failures: list[str] = []
    _compile_kernels()
    usual = signal.signal(signal.SIGALRM, _too_long)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.filterwarnings("ignore", message="`torch.jit.script` is deprecated")
            for index in range(first, first + count):
                signal.alarm(SECONDS_A_CALL)
                try:
                    ended[run(seed, index)] += 1
                except Exception as error:
                    text = " ".join(str(error).split())[:300]
                    failures.append(f"--seed {seed} --only {index}: {type(error).__name__}: {text}")
                    if len(failures) == stop_after:
                        break
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, usual)
    return ended, failures


def _compile_kernels() -> None:
    """Ahead of all calls: where numba's cache is empty, that takes longer than a call may on a busy machine."""
    loss = nl.sorting.SortingLoss("logistic")
    nl.expand(loss, torch.zeros(1, 2), torch.zeros(1, 2), curvature="hessian")
    nl.paths.shortest_path(torch.ones(1, 2, 2))


def _too_long(number: int, frame: FrameType | None) -> None:
    raise TimeoutError(f"the call took more than {SECONDS_A_CALL} seconds")
