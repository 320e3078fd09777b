"""What a report shows, as plain numbers and text that JSON can hold: the model asked, and its answers thinned out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from lacova.analysis.recovery import LEVELS, Recovery
from lacova.data.schema import Schema
from lacova.inference.effects import Effects
from lacova.models.base import Model
from lacova.models.conditional import GPPriorVAE
from lacova.plot.effects import LINES, binned, parts
from lacova.plot.fit import TERMS, project
from lacova.plot.patients import later
from lacova.plot.style import frequent

PATIENTS, MEASUREMENTS, FEW_MEASUREMENTS = 60, 40, 12  # to pick from
NUMBERS = 350_000  # of patients to pick from, at most: about 8 bytes each
POINTS, LEVELS_SHOWN, GAPS = 1500, 7, 25  # dots in a cloud, their shapes, gaps of a covariate
LEAST = 10  # patients behind a figure that is no patient's, rows behind a point of a line
MAP_ROWS, MAP_COLUMNS = 120, 60
EFFECT_ROWS, AHEAD, FAN_DRAWS = 400, 8, 200
Facts = dict[str, Any]


@dataclass(frozen=True)
class Wish:
    """What to show: draws behind every figure, their seed, the central interval, and whether single patients."""

    draws: int
    seed: int
    patients: bool
    interval: float = 0.9

    @property
    def least(self) -> int:
        """The patients behind every figure."""
        return 1 if self.patients else LEAST


def rounded(values: Any) -> list[float | None]:
    """Four significant digits; JSON has no NaN."""
    found = np.asarray(values, float).ravel()
    return [None if not np.isfinite(v) else float(f"{v:.4g}") for v in found]


def plain(value: float) -> str:
    """Four significant digits without powers of ten, as far as that can be read."""
    return f"{value:,.0f}" if 10_000 <= abs(value) < 1e9 else f"{value:.4g}"


def sample_units(frame: pd.DataFrame, schema: Schema, most: int, seed: int) -> pd.DataFrame:
    """The rows of so many patients, or so many rows where there are none, in their order."""
    noise = np.random.default_rng(seed)
    if schema.instance is None:
        if len(frame) <= most:
            return frame
        return frame.iloc[np.sort(noise.choice(len(frame), most, replace=False))]
    labels = frame[schema.instance].drop_duplicates().to_numpy()
    if len(labels) <= most:
        return frame
    return frame[frame[schema.instance].isin(noise.choice(labels, most, replace=False))]


def shown_measurements(frame: pd.DataFrame, schema: Schema) -> list[str]:
    """The numbers to pick from: all, or those that vary most where there are too many."""
    numbers = [name for name in schema.measurements if name not in schema.categories]
    if len(numbers) <= MEASUREMENTS:
        return numbers
    spread = frame[numbers].var().sort_values(ascending=False, kind="stable").index[:FEW_MEASUREMENTS]
    return [name for name in numbers if name in set(spread)]


def columns(frame: pd.DataFrame, schema: Schema, wish: Wish) -> list[Facts]:
    """One entry per column: role, kind, unit, share missing, and a summary of what is there."""
    found = []
    for name in schema.columns:
        if name == schema.instance:
            continue
        values = frame[name].dropna()
        kind = schema.covariates.get(name) or schema.kinds.get(name, "gaussian")
        role = "time" if name == schema.time else "covariate" if name in schema.covariates else "measurement"
        found.append({
            "name": name, "role": role, "kind": kind, "unit": schema.units.get(name, ""),
            "missing": float(frame[name].isna().mean()), "n": len(values),
            "summary": _summary(values, name in schema.categories, None if wish.patients else owners(frame, schema)),
        })  # fmt: skip
    return found


def owners(frame: pd.DataFrame, schema: Schema) -> pd.Series[Any]:
    """Whose each row is; every row is its own where there are no patients."""
    return pd.Series(np.arange(len(frame)), frame.index) if schema.instance is None else frame[schema.instance]


def _summary(values: pd.Series[Any], category: bool, whose: pd.Series[Any] | None) -> str:
    """In words; with owners, only what rests on several of them, and no extremes, which are somebody's own."""
    if len(values) == 0:
        return "no value"
    if category:
        counts = values.value_counts()
        many: Any = None if whose is None else whose[values.index].groupby(values.astype(object)).nunique()
        named = [(level, n) for level, n in counts.items() if many is None or many[level] >= LEAST][:4]
        if not named:
            return "rare levels alone"
        text = ", ".join(f"{level} {n / len(values):.0%}" for level, n in named)
        return text + (", ..." if len(counts) > len(named) else "")
    numbers = values.astype(float)
    text = f"mean {plain(numbers.mean())}, sd {plain(numbers.std())}"
    if whose is None:
        return f"{text}, from {plain(numbers.min())} to {plain(numbers.max())}"
    return text if whose[values.index].nunique() >= LEAST else "few values"


