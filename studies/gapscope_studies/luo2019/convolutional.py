"""Batch norm taken apart in CNNs, and effects of training without it (Figs. 2 to 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas
from matplotlib.figure import Figure
from torch import Tensor, nn

from gapscope.base.specs import DataSpec, RunSpec, TrainingSpec
from gapscope.batch_norm import replace_batch_norm
from gapscope.batch_norm.norm_layers import BATCH_KINDS, preceding_layers
from gapscope.data import load_dataset
from gapscope.inspection.losses import evaluate
from gapscope.results.records import Record
from gapscope.training.checkpoints import load_tensors
from gapscope.training.loop import train
from gapscope_studies.kit import plots
from gapscope_studies.kit.claims import REGULARIZED, claim
from gapscope_studies.kit.data import image_folder
from gapscope_studies.kit.pool import load_network, outcome, weights_of
from gapscope_studies.kit.statistics import mean
from gapscope_studies.kit.study import Outcome, Part, RunSettings
from gapscope_studies.luo2019.networks import (
    PAPER,
    PLAIN,
    POOL,
    claims_of,
    compared_methods,
    epochs_of,
    method,
    train_methods,
)

LAYERS = ("conv1_norm", "conv2_norm", "conv3_norm", "conv4_norm", "fc1_norm")
RESNET, CNN = {"network": "ResNet-18"}, {"network": "CNN of six layers"}
TUNED_LAYERS = ("conv1", "conv2", "conv3", "conv4")
WITHOUT, GOES_ON = "SGD without BN", "BN goes on"


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
    methods = train_methods(setting, specs)
    bn, bn_large, ghost, pn, decayed = specs
    rows = [
        ("BN's validation loss grows with the batch size", bn_large, bn, "larger", "test_loss"),
        ("BN's accuracy falls with the batch size", bn_large, bn, "smaller", "test_accuracy"),
        ("in large batches PN + gamma decay has a lower loss than BN", decayed, bn_large, "smaller", "test_loss"),
        ("PN + gamma decay outperforms BN of the normal batch size", decayed, bn, "larger", "test_accuracy"),
        ("gamma decay restores regularization that PN lacks", decayed, pn, "smaller", "test_loss", {"source": "eq. 3"}),
        ("statistics of normal batches regularize steps of large ones", ghost, bn_large, "smaller", "test_loss",
         {"source": "control", "ours": True}),
    ]  # fmt: skip
    return compared_methods(setting, methods, RESNET, claims=claims_of("Fig. 2a-b", methods, rows))


def figure_2cd(setting: RunSettings) -> Outcome:
    """Compare BN, WN, WN with mean-only or variance-only BN, and SGD in the six-layer CNN."""
    normal, _ = _sizes(setting)
    kinds: dict[str, dict[str, Any]] = {
        "SGD": {"options": PLAIN},
        "WN": {"options": PLAIN, "weight_norm": True},
        "WN + mean-only BN": {"kind": "mean_only", "weight_norm": True},
        "WN + variance-only BN": {"kind": "variance_only", "weight_norm": True},
        "BN": {},
    }
    methods = train_methods(setting, {name: method(setting, "cnn", normal, **kind) for name, kind in kinds.items()})
    sgd, wn, mean_only, variance_only, bn = kinds
    rows = [
        ("BN has a lower validation loss than WN", bn, wn, "smaller", "test_loss"),
        ("BN has a lower validation loss than SGD without it", bn, sgd, "smaller", "test_loss"),
        ("mean-only BN improves WN", mean_only, wn, "smaller", "test_loss"),
        ("variance-only BN improves WN", variance_only, wn, "smaller", "test_loss"),
        ("both statistics have a lower validation loss than the mean alone", bn, mean_only, "smaller", "test_loss"),
        ("both statistics are better than the variance alone", bn, variance_only, "smaller", "test_loss"),
        # a loss above ln 10 is overconfidence on images that are memorized: what generalizes is the accuracy
        ("BN has a higher accuracy than WN", bn, wn, "larger", "test_accuracy"),
        ("BN has a higher accuracy than SGD without it", bn, sgd, "larger", "test_accuracy"),
        ("mean-only BN has a higher accuracy than WN", mean_only, wn, "larger", "test_accuracy"),
        ("both statistics have a higher accuracy than the mean alone", bn, mean_only, "larger", "test_accuracy"),
    ]
    claims = claims_of("Fig. 2c-d", methods, rows)
    return compared_methods(setting, methods, CNN | {"batch size": "128"}, claims=claims)


def _quantities(setting: RunSettings, record: Record, layer: str) -> dict[str, float]:
    """Return the mean gamma^2 of a layer, validation loss, and its excess over training loss."""
    tensors, _ = load_tensors(weights_of(setting, POOL, record.id))
    loss = record.scores["test_loss"]
    return {
        "gamma^2": tensors[f"{layer}.weight"].square().mean().item(),
        "validation loss": loss,
        "validation minus training loss": loss - record.scores["train_loss"],
    }


def figure_2ef(setting: RunSettings) -> Outcome:
    """Compare gamma^2 and validation loss over batch sizes, with BN in one layer at a time."""
    scale = setting.read(__file__)["fig2ef"]
    sizes, epochs = scale["sizes"], scale["epochs"]
    specs = {(layer, size): method(setting, "cnn", size, epochs=epochs, only_in=layer)
             for layer in LAYERS for size in sizes}  # fmt: skip
    methods = train_methods(setting, {f"{layer}, {size}": of_layer for (layer, size), of_layer in specs.items()})
    table = pandas.DataFrame(
        {"BN in": layer, "batch": size, "seed": record.spec["seed"], **_quantities(setting, record, layer)}
        for layer, size in specs
        for record in methods[f"{layer}, {size}"].finished
    )
    texts = {
        "gamma^2": ("Fig. 2e", "gamma^2 grows with the batch size", "gamma^2"),
        "validation loss": ("Fig. 2f", "validation loss grows with the batch size", "the loss"),
        "validation minus training loss": (
            "Fig. 2f", "networks overfit more in larger batches", "validation minus training loss",
        ),
    }  # fmt: skip
    claims = []
    figure, axes = plots.panels(3)
    for axis, (name, (source, says, short)) in zip(axes, texts.items(), strict=True):
        # seeds of which no run diverged, over batch sizes
        grids = {layer: rows.pivot(index="seed", columns="batch", values=name).reindex(columns=sizes).dropna()
                 for layer, rows in table.groupby("BN in", sort=False)}  # fmt: skip
        for layer, grid in grids.items():
            slopes = np.polyfit(np.log2(sizes), grid.to_numpy().T, 1)[0] if len(grid) else []
            arms = [methods[f"{layer}, {size}"].arm("test_loss") for size in sizes]
            claims.append(claim(source, f"{says}, BN in {layer}", f"slope of {short} by log2 of the batch size", slopes,
                                compared=arms, above=0.0))  # fmt: skip
        plots.lines(axis, {str(layer): grid.to_numpy() for layer, grid in grids.items()}, sizes, style="o-")
        plots.set_labels(axis, title=name, xscale="log", xlabel="batch size")
        axis.set_xticks(sizes, [str(size) for size in sizes])
    plots.legend(figure, "BN in")
    means: Any = table.groupby(["BN in", "batch"], sort=False)[list(texts)]
    return compared_methods(
        setting, methods, CNN | {"batch size": "16 to 1,024"}, claims=claims, figures={"curves": figure},
        tables={"By layer and batch size": means.agg(lambda values: str(mean(values.to_numpy()))).reset_index()},
    )  # fmt: skip


def figure_2gh(setting: RunSettings) -> Outcome:
    """Compare dropout after every residual block for BN in large batches and for WN.

    Dropout is 0.1 with BN and 0.2 with WN, whose batch size is not given in the paper.
    """
    normal, large = _sizes(setting)
    dropped, plain_dropped = {"dropout": 0.1}, PLAIN | {"dropout": 0.2}
    specs = {
        f"BN {normal}": method(setting, "resnet", normal),
        f"BN {large}": method(setting, "resnet", large),
        f"BN {large} + dropout": method(setting, "resnet", large, options=dropped),
        f"WN {normal}": method(setting, "resnet", normal, options=PLAIN, weight_norm=True),
        f"WN {normal} + dropout": method(setting, "resnet", normal, options=plain_dropped, weight_norm=True),
    }
    methods = train_methods(setting, specs)
    bn, bn_large, bn_dropped, wn, wn_dropped = specs
    rows = [
        ("dropout suppresses the loss of BN in large batches", bn_dropped, bn_large, "smaller", "test_loss",
         REGULARIZED),
        ("dropout raises the accuracy of BN in large batches", bn_dropped, bn_large, "larger", "test_accuracy",
         REGULARIZED),
        ("dropout raises the accuracy of WN (0.90 to 0.93)", wn_dropped, wn, "larger", "test_accuracy",
         {"paper": 0.03}),
        ("WN with dropout stays below BN", wn_dropped, bn, "smaller", "test_accuracy"),
    ]  # fmt: skip
    return compared_methods(setting, methods, RESNET, claims=claims_of("Fig. 2g-h", methods, rows))


def _on_images(setting: RunSettings, batch_size: int, **normalization: Any) -> list[RunSpec]:
    """ResNet-18 on the folder. The rate falls to a tenth at 30, 60 and 90 of 100 epochs."""
    scale = setting.read(__file__)["fig3"]
    if normalization.get("kind") == "population":
        normalization["population_samples"] = scale["population_samples"]
    folder, most = scale["images"], scale.get("most")
    if most is not None:  # the stand-in of ImageNet's folder below the data root, written once into the work folder
        problem = partial(load_dataset, folder, root=setting.data_root)
        folder = str(image_folder(setting.work / "images", problem, most).resolve())
    options = {"folder": folder, "side": scale["side"]}
    epochs = epochs_of(setting.read(__file__), batch_size, scale["epochs"])
    changes = {
        "data": DataSpec(name="image_folder", options=options).to_dict(),
        "training.epochs": epochs,
        "training.schedule": "step",
        "training.schedule_factor": 0.1,
        "training.schedule_epochs": max(1, round(0.3 * epochs)),
    }
    return [spec.replace(changes) for spec in method(setting, "resnet", batch_size, **normalization)]


def figure_3(setting: RunSettings) -> Outcome:
    """Compare BN of two batch sizes with PN + gamma decay by down-sampled ImageNet's protocol.

    PN has large batches.
    """
    normal, large = _sizes(setting)
    specs = {
        f"BN {normal}": _on_images(setting, normal),
        f"BN {large}": _on_images(setting, large),
        f"PN {large} + decay": _on_images(
            setting, large, kind="population", emulated_size=normal, seeds=setting.read(__file__)["fig3"].get("decayed")
        ),
    }
    methods = train_methods(setting, specs)
    bn, bn_large, decayed = specs
    # networks with decay may be fewer: they are compared on their seeds alone
    few = replace(methods[bn_large], records=methods[bn_large].records[: len(methods[decayed].records)])
    rows = [
        ("BN's validation loss grows with the batch size", bn_large, bn, "larger", "test_loss"),
        ("BN's accuracy falls with the batch size", bn_large, bn, "smaller", "test_accuracy"),
        ("PN + gamma decay is better than BN in large batches", decayed, "few", "larger", "test_accuracy"),
    ]
    paper = RESNET | {"data": "ImageNet of 32 x 32 pixels, 1,000 classes"}
    return compared_methods(setting, methods, paper, claims=claims_of("Fig. 3", {**methods, "few": few}, rows))


def effective_norms(network: nn.Module, inputs: Tensor) -> dict[str, float]:
    r"""Return the Frobenius norms of the effective weights of layers.

    Effective are $\gamma_i w_i / \bar\sigma_i$ where batch norm follows, else $w$.
    """
    norms = {name: layer for name, layer in network.named_modules() if isinstance(layer, BATCH_KINDS)}
    fed = {feeder: norms[name] for name, feeder in preceding_layers(network, norms, inputs).items()} if norms else {}
    result = {}
    for name in TUNED_LAYERS:
        weight: Any = network.get_submodule(name).weight
        norm: Any = fed.get(name)
        lengths = weight.detach().flatten(1).norm(dim=1)
        if norm is not None:
            lengths = lengths * (norm.weight.detach() / (norm.running_var + norm.eps).sqrt()).abs()
        result[name] = float(lengths.norm())
    return result


def fine_tune(setting: RunSettings, spec: RunSpec, epochs: int, without: bool) -> list[dict[str, Any]]:
    """Continue training at rate 1e-3, and return losses and norms per epoch.

    The first are from before the first epoch.
    """
    network, problem = load_network(setting, POOL, spec.id)
    inputs = problem.train.inputs[:2]
    if without:
        network = replace_batch_norm(network, "none", inputs=inputs)

    def measured(network: nn.Module) -> dict[str, Any]:
        row: dict[str, Any] = dict(effective_norms(network.eval(), inputs))
        row |= {f"train_{name}": value for name, value in evaluate(network, problem.train).items()}
        return row | {f"test_{name}": value for name, value in evaluate(network, problem.test).items()}

    before = {"epoch": 0} | measured(network)
    settings = TrainingSpec(learning_rate=1e-3, momentum=0.9, batch_size=spec.training.batch_size, epochs=epochs)

    def record(network: nn.Module, row: dict[str, Any]) -> None:
        row |= measured(network)

    result = train(network, problem.train, settings, seed=spec.seed, on_epoch=record)
    return [before, *result.history]


def _tuning_figure(runs_by_kind: Mapping[str, Sequence[Any]]) -> Figure:
    figure, axes = plots.panels(6)
    for axis, name in zip(axes, [*TUNED_LAYERS, "train_loss", "test_loss"], strict=True):
        values = {kind: [[row[name] for row in rows] for rows in runs] for kind, runs in runs_by_kind.items()}
        plots.lines(axis, values, range(len(values[WITHOUT][0])))
        title = rf"$\|w\|$ of {name}" if name in TUNED_LAYERS else name.replace("_", " ").replace("test", "validation")
        plots.set_labels(axis, title=title, xlabel="epoch of fine-tuning")
    plots.legend(figure)
    return figure


def figure_4(setting: RunSettings) -> Outcome:
    """Continue a network trained with BN without it: norms of four layers and both losses.

    The biases that keep the function are folded in too, which the paper forgets. As a control that the paper lacks, the
    same network continues with BN at the same learning rate; its norms are those of the weights that act.
    """
    scale = setting.read(__file__)
    epochs = scale["fig4"]["epochs"]
    specs = method(setting, "cnn", scale["normal"], seeds=scale["fig4"].get("seeds"))
    result = train_methods(setting, {"BN": specs})["BN"]
    finished = [RunSpec.from_dict(record.spec) for record in result.finished]
    runs_by_kind, growth, change = {}, {}, {}
    for kind, without in ((WITHOUT, True), (GOES_ON, False)):
        jobs = {f"{spec.id}-{epochs}-{without:d}": partial(fine_tune, setting, spec, epochs, without)
                for spec in finished}  # fmt: skip
        runs_by_kind[kind] = runs = list(setting.cached("fine-tuning", jobs).values())
        growth[kind] = {name: [rows[-1][name] / rows[0][name] for rows in runs] for name in TUNED_LAYERS}
        change[kind] = {name: [rows[-1][name] - rows[0][name] for rows in runs] for name in ("train_loss", "test_loss")}
    guard: Any = {"compared": (result.arm("train_accuracy"),)}
    claims = [
        claim("Fig. 4", f"the norm of {name} grows once BN is gone, more than if BN continues",
              "difference of the growths", np.subtract(growth[WITHOUT][name], growth[GOES_ON][name]),
              above=0.0, **guard)
        for name in TUNED_LAYERS
    ]  # fmt: skip
    for score, loss, says, bound in (
        ("train_loss", "training loss", "falls", {"below": 0.0}),
        ("test_loss", "validation loss", "rises", {"above": 0.0}),
    ):
        claims.append(claim("Fig. 4", f"the {loss} {says}", f"change of the {loss}", change[WITHOUT][score], **bound,
                            **guard))  # fmt: skip
    paper = PAPER | {"network": "CNN of six layers", "batch size": "128", "epochs of fine-tuning": "500"}
    return outcome(setting, specs, paper, numbers={"growth": growth, "change": change}, claims=claims,
                   figures={"norms": _tuning_figure(runs_by_kind)})  # fmt: skip


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
    Part("fig4", "Fig. 4: fine-tuning without BN and the norms of the weights", figure_4,
         "Once BN is gone, norms of the weights grow, the training loss falls and the validation loss rises."),
)  # fmt: skip
