"""Rankings of wrong labels of positions beside cleanlab's scores, on the same probabilities.

No data with verified errors of tags are used; errors are planted. The rules for positions were chosen on lines and
masks of digits, MNIST and Fashion-MNIST, and committed before these data were used.

- Lines: transcripts of lines of twelve handwritten digits, textures or texts, one class per place, as tags of tokens.
  Errors are single classes ("flipped"), two neighbours in exchange ("swapped", where they differ), and lines whose
  transcript slips by one from some place on ("slipped").
- Masks: bright pixels of noisy photographs of 16 x 16. Single pixels are wrong, or squares of four.

The probabilities are held out, in two ways: `gapscope.out_of_sample`, and for lines logistic regression in five folds
of whole lines. gapscope gets them as `pred_probs`; cleanlab's scores are those of its modules `token_classification`
(self-confidence; a line by its smallest score or by their softmin) and `segmentation` (softmin). CPU seconds are those
of the probabilities and of the ranking.
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
from sklearn.model_selection import GroupKFold, cross_val_predict
from torch import Tensor, nn

import gapscope as gs
from gapscope.base.randomness import derive_seed
from gapscope_studies.labels.several import (
    answer_of,
    coverage,
    draw_rows,
    flag_means,
    suspicion_of_labels,
    suspicion_of_samples,
    timed,
)
from gapscope_studies.labels.summary import scores

RATES, SEEDS = (0.02, 0.05, 0.1), (1, 2)
DATA = {
    "lines": ("keel optdigits", "keel texture", "banking77, other intents"),
    "masks": ("cifar10", "cifar100"),
}
N_LINES, LENGTH, N_MASKS = 100, 12, 80
KINDS = {"lines": ("flipped", "swapped", "slipped"), "masks": ("single", "squares")}


def noisy_pictures(name: str, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return pictures of 16 x 16 with noise, and the masks of their bright pixels."""
    pictures = gs.load_dataset(name).train.inputs
    rows = torch.randperm(len(pictures), generator=generator)[:N_MASKS]
    x = nn.functional.avg_pool2d(pictures[rows].float(), 2)
    return x + 0.5 * x.std() * torch.randn(x.shape, generator=generator), (
        x.mean(1) > x.mean()
    ).long()


def wrong_pixels(
    kind: str, rate: float, shape: Sequence[int], generator: torch.Generator
) -> Tensor:
    """Return whether each pixel is wrong: single ones, or those of squares of four; half of the masks have none."""
    careless = (torch.rand(shape[0], generator=generator) < 0.5)[:, None, None]
    wrong = torch.rand(*shape, generator=generator) < rate
    if kind == "squares":
        corners = (torch.rand(*shape, generator=generator) < rate / 4).float()
        wrong = (
            nn.functional.max_pool2d(nn.functional.pad(corners, (1, 0, 1, 0))[:, None], 2, 1)[:, 0]
            > 0
        )
    return wrong & careless


def _plant(kind: str, rate: float, clean: Tensor, generator: torch.Generator) -> Tensor:
    """Return transcripts [n, T] with errors at about this rate of all places."""
    given, n_classes = clean.clone(), int(clean.max()) + 1
    if kind == "flipped":
        wrong = torch.rand(clean.shape, generator=generator) < rate
        shifts = torch.randint(1, n_classes, (int(wrong.sum()),), generator=generator)
        given[wrong] = (given[wrong] + shifts) % n_classes
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