def gap_map(frame: pd.DataFrame, schema: Schema, wish: Wish) -> Facts | None:
    """Shares missing by column and group of neighbouring rows, by patient and visit; or by visit number alone."""
    names = [*schema.measurements, *schema.covariates]
    order = [name for name in (schema.instance, schema.time) if name is not None]
    ordered = frame.sort_values(order, kind="stable") if order else frame
    missing = ordered[names].isna().to_numpy(float)
    groups: Any = np.arange(len(ordered))
    labels, axis = [], "rows"
    if wish.patients:
        count = min(MAP_ROWS, len(ordered))
        groups = np.arange(len(ordered)) * count // len(ordered)
        first = [int(np.flatnonzero(groups == k)[0]) for k in range(count)]
        axis = "rows, by patient and visit" if schema.instance else "rows"
        labels = [f"row {k + 1}" if schema.instance is None else f"{schema.instance} {ordered[schema.instance].iloc[k]}"
                  for k in first]  # fmt: skip
    elif schema.instance is not None:
        groups = ordered.groupby(schema.instance, sort=False).cumcount().to_numpy()
        sizes = np.bincount(groups)
        enough = sizes >= LEAST
        missing, groups = missing[enough[groups]], groups[enough[groups]]
        labels, axis = [f"visit {k + 1} ({n} patients)" for k, n in enumerate(sizes[enough])], "number of the visit"
    else:
        return None
    if not labels:
        return None
    shares = np.stack([missing[groups == k].mean(0) for k in range(len(labels))])
    shares, names, roles = _fewer_columns(shares, names, len(schema.measurements))
    return {"rows": labels, "columns": names, "roles": roles, "axis": axis,
            "share": [[round(float(v), 2) for v in line] for line in shares]}  # fmt: skip


def _fewer_columns(shares: Any, names: list[str], cut: int) -> tuple[Any, list[str], list[str]]:
    """Neighbouring columns together where there are more than can be named."""
    roles = ["measurement"] * cut + ["covariate"] * (len(names) - cut)
    if len(names) <= MAP_COLUMNS:
        return shares, names, roles
    groups = [part for part in np.array_split(np.arange(cut), min(cut, MAP_COLUMNS - 10)) if len(part)]
    groups += [np.array([k]) for k in range(cut, len(names))][:10]
    named = [names[g[0]] if len(g) == 1 else f"{names[g[0]]} to {names[g[-1]]}" for g in groups]
    return np.stack([shares[:, g].mean(1) for g in groups], axis=1), named, [roles[g[0]] for g in groups]


def training(model: Model) -> Facts | None:
    """The record of training by term, thinned to 400 epochs."""
    record = model.training
    if record is None or len(record) == 0:
        return None
    kept = record.iloc[np.unique(np.linspace(0, len(record) - 1, 400).astype(int))]
    terms = [
        {"name": name, "label": label, "values": rounded(kept[name])} for name, label in TERMS.items() if name in kept
    ]
    return {"epoch": rounded(kept["epoch"]), "terms": terms, "epochs": len(record)}


def calibration(recovery: Recovery, shown: list[str], wish: Wish) -> Facts:
    """Coverage, PIT counts, and true against imputed values, of all numbers and by column."""
    found: Facts = {"nominal": list(LEVELS), "columns": []}
    numbers = recovery.numbers
    kept = [name for name in numbers["column"].unique() if name in shown or name in recovery.schema.covariates]
    for name in [None, *kept]:
        part = numbers if name is None else numbers[numbers["column"] == name]
        if recovery.patients(part) < wish.least:
            continue
        counts = np.histogram(part["pit"], bins=np.linspace(0, 1, 11))[0]
        entry: Facts = {
            "name": "all numbers" if name is None else name, "n": len(part),
            "label": "" if name is None else recovery.schema.label(name),
            "coverage": rounded(recovery.coverage(name)["found"]), "pit": counts.tolist(),
        }  # fmt: skip
        if name is not None and wish.patients:
            some = part.iloc[np.unique(np.linspace(0, len(part) - 1, 300).astype(int))]
            entry["scatter"] = [rounded(some[key]) for key in ("truth", "mean", "lower", "upper")]
        found["columns"].append(entry)
    return found


