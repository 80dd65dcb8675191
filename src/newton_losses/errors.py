"""The errors of this library. Each also is the built-in error that a caller would expect to catch."""


class NewtonLossesError(Exception):
    """The base of all errors that this library raises on purpose."""


class ArgumentError(NewtonLossesError, ValueError):
    """An argument has a value that cannot be used; the message says which, and what to pass instead."""


class ShapeError(ArgumentError):
    """A tensor, or what a loss returned, has the wrong shape."""


class SeparabilityError(NewtonLossesError, ValueError):
    """A loss mixes the samples of a batch, so that it has no per-sample derivatives."""


class DerivativeError(NewtonLossesError, RuntimeError):
    """A loss lacks a derivative that was asked for; the message names the operator where it is known."""


class NonFiniteError(NewtonLossesError, FloatingPointError):
    """A loss, gradient or step is not finite, and `on_nonfinite="raise"` was asked for."""
