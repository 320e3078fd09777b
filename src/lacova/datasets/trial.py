"""A simulated trial with the shape of the paper's clinical study and known distributions.

Patients stay for a limited time and have visits on irregular days. Adverse events and medications are two-state chains
in continuous time (`chains`). They, time, age and sex act on the states of organ systems. A measurement is the state of
a system, plus a random intercept of the patient, plus noise. Most visits measure little; which ones is independent of
everything else.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pandas as pd

from lacova.data.errors import DataError
from lacova.data.schema import Schema
from lacova.datasets.chains import Chains
from lacova.datasets.sparse import drop_sparse

Floats = npt.NDArray[np.float64]

SHORTEST, LONGEST = 60, 730  # a patient stays until a day drawn uniformly from these
VISIT = 1 / 18  # probability of a visit on each day of the stay
KINDS = {"full": 0.2, "blood": 0.1, "check": 0.7}  # kinds of visits and their probabilities
AGE, AGE_SD, AGES = 68.0, 8.0, (45.0, 90.0)  # whole years: mean, sd and bounds of a normal distribution
MALE = 0.5  # share of patients with sex 1; the others have sex 0
INTERCEPT_SD, NOISE_SD = 0.5, 0.4  # sd of the random intercepts and of the noise, in units of each measurement's sd

# Organ systems: a trend over the two years u = day/730, the effect of one sd of age, and of being male.
SYSTEMS: dict[str, tuple[Callable[[Floats], Floats], float, float]] = {
    "vitals": (lambda u: 0.4 * np.sin(2 * np.pi * u), 0.4, 0.4),
    "marrow": (lambda u: -0.9 * (1 - np.exp(-4 * u)), -0.4, 0.6),
    "liver": (lambda u: 0.8 * u, 0.1, 0.5),
    "kidney": (lambda u: 0.7 * u**2, 0.6, 0.5),
    "minerals": (lambda u: 0.4 * np.cos(2 * np.pi * u), -0.2, -0.4),
    "tumour": (lambda u: 3.0 * (u - 0.4) ** 2 - 0.3, 0.2, 0.3),
}

# Adverse events (ae) and medications (cm): share of time, memory in days (see `chains`), effects on systems.
INDICATORS: dict[str, tuple[float, float, dict[str, float]]] = {
    "ae_fatigue": (0.30, 150.0, {"marrow": -0.6, "vitals": -0.6}),
    "ae_nausea": (0.20, 80.0, {"minerals": -0.9}),
    "ae_diarrhoea": (0.15, 60.0, {"minerals": -1.0, "kidney": 0.5}),
    "ae_anaemia": (0.25, 200.0, {"marrow": -1.2}),
    "ae_neutropenia": (0.15, 60.0, {"marrow": -1.0}),
    "ae_constipation": (0.15, 100.0, {"vitals": 0.7}),
    "ae_back_pain": (0.20, 180.0, {"tumour": 1.0}),
    "ae_oedema": (0.15, 120.0, {"kidney": 0.9, "vitals": 0.8}),
    "ae_infection": (0.10, 40.0, {"liver": 0.6, "vitals": 1.2}),
    "ae_neuropathy": (0.20, 300.0, {"liver": 1.0}),
    "cm_prednisone": (0.50, 300.0, {"tumour": -1.0, "minerals": 0.6}),
    "cm_dexamethasone": (0.30, 120.0, {"marrow": 0.8}),
    "cm_ondansetron": (0.25, 80.0, {"vitals": -0.6}),
    "cm_paracetamol": (0.40, 150.0, {"liver": 0.9}),
    "cm_morphine": (0.20, 200.0, {"vitals": -0.9}),
    "cm_omeprazole": (0.35, 300.0, {"minerals": -0.7}),
    "cm_furosemide": (0.20, 250.0, {"kidney": 0.8, "minerals": -0.8}),
    "cm_allopurinol": (0.15, 400.0, {"kidney": -1.0}),
    "cm_zoledronate": (0.30, 350.0, {"minerals": 0.9, "tumour": -0.6}),
    "cm_simvastatin": (0.30, 600.0, {"liver": -0.8}),
}

# Measurements by panel: system, loading on it, mean, sd, and the probability of being measured with the panel.
PANELS: dict[str, dict[str, tuple[str, float, float, float, float]]] = {
    "vitals": {
        "systolic": ("vitals", 1.0, 135.0, 14.0, 0.97), "diastolic": ("vitals", 0.9, 80.0, 9.0, 0.97),
        "pulse": ("vitals", 0.8, 76.0, 9.0, 0.95), "temperature": ("vitals", 0.7, 36.7, 0.3, 0.90),
        "weight": ("kidney", 0.6, 82.0, 11.0, 0.95),
    },
    "blood": {
        "haemoglobin": ("marrow", 1.0, 125.0, 13.0, 0.98), "haematocrit": ("marrow", 1.0, 0.38, 0.04, 0.97),
        "erythrocytes": ("marrow", 0.9, 4.2, 0.45, 0.96), "leukocytes": ("marrow", 0.9, 7.0, 1.2, 0.98),
        "neutrophils": ("marrow", 0.8, 4.5, 0.8, 0.95), "lymphocytes": ("marrow", 0.6, 1.6, 0.3, 0.92),
        "monocytes": ("marrow", 0.5, 0.5, 0.1, 0.90), "platelets": ("marrow", 0.7, 250.0, 45.0, 0.97),
    },
    "chemistry": {
        "alt": ("liver", 1.0, 30.0, 5.0, 0.95), "ast": ("liver", 1.0, 31.0, 5.0, 0.95),
        "bilirubin": ("liver", 0.9, 9.0, 1.5, 0.92), "alkaline_phosphatase": ("tumour", 0.9, 120.0, 20.0, 0.92),
        "ldh": ("tumour", 0.7, 240.0, 40.0, 0.75), "albumin": ("liver", -0.8, 39.0, 3.5, 0.85),
        "protein": ("liver", -0.7, 69.0, 5.0, 0.80), "creatinine": ("kidney", 1.0, 88.0, 14.0, 0.96),
        "urea": ("kidney", 1.0, 6.8, 1.1, 0.90), "sodium": ("minerals", 0.9, 139.0, 2.6, 0.94),
        "potassium": ("minerals", 0.8, 4.3, 0.35, 0.94), "calcium": ("minerals", 1.0, 2.3, 0.11, 0.85),
        "phosphate": ("minerals", 0.8, 1.1, 0.15, 0.75), "psa": ("tumour", 1.0, 60.0, 9.0, 0.88),
        "testosterone": ("tumour", 0.6, 1.2, 0.2, 0.75),
    },
    "seldom": {
        "ferritin": ("marrow", 0.6, 220.0, 40.0, 0.12), "crp": ("liver", 0.7, 8.0, 1.5, 0.15),
        "magnesium": ("minerals", 0.7, 0.85, 0.08, 0.10), "troponin": ("vitals", 0.4, 12.0, 2.0, 0.05),
    },
}  # fmt: skip

# The panels of each kind of visit, with a factor on their probabilities.
MEASURED = {"full": dict.fromkeys(PANELS, 1.0), "blood": {"vitals": 1.0, "blood": 1.0}, "check": {"vitals": 0.4}}

TESTS = {name: test for panel in PANELS.values() for name, test in panel.items()}
COVARIATES = ("day", "age", "sex", *INDICATORS)
CHAINS = Chains(*np.array([(share, memory) for share, memory, _ in INDICATORS.values()]).T)


def simulated_trial(patients: int = 184, seed: int = 0, *, filtered: bool = True) -> tuple[pd.DataFrame, Schema]:
    """Return the visits of a simulated trial: 28 measurements with gaps, and 23 complete covariates.

    The covariates are day (the time), age and sex (visit-constant), 10 adverse events and 10 medications (0 or 1).
    The full table has 32 measurements with a quarter of the entries observed. It is filtered as in the paper
    (`drop_sparse`): 28 measurements, visits at which half of them were taken, patients with at least 5 such visits.
    `simulated_trial_mean` and `simulated_trial_effects` return the true dependencies; `true_covariates` draws missing
    covariates from their true conditional distribution.

    Args:
        patients: the number of patients after the filter.
        seed: seed of all random numbers.
        filtered: False for the table before the filter, with about twice as many patients.

    Examples:
        >>> table, schema = simulated_trial(patients=20)
        >>> table["id"].nunique(), len(schema.measurements), len(schema.covariates), schema.static
        (20, 28, 23, ('age', 'sex'))
        >>> bool(table.groupby("id").size().min() >= 5)
        True
    """
    if patients < 1:
        raise ValueError(f"patients is {patients}; expected 1 or more.")
    rng = np.random.default_rng(seed)
    block = 2 * patients + 300  # large enough that no observed share reaches the filter's by chance
    pool = _visits(block, rng)
    dense, measurements = drop_sparse(pool, list(TESTS), "id")
    while dense["id"].nunique() < patients:
        more = _visits(block, rng)
        pool = pd.concat([pool, more.assign(id=more["id"] + pool["id"].max() + 1)], ignore_index=True)
        dense, measurements = drop_sparse(pool, list(TESTS), "id")
    last = dense["id"].unique()[patients - 1]
    table, names = (dense, measurements) if filtered else (pool, list(TESTS))
    table = table.loc[table["id"] <= last, ["id", *COVARIATES, *names]].reset_index(drop=True)
    kinds = {"day": "continuous", "age": "continuous", **dict.fromkeys(("sex", *INDICATORS), "categorical")}
    return table, Schema(names, kinds, instance="id", time="day", static=("age", "sex"))  # type: ignore[arg-type]  # kinds are literals


def simulated_trial_mean(table: pd.DataFrame) -> pd.DataFrame:
    """Return the expected measurements given complete covariates, without random intercepts and noise.

    Around them, one measurement at the visits of a patient has variance (0.5² + 0.4²)·sd² and covariance 0.5²·sd².

    Examples:
        >>> table, _ = simulated_trial(patients=20)
        >>> ratio = (table["alt"] - simulated_trial_mean(table)["alt"]).std() / 5.0  # 5.0 is the sd of alt
        >>> bool(0.5 < ratio < 0.8)
        True
    """
    absent = [name for name in COVARIATES if name not in table]
    if absent:
        raise DataError(f"the table has no column {', '.join(map(repr, absent))}; expected one of simulated_trial.")
    states = {}
    for system, (trend, age, male) in SYSTEMS.items():
        state = trend(table["day"].to_numpy(float) / LONGEST)
        state = state + age * (table["age"].to_numpy(float) - AGE) / AGE_SD + male * table["sex"].to_numpy(float)
        for name, (_, _, effects) in INDICATORS.items():
            state = state + effects.get(system, 0.0) * table[name].to_numpy(float)
        states[system] = state
    return pd.DataFrame({d: mean + sd * load * states[system] for d, (system, load, mean, sd, _) in TESTS.items()})


def simulated_trial_effects() -> pd.DataFrame:
    """Return the effect of a year of age, male sex, and each event and medication on each measurement, in its unit.

    The columns `intercept` and `noise` hold the sd of the random intercepts and of the noise. Only the trend over time
    is not linear.

    Examples:
        >>> simulated_trial_effects().loc["haemoglobin", ["ae_anaemia", "sex", "noise"]].round(2).to_dict()
        {'ae_anaemia': -15.6, 'sex': 7.8, 'noise': 5.2}
    """
    rows = {}
    for name, (system, loading, _, sd, _) in TESTS.items():
        _, age, male = SYSTEMS[system]
        effects = {j: sd * loading * parts.get(system, 0.0) for j, (_, _, parts) in INDICATORS.items()}
        demographic = {"age": sd * loading * age / AGE_SD, "sex": sd * loading * male}
        rows[name] = {**demographic, **effects, "intercept": INTERCEPT_SD * sd, "noise": NOISE_SD * sd}
    return pd.DataFrame.from_dict(rows, orient="index")


def ages(count: int, rng: np.random.Generator) -> Floats:
    """Draw ages."""
    return np.clip(np.rint(rng.normal(AGE, AGE_SD, count)), *AGES)


def sexes(count: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Draw sexes."""
    return (rng.random(count) < MALE).astype(np.int64)


