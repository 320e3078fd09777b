"""The facts of a report as one HTML page. Text from the data is escaped here, and nowhere else becomes markup.

The page forbids itself everything by its Content-Security-Policy but its own script and style, by their hashes, and
pictures that it carries itself: what is smuggled in through data is neither run nor fetched.
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
from lacova.models.conditional import CVAE, GPPriorVAE
from lacova.report.facts import LEAST, PATIENTS

LISTED = 100  # columns of which a table has lines: more are pixels
WORDS = {
    GPPriorVAE: (
        "Each visit has latent coordinates z. Each coordinate is a sum of smooth functions of the covariates, drawn "
        "from Gaussian processes; a network turns z into the measurements, and noise is added.",
        ("z_l = Σ_r f_r,l(x) + ε", "f_r,l ~ GP(0, k_r)", "y ~ p(y | decoder(z))",
         "q(z | y_o, x_o) q(x_u | y_o, x_o)"),
    ),
    CVAE: (
        "Each row has latent coordinates z; a network turns z and the covariates x into the measurements, and noise is "
        "added. Gaps are integrated out.",
        ("z ~ p(z | x)", "y ~ p(y | decoder(z, x))", "q(z | y_o, x_o) q(x_u | y_o, x_o)"),
    ),
}  # fmt: skip
OTHER = (
    "Each row has latent coordinates z, from which a network makes the measurements; noise is added, and gaps are "
    "integrated out.",
    ("z ~ p(z)", "y ~ p(y | decoder(z))", "q(z | y_o)"),
)
SUBSCRIPT = re.compile(r"_(\w(?:,\w)?)")  # of the symbols above, which come from no data
CHARTS = ("training", "gaps", "calibration", "patients", "covariates", "effects", "latent")


def render(content: dict[str, Any]) -> str:
    """The page as text."""
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
        ("patients", "Patients: observed, imputed, foreseen", _patients(content)),
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
        f"<p>{escape(content.get('size', 'No data were given: the model alone is described.'))}</p>"
        f'<nav aria-label="Sections"><ul>{links}</ul></nav></header>\n<main id="main">\n'
        "<noscript><p>The pictures of this page are drawn by its script; without it, tables remain.</p></noscript>\n"
        f"{body}</main>\n"
        f'<script type="application/json" id="facts">{embedded(data)}</script>\n'
        f"<script>{script}</script>\n</body>\n</html>\n"
    )


def embedded(data: Any) -> str:
    """JSON that can stand in a script element: no character in it can end the element or start another."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _chart(key: str, *pickers: str) -> str:
    """The place of a picture, filled by the script, with the pickers before it."""
    chosen = "".join(f'<label>{escape(text)} <select data-pick="{escape(text)}"></select></label>' for text in pickers)
    controls = f'<div class="pickers">{chosen}</div>' if pickers else ""
    return f'<div class="chart" data-chart="{key}">{controls}<div class="canvas"></div></div>'


def _table(head: list[str], lines: list[list[str]], caption: str) -> str:
    """A table of plain text, whose first column heads the lines; it scrolls by itself where it is too wide."""
    first = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    rest = "".join(
        f'<tr><th scope="row">{escape(line[0])}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in line[1:])}</tr>'
        for line in lines
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table>'
        f"<caption>{escape(caption)}</caption><thead><tr>{first}</tr></thead><tbody>{rest}</tbody></table></div>"
    )


def _paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def _facts(pairs: Any) -> str:
    return "<dl>" + "".join(f"<dt>{escape(str(k))}</dt><dd>{escape(str(v))}</dd>" for k, v in pairs.items()) + "</dl>"


def _warnings(found: list[str]) -> str:
    if not found:
        return '<p class="fine">No warning: nothing that is checked here looked wrong.</p>'
    return '<ul class="warnings">' + "".join(f"<li>{escape(text)}</li>" for text in found) + "</ul>"


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
    note = "" if content["wish"].patients else _paragraph("Values of single patients are left out of this report.")
    return f"{note}{_chart('gaps') if content.get('gaps') else ''}{table}"


def _model(model: Model) -> str:
    words, symbols = next((text for kind, text in WORDS.items() if isinstance(model, kind)), OTHER)
    if model.schema.instance is not None and isinstance(model, GPPriorVAE):
        words += " Functions and levels that belong to a patient let visits of the same patient be alike."
    if model.schema.covariates:
        words += (
            " Missing covariates have a prior of their own and are inferred together with z; the uncertainty about "
            "them is carried into every answer." if model.covariates in ("joint", "factorised", "paper")
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
        _paragraph(f"{record['epochs']} epochs. The bound should rise and level off; that of validation rows should "
                   "not fall away from that of training rows.")
        + _chart("training", "Curves")
        + _table(["term, per row", "first epoch", "last epoch"], last, "Terms of the bound")
    )  # fmt: skip