def patients(model: Model, frame: pd.DataFrame, shown: list[str], wish: Wish) -> Facts | None:
    """Trajectories of some patients, with imputed values, their intervals, and a forecast beyond the last visit."""
    schema = model.schema
    if schema.instance is None or not wish.patients or not shown:
        return None
    rows = _room(sample_units(frame, schema, PATIENTS, wish.seed), schema.instance, len(shown), wish.seed)
    if rows.empty:
        return None
    if schema.time is not None:
        rows = rows.sort_values([schema.instance, schema.time], kind="stable")
    done = model.impute(rows, interval=wish.interval, seed=wish.seed)
    visit = rows.groupby(schema.instance, sort=False).cumcount().to_numpy() + 1.0
    at = visit if schema.time is None else done[schema.time].to_numpy(float)
    fans = _fans(model, rows, frame, shown, wish)
    people = []
    for label in rows[schema.instance].drop_duplicates():
        own = np.flatnonzero((rows[schema.instance] == label).to_numpy())
        own = own[np.argsort(at[own], kind="stable")]  # of imputed times too
        one: Facts = {"id": str(label), "at": rounded(at[own]), "values": [], "fan": fans.get(label)}
        for name in shown:
            lower, upper = (rounded(done[f"{name}_{side}"].to_numpy(float)[own]) for side in ("lower", "upper"))
            gap = rows[name].isna().to_numpy()[own]
            one["values"].append({"mean": rounded(done[name].to_numpy(float)[own]), "gap": np.flatnonzero(gap).tolist(),
                                  "lower": [lower[k] for k in np.flatnonzero(gap)],
                                  "upper": [upper[k] for k in np.flatnonzero(gap)]})  # fmt: skip
        people.append(one)
    return {
        "people": people, "of": int(frame[schema.instance].nunique()),
        "measurements": [schema.label(name) for name in shown],
        "axis": "visit" if schema.time is None else schema.label(schema.time), "instance": schema.instance,
    }  # fmt: skip


def _room(rows: pd.DataFrame, instance: str, measurements: int, seed: int) -> pd.DataFrame:
    """The rows of as many patients as a page has room for: up to four numbers a visit, and a fan, by measurement."""
    cost = measurements * (4 * rows.groupby(instance, sort=False).size() + 5 * AHEAD)
    cost = cost[cost <= NUMBERS].sample(frac=1.0, random_state=seed)
    return rows[rows[instance].isin(cost[cost.cumsum() <= NUMBERS].index)]


def _fans(model: Model, rows: pd.DataFrame, frame: pd.DataFrame, shown: list[str], wish: Wish) -> dict[Any, Facts]:
    """By patient: times ahead, and by measurement the mean and the ends of 50% and 90% intervals."""
    schema = model.schema
    if schema.time is None or not frame[schema.time].notna().any():
        return {}
    span = float(frame[schema.time].max() - frame[schema.time].min())
    ahead = []
    for _, own in rows[rows[schema.time].notna()].groupby(schema.instance, sort=False):
        last = float(own[schema.time].max())
        ahead.append(later(own, model, last + span * np.linspace(0.02, 0.25, AHEAD)))
    if span <= 0.0 or not ahead:
        return {}
    future = pd.concat(ahead, ignore_index=True)
    draws = max(FAN_DRAWS, wish.draws)
    table = model.sample(future, rows, draws=draws, seed=wish.seed)[shown]
    drawn = table.to_numpy(float).reshape(draws, len(future), len(shown))
    ends = np.quantile(drawn, [0.05, 0.25, 0.75, 0.95], axis=0, method="weibull")
    found = {}
    for k in range(0, len(future), AHEAD):
        part = slice(k, k + AHEAD)
        values = [{"mean": rounded(drawn[:, part, d].mean(0)), "ends": [rounded(end[part, d]) for end in ends]}
                  for d in range(len(shown))]  # fmt: skip
        found[future[schema.instance].iloc[k]] = {"at": rounded(future[schema.time].iloc[part]), "values": values}
    return found


