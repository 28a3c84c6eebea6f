"""Figs. 2 to 4: batch norm taken apart in convolutional networks; and the study's list of parts."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor, nn

from gapscope.base.files import write_atomically
from gapscope.base.specs import DataSpec, Spec, TrainingSpec
from gapscope.batch_norm import replace as replace_normalization
from gapscope.batch_norm.norm_layers import BATCH_KINDS, feeding_layers
from gapscope.data import load
from gapscope.inspection.losses import scores
from gapscope.training.loop import train
from gapscope_studies.kit import plots
from gapscope_studies.kit.claims import Claim, cannot_run, claim, not_run
from gapscope_studies.kit.pool import data_hashes, stands_in_for
from gapscope_studies.kit.pool import trained as trained_network
from gapscope_studies.kit.statistics import mean
from gapscope_studies.kit.study import Outcome, Part, Setting, Study
from gapscope_studies.luo2019 import advice, excess, theory
from gapscope_studies.luo2019.networks import (
    PAPER,
    PLAIN,
    POOL,
    REACH,
    Method,
    differences,
    gamma_squared,
    larger,
    method,
    outcome,
    smaller,
    trained,
)

LAYERS = ("conv1_norm", "conv2_norm", "conv3_norm", "conv4_norm", "fc1_norm")
RESNET, CNN = {"network": "ResNet-18"}, {"network": "CNN of six layers"}
TUNED_LAYERS = ("conv1", "conv2", "conv3", "conv4")
WITHOUT, GOES_ON = "SGD without BN", "BN goes on"
Rows = Sequence[Mapping[str, Any]]


def _sizes(setting: Setting) -> tuple[int, int]:
    """The normal and the large batch size (the paper's: 128 and 1,024)."""
    scale = setting.read(__file__)
    return scale["normal"], scale["large"]


def figure_2ab(setting: Setting) -> Outcome:
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
        smaller("eq. 3", "gamma decay restores regularisation that PN lacks", decayed, pn, "test_loss"),
        smaller("control", "statistics of normal batches regularise steps of large ones", ghost, bn_large, "test_loss",
                ours=True),
    ]  # fmt: skip
    beyond = pandas.DataFrame(
        {"method": one.name, "validation loss beyond ghost BN, which decay emulates": str(mean(found))}
        for one in (pn, decayed)
        for found in [differences(one, ghost, "test_loss")]
    )
    return outcome(setting, methods, claims, RESNET, tables={"Beyond ghost BN": beyond})


def figure_2cd(setting: Setting) -> Outcome:
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
        smaller(source, "BN generalises better than WN", bn, wn, "test_loss"),
        smaller(source, "BN generalises better than SGD without it", bn, sgd, "test_loss"),
        smaller(source, "mean-only BN improves WN", mean_only, wn, "test_loss"),
        smaller(source, "variance-only BN improves WN", variance_only, wn, "test_loss"),
        smaller(source, "both statistics are better than the mean alone", bn, mean_only, "test_loss"),
        smaller(source, "both statistics are better than the variance alone", bn, variance_only, "test_loss"),
    ]
    return outcome(setting, methods, claims, CNN | {"batch size": "128"})


def slope(sizes: Sequence[int], values: Sequence[float]) -> float:
    """Least-squares slope of values by log2 of the batch size, per doubling.

    >>> round(slope([2, 4, 8], [1.0, 3.0, 5.0]), 6)
    2.0
    """
    return float(np.polyfit(np.log2(sizes), values, 1)[0])


def _slopes(group: Sequence[Method], value: Any) -> list[float]:
    """Slope of a value over the batch sizes, seed by seed, where no run diverged."""
    whole = [
        runs for runs in zip(*(m.records for m in group), strict=True) if all(r.status == "finished" for r in runs)
    ]
    return [slope([m.batch_size for m in group], [value(record) for record in runs]) for runs in whole]


