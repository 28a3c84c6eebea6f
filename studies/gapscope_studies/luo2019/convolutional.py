"""Batch norm taken apart in CNNs, and effects of training without it (Figs. 2 to 4)."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from torch import Tensor, nn

from gapscope.base.specs import DataSpec, RunSpec, TrainingSpec
from gapscope.batch_norm import replace_batch_norm
from gapscope.batch_norm.norm_layers import BATCH_KINDS, preceding_layers
from gapscope.data import load_dataset
from gapscope.inspection.losses import evaluate
from gapscope.training.checkpoints import load_tensors
from gapscope.training.loop import train
from gapscope_studies.kit import plots
from gapscope_studies.kit.claims import REGULARIZED, claim
from gapscope_studies.kit.data import image_folder
from gapscope_studies.kit.pool import load_network, outcome, weights_of
from gapscope_studies.kit.runs import interval_table
from gapscope_studies.kit.study import Outcome, RunSettings
from gapscope_studies.luo2019.networks import (
    PAPER,
    PLAIN,
    POOL,
    arm_of,
    claims_of,
    compare_methods,
    make_specs,
    scale_epochs,
    train_methods,
)

LAYERS = ("conv1_norm", "conv2_norm", "conv3_norm", "conv4_norm", "fc1_norm")
RESNET, CNN = {"network": "ResNet-18"}, {"network": "CNN of six layers"}
TUNED_LAYERS = ("conv1", "conv2", "conv3", "conv4")
WITHOUT, CONTINUED = "SGD without BN", "BN goes on"


def _sizes(setting: RunSettings) -> tuple[int, int]:
    """Return the normal and the large batch size (the paper's: 128 and 1,024)."""
    scale = setting.read(__file__)
    return scale["normal"], scale["large"]


def figure_2ab(setting: RunSettings) -> Outcome:
    """BN against PN and PN + gamma decay at a normal and a large batch size, ResNet-18.

    Ours: PN alone, and ghost batch norm (large batches with the statistics of normal ones). It takes the same steps as
    PN + decay, so their comparison isolates the decay; BN in normal batches also has noisier steps.
    """
    normal, large = _sizes(setting)
    specs = {
        f"BN {normal}": make_specs(setting, "resnet", normal),
        f"BN {large}": make_specs(setting, "resnet", large),
        f"ghost BN {large}/{normal}": make_specs(
            setting, "resnet", large, kind="ghost", emulated_size=normal
        ),
        f"PN {large}": make_specs(setting, "resnet", large, kind="population"),
        f"PN {large} + decay": make_specs(
            setting, "resnet", large, kind="population", emulated_size=normal
        ),
    }
    runs = train_methods(setting, specs)
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
    return compare_methods(setting, runs, RESNET, claims=claims_of("Fig. 2a-b", runs, rows))


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
    runs = train_methods(
        setting, {name: make_specs(setting, "cnn", normal, **kind) for name, kind in kinds.items()}
    )
    sgd, wn, mean_only, variance_only, bn = kinds
    rows = [
        ("BN has a lower validation loss than WN", bn, wn, "smaller", "test_loss"),
        ("BN has a lower validation loss than SGD without it", bn, sgd, "smaller", "test_loss"),
        ("mean-only BN improves WN", mean_only, wn, "smaller", "test_loss"),
        ("variance-only BN improves WN", variance_only, wn, "smaller", "test_loss"),
        (
            "both statistics have a lower validation loss than the mean alone",
            bn,
            mean_only,
            "smaller",
            "test_loss",
        ),
        (
            "both statistics are better than the variance alone",
            bn,
            variance_only,
            "smaller",
            "test_loss",
        ),
        # a loss above ln 10 is overconfidence on images that are memorized: what generalizes is the accuracy
        ("BN has a higher accuracy than WN", bn, wn, "larger", "test_accuracy"),
        ("BN has a higher accuracy than SGD without it", bn, sgd, "larger", "test_accuracy"),
        ("mean-only BN has a higher accuracy than WN", mean_only, wn, "larger", "test_accuracy"),
        (
            "both statistics have a higher accuracy than the mean alone",
            bn,
            mean_only,
            "larger",
            "test_accuracy",
        ),
    ]
    claims = claims_of("Fig. 2c-d", runs, rows)
    return compare_methods(setting, runs, CNN | {"batch size": "128"}, claims=claims)


def figure_2ef(setting: RunSettings) -> Outcome:
    """Compare gamma^2 and validation loss over batch sizes, with BN in one layer at a time."""
    scale = setting.read(__file__)["fig2ef"]
    sizes, epochs = scale["sizes"], scale["epochs"]
    specs = {f"{layer}, {size}": make_specs(setting, "cnn", size, epochs=epochs, only_in=layer)
             for layer in LAYERS for size in sizes}  # fmt: skip
    runs = train_methods(setting, specs)
    table = runs[runs["status"] == "finished"].copy()
    table["BN in"] = table["method"].str.partition(",")[0]
    tensors = [load_tensors(weights_of(setting, POOL, key))[0] for key in table["id"]]
    gammas = [
        weights[f"{layer}.weight"] for weights, layer in zip(tensors, table["BN in"], strict=True)
    ]
    table["gamma^2"] = [gamma.square().mean().item() for gamma in gammas]
    table["validation loss"] = table["test_loss"]
    table["validation minus training loss"] = table["test_loss"] - table["train_loss"]
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
        # rows are seeds of which no run diverged, columns batch sizes
        grids = {str(layer): rows.pivot(index="seed", columns="batch", values=name).reindex(columns=sizes).dropna()
                 for layer, rows in table.groupby("BN in", sort=False)}  # fmt: skip
        for layer, grid in grids.items():
            slopes = np.polyfit(np.log2(sizes), grid.to_numpy().T, 1)[0] if len(grid) else []
            arms = [arm_of(runs, f"{layer}, {size}") for size in sizes]
            claims.append(claim(source, f"{says}, BN in {layer}", f"slope of {short} by log2 of the batch size", slopes,
                                compared=arms, above=0.0))  # fmt: skip
        plots.lines(axis, grids, sizes, style="o-")
        plots.set_labels(axis, title=name, xscale="log", xlabel="batch size")
        axis.set_xticks(sizes, [str(size) for size in sizes])
    plots.legend(figure, "BN in")
    means = interval_table(table, ("BN in", "batch"), {name: name for name in texts})
    return compare_methods(
        setting, runs, CNN | {"batch size": "16 to 1,024"}, claims=claims, figures={"curves": figure},
        tables={"By layer and batch size": means},
    )  # fmt: skip


def figure_2gh(setting: RunSettings) -> Outcome:
    """Compare dropout after every residual block, for BN in large batches and for WN."""
    normal, large = _sizes(setting)
    dropped, plain_dropped = {"dropout": 0.1}, PLAIN | {"dropout": 0.2}
    specs = {
        f"BN {normal}": make_specs(setting, "resnet", normal),
        f"BN {large}": make_specs(setting, "resnet", large),
        f"BN {large} + dropout": make_specs(setting, "resnet", large, options=dropped),
        f"WN {normal}": make_specs(setting, "resnet", normal, options=PLAIN, weight_norm=True),
        f"WN {normal} + dropout": make_specs(
            setting, "resnet", normal, options=plain_dropped, weight_norm=True
        ),
    }
    runs = train_methods(setting, specs)
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
    return compare_methods(setting, runs, RESNET, claims=claims_of("Fig. 2g-h", runs, rows))


def _on_images(setting: RunSettings, batch_size: int, **normalization: Any) -> list[RunSpec]:
    """Return specs of ResNet-18 on a folder of images (rate / 10 at 30, 60 and 90 %)."""
    scale = setting.read(__file__)["fig3"]
    if normalization.get("kind") == "population":
        normalization["population_samples"] = scale["population_samples"]
    folder, most = scale["images"], scale.get("most")
    if (
        most is not None
    ):  # in place of ImageNet's folder below the data root, written once into the work folder
        problem = partial(load_dataset, folder, root=setting.data_root)
        folder = str(image_folder(setting.work / "images", problem, most).resolve())
    options = {"folder": folder, "side": scale["side"]}
    epochs = scale_epochs(setting.read(__file__), batch_size, scale["epochs"])
    changes = {
        "data": DataSpec(name="image_folder", options=options).to_dict(),
        "training.epochs": epochs,
        "training.schedule": "step",
        "training.schedule_factor": 0.1,
        "training.schedule_epochs": max(1, round(0.3 * epochs)),
    }
    return [
        spec.replace(changes) for spec in make_specs(setting, "resnet", batch_size, **normalization)
    ]


def figure_3(setting: RunSettings) -> Outcome:
    """Compare BN of two batch sizes with PN + gamma decay, as on down-sampled ImageNet."""
    normal, large = _sizes(setting)
    specs = {
        f"BN {normal}": _on_images(setting, normal),
        f"BN {large}": _on_images(setting, large),
        f"PN {large} + decay": _on_images(
            setting,
            large,
            kind="population",
            emulated_size=normal,
            seeds=setting.read(__file__)["fig3"].get("decayed"),
        ),
    }
    runs = train_methods(setting, specs)
    bn, bn_large, decayed = specs
    rows = [
        ("BN's validation loss grows with the batch size", bn_large, bn, "larger", "test_loss"),
        ("BN's accuracy falls with the batch size", bn_large, bn, "smaller", "test_accuracy"),
        (
            "PN + gamma decay is better than BN in large batches",
            decayed,
            bn_large,
            "larger",
            "test_accuracy",
        ),
    ]
    paper = RESNET | {"data": "ImageNet of 32 x 32 pixels, 1,000 classes"}
    return compare_methods(setting, runs, paper, claims=claims_of("Fig. 3", runs, rows))


def effective_norms(network: nn.Module, inputs: Tensor) -> dict[str, float]:
    r"""Return Frobenius norms of $\gamma_i w_i / \bar\sigma_i$, of $w$ without batch norm."""
    norms = {
        name: layer for name, layer in network.named_modules() if isinstance(layer, BATCH_KINDS)
    }
    norm_behind = (
        {layer: norms[name] for name, layer in preceding_layers(network, norms, inputs).items()}
        if norms
        else {}
    )
    result = {}
    for name in TUNED_LAYERS:
        weight: Any = network.get_submodule(name).weight
        norm: Any = norm_behind.get(name)
        lengths = weight.detach().flatten(1).norm(dim=1)
        if norm is not None:
            lengths = lengths * (norm.weight.detach() / (norm.running_var + norm.eps).sqrt()).abs()
        result[name] = float(lengths.norm())
    return result


def fine_tune(
    setting: RunSettings, spec: RunSpec, epochs: int, without: bool
) -> list[dict[str, Any]]:
    """Continue training at rate 1e-3, and return losses and norms from its start on."""
    network, problem = load_network(setting, POOL, spec.id)
    inputs = problem.train.inputs[:2]
    if without:
        network = replace_batch_norm(network, "none", inputs=inputs)

    def measure(network: nn.Module) -> dict[str, Any]:
        row: dict[str, Any] = dict(effective_norms(network.eval(), inputs))
        row |= {f"train_{name}": value for name, value in evaluate(network, problem.train).items()}
        return row | {
            f"test_{name}": value for name, value in evaluate(network, problem.test).items()
        }

    before = {"epoch": 0} | measure(network)
    settings = TrainingSpec(
        learning_rate=1e-3, momentum=0.9, batch_size=spec.training.batch_size, epochs=epochs
    )

    def record(network: nn.Module, row: dict[str, Any]) -> None:
        row |= measure(network)

    result = train(network, problem.train, settings, seed=spec.seed, on_epoch=record)
    return [before, *result.history]


def figure_4(setting: RunSettings) -> Outcome:
    """Continue a network trained with BN without it: norms of four layers and both losses.

    Biases that keep the function are folded in, which the paper omits. Our control: the same network continues with BN
    at the same learning rate, and its norms are those of the effective weights.
    """
    scale = setting.read(__file__)
    epochs = scale["fig4"]["epochs"]
    specs = make_specs(setting, "cnn", scale["normal"], seeds=scale["fig4"].get("seeds"))
    runs = train_methods(setting, {"BN": specs})
    finished = [
        spec for spec, status in zip(specs, runs["status"], strict=True) if status == "finished"
    ]
    names = (*TUNED_LAYERS, "train_loss", "test_loss")
    curves: dict[str, dict[str, np.ndarray]] = {}  # kind -> norm or loss -> values [runs, epochs]
    for kind, without in ((WITHOUT, True), (CONTINUED, False)):
        jobs = {f"{spec.id}-{epochs}-{without:d}": partial(fine_tune, setting, spec, epochs, without)
                for spec in finished}  # fmt: skip
        results = setting.cached("fine-tuning", jobs).values()
        curves[kind] = {
            name: np.array([[row[name] for row in rows] for rows in results]) for name in names
        }
    figure, axes = plots.panels(6)
    for axis, name in zip(axes, names, strict=True):
        plots.lines(
            axis, {kind: values[name] for kind, values in curves.items()}, range(epochs + 1)
        )
        title = (
            rf"$\|w\|$ of {name}"
            if name in TUNED_LAYERS
            else name.replace("_", " ").replace("test", "validation")
        )
        plots.set_labels(axis, title=title, xlabel="epoch of fine-tuning")
    plots.legend(figure)
    growth, change = {}, {}
    for kind, values in curves.items():
        growth[kind] = {
            name: (values[name][:, -1] / values[name][:, 0]).tolist() for name in TUNED_LAYERS
        }
        change[kind] = {
            name: (values[name][:, -1] - values[name][:, 0]).tolist() for name in names[-2:]
        }
    guard: Any = {"compared": (arm_of(runs, "BN"),)}
    claims = [
        claim("Fig. 4", f"the norm of {name} grows once BN is gone, more than if BN continues",
              "difference of the growths", np.subtract(growth[WITHOUT][name], growth[CONTINUED][name]),
              above=0.0, **guard)
        for name in TUNED_LAYERS
    ]  # fmt: skip
    claims += [
        claim("Fig. 4", "the training loss falls", "change of the training loss", change[WITHOUT]["train_loss"],
              below=0.0, **guard),
        claim("Fig. 4", "the validation loss rises", "change of the validation loss", change[WITHOUT]["test_loss"],
              above=0.0, **guard),
    ]  # fmt: skip
    paper = PAPER | {
        "network": "CNN of six layers",
        "batch size": "128",
        "epochs of fine-tuning": "500",
    }
    return outcome(setting, specs, paper, numbers={"growth": growth, "change": change}, claims=claims,
                   figures={"norms": figure})  # fmt: skip