def _judge(
    issues: Any, others: Mapping[str, tuple[np.ndarray, np.ndarray]], wrong: np.ndarray
) -> dict[str, Any]:
    """Return the scores of all rankings.

    Args:
        issues: gapscope's ranking.
        others: Quality scores [n, ...] and [n] (large for right labels) by method.
        wrong: Whether each label is wrong, [n, ...].
    """
    own = (suspicion_of_labels(issues, wrong.shape), suspicion_of_samples(issues, len(wrong)))
    rankings = {"gapscope": own} | {name: (-a, -b) for name, (a, b) in others.items()}
    any_wrong: Any = wrong.reshape(len(wrong), -1).any(1)
    of_samples = (
        {} if any_wrong.all() else {name: scores(b, any_wrong) for name, (_, b) in rankings.items()}
    )
    of_labels = {name: scores(a.ravel(), wrong.ravel()) for name, (a, _) in rankings.items()}
    return {"labels": of_labels, "samples": of_samples, **answer_of(issues, wrong)}


def _token_scores(
    labels: np.ndarray, probabilities: np.ndarray
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    from cleanlab.token_classification import rank  # pyright: ignore[reportMissingImports]

    found = {}
    for method in ("min", "softmin"):
        of_line, of_token = rank.get_label_quality_scores(
            labels.tolist(), list(probabilities), sentence_score_method=method
        )
        found[f"cleanlab, {method}"] = (
            np.stack([np.asarray(row) for row in of_token]),
            np.asarray(of_line),
        )
    return found


def lines(name: str, kind: str, rate: float, seed: int) -> list[dict[str, Any]]:
    """Return the scores of one cell of transcripts, for both kinds of probabilities."""
    generator = torch.Generator().manual_seed(derive_seed(seed, f"positions {name} {kind} {rate}"))
    x, y = draw_rows(name, N_LINES * LENGTH, generator)
    features, clean = x.reshape(N_LINES, LENGTH, -1), y.reshape(N_LINES, LENGTH)
    given = _plant(kind, rate, clean, generator)
    wrong, labels = (given != clean).numpy(), given.numpy()
    ids, n_classes = torch.arange(N_LINES * LENGTH).reshape(N_LINES, LENGTH), int(given.max()) + 1
    held, held_seconds = timed(
        lambda: gs.out_of_sample(features, gs.Samples(ids, given, task="tokens"), seed=seed)
    )
    kernel = np.zeros((N_LINES, LENGTH, n_classes))
    kernel[tuple(held.positions.T)] = held.predictions
    groups = np.repeat(np.arange(N_LINES), LENGTH)

    def folds() -> np.ndarray:
        model, splits = LogisticRegression(max_iter=300), GroupKFold(5)
        found: Any = cross_val_predict(
            model, x.numpy(), labels.ravel(), groups=groups, cv=splits, method="predict_proba"
        )
        return found.reshape(N_LINES, LENGTH, n_classes)

    logistic, seconds = timed(folds)
    answers = []
    for source, probabilities, cost in (
        ("leave-one-line-out", kernel, held_seconds), ("logistic regression", logistic, seconds)
    ):  # fmt: skip
        issues, own = timed(lambda given_probabilities=probabilities: gs.find_label_issues(
            labels=gs.Samples(ids, given, task="tokens").y, pred_probs=given_probabilities
        ))  # fmt: skip
        others, theirs = timed(
            lambda given_probabilities=probabilities: _token_scores(labels, given_probabilities)
        )
        known = {
            "source": source,
            "cpu_seconds": {"gapscope": cost + own, "cleanlab": cost + theirs},
        }
        answers.append(known | _judge(issues, others, wrong))
    return answers


def masks(name: str, kind: str, rate: float, seed: int) -> list[dict[str, Any]]:
    """Return the scores of one cell of masks."""
    from cleanlab.segmentation import rank  # pyright: ignore[reportMissingImports]

    generator = torch.Generator().manual_seed(derive_seed(seed, f"positions {name} {kind} {rate}"))
    pictures, clean = noisy_pictures(name, generator)
    wrong = wrong_pixels(kind, rate, clean.shape, generator)
    data = gs.Samples(pictures, torch.where(wrong, 1 - clean, clean), task="pixels")
    torch.manual_seed(derive_seed(seed, "network"))
    network = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 2, 1))
    held, cost = timed(lambda: gs.out_of_sample(network, data, seed=seed))
    probabilities = np.zeros((*clean.shape, 2))
    probabilities[tuple(held.positions.T)] = held.predictions
    issues, own = timed(
        lambda: gs.find_label_issues(None, data, pred_probs=probabilities, seed=seed)
    )
    (of_picture, of_pixel), theirs = timed(lambda: rank.get_label_quality_scores(
        data.y.numpy(), np.moveaxis(probabilities, -1, 1), method="softmin", verbose=False
    ))  # fmt: skip
    known = {
        "source": "leave-one-picture-out",
        "cpu_seconds": {"gapscope": cost + own, "cleanlab": cost + theirs},
    }
    return [known | _judge(issues, {"cleanlab, softmin": (of_pixel, of_picture)}, wrong.numpy())]