def figure_2ef(setting: Setting) -> Outcome:
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
        guard: dict[str, Any] = {"compared": tuple(m.learnt("test_loss") for m in group), "reach": REACH, "above": 0.0}
        for (name, function), source, says in zip(
            functions.items(), ("Fig. 2e", "Fig. 2f", "Fig. 2f"),
            ("gamma^2 grows with the batch size", "validation loss grows with the batch size",
             "networks overfit more in larger batches"), strict=True,
        ):  # fmt: skip
            short = "the loss" if name == "validation loss" else name
            quantity = f"slope of {short} by log2 of the batch size"
            claims.append(claim(source, f"{says}, BN in {layer}", quantity, _slopes(group, function), **guard))
            by_seed = [[function(record) for record in m.finished] for m in group]
            values[name][layer] = np.array(by_seed).T if len({len(v) for v in by_seed}) == 1 else np.empty(0)
            rows += [
                {"BN in": layer, "batch": m.batch_size, "quantity": name, "mean": str(mean(found))}
                for m, found in zip(group, by_seed, strict=True)
            ]
    figure, axes = plots.panels(3)
    for axis, (name, by_layer) in zip(axes, values.items(), strict=True):
        plots.lines(axis, by_layer, sizes, style="o-")
        plots.named(axis, title=name, xscale="log", xlabel="batch size")
        axis.set_xticks(sizes, [str(size) for size in sizes])
    plots.legend(figure, "BN in")
    table = pandas.DataFrame(rows).pivot(index=["BN in", "batch"], columns="quantity", values="mean").reset_index()
    paper = CNN | {"batch size": "16 to 1,024"}
    return outcome(setting, methods, claims, paper, figure, {"By layer and batch size": table})


def figure_2gh(setting: Setting) -> Outcome:
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
        smaller(source, "dropout suppresses the loss of BN in large batches", bn_dropped, bn_large, "test_loss"),
        larger(source, "dropout raises the accuracy of BN in large batches", bn_dropped, bn_large, "test_accuracy"),
        larger(source, "dropout raises the accuracy of WN (0.90 to 0.93)", wn_dropped, wn, "test_accuracy", paper=0.03),
        smaller(source, "WN with dropout stays below BN", wn_dropped, bn, "test_accuracy"),
    ]
    return outcome(setting, methods, claims, RESNET)


def write_images(inputs: Tensor, labels: Tensor, folder: Any) -> None:
    """Write images [n, c, h, w] in [0, 1] as folder/CLASS/NUMBER.png, of grey or RGB pixels."""
    for number, (image, label) in enumerate(zip(inputs, labels.tolist(), strict=True)):
        pixels = (image * 255).round().byte().numpy()
        whole = pixels[0] if len(pixels) == 1 else np.moveaxis(pixels, 0, -1)
        target = folder / f"{label:03d}"
        target.mkdir(parents=True, exist_ok=True)
        content = io.BytesIO()
        Image.fromarray(whole).save(content, format="PNG")
        write_atomically(target / f"{number:05d}.png", content.getvalue(), durable=False)


def _images(setting: Setting, name: str, most: int | None) -> str:
    """The folder of images: ImageNet's below the data root, or the stand-in, written once into the work folder."""
    if most is None:
        return name
    target = setting.work / "images"
    if not (target / "complete").exists():
        problem = load(name, root=setting.data_root)
        for split, samples in (("train", problem.train), ("val", problem.test)):
            assert samples.targets is not None
            write_images(samples.inputs[:most], samples.targets[:most], target / split)
        write_atomically(target / "complete", "")
    return str(target.resolve())


def _on_images(setting: Setting, batch_size: int, **normalization: Any) -> list[Spec]:
    """ResNet-18 on the folder; the rate falls to a tenth at 30, 60 and 90 of 100 epochs."""
    chosen = setting.read(__file__)["fig3"]
    if normalization.get("kind") == "population":
        normalization["population_samples"] = chosen["population_samples"]
    options = {"folder": _images(setting, chosen["images"], chosen.get("most")), "side": chosen["side"]}
    changes = {
        "data": DataSpec(name="image_folder", options=options).to_dict(),
        "training.epochs": chosen["epochs"],
        "training.schedule": "step",
        "training.schedule_factor": 0.1,
        "training.schedule_epochs": max(1, round(0.3 * chosen["epochs"])),
    }
    return [spec.replace(changes) for spec in method(setting, "resnet", batch_size, **normalization)]


