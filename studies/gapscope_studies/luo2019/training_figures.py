"""Fig. 2: batch norm taken apart in convolutional networks, along training and at the end of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from gapscope_studies.kit.study import Outcome, Setting
from gapscope_studies.luo2019.cases import batch_sizes, resnet, seeds, small_cnn
from gapscope_studies.luo2019.methods import SHOWN, Method, curves, differences, larger, method_table, smaller, trained
from gapscope_studies.luo2019.old_claims import Claim, claim_table, claims_in_words, in_words

if TYPE_CHECKING:
    import pandas

LAYERS = ("conv1_norm", "conv2_norm", "conv3_norm", "conv4_norm", "fc1_norm")
LOSS_PANEL = ("loss: solid train, dashed validation", {"train_loss": "-", "test_loss": "--"})
ACCURACY_PANEL = ("validation accuracy", {"test_accuracy": "-"})


def _numbers(methods: Mapping[str, Method], claims: Sequence[Claim]) -> dict[str, Any]:
    return {
        "claims": [claim.row() for claim in claims],
        "methods": {
            method.name: {score: method.final(score) for score in SHOWN}
            | {"status": [run.status for run in method.runs]}
            for method in methods.values()
        },
    }


def compared(
    setting: Setting,
    methods: Mapping[str, Method],
    claims: Sequence[Claim],
    figure: Figure,
    note: str = "",
    more: Mapping[str, pandas.DataFrame] | None = None,
) -> Outcome:
    """Outcome of a comparison of methods.

    Args:
        setting: Says the seeds.
        methods: What was trained.
        claims: What the paper says of them.
        figure: Their curves.
        note: A sentence before the claims.
        more: Further tables.

    Returns:
        Tables, figure, numbers, verdict.
    """
    diverged = [m.name for m in methods.values() if len(m.finished) < len(m.runs)]
    left_out = f" Diverged in at least one run: {', '.join(diverged)}." if diverged else ""
    return Outcome(
        numbers=_numbers(methods, claims),
        tables={
            "Methods at the end of training (mean over seeds, 95 % t interval)": method_table(methods),
            "Claims (paired by seed)": claim_table([claim.row() for claim in claims]),
            **(more or {}),
        },
        figures={"curves": figure},
        verdict=f"{note}{claims_in_words(claims)}{left_out}",
        seeds=seeds(setting),
    )


def figure_2ab(setting: Setting) -> Outcome:
    """BN against PN and PN + gamma decay at a normal and a large batch size, ResNet-18.

    Beyond the paper: PN alone; and ghost batch norm, large batches with the statistics of normal ones. Its steps are
    those of PN + decay in large batches, so that it judges decay alone, while BN in normal batches also has the noise
    of smaller steps.

    Args:
        setting: Where and how large.

    Returns:
        Methods, claims, curves.
    """
    normal, large = batch_sizes(setting)
    cases = {
        f"BN {normal}": resnet(setting, normal),
        f"BN {large}": resnet(setting, large),
        f"ghost BN {large}/{normal}": resnet(setting, large, normalization="ghost", emulated_size=normal),
        f"PN {large}": resnet(setting, large, normalization="population"),
        f"PN {large} + decay": resnet(setting, large, normalization="population", emulated_size=normal),
    }
    methods = trained(setting, cases)
    bn, bn_large, ghost, pn, decayed = methods.values()
    source = "Fig. 2a-b"
    claims = [
        larger(source, "BN's validation loss grows with the batch size", bn_large, bn, "test_loss"),
        smaller(source, "BN's accuracy falls with the batch size", bn_large, bn, "test_accuracy"),
        smaller(source, "in large batches PN + gamma decay has a lower loss than BN", decayed, bn_large, "test_loss"),
        larger(source, "PN + gamma decay outperforms BN of the normal batch size", decayed, bn, "test_accuracy"),
        smaller("eq. 3", "gamma decay restores regularisation that PN lacks", decayed, pn, "test_loss"),
        smaller("control", "statistics of normal batches regularise steps of large ones", ghost, bn_large, "test_loss"),
    ]
    note = (
        f"Validation loss beyond that of ghost BN, which decay emulates: PN {_beyond(pn, ghost)}, PN + decay "
        f"{_beyond(decayed, ghost)}. "
    )
    return compared(setting, methods, claims, curves(methods, [LOSS_PANEL, ACCURACY_PANEL]), note)


def _beyond(one: Method, other: Method) -> str:
    return in_words(differences(one, other, "test_loss"))


def figure_2cd(setting: Setting) -> Outcome:
    """BN, WN, WN with mean-only or variance-only BN, and SGD without any, in the CNN of six layers."""
    normal, _ = batch_sizes(setting)
    kinds = {
        "SGD": "none",
        "WN": "weight",
        "WN + mean-only BN": "weight_mean_only",
        "WN + variance-only BN": "weight_variance_only",
        "BN": "batch",
    }
    methods = trained(setting, {name: small_cnn(setting, normal, normalization=kind) for name, kind in kinds.items()})
    sgd, wn, mean_only, variance_only, bn = methods.values()
    source = "Fig. 2c-d"
    claims = [
        smaller(source, "BN generalises better than WN", bn, wn, "test_loss"),
        smaller(source, "BN generalises better than SGD without it", bn, sgd, "test_loss"),
        smaller(source, "mean-only BN improves WN", mean_only, wn, "test_loss"),
        smaller(source, "variance-only BN improves WN", variance_only, wn, "test_loss"),
        smaller(source, "both statistics are better than the mean alone", bn, mean_only, "test_loss"),
        smaller(source, "both statistics are better than the variance alone", bn, variance_only, "test_loss"),
    ]
    panels = [("train loss", {"train_loss": "-"}), ("validation loss", {"test_loss": "-"})]
    accuracies = [
        f"{method.name} {in_words(method.final('test_accuracy'))} ({np.mean(method.final('train_accuracy')):.2f})"
        for method in methods.values()
    ]
    note = f"Validation (training) accuracy: {', '.join(accuracies)}: methods also differ in how fast they fit. "
    return compared(setting, methods, claims, curves(methods, panels), note)


def slope(sizes: Sequence[int], values: Sequence[float]) -> float:
    """Least-squares slope of values over log2 of the batch size.

    Args:
        sizes: Batch sizes.
        values: One value a size.

    Returns:
        The slope, per doubling.

    >>> round(slope([2, 4, 8], [1.0, 3.0, 5.0]), 6)
    2.0
    """
    return float(np.polyfit(np.log2(sizes), values, 1)[0])


def _slopes(methods: Sequence[Method], value: Any) -> tuple[float, ...]:
    """Slope of one layer's values over its batch sizes, seed by seed, where no run diverged."""
    by_seed = zip(*(method.runs for method in methods), strict=True)
    whole = [group for group in by_seed if all(run.status == "finished" for run in group)]
    return tuple(slope([run.case.batch_size for run in group], [value(run) for run in group]) for group in whole)