def covariates(model: Model, frame: pd.DataFrame, wish: Wish) -> list[Facts]:
    """By covariate with gaps: how much narrower the posterior is than the prior, and some gaps one by one."""
    schema = model.schema
    gappy = [name for name in schema.covariates if frame[name].isna().any()]
    if not gappy or model.covariates not in ("joint", "factorised", "paper"):
        return []
    rows = frame[frame[gappy].isna().any(axis=1)]
    if schema.instance is not None:
        rows = frame[frame[schema.instance].isin(rows[schema.instance].unique())]
    rows = sample_units(rows, schema, 100, wish.seed)
    before = model.prior_covariates(rows, draws=wish.draws, seed=wish.seed)
    after = model.impute(rows, draws=wish.draws, seed=wish.seed)
    found = []
    for name in gappy:
        at = np.flatnonzero(rows[name].isna().to_numpy())
        if len(at) == 0:
            continue
        laws = [each[name].to_numpy().reshape(wish.draws, len(rows))[:, at] for each in (before, after)]
        entry: Facts = {"name": name, "label": schema.label(name), "kind": schema.covariates[name], "n": len(at),
                        "all": int(frame[name].isna().sum())}  # fmt: skip
        one = _levels if schema.covariates[name] == "categorical" else _numbers
        if owners(rows, schema).iloc[at].nunique() >= wish.least:
            entry |= one(*laws)
        if wish.patients:
            who = _whose(rows, schema, name)[at]
            _, first = np.unique(who, return_index=True)  # a visit-constant gap is one, however many visits
            prior, posterior = entry.pop("prior"), entry.pop("posterior")
            entry["gaps"] = [{"who": who[k], "prior": prior[k], "posterior": posterior[k]}
                             for k in np.sort(first)[:GAPS]]  # fmt: skip
        else:
            entry = {key: value for key, value in entry.items() if key not in ("prior", "posterior")}
        found.append(entry)
    return found


def _whose(rows: pd.DataFrame, schema: Schema, name: str) -> npt.NDArray[np.str_]:
    """Of which row an entry is: its number, or the patient, with the visit where the column varies by visit."""
    if schema.instance is None:
        return np.arange(1, len(rows) + 1).astype(str)
    label = rows[schema.instance].astype(str)
    if name in schema.static:
        return label.to_numpy(str)
    ordered = rows if schema.time is None else rows.sort_values(schema.time, kind="stable")
    visit = ordered.groupby(schema.instance).cumcount() + 1
    return (label + ", visit " + visit[rows.index].astype(str)).to_numpy(str)


def _numbers(before: Any, after: Any) -> Facts:
    before, after = np.asarray(before, float), np.asarray(after, float)
    ends = [
        np.stack([*np.quantile(law, [0.05, 0.95], axis=0, method="weibull"), law.mean(0)]).T for law in (before, after)
    ]
    narrower = float(after.std(0).mean() / max(before.std(0).mean(), 1e-300))
    return {
        "ratio": round(narrower, 3),
        "prior": [rounded(e) for e in ends[0]],
        "posterior": [rounded(e) for e in ends[1]],
    }


def _levels(before: Any, after: Any) -> Facts:
    levels = sorted({*before.ravel().tolist(), *after.ravel().tolist()}, key=str)
    shares = [np.stack([(law == level).mean(0) for level in levels], 1) for law in (before, after)]
    sure = [float(share.max(1).mean()) for share in shares]
    return {"levels": [str(level) for level in levels], "sure": [round(s, 3) for s in sure],
            "prior": [rounded(s) for s in shares[0]], "posterior": [rounded(s) for s in shares[1]]}  # fmt: skip


