"""What patients' levels owe to covariates: dense normals, and patients with a known effect."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from torch.distributions import MultivariateNormal, Normal, kl_divergence

import lacova
from lacova.data.batches import Batch, Batches
from lacova.data.covariate_space import CovariateSpace
from lacova.data.distributions import ConditionalPrior, FactorisedDistribution
from lacova.data.encoder import TableEncoder
from lacova.inference.effects import _levels
from lacova.inference.objective import elbo
from lacova.inference.draws import chunks
from lacova.likelihoods.families import GaussianLikelihood
from lacova.likelihoods.fixed_effects import FixedEffects, FixedPart
from lacova.likelihoods.random_effects import DriftingIntercepts, RandomIntercepts

NOISE = torch.tensor([0.5, 2.0], dtype=torch.double)
SPREAD = torch.tensor([1.5, 0.3], dtype=torch.double)
DRIFT = torch.tensor([0.8, 0.4], dtype=torch.double)
# Columns: the time; arm, of three levels; age; a dose, and an event of two levels, which change with visits.
SPACE = CovariateSpace(("day", "arm", "age", "dose", "event"), (0, 3, 0, 0, 2), (False, True, True, False, False))
NAMES = ("arm", "age", "dose", "event")  # features in the order of the space: age, dose, 3 arms, 2 events
OWNERS = torch.tensor([1, 2, 0, 0, 0, 3, 3])
CENTRE = torch.tensor([0.0, 0.3, 0.0, 0.0, 0.0, 0.6, 0.4], dtype=torch.double)
KAPPA = torch.tensor([1.0, 1.0, 2.5, 0.7], dtype=torch.double)
PATIENT = torch.tensor([0, 0, 0, 1, 2, 2, 2, 2])


def close(one, other):
    torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def batch():
    """Patients of 3, 1 and 4 visits; the arm of the first and the age of the last are missing, and some of the rest."""
    g = torch.Generator().manual_seed(0)
    y = torch.randn(8, 2, generator=g, dtype=torch.double)
    mask = torch.rand(8, 2, generator=g) < 0.7
    x = torch.rand(8, 5, generator=g, dtype=torch.double)
    x[:, 1], x[:, 2] = torch.tensor([1.0, 2.0, 0.0])[PATIENT], torch.tensor([0.3, -1.0, 0.7])[PATIENT]
    x[:, 4] = torch.tensor([0, 1, 1, 0, 1, 0, 0, 1]).double()
    known = torch.ones(8, 5, dtype=torch.bool)
    known[:3, 1], known[4:, 2] = False, False
    known[[0, 2, 5], 3], known[[1, 3, 4, 6], 4] = False, False
    law = FactorisedDistribution(
        torch.full((8, 5), 0.4, dtype=torch.double),
        torch.full((8, 5), 0.49, dtype=torch.double),
        torch.zeros(8, 5, 3).double(),
    )
    law.log_prob[:, 1] = torch.tensor([0.2, 0.5, 0.3], dtype=torch.double).log()
    law.log_prob[:, 4, :2] = torch.tensor([0.7, 0.3], dtype=torch.double).log()
    return Batch(
        y * mask, mask, x * known, known, PATIENT, conditional_prior=ConditionalPrior(law, torch.zeros(8).double())
    )


def complete(rows, draws, generator):
    """Covariates (draws×8×5): as known, or drawn, for each patient where they are visit-constant, else each visit."""
    x = rows.x.repeat(draws, 1, 1)
    normal = 0.4 + 0.7 * torch.randn(draws, 9, generator=generator, dtype=torch.double)
    arm = torch.multinomial(torch.tensor([0.2, 0.5, 0.3]), draws, replacement=True, generator=generator)
    event = (torch.rand(draws, 8, generator=generator) < 0.3).double()
    x[:, :3, 1], x[:, 4:, 2] = arm[:, None].double(), normal[:, 8:]
    return torch.where(rows.x_mask[:, 3:], x[..., 3:], torch.stack([normal[:, :8], event], -1)), x


def features(rows, draws, generator):
    """Completed covariates, and c of each row (draws×8×7), one visit and patient after the other."""
    moving, x = complete(rows, draws, generator)
    x[..., 3:] = moving
    hot = torch.nn.functional.one_hot
    c = torch.cat([x[..., 2:4], hot(x[..., 1].long(), 3).double(), hot(x[..., 4].long(), 2).double()], dim=-1)
    for p in range(3):
        for k in (1, 5, 6):
            visits = c[:, p == PATIENT, k]
            share = (visits - CENTRE[k]).sum(1) / (visits.shape[1] + KAPPA[OWNERS[k]])
            c[:, p == PATIENT, k] = share[:, None]
    return x, c


def slopes():
    found = FixedEffects(SPACE, NAMES, torch.ones(2, dtype=torch.double))
    g = torch.Generator().manual_seed(3)
    with torch.no_grad():
        found.mean.copy_(torch.randn(2, 7, generator=g))
        found.log_sd.copy_(0.5 * torch.randn(2, 7, generator=g) - 1.0)
        found.log_scale.copy_(torch.tensor([0.3, -0.4, 0.1, -0.2]))
        found.centre.copy_(CENTRE)
        found.kappa.copy_(KAPPA)
    return found


def levels(drifting):
    return (DriftingIntercepts(SPREAD, DRIFT, 0, slopes()) if drifting else RandomIntercepts(SPREAD, slopes())).double()


def covariance(rows, d, drifting):
    same = (PATIENT[:, None] == PATIENT).double()
    apart = (rows.x[:, None, 0] - rows.x[:, 0]).abs()
    return same * (SPREAD[d] + (DRIFT[d] * torch.exp(-apart) if drifting else 0.0))


both_kinds = pytest.mark.parametrize("drifting", [False, True], ids=["constant", "drifting"])


def test_means_and_variances_are_those_of_draws():
    """Of slopes, and of what is not known of the covariates."""
    rows, w, g = batch(), slopes(), torch.Generator().manual_seed(5)
    found = w.expect(rows, rows.conditional_prior.distribution)
    weight = w.draw(200_000, g)
    x, c = features(rows, 200_000, g)
    each = (c[:, :, None] * weight[:, None]).sum(-1)
    torch.testing.assert_close(found.mean, each.mean(0), rtol=0, atol=0.015)
    torch.testing.assert_close(found.var, each.var(0), rtol=0.02, atol=0)
    close(w.at(x[:50], rows, weight[:50]).mean, each[:50])
    over = w.at(x[:1], rows)
    close(over.mean, c[:1] @ w.mean.mT)
    close(over.var, (c[:1] ** 2) @ w.log_sd.exp().square().mT)
    assert [w.of(name).tolist() for name in w.names] == [(k == OWNERS).tolist() for k in range(4)]


def test_without_gaps_nothing_is_believed():
    rows, w = batch(), slopes()
    x, c = features(rows, 1, torch.Generator().manual_seed(1))
    whole = replace(rows, x=x[0], x_mask=torch.ones_like(rows.x_mask))
    for distribution in (None, rows.conditional_prior.distribution):
        found = w.expect(whole, distribution)
        close(found.mean, c[0] @ w.mean.mT)
        close(found.var, c[0] ** 2 @ w.log_sd.exp().square().mT)


def test_averages_are_of_the_covariates_as_they_are():
    """What is set at a visit moves what does not change with visits, and no average."""
    rows, w, g = batch(), slopes(), torch.Generator().manual_seed(2)
    x, c = features(rows, 3, g)
    other = x.clone()
    other[:, 5:, 2], other[:, 5:, 3], other[:, 5:, 4] = 2.0, 9.0, 1.0
    c[:, 5:, 0] = 2.0
    weight = w.draw(3, g)
    close(w.at(other, rows, weight, x).mean, torch.einsum("snk,sdk->snd", c, weight))


def test_averages_are_shrunk_by_how_much_visits_differ():
    """A dose whose patients differ by 2 and visits by 1 needs a quarter of a visit; an event is its own at each."""
    rng = np.random.default_rng(0)
    patient = np.repeat(np.arange(2000), 4)
    frame = pd.DataFrame({"id": patient, "day": rng.random(8000), "sex": np.where(patient % 2, "f", "m")})
    frame["dose"] = rng.normal(0, 2, 2000)[patient] + rng.normal(0, 1, 8000)
    frame["event"] = np.where(rng.random(8000) < 0.3, "yes", "no")
    frame["alt"] = rng.normal(size=8000)
    kinds = {"day": "continuous", "sex": "categorical", "dose": "continuous", "event": "categorical"}
    frame[["dose", "event"]] = frame[["dose", "event"]].mask(rng.random((8000, 2)) < 0.3)
    schema = lacova.Schema(["alt"], kinds, instance="id", time="day", static=["sex"])
    made = lacova.GPPriorVAE(schema, latent_dim=1, inducing=4).fit(frame, max_epochs=1, batch_size=500)
    found = made._vae.random_effects.fixed_effects
    assert found.names == ("sex", "dose", "event")
    assert float(found.kappa[1]) == pytest.approx(0.25, rel=0.1)
    assert float(found.kappa[2]) > 20
    events = found.centre[found.of("event")]
    np.testing.assert_allclose(sorted(events), [0.3, 0.7], atol=0.02)


def test_the_price_of_slopes_is_a_kl():
    w = slopes()
    scale = torch.tensor([0.3, -0.4, 0.1, -0.2]).double().exp()[OWNERS].expand(2, 7)
    close(w.kl(), kl_divergence(Normal(w.mean, w.log_sd.exp()), Normal(torch.zeros_like(scale), scale)).sum())


@both_kinds
def test_the_bound_has_the_mean_over_slopes_of_the_log_density(drifting):
    rows, own = batch(), levels(drifting)
    location = torch.randn(2, 8, 2, dtype=torch.double, generator=torch.Generator().manual_seed(1))
    fixed_part = own.fixed_effects.expect(rows, rows.conditional_prior.distribution)
    expected = torch.zeros(2, 3, dtype=torch.double)
    for p in range(3):
        for d in range(2):
            at = ((p == PATIENT) & rows.y_mask[:, d]).nonzero()[:, 0]
            if len(at):
                total = covariance(rows, d, drifting)[at][:, at] + NOISE[d] * torch.eye(len(at), dtype=torch.double)
                mean, var = fixed_part.mean[at, d], fixed_part.var[at[0], d]
                expected[:, p] += MultivariateNormal(mean, total).log_prob(rows.y[at, d] - location[:, at, d])
                expected[:, p] -= 0.5 * var * torch.linalg.inv(total).sum()
    apart = GaussianLikelihood(NOISE, 1e-9).log_prob(location, rows.y, rows.y_mask)
    found = torch.zeros(2, 3, dtype=torch.double).index_add(1, PATIENT, apart) + own.gain(
        location, rows, NOISE, fixed_part
    )
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-9)


@both_kinds
def test_levels_are_the_conditional_of_the_joint_normal(drifting):
    rows, own, g = batch(), levels(drifting), torch.Generator().manual_seed(4)
    location = torch.randn(3, 8, 2, dtype=torch.double, generator=torch.Generator().manual_seed(2))
    fixed_part = own.fixed_effects.at(features(rows, 3, g)[0], rows, own.fixed_effects.draw(3, g))
    found = own.draw(location, rows, NOISE, torch.Generator().manual_seed(0), fixed_part)
    average = own.expect(location, rows, NOISE, fixed_part)
    for d in range(2):
        k, at = covariance(rows, d, drifting), rows.y_mask[:, d].nonzero()[:, 0]
        gain = torch.linalg.solve(k[at][:, at] + NOISE[d] * torch.eye(len(at), dtype=torch.double), k[at]).T
        for s in range(3):
            before = fixed_part.mean[s, :, d]
            want = before + gain @ (rows.y[at, d] - location[s, at, d] - before[at])
            torch.testing.assert_close(found.mean[s, :, d], want, rtol=1e-7, atol=1e-9)
            torch.testing.assert_close(average[s, :, d], want, rtol=1e-7, atol=1e-9)
    one = FixedPart(*(part[:1] for part in fixed_part))
    many = own.draw(location[:1].expand(20_000, -1, -1), rows, NOISE, torch.Generator().manual_seed(0), one)
    torch.testing.assert_close(many.drawn.mean(0), found.mean[0], rtol=0, atol=0.06)


def test_draws_of_slopes_have_their_moments():
    w = slopes()
    drawn = w.draw(40_000, torch.Generator().manual_seed(0))
    torch.testing.assert_close(drawn.mean(0), w.mean.detach(), rtol=0, atol=0.02)
    torch.testing.assert_close(drawn.std(0), w.log_sd.exp().detach(), rtol=0.03, atol=0)


SCHEMA = lacova.Schema(
    ["weight", "temperature"], {"day": "continuous", "sex": "categorical", "age": "continuous"}, instance="id",
    time="day", static=["sex", "age"],
)  # fmt: skip


def patients(count=120, visits=5, seed=0, missing=0.1):
    """Men weigh 4 more; temperature depends on nothing. Sex is missing for some."""
    rng = np.random.default_rng(seed)
    patient = np.repeat(np.arange(count), visits)
    men, age = rng.random(count) < 0.5, rng.normal(0, 1, count)
    table = pd.DataFrame({
        "id": patient, "day": np.tile(np.arange(float(visits)), count),
        "sex": np.where(rng.random(count) < missing, None, np.where(men, "m", "f"))[patient], "age": age[patient],
    })  # fmt: skip
    table["weight"] = (4.0 * men + rng.normal(0, 1, count))[patient] + rng.normal(0, 0.3, count * visits)
    table["temperature"] = rng.normal(0, 1, count)[patient] + rng.normal(0, 0.3, count * visits)
    return table


@pytest.fixture(scope="module", params=[True, "intercept"], ids=["drifting", "constant"])
def model(request):
    made = lacova.GPPriorVAE(SCHEMA, latent_dim=2, inducing=10, patient_effects=request.param)
    return made.fit(patients(), max_epochs=60, batch_size=20, seed=0, device="cpu")


def test_a_new_patients_level_depends_on_its_covariates(model):
    new = patients(40, seed=5, missing=0.0)
    x = new.drop(columns=list(SCHEMA.measurements))
    found = model.predict(x, draws=400)
    men = new["sex"] == "m"
    assert found["weight"][men].mean() - found["weight"][~men].mean() == pytest.approx(4.0, abs=0.5)
    assert abs(found["temperature"][men].mean() - found["temperature"][~men].mean()) < 0.4
    left = float(model._vae.random_effects.var[0].detach()) * model._encoder.y_scale[0].item() ** 2
    assert left == pytest.approx(1.0, abs=0.5)  # 5 with the difference between the sexes


def test_a_patient_of_unknown_sex_may_be_either(model):
    """Predictions are as wide as that, and completed tables have heavy men and light women."""
    new = patients(60, seed=9, missing=0.0).assign(sex=None)
    x = new.drop(columns=list(SCHEMA.measurements))
    drawn = model.sample(x.groupby("id").head(1), draws=400, seed=1)
    assert drawn["weight"].std() == pytest.approx(5.09**0.5, rel=0.15)
    ends = model.predict(x, interval=0.9, draws=400)
    assert new["weight"].between(ends["weight_lower"], ends["weight_upper"]).mean() == pytest.approx(0.9, abs=0.1)
    whole = model.impute(x.groupby("id").head(1).assign(weight=np.nan, temperature=np.nan), draws=50, seed=1)
    by_sex = whole.groupby("sex")["weight"].mean()
    assert by_sex["m"] - by_sex["f"] == pytest.approx(4.0, abs=0.8)


def test_a_missing_covariate_is_read_from_the_level(model):
    new = patients(60, seed=10, missing=0.0)
    found = model.impute(new.assign(sex=None))["sex"]
    assert (found == new["sex"]).mean() > 0.93  # 0.977 of normals 4 standard deviations apart


def test_the_likelihood_of_a_row_is_over_slopes_and_sexes(model):
    new = patients(200, seed=11, missing=0.0).groupby("id").head(1)
    told, blind = (model.log_likelihood(rows, draws=400).mean() for rows in (new, new.assign(sex=None)))
    # Of a weight, the sexes differ by 4 with sd 1.04: knowing which is worth 0.6 nats of log 2.
    assert told - blind == pytest.approx(0.62, abs=0.25)


def test_the_likelihood_of_a_row_is_over_what_is_not_known_of_slopes():
    made = lacova.GPPriorVAE(SCHEMA, latent_dim=1, inducing=4, scaling="none", patient_effects="intercept")
    made.fit(patients(20, missing=0.0), max_epochs=1)
    encoder, vae = made._fitted()
    w, last = vae.random_effects.fixed_effects, vae.encoder.head[-1]
    with torch.no_grad():  # y is a level and noise, and q(z) close to p(z)
        for parameter in (*vae.decoder.parameters(), last.weight, last.bias):
            parameter.zero_()
        w.mean.copy_(torch.randn(2, 3, generator=torch.Generator().manual_seed(0)))
        w.log_sd.fill_(0.5)
        new = patients(8, seed=3, missing=0.0)
        table = encoder.encode(new)
        c = torch.stack([table.x[:, 2], *(table.x[:, 1] == level for level in range(2))], dim=1).float()
        var = vae.likelihood.var + vae.random_effects.var + c.square() @ w.var.mT
        want = Normal(c @ w.mean.mT, var.sqrt()).log_prob(table.y).sum(1)
    np.testing.assert_allclose(made.log_likelihood(new, draws=2000), want, atol=0.15)


def test_what_if_sees_the_change(model):
    new = patients(20, seed=6, missing=0.0)
    women = new[new["sex"] == "f"]
    x = women.drop(columns=list(SCHEMA.measurements))
    found = model.what_if(x, {"sex": "m"}, draws=200).average.set_index("measurement")
    assert found.loc["weight", "difference"] == pytest.approx(4.0, abs=0.5)
    assert found.loc["weight", "difference_lower"] < found.loc["weight", "difference_upper"]


def test_the_effect_belongs_to_the_component_of_the_covariate(model):
    shares = model.effects(patients(40, seed=7), draws=60).shares.set_index("component")["weight"]
    assert shares["gp(day):cat(sex)"] == pytest.approx(4.0 / 5.09, abs=0.12)
    assert shares["patient effect"] == pytest.approx(1.0 / 5.09, abs=0.12)


def test_components_have_all_that_levels_owe_to_covariates():
    """Two covariates in one product, or one in two components: each slope belongs to one component."""
    for prior, owners in (
        ("gp(day) + gp(age):cat(sex) + cat(id)", {1}),
        ("gp(day):cat(sex) + gp(age):cat(sex) + cat(sex) + cat(id)", {1, 2}),
    ):
        made = lacova.GPPriorVAE(SCHEMA, prior=prior, latent_dim=1, inducing=4).fit(patients(10), max_epochs=1)
        _, vae = made._fitted()
        with torch.no_grad():
            vae.random_effects.fixed_effects.mean.normal_(generator=torch.Generator().manual_seed(0))
            g = torch.Generator().manual_seed(1)
            rows = Batches(made._encode(patients(10))).batch(torch.arange(10))
            x, w = vae.draw_covariates(rows, 5, g), vae.draw_coefficients(5, g)
            _, owed = _levels(vae, rows, x, w, g)
            assert set(owed) == owners
            torch.testing.assert_close(sum(owed.values()), vae.random_effects.fixed_effects.at(x, rows, w).mean)


def test_slopes_are_stored(model, tmp_path):
    model.save(tmp_path / "model")
    again = lacova.load(tmp_path / "model")
    x = patients(5, seed=8).drop(columns=list(SCHEMA.measurements))
    pd.testing.assert_frame_equal(again.predict(x, seed=1), model.predict(x, seed=1))


def test_levels_need_not_depend_on_anything():
    short = {"latent_dim": 1, "inducing": 4}
    told = lacova.GPPriorVAE(SCHEMA, fixed_effects=False, **short).fit(patients(10), max_epochs=1)
    assert told._vae.random_effects.fixed_effects is None
    timed = lacova.Schema(SCHEMA.measurements, {"day": "continuous"}, instance="id", time="day")
    assert lacova.GPPriorVAE(timed, **short).fit(patients(10), max_epochs=1)._vae.random_effects.fixed_effects is None
    named = lacova.GPPriorVAE(SCHEMA, prior="gp(day) + gp(day):cat(sex) + cat(id):gp(age)", **short)
    assert named.fit(patients(10), max_epochs=1)._vae.random_effects.fixed_effects.names == ("sex",)
    with pytest.raises(ValueError, match="fixed_effects is 'no'"):
        lacova.GPPriorVAE(SCHEMA, fixed_effects="no")


def test_a_patient_alone_does_not_draw_again_what_all_have_in_common():
    table = TableEncoder.learn(SCHEMA, patients(4)).encode(patients(4))
    generator = torch.Generator().manual_seed(0)
    shared = torch.randn(3, generator=generator)
    own = [torch.randn(3, generator=generator) for _ in chunks(table, 1, generator)]
    assert all(torch.equal(own[0], other) for other in own)
    assert not torch.equal(own[0], shared)


def test_levels_do_not_teach_q_of_missing_covariates(model):
    """Levels of measurements go together, which the model does not know: q would take each for evidence of its own."""
    _, vae = model._fitted()
    rows = Batches(model._encode(patients(30, seed=12, missing=0.5))).batch(torch.arange(30))
    vae.zero_grad()
    elbo(vae, rows, torch.Generator().manual_seed(0)).reconstruction.backward()
    assert vae.random_effects.fixed_effects.mean.grad.abs().max() > 0
    assert all(p.grad is None or (p.grad == 0).all() for p in vae.covariate_posterior.parameters())
    vae.zero_grad()


DOSED = lacova.Schema(
    ["weight", "temperature"], {"day": "continuous", "sex": "categorical", "dose": "continuous"}, instance="id",
    time="day", static=["sex"],
)  # fmt: skip


def dosed(count, seed=0):
    """Patients whose doses are about their own, and whose weight goes with that by 2, not with the visit's dose."""
    rng = np.random.default_rng(seed)
    table = patients(count, seed=seed, missing=0.0).drop(columns="age")
    own = rng.normal(0, 1, count)[table["id"]]
    table["dose"] = own + rng.normal(0, 0.3, len(table))
    table["weight"] += 2.0 * own
    return table


