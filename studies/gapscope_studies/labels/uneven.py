"""Rate, ranking and probabilities under uneven label errors, as people make them.

Six kinds of errors at five rates. All constants of `gapscope.labels.error_model`, and the rule when a precision is
promised, were chosen on the data sets `CHOSEN_ON`, with other draws of errors; they were committed before one of the
data sets `EVALUATED` was opened. The method is that of `find_label_issues(None, data)`; boosted trees are omitted in
all but the first draw of even and of human errors, for time.

"human" errors lie at samples near other classes, more in some classes than in others: their probability is proportional
to the doubt of a weak classifier, times a log-normal factor of the class.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas
import torch
from torch import Tensor

import gapscope as gs
from gapscope.base.randomness import derive_seed
from gapscope.labels.boosted_trees import out_of_fold_log_probabilities
from gapscope.labels.class_labels import assess_with_second_opinion, refuse_repeats
from gapscope.labels.error_model import LOG_TEMPERATURES
from gapscope.labels.kernel_views import ClassView, class_view, kernel_class_view
from gapscope.labels.results import LabelIssues
from gapscope.statistics.baselines import (
    LINEAR,
    RBF,
    linear_spectrum,
    rbf_spectrum,
    sample_features,
)
from gapscope_studies.labels.summary import scores
from gapscope_studies.labels.uneven_data import EVALUATED, load_clean

KINDS = ("even", "pairs", "one pair", "two classes", "class-similar", "human")
RATES = (0.0, 0.05, 0.1, 0.2, 0.4)
N, SUBSETS, DRAWS = 500, range(1), 6
WITH_TREES = ("even", "human")
MAX_CLASS_RATE, MAX_SAMPLE_RATE = 0.45, 0.6
TARGETS = (0.5, 0.7, 0.8, 0.9)
BINS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 1.0)
MIN_LISTED = 50  # samples in the lists of a data set, of which the precision is compared
EASY = 0.9  # accuracy on clean labels from which on the width of an interval counts


def _flip(labels: Tensor, rates: Tensor, odds: Tensor, generator: torch.Generator) -> Tensor:
    """Corrupt labels at the rates [C] of their classes, to classes with the odds [C, C]."""
    noisy = labels.clone()
    errs = torch.rand(len(labels), generator=generator, dtype=torch.float64) < rates[labels]
    if bool(errs.any()):
        noisy[errs] = torch.multinomial(odds[labels[errs]], 1, generator=generator).squeeze(1)
    return noisy


def weak_classifier(features: Tensor, labels: Tensor) -> Tensor:
    """Return probabilities of the nearest class mean in six random projections."""
    generator = torch.Generator().manual_seed(0)
    projected = features @ torch.randn(
        features.shape[1], 6, generator=generator, dtype=torch.float64
    )
    n_classes = int(labels.max()) + 1
    means = torch.stack([projected[labels == label].mean(0) for label in range(n_classes)])
    distances = torch.cdist(projected, means).square()
    return (-distances / distances.amin(1).median()).softmax(1)


def _scale_to(weights: Tensor, rate: float) -> Tensor:
    """Return weights times the factor with which their mean, each at most 0.6, is the rate."""
    low, high = 0.0, 1e4
    for _ in range(50):
        middle = (low + high) / 2
        if float((middle * weights).clamp(max=MAX_SAMPLE_RATE).mean()) < rate:
            low = middle
        else:
            high = middle
    return (low * weights).clamp(max=MAX_SAMPLE_RATE)


def plant(
    kind: str, rate: float, features: Tensor, labels: Tensor, generator: torch.Generator
) -> Tensor:
    """Return labels with errors of one kind at about this rate."""
    n_classes = int(labels.max()) + 1
    different = (1 - torch.eye(n_classes, dtype=torch.float64)) + 1e-12
    even = torch.full((n_classes,), rate, dtype=torch.float64)
    if kind == "even":
        return _flip(labels, even, different.fill_diagonal_(0), generator)
    if kind == "pairs":
        return _flip(labels, even, torch.eye(n_classes, dtype=torch.float64).roll(1, 1), generator)
    if kind in ("one pair", "two classes"):
        picked = torch.randperm(n_classes, generator=generator)[
            : 2 if kind == "one pair" or n_classes > 2 else 1
        ]
        fraction = float(torch.isin(labels, picked).double().mean())
        rates = torch.zeros(n_classes, dtype=torch.float64)
        rates[picked] = min(rate / fraction, MAX_CLASS_RATE)
        odds = different.fill_diagonal_(0)
        if kind == "one pair":
            odds = 1e-12 * odds
            odds[picked, picked.flip(0)] = 1.0
        return _flip(labels, rates, odds, generator)
    doubt = weak_classifier(features, labels).scatter(1, labels[:, None], 0.0)
    if kind == "class-similar":
        odds = torch.full_like(different, 1e-9).index_add_(0, labels, doubt).fill_diagonal_(0.0)
        return _flip(labels, even, odds, generator)
    factors = torch.exp(0.7 * torch.randn(n_classes, generator=generator, dtype=torch.float64))
    errs = torch.rand(len(labels), generator=generator, dtype=torch.float64) < _scale_to(
        doubt.sum(1) * factors[labels], rate
    )
    noisy = labels.clone()
    if bool(errs.any()):
        odds = doubt[errs].clamp_min(1e-12).scatter(1, labels[errs][:, None], 0.0)
        noisy[errs] = torch.multinomial(odds, 1, generator=generator).squeeze(1)
    return noisy


def describe(issues: LabelIssues, noise: Any, clean: Tensor, noisy: Tensor) -> dict[str, Any]:
    """Return rate, cuts, counts per bin of the printed probability, and scores of the ranking."""
    wrong = (noisy != clean)[issues.indices].numpy()
    suspicion = -np.arange(len(wrong), dtype=float)
    answer: dict[str, Any] = {"wrong": float(wrong.mean()), "answered": not noise.abstained_because}
    answer |= {"rate": noise.rate, "low": noise.low, "high": noise.high, "n": len(wrong)}
    right = (issues.suggested_labels == clean[issues.indices]).numpy()
    answer["clean accuracy"] = float(right.mean())
    if len(issues.precision_curve):
        cuts = [issues, *(issues.with_precision(target) for target in TARGETS)]
        answer["cuts"] = [
            [cut.n_flagged, cut.expected_precision, int(wrong[: cut.n_flagged].sum())]
            for cut in cuts
        ]
        differs = (issues.suggested_labels != issues.given_labels).numpy()
        told = issues.probability.numpy()[differs]
        at = np.clip(np.searchsorted(BINS, told, side="right") - 1, 0, len(BINS) - 2)
        answer["bins"] = [
            [int((at == k).sum()), float(told[at == k].sum()), int(right[differs][at == k].sum())]
            for k in range(len(BINS) - 1)
        ]
    if wrong.any():
        answer |= scores(suspicion, wrong)
    return answer


def tree_views(samples: gs.Samples, labels: Tensor, n_classes: int) -> list[ClassView]:
    """Return the view of boosted trees, if the samples are a table of few classes."""
    scores = out_of_fold_log_probabilities(samples, labels, n_classes, seed=0)
    return [] if scores is None else [class_view("boosted trees", scores, labels, LOG_TEMPERATURES)]


def run_cell(name: str, subset: int) -> dict[str, Any]:
    """Evaluate all kinds, rates and draws of errors on one subset of a data set."""
    x, y = load_clean(name)
    rows = torch.randperm(
        len(x), generator=torch.Generator().manual_seed(derive_seed(subset, name))
    )[:N]
    x, (_, y) = x[rows], y[rows].unique(return_inverse=True)
    samples, n_classes, answers = gs.Samples(x, y), int(y.max()) + 1, []
    features = sample_features(samples)
    kernels = {RBF: rbf_spectrum(features), LINEAR: linear_spectrum(features)}
    for kind in KINDS:
        for rate in RATES if kind == "even" else RATES[1:]:
            for draw in range(DRAWS):
                seed = derive_seed(subset, f"{name} {kind} {rate} {draw}")
                noisy = plant(kind, rate, features, y, torch.Generator().manual_seed(seed))
                views = [
                    kernel_class_view(name, kernel, noisy, n_classes)
                    for name, kernel in kernels.items()
                ]
                if kind in WITH_TREES and draw == 0:
                    views += tree_views(samples, noisy, n_classes)
                view = min(views, key=lambda view: view.error)
                assessed = assess_with_second_opinion(view, noisy, samples, seed=0)
                issues, noise = refuse_repeats(samples, *assessed)
                known = {"kind": kind, "asked": rate, "method": view.method}
                answers.append(known | describe(issues, noise, y, noisy))
    return {"data": name, "subset": subset, "answers": answers}


def _told_and_found(counts: np.ndarray) -> dict[str, Any]:
    number, told, found = counts.sum(0)
    return {
        "samples": int(number),
        "told": told / number if number else None,
        "found": found / number if number else None,
    }


def _cuts(frame: pandas.DataFrame) -> list[dict[str, Any]]:
    rows = []
    for k, name in enumerate(("default", *TARGETS)):
        counts = np.array(
            [
                [cut[k][0], cut[k][0] * cut[k][1] if cut[k][0] else 0.0, cut[k][2]]
                for cut in frame["cuts"]
            ]
        )
        rows.append({"cut": str(name)} | _told_and_found(counts))
    return rows


def _sets_within(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return per cut how many data sets hold within 0.1 of what was told, less, and more."""
    found = []
    for cut in dict.fromkeys(row["cut"] for row in rows):
        excess = [
            float(row["told"] - row["found"])
            for row in rows
            if row["cut"] == cut and row["samples"] >= MIN_LISTED
        ]
        found.append(
            {
                "cut": cut, "sets": len(excess), "within": sum(abs(value) <= 0.1 for value in excess),
                "fewer errors": sum(value > 0.1 for value in excess),
                "more errors": sum(value < -0.1 for value in excess),
            }
        )  # fmt: skip
    return found