def effects(model: Model, frame: pd.DataFrame, shown: list[str], wish: Wish) -> Facts | None:
    """Shares of the variance by component, and the components' effects along their covariates."""
    if not isinstance(model, GPPriorVAE) or not shown:
        return None
    schema = model.schema
    visits = 1.0 if schema.instance is None else len(frame) / frame[schema.instance].nunique()
    rows = sample_units(frame, schema, max(LEAST, round(EFFECT_ROWS / visits)), wish.seed).reset_index(drop=True)
    found = model.effects(rows, draws=max(10, wish.draws // 3), interval=wish.interval, seed=wish.seed)
    shares = found.shares.set_index("component")[shown]
    names = found.rows["component"].unique().tolist()
    lines = {name: drawn for name in names if (drawn := _lines(model, rows, found, name, shown, wish)) is not None}
    return {
        "components": list(shares.index), "measurements": [schema.label(name) for name in shown], "names": shown,
        "shares": [rounded(line) for line in shares.to_numpy()], "lines": lines, "rows": len(rows),
    }  # fmt: skip


def _lines(
    model: GPPriorVAE, rows: pd.DataFrame, found: Effects[pd.DataFrame], component: str, shown: list[str], wish: Wish
) -> Facts | None:
    of_patients, along, group = parts(model, component)
    if of_patients and not wish.patients:
        return None
    schema, whose = model.schema, owners(rows, model.schema).to_numpy()
    counted = np.arange(len(rows)) if wish.patients else whose
    own = found.rows[found.rows["component"] == component]
    values = [own.loc[own["measurement"] == name, ["mean", "lower", "upper"]].reset_index(drop=True) for name in shown]
    if of_patients:
        label = rows[schema.instance].to_numpy()
        means = [ends.groupby(label).mean().sort_values("mean", kind="stable") for ends in values]
        return {"kind": "patients", "axis": f"{len(means[0])} patients, by size of the effect",
                "measurements": [[_band("", np.arange(1, len(m) + 1), m)] for m in means]}  # fmt: skip
    levels = [None] if group is None else frequent(rows[group], LINES)
    chosen = [np.ones(len(rows), bool) if level is None else (rows[group] == level).to_numpy(bool, na_value=False)
              for level in levels]  # fmt: skip
    if along is None:
        kept = [(level, at) for level, at in zip(levels, chosen, strict=True) if len(set(whose[at])) >= wish.least]
        if not kept:
            return None
        table = [pd.DataFrame([ends[at].mean() for _, at in kept], columns=list(ends)) for ends in values]
        return {"kind": "levels", "axis": group, "levels": [str(level) for level, _ in kept],
                "measurements": [[_band("", range(len(m)), m)] for m in table],
                "note": _some_levels(rows, group, len(kept))}  # fmt: skip
    at = rows[along].to_numpy(float)
    drawn = []
    for ends in values:
        bands = []
        for level, mask in zip(levels, chosen, strict=True):
            use = mask & ~np.isnan(at)
            if len(set(counted[use])) >= LEAST:
                line = binned(ends[use], at[use], 12, LEAST, counted[use])
                bands.append(_band("" if level is None else f"{group} {level}", line["at"], line))
        drawn.append(bands)
    if not any(drawn):
        return None
    return {"kind": "lines", "axis": schema.label(along), "measurements": drawn,
            "note": _some_levels(rows, group, len(drawn[0]))}  # fmt: skip


def _some_levels(rows: pd.DataFrame, group: str | None, shown: int) -> str:
    """Which levels are shown, where not all are."""
    count = 0 if group is None else rows[group].nunique()
    return f"{shown} of {count} levels of {group} are shown, the most frequent." if shown < count else ""


def _band(name: str, at: Any, ends: pd.DataFrame) -> Facts:
    return {"name": name, "at": rounded(list(at)), **{side: rounded(ends[side]) for side in ("mean", "lower", "upper")}}


def latent(model: Model, frame: pd.DataFrame, shown: list[str], wish: Wish) -> Facts | None:
    """The latent means of some rows in two dimensions, and columns to colour them by."""
    if not wish.patients or len(frame) < 3:
        return None
    schema = model.schema
    visits = 1.0 if schema.instance is None else len(frame) / frame[schema.instance].nunique()
    rows = sample_units(frame, schema, max(5, round(POINTS / visits)), wish.seed)
    points, labels = project(model, rows)
    colours: list[Facts] = []
    for name in [
        *schema.covariates,
        *(name for name in schema.measurements if name in shown or name in schema.categories),
    ]:
        if name in schema.categories:
            colours.append({"name": name, **_coded(rows[name])})
        else:
            colours.append({"name": schema.label(name), "values": rounded(rows[name])})
    who = None if schema.instance is None else [str(label) for label in rows[schema.instance]]
    return {"x": rounded(points[:, 0]), "y": rounded(points[:, 1]), "labels": labels, "colours": colours, "who": who,
            "rows": len(rows), "of": len(frame)}  # fmt: skip


def _coded(values: pd.Series[Any]) -> Facts:
    """Levels that can be told apart, the last for all others where there are more, and the level of each row."""
    more = values.nunique() > LEVELS_SHOWN
    levels = frequent(values, LEVELS_SHOWN - 1 if more else LEVELS_SHOWN)
    codes = np.full(len(values), float(len(levels)))
    for k, level in enumerate(levels):
        codes[(values == level).to_numpy(bool, na_value=False)] = k
    names = [*map(str, levels), *(["others"] if more else [])]
    return {"levels": names, "values": rounded(np.where(values.isna(), np.nan, codes))}


def visits_of(frame: pd.DataFrame, schema: Schema) -> str:
    """How many rows and patients there are, in words."""
    if schema.instance is None:
        return f"{len(frame):,} rows"
    sizes = frame.groupby(schema.instance).size()
    return f"{len(frame):,} visits of {len(sizes):,} patients, {sizes.median():g} each in the median"
