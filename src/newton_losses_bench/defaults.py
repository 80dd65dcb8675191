"""The settings of the paper, as data. Nothing is computed here; `config.py` looks things up.

All values are those of the paper's appendix on hyperparameters, except where a comment says otherwise.
"""

SORTING_ALGORITHMS = ("neuralsort", "softsort", "logistic", "cauchy")
PATHS_ALGORITHMS = ("bellman-ford", "smoothed-loss", "smoothed-algorithm", "fenchel-young")
SORTING_DATA = ("mnist", "digits")
PATHS_DATA = ("terrain", "warcraft")
# "energy" is a control: the mean square of the gradients times the identity, in the place of a matrix.
CURVATURES = ("none", "hessian", "fisher", "energy")
SPECTRA = ("raw", "absolute", "clip")
PRECISIONS = ("float32", "tf32", "bf16")
NUMERICS = ("stable", "reference")
LOOPS = ("for", "while")
NORMS = ("l1", "l2")

# The two lengths of sets that the paper has values for; other lengths take those of the nearer one.
SORTING_LENGTHS = (5, 10)

# Relaxations that are softmaxes have a temperature; sorting networks have its inverse.
TEMPERATURE = {"neuralsort": 1.0, "softsort": 0.1}
STEEPNESS = {
    ("logistic", 5): 10.0,
    ("logistic", 10): 10.0,
    ("cauchy", 5): 10.0,
    ("cauchy", 10): 100.0,
}
SORTING_DAMPING = {
    ("neuralsort", "hessian", 5): 0.01,
    ("neuralsort", "hessian", 10): 0.01,
    ("neuralsort", "fisher", 5): 0.1,
    ("neuralsort", "fisher", 10): 100.0,
    ("softsort", "hessian", 5): 10.0,
    ("softsort", "hessian", 10): 1.0,
    ("softsort", "fisher", 5): 10.0,
    ("softsort", "fisher", 10): 100.0,
    ("logistic", "hessian", 5): 0.1,
    ("logistic", "hessian", 10): 0.1,
    ("logistic", "fisher", 5): 0.1,
    ("logistic", "fisher", 10): 0.1,
    ("cauchy", "hessian", 5): 0.1,
    ("cauchy", "hessian", 10): 0.1,
    ("cauchy", "fisher", 5): 0.1,
    ("cauchy", "fisher", 10): 0.1,
}
SORTING_LEARNING_RATE = 0.001

# The same for 3, 10 and 30 samples. The paper has no Hessian for Bellman-Ford: it was too expensive there.
# Ours takes the Fisher's damping until somebody finds a better one.
PATHS_DAMPING = {
    ("smoothed-loss", "hessian"): 1000.0,
    ("smoothed-loss", "fisher"): 0.1,
    ("smoothed-algorithm", "fisher"): 1000.0,
    ("fenchel-young", "hessian"): 1000.0,
    ("fenchel-young", "fisher"): 1000.0,
}
BELLMAN_FORD_DAMPING = {"l1": 1000.0, "l2": 3000.0}
BELLMAN_FORD_BETA = 10.0
BELLMAN_FORD_ITERATIONS = 18
NOISE_SCALE = 0.1
PATHS_LEARNING_RATE = {
    "smoothed-loss": 0.001,
    "smoothed-algorithm": 0.001,
    "fenchel-young": 0.01,
    # The paper took the best of 1, 0.33, 0.1, 0.033, 0.01, 0.0033, 0.001 and does not say which that was.
    # This one is ours.
    "bellman-ford": 0.01,
}
