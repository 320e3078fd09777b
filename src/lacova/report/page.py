"""The HTML page of a report. Text from the data is escaped here, so that none of it becomes markup.

The Content-Security-Policy of the page allows only its own script and style, by their hashes, and embedded pictures:
markup smuggled in through the data would neither run nor fetch anything.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html import escape
from importlib import resources
from typing import Any

import numpy as np
import pandas as pd

from lacova.analysis.recovery import Recovery
from lacova.models.base import Model
from lacova.models.cvae import CVAE
from lacova.models.gp_prior_vae import GPPriorVAE
from lacova.report.facts import MIN_PATIENTS
from lacova.report.patients import MAX_PATIENTS
from lacova.report.tested import DESCRIBED

MAX_COLUMNS = 100  # lines of a table of columns; with more, columns are mostly pixels
DESCRIPTIONS = {
    GPPriorVAE: (
        "Each visit has latent coordinates z. Each coordinate is a sum of smooth functions of the covariates, drawn "
        "from Gaussian processes; a network maps z to the measurements, to which noise is added.",
        ("z_l = Σ_r f_r,l(x) + ε", "f_r,l ~ GP(0, k_r)", "y ~ p(y | decoder(z))",
         "q(z | y_o, x_o) q(x_u | y_o, x_o)"),
    ),
    CVAE: (
        "Each row has latent coordinates z; a network maps z and the covariates x to the measurements, to which noise "
        "is added. Gaps are integrated out.",
        ("z ~ p(z | x)", "y ~ p(y | decoder(z, x))", "q(z | y_o, x_o) q(x_u | y_o, x_o)"),
    ),
}  # fmt: skip
OTHER_DESCRIPTION = (
    "Each row has latent coordinates z; a network maps z to the measurements, to which noise is added. Gaps are "
    "integrated out.",
    ("z ~ p(z)", "y ~ p(y | decoder(z))", "q(z | y_o)"),
)
SUBSCRIPT = re.compile(r"_(\w(?:,\w)?)")  # of the symbols above, which do not come from data
CHARTS = ("training", "gaps", "calibration", "patients", "covariates", "effects", "latent")


def render(content: dict[str, Any]) -> str:
    """Return the page as text."""
    files = resources.files("lacova.report")
    style, script = ((files / name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data:; base-uri 'none'; "
        "form-action 'none'"
    )
    model: Model = content["model"]
    sections = [
        ("warnings", "What to know first", _warnings(content["warnings"])),
        ("data", "The data and its gaps", _data(content)),
        ("model", "The model", _model(model)),
        ("training", "How training went", _training(content)),
        ("quality", "How well hidden values are imputed", _quality(content)),
        ("joint", "Do imputed values go together?", _joint(content)),
        ("patients", "Patients: observed, imputed, forecast", _patients(content)),
        ("covariates", "Missing covariates", _covariates(content)),
        ("effects", "Effects", _effects(content)),
        ("latent", "Latent space", _latent(content)),
        *([("images", "Images", _images(content["images"]))] if content.get("images") else []),
        ("reproduce", "How to reproduce this report", _facts(content["reproduce"])),
    ]
    links = "".join(f'<li><a href="#{key}">{escape(title)}</a></li>' for key, title, _ in sections)
    body = "".join(
        f'<section id="{key}" aria-labelledby="h-{key}"><h2 id="h-{key}">{escape(title)}</h2>{html}</section>\n'
        for key, title, html in sections
    )
    data = {key: content[key] for key in CHARTS if content.get(key) and f'data-chart="{key}"' in body}
    return (
        '<!DOCTYPE html>\n<html lang="en-GB">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n'
        f"<title>{escape(content['title'])}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        f'<a class="skip" href="#main">Skip to the content</a>\n<header><h1>{escape(content["title"])}</h1>'
        f"<p>{escape(content.get('size', 'No data were given: the report describes the model only.'))}</p>"
        f'<nav aria-label="Sections"><ul>{links}</ul></nav></header>\n<main id="main">\n'
        "<noscript><p>A script draws the pictures of this page; without it, only the tables are shown.</p></noscript>\n"
        f"{body}</main>\n"
        f'<script type="application/json" id="facts">{embedded(data)}</script>\n'
        f"<script>{script}</script>\n</body>\n</html>\n"
    )


def embedded(data: Any) -> str:
    """Return JSON for a script element: no character in it can end the element or start another."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _chart(key: str, *pickers: str) -> str:
    """Return the place of a picture, which the script fills, below its selectors."""
    labels = "".join(f'<label>{escape(text)} <select data-pick="{escape(text)}"></select></label>' for text in pickers)
    controls = f'<div class="pickers">{labels}</div>' if pickers else ""
    return f'<div class="chart" data-chart="{key}">{controls}<div class="canvas"></div></div>'


