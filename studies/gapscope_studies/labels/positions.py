"""Rankings of wrong labels of positions beside cleanlab's scores, on the same probabilities.

No data with verified errors of tags are used; errors are planted.

- Lines: transcripts of lines of twelve handwritten digits or pictures of clothes, one class per place, as tags of
  tokens. Errors are single classes ("flipped"), two neighbours in exchange ("swapped", where they differ), and lines
  whose transcript slips by one from some place on ("slipped").
- Masks: as in `gapscope_studies.labels.several`.

The probabilities are held out, in two ways: `gapscope.out_of_sample`, and for lines logistic regression in five folds
of whole lines. gapscope gets them as `pred_probs`; cleanlab's scores are those of its modules `token_classification`
(self-confidence; a line by its smallest score or by their softmin) and `segmentation` (softmin).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from typing import Any

import numpy as np
import pandas
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, roc_auc_score
from sklearn.model_selection import GroupKFold, cross_val_predict
from torch import Tensor, nn

import gapscope as gs
from gapscope.base.randomness import derive_seed

DATA, RATES, SEEDS = ("digits", "mnist", "fashion_mnist"), (0.02, 0.05, 0.1), (1, 2, 3)
N_LINES, LENGTH, N_CLASSES = 100, 12, 10
N_MASKS, MASK_SEEDS = 80, (1, 2)
KINDS = {"lines": ("flipped", "swapped", "slipped"), "masks": ("single", "squares")}


def _pictures(name: str, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    train = gs.load_dataset(name).train
    rows = torch.randperm(len(train), generator=generator)[:n]
    x = train.inputs[rows]
    return (nn.functional.avg_pool2d(x, 2) if x.shape[-1] > 16 else x), train.y[rows]


def _plant(kind: str, rate: float, clean: Tensor, generator: torch.Generator) -> Tensor:
    """Return transcripts [n, T] with errors at about this rate of all places."""
    given = clean.clone()
    if kind == "flipped":
        wrong = torch.rand(clean.shape, generator=generator) < rate
        given[wrong] = (
            given[wrong] + torch.randint(1, N_CLASSES, (int(wrong.sum()),), generator=generator)
        ) % N_CLASSES
        return given
    order, needed = torch.randperm(len(clean), generator=generator).tolist(), rate * clean.numel()
    for line in order:
        if float((given != clean).sum()) >= needed:
            break
        at = int(torch.randint(LENGTH - 1, (), generator=generator))
        if kind == "swapped":
            given[line, [at, at + 1]] = clean[line, [at + 1, at]]
        else:
            given[line, at:-1] = clean[line, at + 1 :]
    return given


def _scores(suspicion: np.ndarray, wrong: np.ndarray) -> dict[str, float]:
    return {
        "auroc": float(roc_auc_score(wrong.ravel(), suspicion.ravel())),
        "average_precision": float(average_precision_score(wrong.ravel(), suspicion.ravel())),
    }


def _judge(issues: Any, others: Mapping[str, tuple[np.ndarray, np.ndarray]], wrong: np.ndarray) -> dict[str, Any]:
    """Return the scores of all rankings.

    Args:
        issues: gapscope's ranking.
        others: Quality scores [n, ...] and [n] (large for right labels) by method.
        wrong: Whether each label is wrong, [n, ...].
    """
    suspicion = np.full(wrong.shape, -np.inf)
    suspicion[(issues.indices.numpy(), *issues.places.unbind(1))] = -np.arange(len(issues.indices), dtype=float)
    ranked = issues.rank_samples()
    of_sample = np.zeros(len(wrong))
    of_sample[ranked["sample"].to_numpy()] = -np.arange(len(ranked), dtype=float)
    any_wrong: Any = wrong.reshape(len(wrong), -1).any(1)
    rankings = {"gapscope": (suspicion, of_sample)} | {name: (-a, -b) for name, (a, b) in others.items()}
    flagged = (issues.indices[: issues.n_flagged].numpy(), *issues.places[: issues.n_flagged].unbind(1))
    return {
        "labels": {name: _scores(a, wrong) for name, (a, _) in rankings.items()},
        "samples": {name: _scores(b, any_wrong) for name, (_, b) in rankings.items()} if not any_wrong.all() else {},
        "flagged": int(issues.n_flagged),
        "expected_precision": float(issues.expected_precision),
        "precision": float(wrong[flagged].mean()) if issues.n_flagged else float("nan"),
    }


def _token_scores(labels: np.ndarray, probabilities: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    from cleanlab.token_classification import rank  # pyright: ignore[reportMissingImports]

    found = {}
    for method in ("min", "softmin"):
        of_line, of_token = rank.get_label_quality_scores(
            labels.tolist(), list(probabilities), sentence_score_method=method
        )
        found[f"cleanlab, {method}"] = (np.stack([np.asarray(row) for row in of_token]), np.asarray(of_line))
    return found


def lines(name: str, kind: str, rate: float, seed: int) -> list[dict[str, Any]]:
    """Return the scores of one cell of transcripts, for both kinds of probabilities."""
    generator = torch.Generator().manual_seed(derive_seed(seed, f"positions {name} {kind} {rate}"))
    x, y = _pictures(name, N_LINES * LENGTH, generator)
    features, clean = x.flatten(1).reshape(N_LINES, LENGTH, -1), y.reshape(N_LINES, LENGTH)
    given = _plant(kind, rate, clean, generator)
    wrong, labels = (given != clean).numpy(), given.numpy()
    ids = torch.arange(N_LINES * LENGTH).reshape(N_LINES, LENGTH)
    held = gs.out_of_sample(features, gs.Samples(ids, given, task="tokens"), seed=seed)
    assert held.positions is not None
    kernel = np.zeros((N_LINES, LENGTH, N_CLASSES))
    kernel[tuple(held.positions.T)] = held.predictions
    groups = np.repeat(np.arange(N_LINES), LENGTH)
    folds: Any = cross_val_predict(
        LogisticRegression(max_iter=300), x.flatten(1).numpy(), labels.ravel(), groups=groups, cv=GroupKFold(5),
        method="predict_proba",
    )  # fmt: skip
    logistic = folds.reshape(N_LINES, LENGTH, N_CLASSES)
    answers = []
    for source, probabilities in (("leave-one-line-out", kernel), ("logistic regression", logistic)):
        issues = gs.find_label_issues(labels=gs.Samples(ids, given, task="tokens").y, pred_probs=probabilities)
        answers.append({"source": source, **_judge(issues, _token_scores(labels, probabilities), wrong)})
    return answers


def masks(name: str, kind: str, rate: float, seed: int) -> list[dict[str, Any]]:
    """Return the scores of one cell of masks: ink or clothes against the background."""
    from cleanlab.segmentation import rank  # pyright: ignore[reportMissingImports]

    generator = torch.Generator().manual_seed(derive_seed(seed, f"positions {name} {kind} {rate}"))
    x, _ = _pictures(name, N_MASKS, generator)
    clean = (x[:, 0] > x.mean()).long()
    pictures = x + 0.5 * x.std() * torch.randn(x.shape, generator=generator)
    # half of the masks have errors, so that pictures can be ranked
    careless = (torch.rand(N_MASKS, generator=generator) < 0.5)[:, None, None]
    wrong = torch.rand(clean.shape, generator=generator) < rate
    if kind == "squares":
        corners = (torch.rand(clean.shape, generator=generator) < rate / 4).float()
        wrong = nn.functional.max_pool2d(nn.functional.pad(corners, (1, 0, 1, 0))[:, None], 2, 1)[:, 0] > 0
    wrong &= careless
    given = torch.where(wrong, 1 - clean, clean)
    torch.manual_seed(derive_seed(seed, "network"))
    network = nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 2, 1))
    held = gs.out_of_sample(network, gs.Samples(pictures, given, task="pixels"), seed=seed)
    assert held.positions is not None
    probabilities = np.zeros((*clean.shape, 2))
    probabilities[tuple(held.positions.T)] = held.predictions
    issues = gs.find_label_issues(None, gs.Samples(pictures, given, task="pixels"), pred_probs=probabilities, seed=seed)
    of_picture, of_pixel = rank.get_label_quality_scores(
        given.numpy(), np.moveaxis(probabilities, -1, 1), method="softmin", verbose=False
    )
    others = {"cleanlab, softmin": (of_pixel, of_picture)}
    return [{"source": "leave-one-picture-out", **_judge(issues, others, wrong.numpy())}]


def _cell(task: str, name: str, kind: str, rate: float, seed: int) -> dict[str, Any]:
    run = lines if task == "lines" else masks
    known = {"task": task, "data": name, "kind": kind, "rate": rate, "seed": seed}
    return {"answers": [known | answer for answer in run(name, kind, rate, seed)]}


def jobs() -> dict[str, Callable[[], dict[str, Any]]]:
    """Return every cell by its name."""
    return {
        f"positions-{task}-{name}-{kind}-{rate}-{seed}": partial(_cell, task, name, kind, rate, seed)
        for task, kinds in KINDS.items()
        for name in DATA
        for kind in kinds
        for rate in RATES
        for seed in (SEEDS if task == "lines" else MASK_SEEDS)
    }


def summarize(cells: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return mean scores, differences to cleanlab with intervals over data sets and kinds, and the flagged labels."""
    answers = [answer for cell in cells for answer in cell["answers"]]
    keys = ("task", "source", "data", "kind", "rate", "seed")
    table = pandas.DataFrame(
        [
            {key: answer[key] for key in keys} | {"of": of, "method": method, **scores}
            for answer in answers
            for of in ("labels", "samples")
            for method, scores in answer[of].items()
        ]
    ).astype({"auroc": float, "average_precision": float})
    values = ["auroc", "average_precision"]

    def means(*by: str) -> list[dict[str, Any]]:
        rows: Any = table.groupby([*by], sort=False)[values].mean().round(4).reset_index().to_dict("records")
        return rows

    wide = table.pivot_table(index=[*keys, "of"], columns="method", values="average_precision").reset_index()
    differences = []
    for (task, source, of), part in wide.groupby(["task", "source", "of"], sort=False):
        for method in [name for name in table["method"].unique() if name != "gapscope" and part[name].notna().any()]:
            gain = part["gapscope"] - part[method]
            groups = gain.groupby([part["data"], part["kind"]]).mean().to_numpy()
            draws = np.random.default_rng(0).choice(groups, (2000, len(groups))).mean(1)
            interval = [float(groups.mean()), *map(float, np.quantile(draws, [0.025, 0.975]))]
            ahead = f"{int((gain > 0).sum())} of {len(gain)}"
            differences.append(
                {"task": task, "source": source, "of": of, "minus": method, "difference": interval, "ahead": ahead}
            )
    flags = pandas.DataFrame([{k: a[k] for k in ("task", "source", "flagged", "expected_precision", "precision")}
                              for a in answers])  # fmt: skip
    # a cell in which nothing was flagged has no precision
    flags = flags.astype({"expected_precision": float, "precision": float})
    return {
        "cleanlab": version("cleanlab"),
        "cells": len(cells),
        "means": means("task", "source", "of", "method"),
        "by_kind": means("task", "kind", "source", "of", "method"),
        "by_data": means("task", "data", "source", "of", "method"),
        "differences": differences,
        "flags": flags.groupby(["task", "source"], sort=False).mean().round(4).reset_index().to_dict("records"),
    }
