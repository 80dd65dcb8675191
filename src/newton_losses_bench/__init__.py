"""Layer 4: the paper's two experiments, ranking four-digit numbers and finding shortest paths on maps."""
