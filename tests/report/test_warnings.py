"""Warnings in plain language."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

from lacova import FitOptions, Schema
from lacova.analysis.recovery import Recovery
from lacova.models.findings import Findings
from lacova.report.warnings import nearly_empty, no_better_than_the_mean, not_converged, poor_calibration, warnings


class Trained:
    interrupted = False

    schema = Schema(["alt", "ast"], {})

    def __init__(self, schedule="constant", **columns):
        self.training, self.options = pd.DataFrame(columns), FitOptions(schedule=schedule)


def test_warnings_in_plain_language(model, table):
    jitter = 0.05 * (-1.0) ** np.arange(40)
    rising, flat = np.linspace(-9, -1, 40) + jitter, -np.exp(-np.arange(40.0)) + jitter
    assert "still rising" in not_converged(Trained(elbo=rising))[0]
    assert not_converged(Trained(elbo=flat)) == []
    assert "still rising" in not_converged(Trained(elbo=flat, validation=rising))[0]
    assert not_converged(Trained(elbo=rising, validation=np.r_[np.arange(30), np.zeros(10)])) == []
    annealed = np.where(np.arange(40) % 2, np.linspace(-0.1, 0, 40), np.nan)  # looked at every other epoch
    assert not_converged(Trained("cycle", elbo=rising, validation=annealed)) == []
    assert "still rising" in not_converged(Trained("cycle", elbo=flat, validation=10 * annealed))[0]
    assert "still rising" in not_converged(Trained("cycle", elbo=rising))[0]
    columns = [{"name": "crp", "missing": 0.95, "n": 60}, {"name": "alt", "missing": 0.1, "n": 900}]
    assert nearly_empty(columns)[0].startswith("Nearly empty: crp (60 values, 95% missing).")
    assert nearly_empty(columns[1:]) == []
    assert any("only 24 patients" in text for text in warnings(model, table, [], None))


def test_what_fit_warned_of_is_in_the_report(model, table, monkeypatch):
    assert "The table is small" not in " ".join(warnings(model, table, [], None))
    monkeypatch.setattr(model, "findings", Findings(2, {"small table": "The table is small."}))
    assert "The table is small." in warnings(model, table, [], None)


def test_warnings_rest_on_so_many_patients(model, table):
    numbers = pd.DataFrame({"row": np.arange(40) % 8, "column": "ast", "truth": 1.0, "mean": 0.0, "pit": 0.999})
    recovery = Recovery(model.schema, 0.1, 0, table, numbers, numbers.head(0))
    assert "ast" in poor_calibration(recovery)[0]
    assert poor_calibration(recovery, 10) == []  # rows 0 to 7 are of two patients
    assert no_better_than_the_mean(recovery, 10) == []


@pytest.mark.parametrize(("spread", "word"), [(3.0, "too narrow"), (0.2, "too wide"), (1.0, None)])
def test_poor_calibration_is_reported(model, spread, word):
    truth = np.random.default_rng(0).normal(0, spread, 800)
    numbers = pd.DataFrame({"row": 0, "column": "ast", "truth": truth, "mean": 0.0, "pit": norm.cdf(truth)})
    sentences = poor_calibration(Recovery(model.schema, 0.1, 0, numbers.assign(id=1), numbers, numbers.head(0)))
    assert sentences == [] if word is None else word in sentences[0]
    assert word is None or "ast" in sentences[0]
