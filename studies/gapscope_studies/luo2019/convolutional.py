"""Figs. 2 and 3: batch norm taken apart in convolutional networks, at normal and large batch sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas

from gapscope.base.specs import DataSpec, RunSpec
from gapscope.data import load_dataset
from gapscope_studies.kit import plots
from gapscope_studies.kit.claims import REGULARIZED, claim
from gapscope_studies.kit.data import image_folder
from gapscope_studies.kit.statistics import mean
from gapscope_studies.kit.study import Outcome, Part, RunSettings
from gapscope_studies.luo2019.networks import (
    PLAIN,
    Method,
    by_seed,
    compared_methods,
    differences,
    epochs_of,
    gamma_squared,
    larger,
    method,
    smaller,
    trained,
)

LAYERS = ("conv1_norm", "conv2_norm", "conv3_norm", "conv4_norm", "fc1_norm")
RESNET, CNN = {"network": "ResNet-18"}, {"network": "CNN of six layers"}


def _sizes(setting: RunSettings) -> tuple[int, int]:
    """The normal and the large batch size (the paper's: 128 and 1,024)."""
    scale = setting.read(__file__)
    return scale["normal"], scale["large"]


def figure_2ab(setting: RunSettings) -> Outcome:
    """BN against PN and PN + gamma decay at a normal and a large batch size, ResNet-18.

    Beyond the paper: PN alone; and ghost batch norm, large batches with the statistics of normal ones. Its steps are
    those of PN + decay in large batches, so that it judges decay alone, while BN in normal batches also has the noise
    of more and smaller steps.
    """
    normal, large = _sizes(setting)
    specs = {
        f"BN {normal}": method(setting, "resnet", normal),
        f"BN {large}": method(setting, "resnet", large),
        f"ghost BN {large}/{normal}": method(setting, "resnet", large, kind="ghost", emulated_size=normal),
        f"PN {large}": method(setting, "resnet", large, kind="population"),
        f"PN {large} + decay": method(setting, "resnet", large, kind="population", emulated_size=normal),
    }
    methods = trained(setting, specs)
    bn, bn_large, ghost, pn, decayed = methods.values()
    source = "Fig. 2a-b"
    claims = [
        larger(source, "BN's validation loss grows with the batch size", bn_large, bn, "test_loss"),
        smaller(source, "BN's accuracy falls with the batch size", bn_large, bn, "test_accuracy"),
        smaller(source, "in large batches PN + gamma decay has a lower loss than BN", decayed, bn_large, "test_loss"),
        larger(source, "PN + gamma decay outperforms BN of the normal batch size", decayed, bn, "test_accuracy"),
        smaller("eq. 3", "gamma decay restores regularization that PN lacks", decayed, pn, "test_loss"),
        smaller("control", "statistics of normal batches regularize steps of large ones", ghost, bn_large, "test_loss",
                ours=True),
    ]  # fmt: skip
    beyond = pandas.DataFrame(
        {"method": one.name, "validation loss beyond ghost BN, which decay emulates": str(mean(result))}
        for one in (pn, decayed)
        for result in [differences(one, ghost, "test_loss")]
    )
    return compared_methods(setting, methods, RESNET, claims=claims, tables={"Beyond ghost BN": beyond})


def figure_2cd(setting: RunSettings) -> Outcome:
    """BN, WN, WN with mean-only or variance-only BN, and SGD without any, in the CNN of six layers."""
    normal, _ = _sizes(setting)
    kinds: dict[str, dict[str, Any]] = {
        "SGD": {"options": PLAIN},
        "WN": {"options": PLAIN, "weight_norm": True},
        "WN + mean-only BN": {"kind": "mean_only", "weight_norm": True},
        "WN + variance-only BN": {"kind": "variance_only", "weight_norm": True},
        "BN": {},
    }
    methods = trained(setting, {name: method(setting, "cnn", normal, **kind) for name, kind in kinds.items()})
    sgd, wn, mean_only, variance_only, bn = methods.values()
    source = "Fig. 2c-d"
    claims = [
        smaller(source, "BN has a lower validation loss than WN", bn, wn, "test_loss"),
        smaller(source, "BN has a lower validation loss than SGD without it", bn, sgd, "test_loss"),
        smaller(source, "mean-only BN improves WN", mean_only, wn, "test_loss"),
        smaller(source, "variance-only BN improves WN", variance_only, wn, "test_loss"),
        smaller(source, "both statistics have a lower validation loss than the mean alone", bn, mean_only, "test_loss"),
        smaller(source, "both statistics are better than the variance alone", bn, variance_only, "test_loss"),
        # a loss above ln 10 is overconfidence on images that are memorized: what generalizes is the accuracy
        larger(source, "BN has a higher accuracy than WN", bn, wn, "test_accuracy"),
        larger(source, "BN has a higher accuracy than SGD without it", bn, sgd, "test_accuracy"),
        larger(source, "mean-only BN has a higher accuracy than WN", mean_only, wn, "test_accuracy"),
        larger(source, "both statistics have a higher accuracy than the mean alone", bn, mean_only, "test_accuracy"),
    ]
    return compared_methods(setting, methods, CNN | {"batch size": "128"}, claims=claims)


def _slopes(group: Sequence[Method], value: Any) -> list[float]:
    """Least-squares slope of a value per doubling of the batch size, seed by seed, where no run diverged."""
    sizes = np.log2([m.batch_size for m in group])
    return [float(np.polyfit(sizes, [value(record) for record in runs], 1)[0]) for runs in by_seed(*group)]


def figure_2ef(setting: RunSettings) -> Outcome:
    """gamma^2 and validation loss over the batch size, with batch norm in one layer of the CNN at a time."""
    chosen = setting.read(__file__)["fig2ef"]
    sizes = chosen["sizes"]
    named = {
        f"{layer}, {size}": method(setting, "cnn", size, epochs=chosen["epochs"], only_in=layer)
        for layer in LAYERS
        for size in sizes
    }
    methods = trained(setting, named)
    claims, rows = [], []
    values = {"gamma^2": {}, "validation loss": {}, "validation minus training loss": {}}
    for layer in LAYERS:
        group = [methods[f"{layer}, {size}"] for size in sizes]
        functions = {
            "gamma^2": partial(gamma_squared, setting, layer=layer),
            "validation loss": lambda record: record.scores["test_loss"],
            "validation minus training loss": lambda record: record.scores["test_loss"] - record.scores["train_loss"],
        }
        guard: dict[str, Any] = {"compared": tuple(m.learnt("test_loss") for m in group), "above": 0.0}
        for (name, function), source, says in zip(
            functions.items(), ("Fig. 2e", "Fig. 2f", "Fig. 2f"),
            ("gamma^2 grows with the batch size", "validation loss grows with the batch size",
             "networks overfit more in larger batches"), strict=True,
        ):  # fmt: skip
            short = "the loss" if name == "validation loss" else name
            quantity = f"slope of {short} by log2 of the batch size"
            claims.append(claim(source, f"{says}, BN in {layer}", quantity, _slopes(group, function), **guard))
            result = [[function(record) for record in m.finished] for m in group]
            values[name][layer] = np.array(result).T if len({len(v) for v in result}) == 1 else np.empty(0)
            rows += [
                {"BN in": layer, "batch": m.batch_size, "quantity": name, "mean": str(mean(numbers))}
                for m, numbers in zip(group, result, strict=True)
            ]
    figure, axes = plots.panels(3)
    for axis, (name, by_layer) in zip(axes, values.items(), strict=True):
        plots.lines(axis, by_layer, sizes, style="o-")
        plots.named(axis, title=name, xscale="log", xlabel="batch size")
        axis.set_xticks(sizes, [str(size) for size in sizes])
    plots.legend(figure, "BN in")
    table = pandas.DataFrame(rows).pivot(index=["BN in", "batch"], columns="quantity", values="mean").reset_index()
    paper = CNN | {"batch size": "16 to 1,024"}
    return compared_methods(
        setting, methods, paper, claims=claims, figures={"curves": figure}, tables={"By layer and batch size": table}
    )


def figure_2gh(setting: RunSettings) -> Outcome:
    """Dropout after every residual block: BN in large batches (0.1) and WN (0.2, the batch size is not said)."""
    normal, large = _sizes(setting)
    dropped, plain_dropped = {"dropout": 0.1}, PLAIN | {"dropout": 0.2}
    specs = {
        f"BN {normal}": method(setting, "resnet", normal),
        f"BN {large}": method(setting, "resnet", large),
        f"BN {large} + dropout": method(setting, "resnet", large, options=dropped),
        f"WN {normal}": method(setting, "resnet", normal, options=PLAIN, weight_norm=True),
        f"WN {normal} + dropout": method(setting, "resnet", normal, options=plain_dropped, weight_norm=True),
    }
    methods = trained(setting, specs)
    bn, bn_large, bn_dropped, wn, wn_dropped = methods.values()
    source = "Fig. 2g-h"
    claims = [
        smaller(source, "dropout suppresses the loss of BN in large batches", bn_dropped, bn_large, "test_loss",
                **REGULARIZED),
        larger(source, "dropout raises the accuracy of BN in large batches", bn_dropped, bn_large, "test_accuracy",
               **REGULARIZED),
        larger(source, "dropout raises the accuracy of WN (0.90 to 0.93)", wn_dropped, wn, "test_accuracy", paper=0.03),
        smaller(source, "WN with dropout stays below BN", wn_dropped, bn, "test_accuracy"),
    ]  # fmt: skip
    return compared_methods(setting, methods, RESNET, claims=claims)


def _on_images(setting: RunSettings, batch_size: int, **normalization: Any) -> list[RunSpec]:
    """ResNet-18 on the folder. The rate falls to a tenth at 30, 60 and 90 of 100 epochs."""
    chosen = setting.read(__file__)["fig3"]
    if normalization.get("kind") == "population":
        normalization["population_samples"] = chosen["population_samples"]
    folder, most = chosen["images"], chosen.get("most")
    if most is not None:  # the stand-in of ImageNet's folder below the data root, written once into the work folder
        problem = partial(load_dataset, folder, root=setting.data_root)
        folder = str(image_folder(setting.work / "images", problem, most).resolve())
    options = {"folder": folder, "side": chosen["side"]}
    epochs = epochs_of(setting.read(__file__), batch_size, chosen["epochs"])
    changes = {
        "data": DataSpec(name="image_folder", options=options).to_dict(),
        "training.epochs": epochs,
        "training.schedule": "step",
        "training.schedule_factor": 0.1,
        "training.schedule_epochs": max(1, round(0.3 * epochs)),
    }
    return [spec.replace(changes) for spec in method(setting, "resnet", batch_size, **normalization)]


def figure_3(setting: RunSettings) -> Outcome:
    """BN of two batch sizes against PN + gamma decay in large batches, by down-sampled ImageNet's protocol."""
    normal, large = _sizes(setting)
    specs = {
        f"BN {normal}": _on_images(setting, normal),
        f"BN {large}": _on_images(setting, large),
        f"PN {large} + decay": _on_images(
            setting, large, kind="population", emulated_size=normal, seeds=setting.read(__file__)["fig3"].get("decayed")
        ),
    }
    methods = trained(setting, specs)
    bn, bn_large, decayed = methods.values()
    same_seeds = replace(bn_large, records=bn_large.records[: len(decayed.records)])
    claims = [
        larger("Fig. 3", "BN's validation loss grows with the batch size", bn_large, bn, "test_loss"),
        smaller("Fig. 3", "BN's accuracy falls with the batch size", bn_large, bn, "test_accuracy"),
        larger("Fig. 3", "PN + gamma decay is better than BN in large batches", decayed, same_seeds, "test_accuracy"),
    ]
    paper = RESNET | {"data": "ImageNet of 32 x 32 pixels, 1,000 classes"}
    return compared_methods(setting, methods, paper, claims=claims)


PARTS = (
    Part("fig2ab", "Fig. 2(a, b): BN, PN and gamma decay over batch sizes, ResNet-18", figure_2ab,
         "BN loses its regularization in large batches; population norm with gamma decay keeps it."),
    Part("fig2cd", "Fig. 2(c, d): SGD, WN, mean-only, variance-only and BN", figure_2cd,
         "BN generalizes better than WN and than SGD without it; both batch statistics contribute."),
    Part("fig2ef", "Fig. 2(e, f): gamma^2 and loss over batch sizes, BN in one layer", figure_2ef,
         "With larger batches gamma^2 grows, and so does the validation loss: the network overfits."),
    Part("fig2gh", "Fig. 2(g, h): dropout with BN in large batches and with WN", figure_2gh,
         "Dropout helps BN in large batches, and WN, which stays below BN."),
    Part("fig3", "Fig. 3: down-sampled ImageNet's protocol on a folder of images", figure_3,
         "What Fig. 2(a, b) shows holds on down-sampled ImageNet."),
)  # fmt: skip
