"""Layer 3: Newton losses for convex optimisation layers, whose parameters take the place of outputs."""

from ._parameters import repeat_with_fisher as repeat_with_fisher