def summarize(cells: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return coverage and width per kind and rate, and what was told and found, per data set too."""
    frame = pandas.DataFrame(
        [{"data": cell["data"], **answer} for cell in cells for answer in cell["answers"]]
    )
    answered = frame[frame["answered"]].copy()
    answered["covered"] = answered["wrong"].between(answered["low"] - 1e-9, answered["high"] + 1e-9)
    answered["width"] = answered["high"] - answered["low"]
    answered["error"] = (answered["rate"] - answered["wrong"]).abs()
    coverage = []
    for (kind, rate), part in answered.groupby(["kind", "asked"], sort=False):
        draws = int(((frame["kind"] == kind) & (frame["asked"] == rate)).sum())
        easy = part[part["clean accuracy"] >= EASY]
        coverage.append(
            {
                "kind": kind, "planted": rate, "draws": draws, "answered": len(part),
                "covered": float(part["covered"].mean()), "width where easy": float(easy["width"].median()),
                "mean error": float(part["error"].mean()),
            }
        )  # fmt: skip
    by_data = []
    for data, part in frame.groupby("data", sort=False):
        answers = answered[answered["data"] == data]
        row = {
            "data": data, "draws": len(part), "answered": len(answers), "covered": float(answers["covered"].mean()),
            "promised": float(part[part["asked"].between(0.01, 0.3)]["cuts"].notna().mean()),
            "width": float(answers["width"].median()), "auroc": float(part["auroc"].mean()),
            "average precision": float(part["average_precision"].mean()),
        }  # fmt: skip
        by_data.append(row)
    told = frame[frame["cuts"].notna() & frame["asked"].between(0.01, 0.3)]
    bins = np.array([*told["bins"]])
    by_cut = [
        {"data": data, **row}
        for data, part in told.groupby("data", sort=False)
        for row in _cuts(part)
    ]
    asked = frame[frame["asked"].between(0.01, 0.3)]
    return {
        "draws": len(frame),
        "answered": len(answered),
        "covered": float(answered["covered"].mean()),
        "width where easy": float(answered[answered["clean accuracy"] >= EASY]["width"].median()),
        "coverage": coverage,
        "by_data": by_data,
        "cuts": _cuts(told),
        "cuts_by_data": by_cut,
        "sets_within": _sets_within(by_cut),
        "promised": len(told) / len(asked),
        "probabilities": [
            {"from": BINS[k], "to": BINS[k + 1]} | _told_and_found(bins[:, k])
            for k in range(len(BINS) - 1)
        ],
        "flagged_of_clean": float(
            np.mean(
                [
                    cuts[0][0] / n
                    for cuts, n in frame[(frame["asked"] == 0) & frame["cuts"].notna()][
                        ["cuts", "n"]
                    ].to_numpy()
                ]
            )
        ),
    }


def jobs() -> dict[str, Callable[[], dict[str, Any]]]:
    """Return the cells by name."""
    return {f"uneven {name} {k}": partial(run_cell, name, k) for k in SUBSETS for name in EVALUATED}