def _by_layer(found: Mapping[tuple[str, int], Method], sizes: Sequence[int]) -> tuple[Figure, pandas.DataFrame]:
    import pandas

    figure = Figure(figsize=(9.5, 3.8), layout="constrained")
    axes = figure.subplots(1, 2)
    rows = []
    for number, layer in enumerate(LAYERS):
        gammas = [[run.gamma_squared[layer] for run in found[layer, size].finished] for size in sizes]
        losses = [found[layer, size].final("test_loss") for size in sizes]
        for axis, values in zip(axes, (gammas, losses), strict=True):
            means = [np.mean(group) if group else np.nan for group in values]
            axis.plot(sizes, means, "o-", color=f"C{number}", ms=4)
        for size, gamma, loss in zip(sizes, gammas, losses, strict=True):
            rows.append({"BN in": layer, "batch": size, "gamma^2": in_words(gamma), "validation loss": in_words(loss)})
    for axis, title in zip(axes, (r"mean $\gamma^2$ of the layer", "validation loss"), strict=True):
        axis.set_xscale("log", base=2)
        axis.set_xticks(sizes, [str(size) for size in sizes])
        axis.set_xlabel("batch size")
        axis.set_title(title, fontsize=10)
    for number, layer in enumerate(LAYERS):
        axes[1].plot([], [], "o-", color=f"C{number}", ms=4, label=layer)
    figure.legend(loc="outside right upper", fontsize=8, frameon=False, title="BN in")
    return figure, pandas.DataFrame(rows)


