"""Energy and variogram scores, against plain loops, and where they must be best: at the true joint law."""

import math

import numpy as np
import pandas as pd
import pytest
import torch

import lacova
from lacova.data.table_encoder import TableEncoder
from lacova.inference import joint_scores
from lacova.inference.joint_scores import JointScores, energy_score, score_units, shuffled, variogram_score
from lacova.inference.metrics import crps


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def slow_energy(draws, y):
    """Score one unit, draws×d and d, by double loops."""
    error = sum(math.dist(draw, y) for draw in draws) / len(draws)
    pairs = [math.dist(a, b) for k, a in enumerate(draws) for m, b in enumerate(draws) if k != m]
    return (error - 0.5 * sum(pairs) / len(pairs)) / math.sqrt(len(y))


def slow_variogram(draws, y):
    """Score one unit: the square of each expectation by pairs of different draws, each unbiased for it."""
    terms = []
    for i in range(len(y)):
        for j in range(i):
            observed, gaps = abs(y[i] - y[j]) ** 0.5, [abs(draw[i] - draw[j]) ** 0.5 for draw in draws]
            squared = [a * b for k, a in enumerate(gaps) for m, b in enumerate(gaps) if k != m]
            terms.append(observed**2 - 2 * observed * sum(gaps) / len(gaps) + sum(squared) / len(squared))
    return sum(terms) / len(terms)


@pytest.mark.parametrize(("count", "entries"), [(2, 2), (3, 5), (11, 3)])
def test_scores_are_those_of_double_loops(count, entries):
    draws, y = 1.5 * random(4, count, entries), random(4, entries, seed=1)
    energy, variogram = energy_score(draws, y), variogram_score(draws, y)
    for k in range(4):
        own, truth = draws[k].tolist(), y[k].tolist()
        assert energy[k].item() == pytest.approx(slow_energy(own, truth), rel=1e-8, abs=0)
        assert variogram[k].item() == pytest.approx(slow_variogram(own, truth), rel=1e-8, abs=1e-12)


def test_the_energy_score_of_one_entry_is_its_crps_and_of_equal_draws_the_distance():
    draws, y = random(5, 9, 1), random(5, 1, seed=1)
    ordered = draws.transpose(0, 1).sort(0).values
    torch.testing.assert_close(energy_score(draws, y), crps(ordered, y)[:, 0], rtol=1e-8, atol=1e-12)
    same = torch.full((1, 4, 3), 2.0, dtype=torch.float64)
    assert energy_score(same, torch.zeros(1, 3, dtype=torch.float64)).item() == pytest.approx(2.0, rel=1e-12)
    assert variogram_score(same, torch.tensor([[0.0, 1.0, 4.0]])).item() == pytest.approx((1 + 4 + 3) / 3, rel=1e-6)


def test_scores_do_not_depend_on_the_number_of_draws():
    """The mean over many units, of 2 draws and of 50; biased scores would differ by 0.2 or more."""
    y = random(20_000, 3)
    few, many = (random(20_000, count, 3, seed=count) for count in (2, 50))
    for score in (energy_score, variogram_score):
        gap = score(few, y) - score(many, y)
        assert gap.mean().abs() < 4 * gap.std() / math.sqrt(len(gap))
        assert gap.std() / math.sqrt(len(gap)) < 0.01


def correlated(units, count, entries, rho, seed):
    """Normal draws with variances 1 and correlations rho (units×draws×entries)."""
    root = torch.linalg.cholesky((1 - rho) * torch.eye(entries) + rho * torch.ones(entries, entries)).double()
    return random(units, count, entries, seed=seed) @ root.T


@pytest.mark.parametrize("score", [energy_score, variogram_score])
@pytest.mark.parametrize(("truth", "wrong"), [(0.5, 0.0), (0.9, 0.0), (0.5, 0.9), (0.0, 0.7)])
def test_the_true_joint_law_scores_best(score, truth, wrong):
    """Right marginals throughout: scores of single entries would not tell these apart."""
    y = correlated(4000, 1, 4, truth, 1)[:, 0]
    gap = score(correlated(4000, 40, 4, wrong, 2), y) - score(correlated(4000, 40, 4, truth, 3), y)
    assert gap.mean() > 4 * gap.std() / math.sqrt(len(gap))


