"""Fig. 4: a network trained with batch norm is trained on without it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from matplotlib.figure import Figure
from torch import Tensor, nn

from gapscope.base.specs import RunSpec, TrainingSpec
from gapscope.batch_norm import replace_batch_norm as replace_normalization
from gapscope.batch_norm.norm_layers import BATCH_KINDS, preceding_layers
from gapscope.inspection.losses import evaluate
from gapscope.training.loop import train
from gapscope_studies.kit import plots
from gapscope_studies.kit.claims import claim
from gapscope_studies.kit.pool import outcome
from gapscope_studies.kit.pool import trained as trained_network
from gapscope_studies.kit.study import Outcome, Part, RunSettings
from gapscope_studies.luo2019.networks import PAPER, POOL, method, trained

TUNED_LAYERS = ("conv1", "conv2", "conv3", "conv4")
WITHOUT, GOES_ON = "SGD without BN", "BN goes on"
Rows = Sequence[Mapping[str, Any]]


def effective_norms(network: nn.Module, inputs: Tensor) -> dict[str, float]:
    r"""Frobenius norm of the weights that act: $\gamma_i w_i / \bar\sigma_i$ where batch norm follows, else $w$."""
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
    """Losses and norms of a trained network that is trained on at rate 1e-3, before the first epoch and after each."""
    network, problem = trained_network(setting, POOL, spec.id)
    inputs = problem.train.inputs[:2]
    if without:
        network = replace_normalization(network, "none", inputs=inputs)

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


def growth(rows: Rows, name: str) -> float:
    """Last value over the first.

    >>> growth([{"n": 2.0}, {"n": 9.0}, {"n": 3.0}], "n")
    1.5
    """
    return float(rows[-1][name]) / float(rows[0][name])


def _change(rows: Rows, name: str) -> float:
    return float(rows[-1][name]) - float(rows[0][name])


def _tuning_figure(tuned: Mapping[str, Sequence[Rows]]) -> Figure:
    figure, axes = plots.panels(6)
    names = [*TUNED_LAYERS, "train_loss", "test_loss"]
    for axis, name in zip(axes, names, strict=True):
        by_kind = {kind: [[float(row[name]) for row in rows] for rows in result] for kind, result in tuned.items()}
        epochs = range(len(next(iter(tuned.values()))[0]))
        plots.lines(axis, by_kind, list(epochs))
        title = rf"$\|w\|$ of {name}" if name in TUNED_LAYERS else name.replace("_", " ").replace("test", "validation")
        plots.named(axis, title=title, xlabel="epoch of fine-tuning")
    plots.legend(figure)
    return figure


def figure_4(setting: RunSettings) -> Outcome:
    """The CNN trained with BN, then trained on without it: norms of four layers and both losses.

    The biases that keep the function are folded in too, which the paper forgets. Beside it, as a control that the paper
    lacks, the same network continues with BN at the same learning rate; its norms are those of the weights that act.
    """
    scale = setting.read(__file__)
    epochs = scale["fig4"]["epochs"]
    specs = method(setting, "cnn", scale["normal"], seeds=scale["fig4"].get("seeds"))
    result = trained(setting, {"BN": specs})["BN"]
    kept = [RunSpec.from_dict(record.spec) for record in result.finished]
    tuned = {}
    for kind, without in ((WITHOUT, True), (GOES_ON, False)):
        jobs = {f"{spec.id}-{epochs}-{without:d}": partial(fine_tune, setting, spec, epochs, without) for spec in kept}
        tuned[kind] = list(setting.cached("fine-tuning", jobs).values())
    paper = PAPER | {"network": "CNN of six layers", "batch size": "128", "epochs of fine-tuning": "500"}
    guard: Any = {"compared": (result.learnt("train_accuracy"),)}
    claims = [
        claim("Fig. 4", f"the norm of {name} grows once BN is gone, more than if BN continues",
              "difference of the growths",
              [growth(a, name) - growth(b, name) for a, b in zip(tuned[WITHOUT], tuned[GOES_ON], strict=True)],
              above=0.0, **guard)
        for name in TUNED_LAYERS
    ]  # fmt: skip
    for score, words, bound in (
        ("train_loss", ("training", "falls"), {"below": 0.0}), ("test_loss", ("validation", "rises"), {"above": 0.0}),
    ):  # fmt: skip
        values = [_change(rows, score) for rows in tuned[WITHOUT]]
        says, quantity = f"the {words[0]} loss {words[1]}", f"change of the {words[0]} loss"
        claims.append(claim("Fig. 4", says, quantity, values, **bound, **guard))
    return outcome(
        setting,
        specs,
        paper,
        numbers={
            "growth": {k: {n: [growth(r, n) for r in rows] for n in TUNED_LAYERS} for k, rows in tuned.items()},
            "change": {
                k: {n: [_change(r, n) for r in rows] for n in ("train_loss", "test_loss")} for k, rows in tuned.items()
            },
        },
        claims=claims,
        figures={"norms": _tuning_figure(tuned)},
    )


PART = Part("fig4", "Fig. 4: fine-tuning without BN and the norms of the weights", figure_4,
     "Once BN is gone, norms of the weights grow, the training loss falls and the validation loss rises.")  # fmt: skip