@pytest.fixture(scope="module")
def dosing():
    made = lacova.GPPriorVAE(DOSED, latent_dim=2, inducing=10)
    return made.fit(dosed(150), max_epochs=60, batch_size=20, seed=0, device="cpu")


def test_a_new_patients_level_depends_on_its_average_dose(dosing):
    new = dosed(60, seed=5)
    new["weight"] -= 4.0 * (new["sex"] == "m")
    found = dosing.predict(new.drop(columns=list(DOSED.measurements)).assign(sex="f"), draws=400)
    average = new.groupby("id")["dose"].transform("mean")
    assert np.polyfit(average, found["weight"], 1)[0] == pytest.approx(2.0, abs=0.35)
    within = (found["weight"] - found["weight"].groupby(new["id"]).transform("mean"), new["dose"] - average)
    assert abs(np.polyfit(within[1], within[0], 1)[0]) < 0.5


def test_what_is_set_at_visits_does_not_make_another_patient(dosing):
    new = dosed(20, seed=6)
    x = new.drop(columns=list(DOSED.measurements))
    change = dosing.what_if(x, {"dose": 2.0}, draws=200).average.set_index("measurement")["difference"]
    said = (dosing.predict(x.assign(dose=2.0), draws=200) - dosing.predict(x, draws=200))["weight"].mean()
    assert said == pytest.approx(2.0 * (2.0 - x["dose"].mean()), abs=0.8)
    assert abs(change["weight"]) < 0.3 * said


