"""What the second opinion of a random forest changes: coverage of the rate, and what promised lists hold.

    python -m gapscope_studies.labels.second_opinion ../results/labels/second_opinion.json

The constants of `gapscope.labels.class_labels` and `gapscope.labels.second_opinion` were chosen on other draws of the
data sets `known`, and committed before those of `judged` were drawn. Beside the lists: as many samples by the baseline,
the self-confidence of a logistic regression in five folds.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import torch
from sklearn.datasets import load_breast_cancer, load_iris, load_wine
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict
from torch import Tensor

import gapscope as gs
from gapscope.base.randomness import derive_seed
from gapscope.labels import class_labels
from gapscope_studies.kit.single_file import write_study
from gapscope_studies.labels.uneven import plant

SAMPLES, SEEDS = 600, 3
CELLS = [("even", 0.0)] + [
    (kind, rate) for kind in ("even", "one pair", "human") for rate in (0.05, 0.1, 0.2)
]
TABLES = {"wine": load_wine, "breast cancer": load_breast_cancer, "iris": load_iris}
SETS = {
    "known": [*TABLES, "digits", "california_housing"],
    "judged": ["mnist", "fashion_mnist", "concrete"],
}


def load(name: str) -> tuple[Tensor, Tensor]:
    """Return at most 600 random samples of a data set; targets of regression become terciles.

    Args:
        name: One of `SETS`.
    """
    if name in TABLES:
        x, y = (torch.as_tensor(values) for values in TABLES[name](return_X_y=True))
    else:
        train = gs.load_dataset(name).train
        x, y = train.inputs.flatten(1), train.y.flatten()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:SAMPLES]
    x, y = x[order].double(), y[order]
    if y.is_floating_point():
        y = torch.bucketize(y, y.quantile(torch.tensor([1 / 3, 2 / 3], dtype=y.dtype)))
    return (x - x.mean(0)) / x.std(0).clamp_min(1e-9), y.long()


def _without_forest(view: Any, labels: Tensor, samples: gs.Samples, **_: Any) -> Any:
    return class_labels.assess_labels(view, labels)


def _self_confidence(x: Tensor, labels: Tensor) -> Tensor:
    """Return the probability of each label by logistic regression in five folds."""
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # classes with fewer samples than folds, and unfinished fits
        values = cross_val_predict(
            LogisticRegression(max_iter=200),
            x.numpy(),
            labels.numpy(),
            cv=5,
            method="predict_proba",
        )
    return torch.as_tensor(values).gather(1, labels[:, None]).flatten()


def _answer(x: Tensor, labels: Tensor, wrong: Tensor) -> dict[str, Any]:
    """Return whether the interval holds the rate, and what the list was told to hold and holds."""
    start = time.process_time()
    issues = gs.find_label_issues(None, (x.float(), labels), time_budget=None)
    noise, listed = issues.noise, issues.indices[: issues.n_flagged]
    truth, told = float(wrong.double().mean()), issues.expected_precision
    return {
        "answered": noise is not None,
        "covered": noise is not None and noise.low - 1e-9 <= truth <= noise.high + 1e-9,
        "promised": issues.n_flagged > 0 and told == told,
        "listed": issues.n_flagged,
        "told": told * issues.n_flagged,
        "found": int(wrong[listed].sum()),
        "seconds": time.process_time() - start,
    }


def draws(name: str) -> Iterator[dict[str, Any]]:
    """Yield the answers with and without the forest for every draw of errors into one data set.

    Args:
        name: One of `SETS`.
    """
    x, clean = load(name)
    for kind, rate in CELLS:
        for seed in range(SEEDS):
            generator = torch.Generator().manual_seed(
                derive_seed(seed, f"second {name} {kind} {rate}")
            )
            labels = plant(kind, rate, x, clean, generator)
            wrong = labels != clean
            answer = _answer(x, labels, wrong)
            with patch.object(class_labels, "assess_with_second_opinion", _without_forest):
                before = _answer(x, labels, wrong)
            order = _self_confidence(x, labels).argsort()
            baseline = int(wrong[order[: answer["listed"]]].sum())
            yield {"with": answer | {"baseline": baseline}, "without": before}


def _summary(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """Return counts, and the fractions that promised lists were told to hold and hold."""
    given = [answer for answer in answers if answer["answered"]]
    promised = [answer for answer in answers if answer["promised"]]
    listed = sum(answer["listed"] for answer in promised)
    summary: dict[str, Any] = {
        "draws": len(answers),
        "answered": len(given),
        "covered": sum(answer["covered"] for answer in given),
        "promised": len(promised),
        "listed": listed,
        "seconds": sum(answer["seconds"] for answer in answers) / len(answers),
    }
    for key in ("told", "found", "baseline"):
        if listed and key in promised[0]:
            summary[key] = sum(answer[key] for answer in promised) / listed
    return summary


def run() -> dict[str, Any]:
    """Run all draws, and return the summaries."""
    parts: dict[str, Any] = {}
    for part, names in SETS.items():
        found: dict[str, list[dict[str, Any]]] = {}
        for name in names:
            found[name] = list(draws(name))
            print(name, _summary([row["with"] for row in found[name]]), flush=True)
        rows = [row for each in found.values() for row in each]
        parts[part] = {way: _summary([row[way] for row in rows]) for way in ("with", "without")}
        parts[part]["data sets"] = [
            {
                "data": name,
                **{way: _summary([row[way] for row in each]) for way in ("with", "without")},
            }
            for name, each in found.items()
        ]
    return parts


if __name__ == "__main__":
    write_study(__doc__, run)
