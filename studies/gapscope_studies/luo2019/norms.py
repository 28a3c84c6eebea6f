"""Fig. 4: batch norm is folded into the weights and fine-tuned away; how the norms of the weights grow."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor, nn

from gapscope.base.specs import TrainingSpec
from gapscope.batch_norm import replace as replace_normalization
from gapscope.batch_norm.norm_layers import BATCH_KINDS, feeding_layers
from gapscope.inspection.losses import scores
from gapscope.training.loop import train
from gapscope_studies.kit.study import Outcome, Setting
from gapscope_studies.luo2019.cases import Case, batch_sizes, seeds, small_cnn
from gapscope_studies.luo2019.old_claims import Claim, claim_table, claims_in_words, in_words
from gapscope_studies.luo2019.runs import kept_results, problem_of, runs, trained_network

LAYERS = ("conv1", "conv2", "conv3", "conv4")
SGD, BN = "SGD without BN", "BN goes on"
PANELS = {"train_loss": "train loss", "test_loss": "validation loss"}


def effective_norms(network: nn.Module, inputs: Tensor) -> dict[str, float]:
    r"""Frobenius norm of the weights that act: $\gamma_i w_i / \bar\sigma_i$ where batch norm follows, else $w$.

    Args:
        network: The network, in evaluation mode.
        inputs: One sample or more.

    Returns:
        Name of layer -> norm, for the layers of Fig. 4.
    """
    norms = {name: layer for name, layer in network.named_modules() if isinstance(layer, BATCH_KINDS)}
    fed = {feeder: norms[name] for name, feeder in feeding_layers(network, norms, inputs).items()} if norms else {}
    found = {}
    for name in LAYERS:
        weight: Any = network.get_submodule(name).weight
        norm: Any = fed.get(name)
        lengths = weight.detach().flatten(1).norm(dim=1)
        if norm is not None:
            lengths = lengths * (norm.weight.detach() / (norm.running_var + norm.eps).sqrt()).abs()
        found[name] = float(lengths.norm())
    return found


def fine_tune(folder: Path, *, setting: Setting, case: Case, epochs: int, without: bool) -> list[dict[str, Any]]:
    """Train a trained network on with learning rate 1e-3, with or without its batch norm.

    Args:
        folder: For the checkpoint.
        setting: Where the trained network and the data lie.
        case: What it was trained as.
        epochs: Number of epochs.
        without: Whether batch norm is folded into weights and biases first.

    Returns:
        Losses in evaluation mode and norms, before the first epoch and after each.
    """
    problem, network = problem_of(case, setting.data_root), trained_network(setting, case)
    inputs = problem.train.inputs[:2]
    if without:
        network = replace_normalization(network, "none", inputs=inputs)

    def measured(network: nn.Module) -> dict[str, Any]:
        row: dict[str, Any] = dict(effective_norms(network.eval(), inputs))
        row |= {f"train_{name}": value for name, value in scores(network, problem.train).items()}
        return row | {f"test_{name}": value for name, value in scores(network, problem.test).items()}

    before = {"epoch": 0} | measured(network)
    settings = TrainingSpec(learning_rate=1e-3, momentum=0.9, batch_size=case.batch_size, epochs=epochs)

    def record(network: nn.Module, row: dict[str, Any]) -> None:
        row |= {name: value for name, value in measured(network).items()}

    result = train(network, problem.train, settings, seed=case.spec.seed, folder=folder, on_epoch=record)
    return [before, *result.history]


def _tuned(setting: Setting, cases: Sequence[Case], epochs: int) -> dict[str, list[list[dict[str, Any]]]]:
    """Kind -> rows of every seed; both kinds of a seed start from the same network."""
    quiet = Setting(scale=setting.scale, work=setting.work, data_root=setting.data_root)
    jobs = [
        (
            setting.work / "fine-tuning" / f"{case.id}-{epochs}-{name}" / "rows.json",
            partial(fine_tune, setting=quiet, case=case, epochs=epochs, without=name == "without"),
        )
        for name in ("without", "with")
        for case in cases
    ]
    rows = kept_results(setting, jobs, "networks fine-tuned")
    return {SGD: rows[: len(cases)], BN: rows[len(cases) :]}


def growth(rows: Sequence[dict[str, Any]], name: str) -> float:
    """Last value over the first."""
    return float(rows[-1][name]) / float(rows[0][name])


def _change(rows: Sequence[dict[str, Any]], name: str) -> float:
    return float(rows[-1][name]) - float(rows[0][name])


def _figure(tuned: dict[str, list[list[dict[str, Any]]]]) -> Figure:
    figure = Figure(figsize=(10, 5.6), layout="constrained")
    axes = figure.subplots(2, 3).flat
    titles = {name: rf"$\|w\|$ of {name}" for name in LAYERS} | PANELS
    for axis, (name, title) in zip(axes, titles.items(), strict=True):
        for number, (kind, seeds_rows) in enumerate(tuned.items()):
            values = np.array([[float(row[name]) for row in rows] for rows in seeds_rows])
            axis.plot(values.mean(0), color=f"C{number}", label=kind)
            axis.fill_between(range(values.shape[1]), values.min(0), values.max(0), color=f"C{number}", alpha=0.2, lw=0)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("epoch of fine-tuning", fontsize=8)
    figure.axes[0].legend(fontsize=8)
    return figure


def _claims(tuned: dict[str, list[list[dict[str, Any]]]]) -> list[Claim]:
    without, going_on = tuned[SGD], tuned[BN]
    claims = []
    for name in LAYERS:
        claims.append(
            Claim("Fig. 4", f"the norm of {name} grows once BN is gone", "norm after fine-tuning over before",
                  tuple(growth(rows, name) for rows in without), above=1.0)
        )  # fmt: skip
        extra = tuple(growth(a, name) - growth(b, name) for a, b in zip(without, going_on, strict=True))
        claims.append(
            Claim("Fig. 4, control", f"the norm of {name} grows more than if BN goes on", "difference of the growths",
                  extra, above=0.0)
        )  # fmt: skip
    changes = {name: tuple(_change(rows, name) for rows in without) for name in PANELS}
    return [
        *claims,
        Claim("Fig. 4", "the training loss falls", "change of the training loss", changes["train_loss"], below=0.0),
        Claim("Fig. 4", "the validation loss rises", "change of the validation loss", changes["test_loss"], above=0.0),
    ]


def figure_4(setting: Setting) -> Outcome:
    """The CNN trained with BN, then trained on without it: norms of four layers and both losses.

    The biases that keep the function are folded in too, which the paper forgets. Beside it, as a control that the paper
    lacks, the same network goes on with BN at the same learning rate; its norms are those of the weights that act.

    Args:
        setting: Where and how large.

    Returns:
        Methods, claims, curves.
    """
    epochs = setting.choose(smoke=2, small=25, paper=500)
    cases = small_cnn(setting, batch_sizes(setting)[0])
    finished = [run.case for run in runs(setting, cases) if run.status == "finished"]
    tuned = _tuned(setting, finished, epochs)
    claims = _claims(tuned)
    losses = {kind: {name: [_change(rows, name) for rows in found] for name in PANELS} for kind, found in tuned.items()}
    note = (
        f"{epochs} epochs at learning rate 1e-3, BN going on instead: training loss "
        f"{in_words(losses[BN]['train_loss'])}, validation loss {in_words(losses[BN]['test_loss'])}. "
    )
    return Outcome(
        numbers={
            "claims": [claim.row() for claim in claims],
            "growth": {
                kind: {name: [growth(rows, name) for rows in found] for name in LAYERS} for kind, found in tuned.items()
            },
            "change": losses,
        },
        tables={"Claims": claim_table([claim.row() for claim in claims])},
        figures={"norms": _figure(tuned)},
        verdict=note + claims_in_words(claims),
        seeds=seeds(setting),
    )