def figure_3(setting: Setting) -> Outcome:
    """BN of two batch sizes against PN + gamma decay in large batches, by down-sampled ImageNet's protocol."""
    normal, large = _sizes(setting)
    specs = {
        f"BN {normal}": _on_images(setting, normal),
        f"BN {large}": _on_images(setting, large),
        f"PN {large}": _on_images(setting, large, kind="population"),
        f"PN {large} + decay": _on_images(setting, large, kind="population", emulated_size=normal),
    }
    methods = trained(setting, specs)
    bn, bn_large, _, decayed = methods.values()
    claims = [
        larger("Fig. 3", "BN's validation loss grows with the batch size", bn_large, bn, "test_loss"),
        smaller("Fig. 3", "BN's accuracy falls with the batch size", bn_large, bn, "test_accuracy"),
        larger("Fig. 3", "PN + gamma decay is better than BN in large batches", decayed, bn_large, "test_accuracy"),
    ]
    return outcome(setting, methods, claims, RESNET | {"data": "ImageNet of 32 x 32 pixels, 1,000 classes"})


def effective_norms(network: nn.Module, inputs: Tensor) -> dict[str, float]:
    r"""Frobenius norm of the weights that act: $\gamma_i w_i / \bar\sigma_i$ where batch norm follows, else $w$."""
    norms = {name: layer for name, layer in network.named_modules() if isinstance(layer, BATCH_KINDS)}
    fed = {feeder: norms[name] for name, feeder in feeding_layers(network, norms, inputs).items()} if norms else {}
    found = {}
    for name in TUNED_LAYERS:
        weight: Any = network.get_submodule(name).weight
        norm: Any = fed.get(name)
        lengths = weight.detach().flatten(1).norm(dim=1)
        if norm is not None:
            lengths = lengths * (norm.weight.detach() / (norm.running_var + norm.eps).sqrt()).abs()
        found[name] = float(lengths.norm())
    return found


def fine_tune(setting: Setting, spec: Spec, epochs: int, without: bool) -> list[dict[str, Any]]:
    """Losses and norms of a trained network that is trained on at rate 1e-3, before the first epoch and after each."""
    network, problem = trained_network(setting, POOL, spec.id)
    inputs = problem.train.inputs[:2]
    if without:
        network = replace_normalization(network, "none", inputs=inputs)

    def measured(network: nn.Module) -> dict[str, Any]:
        row: dict[str, Any] = dict(effective_norms(network.eval(), inputs))
        row |= {f"train_{name}": value for name, value in scores(network, problem.train).items()}
        return row | {f"test_{name}": value for name, value in scores(network, problem.test).items()}

    before = {"epoch": 0} | measured(network)
    settings = TrainingSpec(learning_rate=1e-3, momentum=0.9, batch_size=spec.training.batch_size, epochs=epochs)

    def record(network: nn.Module, row: dict[str, Any]) -> None:
        row |= measured(network)

    result = train(network, problem.train, settings, seed=spec.seed, on_epoch=record)
    return [before, *result.history]


def growth(rows: Rows, name: str) -> float:
    """Last value over the first.

    >>> growth([{"n": 2.0}, {"n": 9.0}, {"n": 3.0}], "n")
    1.5
    """
    return float(rows[-1][name]) / float(rows[0][name])


def _change(rows: Rows, name: str) -> float:
    return float(rows[-1][name]) - float(rows[0][name])


def _tuning_figure(tuned: Mapping[str, Sequence[Rows]]) -> Figure:
    figure, axes = plots.panels(6, width=3.4, height=2.8)
    names = [*TUNED_LAYERS, "train_loss", "test_loss"]
    for axis, name in zip(axes, names, strict=True):
        by_kind = {kind: [[float(row[name]) for row in rows] for rows in found] for kind, found in tuned.items()}
        epochs = range(len(next(iter(tuned.values()))[0]))
        plots.lines(axis, by_kind, list(epochs))
        title = rf"$\|w\|$ of {name}" if name in TUNED_LAYERS else name.replace("_", " ").replace("test", "validation")
        plots.named(axis, title=title, xlabel="epoch of fine-tuning")
    plots.legend(figure)
    return figure


