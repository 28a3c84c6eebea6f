"""HTML page to review suspected label errors, and the corrections that result."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gapscope.base.errors import InvalidInput
from gapscope.base.samples import Samples, as_samples
from gapscope.results.estimate import percent
from gapscope.results.result import data_uri

if TYPE_CHECKING:
    from gapscope.labels.results import LabelIssues

MIN_CARDS, MAX_CARDS = 24, 500
STYLE = """
:root { color-scheme: light dark; font: 16px/1.45 system-ui, sans-serif; }
body { margin: 1.5rem auto; max-width: 70rem; padding: 0 1rem; }
h1 { font-size: 1.4rem; } ol { list-style: none; padding: 0; display: grid; gap: .75rem;
grid-template-columns: repeat(auto-fill, minmax(12rem, 1fr)); }
li { border: 1px solid #8886; border-radius: .5rem; padding: .6rem; overflow-wrap: anywhere; }
li:focus-within { outline: 3px solid #4c78a8; } img { width: 6rem; height: 6rem; image-rendering: pixelated; }
.odd { color: #c0392b; font-weight: 600; }
dl { margin: .3rem 0; display: grid; grid-template-columns: auto 1fr; gap: 0 .6rem; }
dd { margin: 0; } input { width: 100%; box-sizing: border-box; font: inherit; }
button { font: inherit; padding: .3rem .8rem; }
"""
SCRIPT = """
const inputs = [...document.querySelectorAll('input')];
document.addEventListener('keydown', event => {
  const at = inputs.indexOf(document.activeElement);
  if (event.key === 'Enter' && at >= 0) { (inputs[at + 1] || inputs[0]).focus(); event.preventDefault(); }
  if (event.key === 'Enter' && event.shiftKey && at >= 0) inputs[at].value = inputs[at].dataset.suggested;
});
document.getElementById('save').onclick = () => {
  const quote = text => '"' + text.replaceAll('"', '""') + '"';
  const rows = inputs.map(i => [i.dataset.sample, quote(i.value)].join(','));
  const link = document.createElement('a');
  link.href = URL.createObjectURL(new Blob(['sample,label\\n' + rows.join('\\n') + '\\n'], {type: 'text/csv'}));
  link.download = 'reviewed.csv'; link.click();
};
"""


def _card(row: dict[str, Any], samples: Samples | None) -> str:
    index, body = int(row["sample"]), ""
    if samples is not None:
        x = samples.inputs
        picture = data_uri(x[index]) if x.is_floating_point() else ""
        if picture:
            body = f'<img src="{picture}" alt="sample {index}">'
        elif x.is_floating_point() and x.ndim == 2:
            is_far = ((x[index] - x.mean(0)).abs() > 3 * x.std(0)) & (x.std(0) > 0)
            cells = [
                f'<span class="odd">{value:.4g}</span>' if odd else f"{value:.4g}"
                for value, odd in zip(x[index][:12].tolist(), is_far[:12].tolist(), strict=True)
            ]
            body = f"<p>{' · '.join(cells)}</p>"
        else:
            body = f"<p>{escape(str(x[index].flatten()[:24].tolist()))}</p>"
    probability = "" if row["probability"] != row["probability"] else f" ({percent(row['probability'])})"
    suggested = escape(str(row["suggested"]), quote=True)
    return (
        f"<li>{body}<dl><dt>sample</dt><dd>{index}</dd><dt>given</dt><dd>{escape(str(row['given']))}</dd>"
        f"<dt>suggested</dt><dd>{suggested}{probability}</dd></dl>"
        f'<label>correct label<input data-sample="{index}" data-suggested="{suggested}"></label></li>'
    )


def render(issues: LabelIssues, n: int | None = None) -> str:
    """Return a page with sentences, and a card per sample with a field for the label."""
    n = min(n or max(issues.n_flagged, MIN_CARDS), MAX_CARDS, len(issues.indices))
    rows = issues.to_pandas().head(n).to_dict("records")
    cards = "".join(_card({str(k): v for k, v in row.items()}, issues.samples) for row in rows)
    sentences = "".join(f"<p>{escape(line)}</p>" for line in issues.sentences)
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Label issues</title><style>{STYLE}</style><h1>Label issues</h1>{sentences}"
        "<p>Type the correct label of each sample, or <em>drop</em>; leave the field empty to keep the label. Enter "
        "goes to the next sample, Shift+Enter accepts the suggestion. Then save, and call "
        '<code>gapscope.apply_label_corrections(data, "reviewed.csv")</code>.</p>'
        f'<p><button id="save">Save reviewed.csv</button></p><ol>{cards}</ol><script>{SCRIPT}</script></html>'
    )


def _parse_label(label: str, codes: dict[str, int], *, is_number: bool, where: str) -> float:
    """Return a regression target, or the code of a class."""
    try:
        return float(label) if is_number else codes[label] if codes else int(label)
    except (KeyError, ValueError):
        needed = "a number" if is_number else ", ".join(codes) if codes else "0, 1, 2, ..."
        raise InvalidInput(f"{where}: got the label {label!r}; needed is {needed}, or drop.") from None


def apply_label_corrections(data: Any, path: str | Path) -> Samples:
    """Return the data with the corrections of a reviewed list (of `to_csv` or `write_html`).

    Args:
        data: Data of which `find_label_issues` made the list.
        path: CSV file with the columns `sample` (an index) and `label`: the correct label or target, "drop" to remove
            the sample, or nothing to keep its label.

    Raises:
        InvalidInput: A column is missing, an index is outside the data, or a label is unknown.
    """
    import pandas

    samples = as_samples(data)
    if samples.targets is None or samples.is_dense or samples.targets[0].numel() != 1:
        raise InvalidInput("Corrections need one label or target per sample; got none. Pass data as (x, y).")
    table = pandas.read_csv(path, dtype=str, keep_default_na=False)
    if not {"sample", "label"} <= set(table.columns):
        raise InvalidInput(f"{path} must have the columns sample and label; got {', '.join(map(str, table.columns))}.")
    targets, keep = samples.targets.clone(), torch.ones(len(samples), dtype=torch.bool)
    codes = {name: code for code, name in enumerate(samples.class_names)}
    for sample, label in zip(table["sample"], table["label"], strict=True):
        label = str(label).strip()
        if not label:
            continue
        if not str(sample).isdigit() or int(str(sample)) >= len(samples):
            raise InvalidInput(f"{path} names sample {sample!r}; the data have the samples 0 to {len(samples) - 1}.")
        index = int(str(sample))
        if label == "drop":
            keep[index] = False
        else:
            targets[index] = _parse_label(
                label, codes, is_number=not samples.is_classification, where=f"{path}, {index}"
            )
    return Samples(
        samples.inputs[keep], targets[keep], form=samples.form, notes=samples.notes, class_names=samples.class_names
    )