def _visits(patients: int, rng: np.random.Generator) -> pd.DataFrame:
    """Draw all visits of so many patients, before the filter."""
    stay = rng.integers(SHORTEST, LONGEST + 1, patients)
    days = np.arange(LONGEST + 1)
    patient, day = np.nonzero((rng.random((patients, len(days))) < VISIT) & (days <= stay[:, None]))
    states = _indicators(patient, day, rng)
    age, sex = ages(patients, rng), sexes(patients, rng)
    table = pd.DataFrame({"id": patient, "day": day.astype(float), "age": age[patient], "sex": sex[patient]})
    table = table.join(pd.DataFrame(states.astype(np.int64), columns=list(INDICATORS)))
    sd = np.array([test[3] for test in TESTS.values()])
    intercept, eps = rng.standard_normal((patients, len(sd))), rng.standard_normal((len(table), len(sd)))
    y = simulated_trial_mean(table) + sd * (INTERCEPT_SD * intercept[patient] + NOISE_SD * eps)
    shares = np.array([_shares(kind) for kind in KINDS])
    kind = rng.choice(len(KINDS), len(table), p=list(KINDS.values()))
    return table.join(y.where(rng.random(y.shape) < shares[kind]))


def _indicators(patient: npt.NDArray[np.int64], day: npt.NDArray[np.int64], rng: np.random.Generator) -> Floats:
    """Draw the states of the chains (visits×20), for visits sorted by patient and day."""
    _, first, number, visits = np.unique(patient, return_index=True, return_inverse=True, return_counts=True)
    k = np.arange(len(patient)) - first[number]
    times = np.zeros((len(visits), visits.max()))
    times[number, k] = day
    times = np.maximum.accumulate(times, axis=1)  # after the last visit, time stands still
    states: Floats = CHAINS.simulate(times, rng)[number, k]
    return states


def _shares(kind: str) -> list[float]:
    """Return the probability of each measurement at a visit of this kind."""
    parts = MEASURED[kind]
    return [parts.get(panel, 0.0) * test[4] for panel, tests in PANELS.items() for test in tests.values()]