def test_scores_keep_to_the_units_and_the_order_of_entries():
    draws, y, order = random(6, 20, 5), random(6, 5, seed=1), [3, 0, 4, 1, 2]
    for score, power in ((energy_score, 1.0), (variogram_score, 1.0)):
        own = score(draws, y)
        torch.testing.assert_close(score(draws[..., order], y[:, order]), own, rtol=1e-8, atol=1e-12)
        torch.testing.assert_close(score(draws[:, torch.randperm(20)], y), own, rtol=1e-8, atol=1e-12)
        torch.testing.assert_close(score(7.0 * draws + 3.0, 7.0 * y + 3.0), 7.0**power * own, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("chunk", [None, 1, 300])
def test_units_of_any_size_are_scored_by_themselves(chunk, monkeypatch):
    if chunk is not None:
        monkeypatch.setattr(joint_scores, "CHUNK", chunk)
    unit = torch.tensor([7, 2, 7, 9, 2, 7, 4, 2, 11, 11])
    draws, y = random(30, 10), random(10, seed=1)
    scores = score_units(draws, y, unit)
    assert scores.unit.tolist() == [2, 7, 11]  # 4 and 9 have one entry
    assert scores.entries.tolist() == [3, 3, 2]
    for code, energy, variogram in zip(scores.unit, scores.energy, scores.variogram, strict=True):
        own = unit == code
        assert energy.item() == pytest.approx(slow_energy(draws[:, own].tolist(), y[own].tolist()), rel=1e-8)
        assert variogram.item() == pytest.approx(slow_variogram(draws[:, own].tolist(), y[own].tolist()), rel=1e-8)
        alone = score_units(draws[:, own], y[own], unit[own])
        assert (alone.energy.item(), alone.variogram.item()) == (energy.item(), variogram.item())


def test_of_many_entries_some_pairs_are_compared_the_same_for_all_units():
    entries = 90
    draws, y = correlated(2, 50, entries, 0.5, 1), correlated(2, 1, entries, 0.5, 2)[:, 0]
    first, second = joint_scores._pairs(entries, y.device)
    assert len(first) == joint_scores.MAX_PAIRS
    assert len({*zip(first.tolist(), second.tolist(), strict=True)}) == joint_scores.MAX_PAIRS
    assert (first < second).all()
    assert joint_scores._pairs(64, y.device).shape == (2, 2000)
    assert joint_scores._pairs(63, y.device).shape == (2, 63 * 62 // 2)
    assert variogram_score(draws, y).tolist() == [
        variogram_score(draws[k : k + 1], y[k : k + 1]).item() for k in (0, 1)
    ]


def test_one_draw_is_refused():
    with pytest.raises(ValueError, match="draws is 1; expected at least 2, as joint scores compare draws"):
        score_units(random(1, 4), random(4), torch.tensor([0, 0, 1, 1]))


def test_shuffled_draws_keep_the_marginals_and_lose_the_joint_law():
    draws = correlated(1, 4000, 2, 0.9, 0)[0].numpy()
    apart = shuffled(draws, 0)
    np.testing.assert_array_equal(np.sort(apart, axis=0), np.sort(draws, axis=0))
    assert abs(np.corrcoef(apart.T)[0, 1]) < 0.06


SCHEMA = lacova.Schema(
    {"a": "gaussian", "level": "bernoulli", "b": "poisson", "c": "gaussian"}, {}, instance="id", time="day"
)


def table():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"id": np.repeat(np.arange(10), 3), "day": np.tile([0.0, 1.0, 2.0], 10)})
    frame = frame.assign(
        a=rng.normal(5, 9, 30), b=rng.poisson(4.0, 30), c=rng.normal(size=30), level=rng.random(30) < 0.5
    )
    return frame, TableEncoder.learn(SCHEMA, frame)


@pytest.mark.parametrize("hold", [False, True])
def test_rows_and_courses_of_a_table(hold):
    """Numbers only, in the given scale, of entries that count; rows of a patient in two parts if courses are held."""
    _, encoder = table()
    draws, y, mask = random(25, 30, 4), random(30, 4, seed=1), random(30, 4, seed=2) > -0.3
    patient, location, scale = torch.arange(30) // 3, np.array([1.0, 0.0, -2.0, 0.5]), np.array([2.0, 1.0, 0.5, 3.0])
    joint = JointScores(encoder, location, scale, hold)
    for part in (torch.arange(0, 30, 2), torch.arange(1, 30, 2)) if hold else (torch.arange(15), torch.arange(15, 30)):
        joint.add(draws[:, part], y[part], mask[part], part, patient[part])
    draws, y = ((values - torch.tensor(location)) / torch.tensor(scale) for values in (draws, y))
    expected = {name: [] for name in joint_scores.NAMES}

    def score(prefix, drawn, truth):
        if len(truth) > 1:
            expected[f"{prefix}energy"].append(slow_energy(drawn.tolist(), truth.tolist()))
            expected[f"{prefix}variogram"].append(slow_variogram(drawn.tolist(), truth.tolist()))

    numbers = torch.tensor([True, False, True, True])
    for row in range(30):
        own = mask[row] & numbers
        score("", draws[:, row, own], y[row, own])
    for who in range(10):
        for d in (0, 2, 3):
            own = mask[:, d] & (patient == who)
            score("course_", draws[:, own, d], y[own, d])
    assert {name: len(values) for name, values in expected.items()} != dict.fromkeys(joint_scores.NAMES, 0)
    rel = 1e-5 if hold else 1e-8  # draws that are held back are kept in float32
    for name, values in joint.means().items():
        assert values == pytest.approx(np.mean(expected[name]), rel=rel), name
    assert list(joint.means()) == list(joint_scores.NAMES)