def _cell(task: str, name: str, kind: str, rate: float, seed: int) -> dict[str, Any]:
    run = lines if task == "lines" else masks
    known = {"task": task, "data": name, "kind": kind, "rate": rate, "seed": seed}
    return {"answers": [known | answer for answer in run(name, kind, rate, seed)]}


def jobs() -> dict[str, Callable[[], dict[str, Any]]]:
    """Return every cell by its name."""
    return {
        f"positions-{task}-{name}-{kind}-{rate}-{seed}": partial(
            _cell, task, name, kind, rate, seed
        )
        for task, kinds in KINDS.items()
        for name in DATA[task]
        for kind in kinds
        for rate in RATES
        for seed in SEEDS
    }


def summarize(cells: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return mean scores, differences to cleanlab with intervals over data sets and kinds, and the flagged labels."""
    answers = [answer for cell in cells for answer in cell["answers"]]
    keys = ("task", "source", "data", "kind", "rate", "seed")
    table = pandas.DataFrame(
        [
            {key: answer[key] for key in keys} | {"of": of, "method": method, **found}
            for answer in answers
            for of in ("labels", "samples")
            for method, found in answer[of].items()
        ]
    ).astype({"auroc": float, "average_precision": float})
    values = ["auroc", "average_precision"]

    def means(*by: str) -> list[dict[str, Any]]:
        rows: Any = (
            table.groupby([*by], sort=False)[values]
            .mean()
            .round(4)
            .reset_index()
            .to_dict("records")
        )
        return rows

    wide = table.pivot_table(
        index=[*keys, "of"], columns="method", values="average_precision"
    ).reset_index()
    differences = []
    for (task, source, of), part in wide.groupby(["task", "source", "of"], sort=False):
        for method in [
            name
            for name in table["method"].unique()
            if name != "gapscope" and part[name].notna().any()
        ]:
            gain = part["gapscope"] - part[method]
            groups = gain.groupby([part["data"], part["kind"]]).mean().to_numpy()
            draws = np.random.default_rng(0).choice(groups, (2000, len(groups))).mean(1)
            interval = [float(groups.mean()), *map(float, np.quantile(draws, [0.025, 0.975]))]
            ahead = f"{int((gain > 0).sum())} of {len(gain)}"
            differences.append(
                {
                    "task": task,
                    "source": source,
                    "of": of,
                    "minus": method,
                    "difference": interval,
                    "ahead": ahead,
                }
            )
    seconds = pandas.DataFrame(
        [{"task": a["task"], "source": a["source"], **a["cpu_seconds"]} for a in answers]
    )
    return {
        "cleanlab": version("cleanlab"),
        "cells": len(cells),
        "means": means("task", "source", "of", "method"),
        "by_kind": means("task", "kind", "source", "of", "method"),
        "by_data": means("task", "data", "source", "of", "method"),
        "differences": differences,
        "flags": flag_means(answers, "task", "source"),
        "coverage": coverage(answers, "task", "source"),
        "cpu_seconds": seconds.groupby(["task", "source"], sort=False)
        .mean()
        .round(3)
        .reset_index()
        .to_dict("records"),
    }
