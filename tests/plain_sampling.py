"""What sampling is held against: the same in plain Python, a token at a time."""

import math

from minigpt.generation.sampling import Sampling


def plain_probabilities(logits: list[float], sampling: Sampling) -> list[float]:
    """The controls one token at a time, in Python: temperature, top_k, top_p, min_p."""
    ranked = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    best = logits[ranked[0]]
    weights = {i: math.exp((logits[i] - best) / sampling.temperature) for i in ranked}
    kept = ranked[: sampling.top_k or len(ranked)]
    if sampling.top_p is not None and sampling.top_p < 1:
        total, reached, nucleus = sum(weights[i] for i in kept), 0.0, []
        for i in kept:
            if reached >= sampling.top_p:
                break
            nucleus.append(i)
            reached += weights[i] / total
        kept = nucleus
    kept = [i for i in kept if weights[i] >= (sampling.min_p or 0.0)]
    total = sum(weights[i] for i in kept)
    return [weights[i] / total if i in kept else 0.0 for i in range(len(logits))]