def figure_2ef(setting: Setting) -> Outcome:
    """gamma^2 and validation loss over the batch size, with batch norm in one layer of the CNN at a time.

    At small scale fewer epochs than in the other figures, for there are five layers times three batch sizes.

    Args:
        setting: Where and how large.

    Returns:
        Methods, claims, curves.
    """
    sizes: Sequence[int] = setting.choose(smoke=(10, 30), small=(8, 32, 128), paper=(16, 64, 256, 1024))
    epochs = setting.choose(smoke=1, small=8, paper=100)
    named = {
        f"{layer}, {size}": small_cnn(setting, size, epochs=epochs, only_in=layer) for layer in LAYERS for size in sizes
    }
    methods = trained(setting, named)
    found = {(layer, size): methods[f"{layer}, {size}"] for layer in LAYERS for size in sizes}
    claims = []
    for layer in LAYERS:
        group = [found[layer, size] for size in sizes]
        gammas = _slopes(group, lambda run, layer=layer: run.gamma_squared[layer])
        losses = _slopes(group, lambda run: run.scores["test_loss"])
        claims += [
            Claim("Fig. 2e", f"gamma^2 grows with the batch size, BN in {layer}",
                  "slope of gamma^2 by log2 of the batch size", gammas, above=0.0),
            Claim("Fig. 2f", f"validation loss grows with the batch size, BN in {layer}",
                  "slope of the loss by log2 of the batch size", losses, above=0.0),
        ]  # fmt: skip
    figure, table = _by_layer(found, sizes)
    return compared(setting, methods, claims, figure, more={"By layer and batch size": table})


def figure_2gh(setting: Setting) -> Outcome:
    """Dropout after every residual block: BN in large batches (0.1) and WN (0.2), ResNet-18.

    The paper does not say the batch size of WN; here it is the normal one.

    Args:
        setting: Where and how large.

    Returns:
        Methods, claims, curves.
    """
    normal, large = batch_sizes(setting)
    cases = {
        f"BN {normal}": resnet(setting, normal),
        f"BN {large}": resnet(setting, large),
        f"BN {large} + dropout": resnet(setting, large, dropout=0.1),
        f"WN {normal}": resnet(setting, normal, normalization="weight"),
        f"WN {normal} + dropout": resnet(setting, normal, normalization="weight", dropout=0.2),
    }
    methods = trained(setting, cases)
    bn, bn_large, dropped, wn, wn_dropped = methods.values()
    source = "Fig. 2g-h"
    claims = [
        larger(source, "BN deteriorates in large batches", bn_large, bn, "test_loss"),
        smaller(source, "dropout suppresses the loss of BN in large batches", dropped, bn_large, "test_loss"),
        larger(source, "dropout raises the accuracy of BN in large batches", dropped, bn_large, "test_accuracy"),
        larger(source, "dropout raises the accuracy of WN (0.90 to 0.93)", wn_dropped, wn, "test_accuracy"),
        smaller(source, "WN with dropout stays below BN", wn_dropped, bn, "test_accuracy"),
    ]
    return compared(setting, methods, claims, curves(methods, [LOSS_PANEL, ACCURACY_PANEL]))
