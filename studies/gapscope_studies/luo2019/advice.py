"""Batch norm advice from networks in small batches, tested by retraining in large ones.

Two worlds: a fully connected network, where the 1/M law is exact, and the CNN of the paper's figures on data with a
fifth of the labels wrong. SGD with momentum 0.9; the learning rate is 0.1 at batches of 128, grows with the batch size
and falls to a fiftieth over the run; the number of epochs is the same for all batch sizes. All of it is ours.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pandas
from matplotlib.figure import Figure
from torch import nn

from gapscope.base.samples import Samples
from gapscope.base.specs import RunSpec
from gapscope.batch_norm.advice.batch_norm import DropoutLoss, advise_batch_norm
from gapscope.batch_norm.gamma_decay.measured_excess import batch_norm_excess
from gapscope.data import Problem
from gapscope.inspection.losses import evaluate
from gapscope.penalties.base import make_penalty
from gapscope.pools.from_spec import network_from_spec, prepared
from gapscope.results.estimate import Estimate
from gapscope.training.loop import train
from gapscope_studies.kit import plots
from gapscope_studies.kit.claims import REGULARIZED, Claim, claim
from gapscope_studies.kit.pool import outcome
from gapscope_studies.kit.statistics import mean
from gapscope_studies.kit.study import Outcome, Part, RunSettings
from gapscope_studies.luo2019.networks import arm_of

REMEDIES = ("ghost batches", "dropout", "gamma decay")
PASSES = 4
RIGHT_WITHIN = 1.5
Row = dict[str, Any]
SHOWN = ("train_loss", "train_accuracy", "test_accuracy", "gap", "test_loss")


def _specs(world: Mapping[str, Any], batch_size: int) -> list[RunSpec]:
    """Batch norm alone at one batch size, one a seed."""
    training = {
        "learning_rate": 0.1 * batch_size / 128, "momentum": 0.9, "batch_size": batch_size, "epochs": world["epochs"],
        "schedule": "exponential", "schedule_factor": 0.02 ** (1 / world["epochs"]),
    }  # fmt: skip
    content = {"data": world["data"], "network": world["network"], "training": training}
    return [RunSpec.from_dict(content | {"seed": seed}).replace({"data.seed": seed}) for seed in range(world["seeds"])]


def _train_network(
    spec: RunSpec, root: str | None, before: str = "", rate: float = 0.0
) -> tuple[nn.Module, Problem, Row]:
    """Train the network of a spec, with dropout before a layer if asked.

    Returned are the network, its problem and its scores.
    """
    problem, _ = prepared(spec, root)
    network = network_from_spec(spec, problem)
    if before:
        layers = list(network.named_children())
        place = [name for name, _ in layers].index(before)
        dropout = (f"{before}_dropout", nn.Dropout(rate))
        network = nn.Sequential(OrderedDict([*layers[:place], dropout, *layers[place:]]))
    history = train(network, problem.train, spec.training, seed=spec.seed).history
    network.eval()
    splits = {"train": problem.train, "test": problem.test}
    result = {f"{split}_{name}": value for split, s in splits.items() for name, value in evaluate(network, s).items()}
    return network, problem, result | {"curve": [float(row["train_loss"]) for row in history]}


def _batch_norm_part(network: nn.Module, samples: Samples, size: int) -> Estimate:
    """Measured excess loss of batch statistics in all layers at once."""
    return batch_norm_excess(network, samples, batch_sizes=(size,), passes=PASSES, noise_draws=0, draws=1)[-1].measured


def _apply_remedy(
    root: str | None, spec: RunSpec, normal: int, remedy: str, amount: float, before: str
) -> dict[str, Any]:
    """Train one network. What batch statistics and the remedy together add to its loss."""
    large = size = spec.training.batch_size
    decay: Any = {"batch_size": normal, "strength": amount, "batch_norm_size": large, "seed": spec.seed}
    if remedy == "ghost batches":
        size = int(amount)
        spec = spec.replace({"normalization.kind": "ghost", "normalization.emulated_size": size})
    if remedy == "gamma decay":
        steps = max(1, len(prepared(spec, root)[0].train) // large)
        options = decay | {"every": steps, "draws": 2}
        spec = spec.replace({"training.penalties": [{"name": "gamma_decay", "options": options}]})
    network, problem, result = _train_network(spec, root, before if remedy == "dropout" else "", amount)
    excess, more = _batch_norm_part(network, problem.train, size), 0.0
    if remedy == "dropout":
        more = float(DropoutLoss(network, problem.train, [before]).excess(amount))
    if remedy == "gamma decay":
        penalty = make_penalty("gamma_decay", decay | {"draws": 4, "data": problem.train})
        more = penalty(network, problem.train.inputs[:2]).item()
    return {**result, "amount": amount, "regularization": [excess + more, excess.standard_error or 0.0]}


def _ask(root: str | None, spec: RunSpec, sizes: Sequence[int], large: int) -> dict[str, Any]:
    """Train in small batches, and get advice on other batch sizes and on remedies."""
    network, problem, result = _train_network(spec, root)
    normal = spec.training.batch_size
    advice = advise_batch_norm(network, problem.train, batch_size=normal, new_batch_size=large, passes=PASSES)
    others = {size: _batch_norm_part(network, problem.train, size) for size in sizes if size != large}
    frozen = {normal: advice.total.excess, large: advice.total.new_excess, **others}
    return {
        **result,
        "amount": 0.0,
        "regularization": [float(advice.total.excess), advice.total.excess.standard_error or 0.0],
        "frozen": {str(size): [float(e), e.standard_error or 0.0] for size, e in sorted(frozen.items())},
        "advice": advice.to_dict(),
    }


def _methods(setting: RunSettings, world: Mapping[str, Any]) -> dict[str, Any]:
    """Return tables of runs by method and seed, with the predicted regularization.

    It is predicted by the networks of small batches.
    """
    normal, large, root = world["normal"], world["large"], setting.data_root
    jobs: dict[str, Any] = {spec.id: partial(_ask, root, spec, world["sizes"], large)
                            for spec in _specs(world, normal)}  # fmt: skip
    start = dict(enumerate(setting.cached("asked", jobs).values()))
    remedies = [(f"batches of {size}", size, "") for size in world["sizes"]]
    remedies += [(f"{large} with {remedy}", large, remedy) for remedy in REMEDIES]
    jobs, names = {}, {}
    for method, size, remedy in remedies:
        for spec in _specs(world, size):
            advice, amount, before = start[spec.seed]["advice"], float(normal) if remedy else 0.0, ""
            if remedy in ("dropout", "gamma decay"):
                estimate = advice["dropout" if remedy == "dropout" else "decay_strength"]
                if estimate is None:  # the advice has nothing to say
                    continue
                amount, before = estimate["value"], advice["dropout_before"][0] if remedy == "dropout" else ""
            names[method, spec.seed] = name = f"{spec.id}-{remedy.replace(' ', '-')}-{amount:.6g}"
            jobs[name] = partial(_apply_remedy, root, spec, normal, remedy, amount, before)
    result = setting.cached("advice", jobs)
    rows = [(f"batches of {normal}", seed, run) for seed, run in start.items()]
    rows += [(method, seed, result[name]) for (method, seed), name in names.items()]
    table = pandas.DataFrame(
        {"method": method, "seed": seed, "run": run, "measured": run["regularization"][0]}
        | {name: run[name] for name in ("amount", *SHOWN) if name != "gap"}
        # remedies shall restore what batches of the normal size have
        | {"predicted": start[seed]["frozen"][str(normal) if " with " in method else method.split()[-1]][0]}
        for method, seed, run in rows
    )
    table["gap"] = table["train_accuracy"] - table["test_accuracy"]
    table["ratio"] = table["measured"] / table["predicted"]
    return {str(method): runs.set_index("seed") for method, runs in table.groupby("method", sort=False)}


def _row(method: str, runs: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        "method": method,
        "amount": f"{runs['amount'].mean():.3g}" if runs["amount"].any() else "",
        "predicted": str(mean(runs["predicted"])),
        "measured": str(mean(runs["measured"])),
        "measured over predicted": "" if (runs["ratio"] == 1).all() else str(mean(runs["ratio"])),
    }
    return row | {name.replace("_", " "): str(mean(runs[name])) for name in SHOWN}


def _figure(methods: Mapping[str, Any]) -> Figure:
    figure, axes = plots.panels(3)
    predicted = {name: mean(runs["predicted"]) for name, runs in methods.items()}
    plots.points(axes[0], predicted, shift=0.12, marker="s", color="C0", label="predicted from small batches")
    titles = {"measured": "regularization, in units of the loss", "gap": "gap of accuracy", "test_loss": "test loss"}
    for axis, (score, title) in zip(axes, titles.items(), strict=True):
        style = {"shift": -0.12, "color": "C1", "label": "measured after training"} if score == "measured" else {}
        plots.points(axis, {name: mean(runs[score]) for name, runs in methods.items()}, **style)
        plots.set_labels(axis, title=title)
    plots.legend(figure)
    return figure


def _claims(methods: Mapping[str, Any], world: Mapping[str, Any], chance: float) -> list[Claim]:
    """Return claims that advised networks are regularized as predicted and have lower loss.

    The loss is that on test samples.
    """
    small, alone = f"batches of {world['normal']}", f"batches of {world['large']}"
    arms = {name: arm_of(name, runs["run"], chance) for name, runs in methods.items()}

    def difference(one: str, other: str, says: str, **more: Any) -> Claim:
        values = (methods[one]["test_loss"] - methods[other]["test_loss"]).dropna()
        return claim("advice", says, "difference of test loss", values, ours=True, compared=(arms[one], arms[other]),
                     **more)  # fmt: skip

    claims = [difference(alone, small, f"{world['large']} alone have a larger test loss than {small}", above=0.0)]
    for name, runs in list(methods.items())[1:]:
        says = f"{name}: the predicted regularization is right within a factor of {RIGHT_WITHIN}"
        claims.append(claim("advice", says, "measured over predicted", runs["ratio"], above=1 / RIGHT_WITHIN,
                            below=RIGHT_WITHIN, ours=True, compared=(arms[name],)))  # fmt: skip
        if " with " in name:
            says = f"{name}: a lower test loss than {alone}"
            claims.append(difference(name, alone, says, below=0.0, **REGULARIZED))
    return claims


def _try_advice(setting: RunSettings, name: str) -> Outcome:
    """Ask networks of small batches, do in large ones what they advise, and compare."""
    world = setting.read(__file__)["advice"][name]
    methods = _methods(setting, world)
    specs = [spec for size in (world["normal"], *world["sizes"]) for spec in _specs(world, size)]
    numbers = {
        method: {"predicted": runs["predicted"].to_list(), "measured": runs["measured"].to_list(),
                 "runs": runs["run"].to_list()}
        for method, runs in methods.items()
    }  # fmt: skip
    return outcome(
        setting, specs, numbers={"methods": numbers},
        claims=_claims(methods, world, 1 / prepared(specs[0], setting.data_root)[0].n_outputs),
        tables={
            "Predicted by the networks of small batches, and measured (mean over seeds, 95 % t interval)": (
                pandas.DataFrame(_row(method, runs) for method, runs in methods.items())
            ),
        },
        figures={"advice": _figure(methods)},
    )  # fmt: skip


PARTS = (
    Part("advice", "Advice on batch norm, followed: fully connected networks", partial(_try_advice, name="advice"),
         "Ours: what a change of batch size does to the regularization of batch norm, and what restores it.",
         ours=True),
    Part("advice_cnn", "Advice on batch norm, followed: CNN, wrong labels",
         partial(_try_advice, name="advice_cnn"),
         "Ours: as above, in a CNN on data with wrong labels.", ours=True),
)  # fmt: skip