def _quality(content: dict[str, Any]) -> str:
    recovery: Recovery | None = content["recovery"]
    if recovery is None:
        return _paragraph("No data were given, so that nothing could be hidden and compared. Add --data.")
    where = "rows that were held out of training" if content["held_out"] else (
        "the rows of the data given; if the model was fitted to these, it saw the hidden values in training, and rows "
        "held out (--held-out) would be a harder test"
    )  # fmt: skip
    about = (
        f"{recovery.share:.0%} of the observed entries were hidden at random (seed {recovery.seed}), imputed, and "
        f"compared with what they were: {len(recovery.numbers):,} numbers and {len(recovery.categories):,} categories, "
        f"in {where}."
    )
    summary = recovery.summary()
    rare = summary["patients"] < content["wish"].least
    if rare.any():
        about += f" Columns hidden in fewer than {LEAST} patients are left out: {int(rare.sum())} of {len(rare)}."
    summary = summary[~rare]
    many = len(summary)
    if many > LISTED:  # categories have no sd, and stay
        summary = summary.loc[summary["sd"].fillna(np.inf).nlargest(LISTED).index.sort_values()]
    lines = [
        [str(line["column"]), str(line["n"]), _number(line["rmse"]), _number(line["sd"]),
         *(_share(line[f"coverage{p}"]) for p in (50, 90, 95)), _share(line["accuracy"]), _share(line["usual"])]
        for line in summary.to_dict("records")
    ]  # fmt: skip
    head = ["column", "hidden", "RMSE", "sd of the truth", "inside 50%", "inside 90%", "inside 95%", "right level",
            "by the most frequent level"]  # fmt: skip
    some = "" if many <= LISTED else f"The {LISTED} of {many} columns that vary most. "
    table = _table(
        head, lines, f"{some}Imputed against true values. An RMSE well below the sd is what the model gains."
    )
    chart = _chart("calibration", "Column") if content["calibration"]["columns"] else ""
    return _paragraph(about) + chart + (table if lines else "")


def _patients(content: dict[str, Any]) -> str:
    found, model = content.get("patients"), content["model"]
    if not content["wish"].patients:
        return _paragraph("Left out, as asked.")
    if found is None:
        reason = "no data were given" if not content["columns"] else "there is no column that names the patient"
        if content["columns"] and model.schema.instance is not None:
            numbers = set(model.schema.measurements) - set(model.schema.categories)
            reason = (
                "no measurement is a number" if not numbers else "patients have more visits than a page has room for"
            )
        return _paragraph(f"Not shown: {reason}.")
    count = len(found["people"])
    some = f"A random {count} of {found['of']} patients" if count < found["of"] else f"All {count} patients"
    some += ", as many as a page has room for," if count < min(PATIENTS, found["of"]) else ""
    ahead = (
        " After the last visit, the forecast takes all other covariates as they were there."
        if model.schema.time
        else ""
    )
    return _paragraph(f"{some} to pick from.{ahead}") + _chart("patients", "Patient", "Measurement")


def _covariates(content: dict[str, Any]) -> str:
    found = content.get("covariates")
    if not found:
        return _paragraph("There are no gaps in covariates, or the model does not infer them.")
    lines = []
    for entry in found:
        if "ratio" in entry:
            gain = f"the posterior is {entry['ratio']:.0%} as wide as the prior"
        elif "sure" in entry:
            gain = f"the most probable level has {entry['sure'][0]:.0%} before, {entry['sure'][1]:.0%} after"
        else:
            gain = f"not told of fewer than {LEAST} patients"
        lines.append([entry["name"], str(entry["all"]), gain])
    about = "Before: what other covariates and other visits say of a gap. After: what the measurements add."
    chart = _chart("covariates", "Covariate") if content["wish"].patients else ""
    return (
        _paragraph(about)
        + chart
        + _table(["covariate", "gaps", "what the measurements say"], lines, "Gaps in covariates")
    )


def _effects(content: dict[str, Any]) -> str:
    found = content.get("effects")
    if found is None:
        reason = "no data were given" if not content["columns"] else "the model has no Gaussian-process prior"
        return _paragraph(f"Not shown: {reason}.")
    lines = [[name, *(_share(value) for value in row)]
             for name, row in zip(found["components"], found["shares"], strict=True)]  # fmt: skip
    about = (
        f"What each part of the prior explains, from {found['rows']} rows. A component's effect is what the mean of a "
        "measurement would lose without it; whether that is a cause is a question to the study, not to the model."
    )
    table = _table(["component", *found["names"]], lines, "Share of each measurement's variance")
    return _paragraph(about) + (_chart("effects", "Component", "Measurement") if found["lines"] else "") + table


def _latent(content: dict[str, Any]) -> str:
    found = content.get("latent")
    if not content["wish"].patients:
        return _paragraph("Left out, as asked: its points are single rows.")
    if found is None:
        return _paragraph("Not shown: no data were given, or fewer than three rows.")
    some = (
        f"A random {found['rows']} of {found['of']} rows."
        if found["rows"] < found["of"]
        else f"All {found['of']} rows."
    )
    return _paragraph(f"{some} Rows that lie near each other are alike to the model.") + _chart("latent", "Colour")


def _images(picture: bytes) -> str:
    data = base64.b64encode(picture).decode()
    return (
        '<figure><img alt="Grid of images: a line each of true images where known, of images with missing pixels '
        f'light orange, and of imputed images" src="data:image/png;base64,{data}">'
        "<figcaption>Light orange pixels are missing.</figcaption></figure>"
    )


def _number(value: Any) -> str:
    return "" if value is None or pd.isna(value) else f"{value:.4g}"


def _share(value: Any) -> str:
    return "" if value is None or pd.isna(value) else f"{value:.0%}"