def test_what_has_no_joint_score_is_left_out():
    frame, _ = table()
    categories = JointScores(TableEncoder.learn(lacova.Schema({"level": "bernoulli"}, {}, instance="id"), frame))
    categories.add(random(5, 3, 1), random(3, 1), torch.ones(3, 1).bool(), torch.arange(3), torch.zeros(3).long())
    assert categories.means() == {}
    encoder = TableEncoder.learn(lacova.Schema(["a"], {}, instance="id", time="day"), frame)
    joint, mask = JointScores(encoder), torch.tensor([[True], [False], [True]])
    joint.add(random(5, 3, 1), random(3, 1), mask, torch.arange(3), None)
    assert joint.means() == {}
    joint.add(random(5, 3, 1), random(3, 1), mask, torch.arange(3), torch.tensor([0, 0, 1]))
    assert [*joint.means()] == ["course_energy", "course_variogram"]
    assert math.isnan(joint.means()["course_energy"])


def test_scores_do_not_depend_on_the_units_of_the_measurements():
    """Nor on their zero: the variogram score compares columns with each other."""
    frame, _ = table()
    results = []
    for units in (frame, frame.assign(a=1000 + 12 * frame["a"], c=frame["c"] / 7 - 3)):
        encoder = TableEncoder.learn(SCHEMA, units)
        encoded = encoder.encode(units, dtype=torch.float64)
        draws = encoded.y + random(20, 30, 4)
        for own in (True, False):
            joint = JointScores(encoder)
            values = [torch.as_tensor(encoder.in_own_units(v)) if own else v for v in (draws, encoded.y)]
            joint.add(*values, encoded.y_mask, torch.arange(30), encoded.patient, own)
            results.append([*joint.means().values()])
    for other in results[1:]:
        assert other == pytest.approx(results[0], rel=1e-8)


def test_a_model_is_scored_jointly():
    """Compare with the same draws, taken through the public interface."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"id": np.repeat(np.arange(20), 3), "day": np.tile([0.0, 1.0, 2.0], 20), "sex": "f"})
    frame.loc[frame["id"] % 2 == 0, "sex"] = "m"
    frame = frame.assign(a=rng.normal(5, 9, 60), b=rng.normal(size=60)).mask(
        rng.random((60, 5)) < [0, 0, 0.1, 0.3, 0.3]
    )
    frame["sex"] = frame.groupby("id")["sex"].transform("first")
    schema = lacova.Schema(["a", "b"], {"sex": "categorical"}, instance="id", time="day", static=["sex"])
    frame = frame.sample(frac=1.0, random_state=0)
    model = lacova.GPPriorVAE(schema, latent_dim=1, inducing=4).fit(frame, max_epochs=1, device="cpu")
    drawn = model.sample(frame, draws=30, seed=3)
    values = [
        (drawn[n].to_numpy().reshape(30, 60), frame[n].to_numpy(), model.encoder.y_scale[d]) for d, n in enumerate("ab")
    ]
    rows, courses = [], []
    for k in range(60):
        if frame[["a", "b"]].notna().iloc[k].all():
            rows.append(
                slow_energy([[d[m, k] / s for d, _, s in values] for m in range(30)], [y[k] / s for _, y, s in values])
            )
    for d, y, s in values:
        for who in range(20):
            own = ~np.isnan(y) & (frame["id"] == who).to_numpy()
            if own.sum() > 1:
                courses.append(slow_variogram((d[:, own] / s).tolist(), (y[own] / s).tolist()))
    scores = model.score(frame, draws=30, seed=3)
    assert scores["energy"] == pytest.approx(np.mean(rows), rel=1e-4)  # draws are float32
    assert scores["course_variogram"] == pytest.approx(np.mean(courses), rel=1e-3)
    with pytest.raises(ValueError, match="draws is 1; expected at least 2"):
        model.score(frame, draws=1)