def _table(head: list[str], lines: list[list[str]], caption: str) -> str:
    """Return a table of plain text, whose first column heads the lines; it scrolls if it is too wide."""
    heading = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    body = "".join(
        f'<tr><th scope="row">{escape(line[0])}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in line[1:])}</tr>'
        for line in lines
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table>'
        f"<caption>{escape(caption)}</caption><thead><tr>{heading}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def _facts(pairs: Any) -> str:
    return "<dl>" + "".join(f"<dt>{escape(str(k))}</dt><dd>{escape(str(v))}</dd>" for k, v in pairs.items()) + "</dl>"


def _warnings(sentences: list[str]) -> str:
    if not sentences:
        return '<p class="fine">No warnings: all checks were passed.</p>'
    return '<ul class="warnings">' + "".join(f"<li>{escape(text)}</li>" for text in sentences) + "</ul>"


def _data(content: dict[str, Any]) -> str:
    columns = content["columns"]
    if not columns:
        return _paragraph("No data were given. Add --data to show them.")
    lines = [[c["name"], c["role"], c["kind"], c["unit"], f"{c['missing']:.1%}", str(c["n"]), c["summary"]]
             for c in columns]  # fmt: skip
    if len(lines) > 80:
        lines = [*lines[:40], [f"… {len(lines) - 80} more", *[""] * 6], *lines[-40:]]
    table = _table(["column", "role", "kind", "unit", "missing", "values", "summary"], lines, "Columns of the data")
    if len(columns) > 80:
        table = f"<details><summary>All columns</summary>{table}</details>"
    note = "" if content["options"].patients else _paragraph("Values of single patients are left out of this report.")
    return f"{note}{_chart('gaps') if content.get('gaps') else ''}{table}"


def _model(model: Model) -> str:
    words, symbols = next((text for kind, text in DESCRIPTIONS.items() if isinstance(model, kind)), OTHER_DESCRIPTION)
    if model.schema.instance is not None and isinstance(model, GPPriorVAE):
        words += " Functions and effects of single patients make visits of the same patient similar."
    if model.schema.covariates:
        words += (
            " Missing covariates have a prior of their own and are inferred together with z; every answer includes the "
            "uncertainty about them." if model.covariates in ("joint", "factorised", "paper")
            else f" Missing covariates were filled in once before training ({model.covariates})."
        )  # fmt: skip
    lines = "".join("<li>" + SUBSCRIPT.sub(r"<sub>\1</sub>", escape(line)) + "</li>" for line in symbols)
    return f'{_paragraph(words)}<ul class="symbols">{lines}</ul>{_facts(model.facts())}'


def _training(content: dict[str, Any]) -> str:
    record = content["training"]
    if record is None:
        return _paragraph("There is no record of training in this model.")
    last = [[term["label"], _number(term["values"][0]), _number(term["values"][-1])] for term in record["terms"]]
    return (
        _paragraph(f"{record['epochs']} epochs. The bound should rise and then stay flat, and the bound of validation "
                   "rows should not fall away from that of training rows.")
        + _chart("training", "Curves")
        + _table(["term, per row", "first epoch", "last epoch"], last, "Terms of the bound")
    )  # fmt: skip


def _quality(content: dict[str, Any]) -> str:
    recovery: Recovery | None = content["recovery"]
    if recovery is None:
        return _paragraph("No data were given, so no values could be hidden and compared. Add --data.")
    about = (
        f"{recovery.share:.0%} of the observed entries were hidden at random (seed {recovery.seed}), imputed, and "
        f"compared with their true values: {len(recovery.numbers):,} numbers and {len(recovery.categories):,} "
        f"categories, in {DESCRIBED[content['tested']]}."
    )
    summary = recovery.summary()
    rare = summary["patients"] < content["options"].min_patients
    if rare.any():
        about += (
            f" Columns hidden in fewer than {MIN_PATIENTS} patients are left out: {int(rare.sum())} of {len(rare)}."
        )
    summary = summary[~rare]
    total = len(summary)
    if total > MAX_COLUMNS:  # categories have no sd and are always listed
        summary = summary.loc[summary["sd"].fillna(np.inf).nlargest(MAX_COLUMNS).index.sort_values()]
    lines = [
        [str(line["column"]), str(line["n"]), _number(line["rmse"]), _number(line["sd"]),
         *(_share(line[f"coverage{p}"]) for p in (50, 90, 95)), _share(line["accuracy"]), _share(line["most_frequent"])]
        for line in summary.to_dict("records")
    ]  # fmt: skip
    head = ["column", "hidden", "RMSE", "sd of the truth", "inside 50%", "inside 90%", "inside 95%", "right level",
            "by the most frequent level"]  # fmt: skip
    selection = "" if total <= MAX_COLUMNS else f"The {MAX_COLUMNS} of {total} columns that vary most. "
    table = _table(
        head, lines, f"{selection}Imputed against true values. The gain of the model is an RMSE well below the sd."
    )
    chart = _chart("calibration", "Column") if content["calibration"]["columns"] else ""
    return _paragraph(about) + chart + (table if lines else "")


def _joint(content: dict[str, Any]) -> str:
    tables = content.get("joint")
    if not tables:
        reason = (
            "no data were given" if content["recovery"] is None else "too few values that belong together were hidden"
        )
        return _paragraph(f"Not shown: {reason}.")
    return "".join(_paragraph(part["about"]) + _table(part["head"], part["lines"], part["caption"]) for part in tables)


def _patients(content: dict[str, Any]) -> str:
    patients, model = content.get("patients"), content["model"]
    if not content["options"].patients:
        return _paragraph("Left out, as requested.")
    if patients is None:
        reason = "no data were given" if not content["columns"] else "there is no column that names the patient"
        if content["columns"] and model.schema.instance is not None:
            numbers = set(model.schema.measurements) - set(model.schema.categories)
            reason = "no measurement is a number" if not numbers else "patients have more visits than fit on a page"
        return _paragraph(f"Not shown: {reason}.")
    count, total = len(patients["people"]), patients["of"]
    selection = f"A random {count} of {total} patients" if count < total else f"All {count} patients"
    selection += ", as many as fit on a page," if count < min(MAX_PATIENTS, total) else ""
    ahead = (
        " The forecast after the last visit keeps all other covariates at their last values."
        if model.schema.time
        else ""
    )
    return _paragraph(f"{selection} to choose from.{ahead}") + _chart("patients", "Patient", "Measurement")


def _covariates(content: dict[str, Any]) -> str:
    entries = content.get("covariates")
    if not entries:
        return _paragraph("There are no gaps in covariates, or the model does not infer them.")
    lines = []
    for entry in entries:
        if "ratio" in entry:
            gain = f"the posterior is {entry['ratio']:.0%} as wide as the prior"
        elif "highest" in entry:
            gain = f"the most probable level has {entry['highest'][0]:.0%} before, {entry['highest'][1]:.0%} after"
        else:
            gain = f"not shown for fewer than {MIN_PATIENTS} patients"
        lines.append([entry["name"], str(entry["all"]), gain])
    about = "Before: the distribution of a gap given other covariates and visits. After: given the measurements too."
    chart = _chart("covariates", "Covariate") if content["options"].patients else ""
    return (
        _paragraph(about)
        + chart
        + _table(["covariate", "gaps", "what the measurements add"], lines, "Gaps in covariates")
    )


def _effects(content: dict[str, Any]) -> str:
    effects = content.get("effects")
    if effects is None:
        reason = "no data were given" if not content["columns"] else "the model has no Gaussian-process prior"
        return _paragraph(f"Not shown: {reason}.")
    lines = [[name, *(_share(value) for value in row)]
             for name, row in zip(effects["components"], effects["shares"], strict=True)]  # fmt: skip
    about = (
        f"What each part of the prior explains, from {effects['rows']} rows. The effect of a component is what the "
        "mean of a measurement would lose without it; only the design of the study can make that a causal effect."
    )
    table = _table(["component", *effects["names"]], lines, "Share of each measurement's variance")
    return _paragraph(about) + (_chart("effects", "Component", "Measurement") if effects["lines"] else "") + table


def _latent(content: dict[str, Any]) -> str:
    latent = content.get("latent")
    if not content["options"].patients:
        return _paragraph("Left out, as requested: its points are single rows.")
    if latent is None:
        return _paragraph("Not shown: no data were given, or fewer than three rows.")
    count, total = latent["rows"], latent["of"]
    selection = f"A random {count} of {total} rows." if count < total else f"All {total} rows."
    about = f"{selection} Rows that lie near each other are similar to the model."
    return _paragraph(about) + _chart("latent", "Colour")


def _images(picture: bytes) -> str:
    data = base64.b64encode(picture).decode()
    return (
        '<figure><img alt="Grid of images: lines of true images if known, of images with missing pixels in light '
        f'orange, and of imputed images" src="data:image/png;base64,{data}">'
        "<figcaption>Light orange pixels are missing.</figcaption></figure>"
    )


def _number(value: Any) -> str:
    return "" if value is None or pd.isna(value) else f"{value:.4g}"


def _share(value: Any) -> str:
    return "" if value is None or pd.isna(value) else f"{value:.0%}"
