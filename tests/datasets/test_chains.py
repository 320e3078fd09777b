from itertools import product

import numpy as np
import pytest
from scipy.linalg import expm

from lacova.datasets.chains import Chains

CHAINS = Chains(np.array([0.2, 0.6, 0.5]), np.array([40.0, 5.0, 200.0]))
TIMES = np.array([0.0, 3.0, 20.0, 21.0, 90.0])
SEEN = np.array(
    [[np.nan, 1, np.nan], [1, np.nan, np.nan], [np.nan, np.nan, 0], [np.nan, 0, np.nan], [0, np.nan, np.nan]]
)


def moves(chain, gap):
    """Return P(from, to) by the rates at which state 1 begins and ends."""
    begin, end = (p / CHAINS.memory[chain] for p in (CHAINS.share[chain], 1 - CHAINS.share[chain]))
    return expm(gap * np.array([[-begin, begin], [end, -end]]))


def paths(chain, seen=None):
    """Yield every path of a chain with its probability, 0 if it contradicts the observed states."""
    for states in product((0, 1), repeat=len(TIMES)):
        p = CHAINS.share[chain] if states[0] else 1 - CHAINS.share[chain]
        for k, gap in enumerate(np.diff(TIMES)):
            p *= moves(chain, gap)[states[k], states[k + 1]]
        agrees = seen is None or all(np.isnan(s) or s == state for s, state in zip(seen, states, strict=True))
        yield np.array(states), p * agrees


def test_simulated_paths_have_their_stated_probabilities():
    n = 20_000
    states = CHAINS.simulate(np.tile(TIMES, (n, 1)), np.random.default_rng(0))
    for chain in range(3):
        for path, p in paths(chain):
            share = (states[:, :, chain] == path).all(1).mean()
            assert share == pytest.approx(p, abs=4.5 * np.sqrt(p * (1 - p) / n) + 1e-9)


def test_completions_have_the_conditional_distribution_of_whole_paths():
    n = 20_000
    states = CHAINS.complete(np.tile(TIMES, (n, 1)), np.tile(SEEN, (n, 1, 1)), np.random.default_rng(1))
    for chain in range(3):
        completions = list(paths(chain, SEEN[:, chain]))
        total = sum(p for _, p in completions)
        for path, p in completions:
            share = (states[:, :, chain] == path).all(1).mean()
            assert share == pytest.approx(p / total, abs=4.5 * np.sqrt(p / total * (1 - p / total) / n))


def test_messages_equal_sums_over_all_paths():
    one = CHAINS.forward(TIMES, SEEN)
    zero_after, one_after = CHAINS.backward(TIMES, SEEN)
    np.testing.assert_allclose(zero_after + one_after, 1)
    for chain in range(3):
        for k in range(len(TIMES)):
            past, later = np.where(np.arange(5) <= k, SEEN[:, chain], np.nan), SEEN[:, chain].copy()
            later[:k] = np.nan
            weight = np.zeros(2)
            for path, p in paths(chain, past):
                weight[path[k]] += p
            assert one[k, chain] == pytest.approx(weight[1] / weight.sum(), rel=1e-9)
            weight = np.zeros(2)
            for path, p in paths(chain, later):
                weight[path[k]] += p / (CHAINS.share[chain] if path[k] else 1 - CHAINS.share[chain])
            assert one_after[k, chain] == pytest.approx(weight[1] / weight.sum(), rel=1e-9)
