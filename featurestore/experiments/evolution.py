"""Differential evolution: new parameters from the differences of good ones.

Storn and Price, "Differential Evolution - A Simple and Efficient Heuristic for Global Optimization
over Continuous Spaces", 1997; the strategy best/1/bin over positions from 0 to 1.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from featurestore.experiments.spaces import Space

POPULATION = 8
_WEIGHT = 0.6
_CROSSOVER = 0.8

Params = Mapping[str, Any]


def evolve(space: Space, finished: Sequence[tuple[Params, float]], *, seed: str) -> dict[str, Any]:
    """Return the parameters of the next trial.

    Args:
        space: The search space.
        finished: Parameters and values of trials that finished; lower is better.
        seed: Seed of the random numbers.

    >>> from featurestore.experiments.spaces import uniform
    >>> finished = [({"x": x / 10}, (x / 10 - 0.3) ** 2) for x in range(10)]
    >>> 0 <= evolve({"x": uniform(0, 1)}, finished, seed="7")["x"] <= 1
    True
    """
    draw = random.Random(seed)
    best = sorted(finished, key=lambda each: each[1])[:POPULATION]
    if len(best) < min(4, POPULATION):
        return {name: parameter.value_at(draw.random()) for name, parameter in space.items()}
    parent = draw.choice(best)[0]
    first, second = draw.sample(best, 2)
    mutated_name = draw.choice(list(space))
    params = {}
    for name, parameter in space.items():
        if name != mutated_name and draw.random() > _CROSSOVER:
            params[name] = parent[name]
            continue
        base = parameter.position(best[0][0][name])
        step = parameter.position(first[0][name]) - parameter.position(second[0][name])
        position = base + _WEIGHT * step + draw.gauss(0, 0.02)
        params[name] = parameter.value_at(min(max(position, 0.0), 1.0))
    return params