def test_unmeasured_visits_count_for_averages_in_imputation_too(dosing):
    """A measured visit is filled in as if it were asked for with its patient's record as history."""
    rows = dosed(40, seed=7)
    first = rows["day"] == 0.0
    rows["dose"] += np.where(first, 0.0, 3.0)
    gaps = rows.assign(weight=np.nan, temperature=rows["temperature"].where(first))
    filled = dosing.impute(gaps)
    told, apart = (filled["weight"][part].to_numpy() for part in (first, rows["day"] == 1.0))
    assert np.abs(told - apart).mean() < 1.0  # 2 apart and more, were the first visits' doses their averages
    alone = dosing.impute(gaps[first])["weight"].to_numpy()
    assert (told - alone).mean() > 2.0


def test_the_likelihood_of_a_row_is_its_own(dosing):
    rows = dosed(10, seed=8)
    both = dosing.log_likelihood(rows, draws=2000)
    first = (rows["day"] == 0.0).to_numpy()
    np.testing.assert_allclose(dosing.log_likelihood(rows[first], draws=2000), both[first], atol=0.3)


def test_what_averages_are_shrunk_to_is_stored(dosing, tmp_path):
    dosing.save(tmp_path / "model")
    again = lacova.load(tmp_path / "model")
    for name in ("kappa", "centre"):
        assert torch.equal(
            getattr(again._vae.random_effects.fixed_effects, name),
            getattr(dosing._vae.random_effects.fixed_effects, name),
        )
    x = dosed(5, seed=9).drop(columns=list(DOSED.measurements))
    pd.testing.assert_frame_equal(again.predict(x, seed=1), dosing.predict(x, seed=1))