def _tuning_claims(tuned: Mapping[str, Sequence[Rows]], guard: Mapping[str, Any]) -> list[Claim]:
    without, going_on = tuned[WITHOUT], tuned[GOES_ON]
    claims = []
    for name in TUNED_LAYERS:
        grown = [growth(rows, name) for rows in without]
        extra = [growth(a, name) - growth(b, name) for a, b in zip(without, going_on, strict=True)]
        claims += [
            claim("Fig. 4", f"the norm of {name} grows once BN is gone", "norm after fine-tuning over before", grown,
                  above=1.0, **guard),
            claim("Fig. 4, control", f"the norm of {name} grows more than if BN goes on", "difference of the growths",
                  extra, above=0.0, ours=True, **guard),
        ]  # fmt: skip
    losses = {name: [_change(rows, name) for rows in without] for name in ("train_loss", "test_loss")}
    quantities = "change of the training loss", "change of the validation loss"
    return [
        *claims,
        claim("Fig. 4", "the training loss falls", quantities[0], losses["train_loss"], below=0.0, **guard),
        claim("Fig. 4", "the validation loss rises", quantities[1], losses["test_loss"], above=0.0, **guard),
    ]


def figure_4(setting: Setting) -> Outcome:
    """The CNN trained with BN, then trained on without it: norms of four layers and both losses.

    The biases that keep the function are folded in too, which the paper forgets. Beside it, as a control that the paper
    lacks, the same network goes on with BN at the same learning rate; its norms are those of the weights that act.
    """
    epochs = setting.read(__file__)["fig4"]["epochs"]
    specs = method(setting, "cnn", _sizes(setting)[0])
    found = trained(setting, {"BN": specs})["BN"]
    kept = [Spec.from_dict(record.spec) for record in found.finished]
    tuned = {}
    for kind, without in ((WITHOUT, True), (GOES_ON, False)):
        jobs = {f"{spec.id}-{epochs}-{without:d}": partial(fine_tune, setting, spec, epochs, without) for spec in kept}
        tuned[kind] = list(setting.remembered("fine-tuning", jobs).values())
    claims = _tuning_claims(tuned, {"compared": (found.learnt("train_accuracy"),)})
    return Outcome(
        numbers={
            "growth": {k: {n: [growth(r, n) for r in rows] for n in TUNED_LAYERS} for k, rows in tuned.items()},
            "change": {
                k: {n: [_change(r, n) for r in rows] for n in ("train_loss", "test_loss")} for k, rows in tuned.items()
            },
        },
        claims=claims,
        stands_in_for=stands_in_for(
            setting, specs, PAPER | CNN | {"batch size": "128", "epochs of fine-tuning": "500"}
        ),
        figures={"norms": _tuning_figure(tuned)},
        seeds=[spec.seed for spec in specs],
        data=data_hashes(setting, specs),
    )


STUDY = Study(
    name="luo2019",
    title="Towards Understanding Regularization in Batch Normalization",
    reference="P. Luo, X. Wang, W. Shao, Z. Peng, ICLR 2019, arXiv 1809.00846.",
    parts=(
        *theory.PARTS,
        *advice.PARTS,
        excess.PART,
        Part("fig2ab", "Fig. 2(a, b): BN, PN and gamma decay over batch sizes, ResNet-18", figure_2ab,
             "BN loses its regularisation in large batches; population norm with gamma decay keeps it."),
        Part("fig2cd", "Fig. 2(c, d): SGD, WN, mean-only, variance-only and BN", figure_2cd,
             "BN generalises better than WN and than SGD without it; both batch statistics contribute."),
        Part("fig2ef", "Fig. 2(e, f): gamma^2 and loss over batch sizes, BN in one layer", figure_2ef,
             "With larger batches gamma^2 grows, and so does the validation loss: the network overfits."),
        Part("fig2gh", "Fig. 2(g, h): dropout with BN in large batches and with WN", figure_2gh,
             "Dropout helps BN in large batches, and WN, which stays below BN."),
        Part("fig3", "Fig. 3: down-sampled ImageNet's protocol on a folder of images", figure_3,
             "What Fig. 2(a, b) shows holds on down-sampled ImageNet."),
        Part("fig4", "Fig. 4: fine-tuning without BN and the norms of the weights", figure_4,
             "Once BN is gone, norms of the weights grow, the training loss falls and the validation loss rises."),
    ),
    untested=(
        not_run("Sec. 1.1", "batch means equalise neurons", "no part"),
        not_run("Sec. 1.1", "batch variances lower the kurtosis and correlation of neurons", "no part"),
        not_run("App. B.3", "a constant decay does not help large batches", "no part"),
        not_run("App. B.3", "dropout before BN harms", "no part"),
        cannot_run("Fig. 3", "on down-sampled ImageNet itself", "the data are not on this machine"),
    ),
)  # fmt: skip
