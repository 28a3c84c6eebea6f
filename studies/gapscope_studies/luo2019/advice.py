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
from gapscope.pools.from_spec import network_from_spec, prepare_data
from gapscope.results.estimate import Estimate
from gapscope.training.loop import train
from gapscope_studies.kit import plots
from gapscope_studies.kit.claims import REGULARIZED, Claim, claim
from gapscope_studies.kit.pool import outcome
from gapscope_studies.kit.runs import differences, interval_table
from gapscope_studies.kit.statistics import mean
from gapscope_studies.kit.study import Outcome, RunSettings, Table
from gapscope_studies.luo2019.networks import dictionary_arm

REMEDIES = ("ghost batches", "dropout", "gamma decay")
PASSES = 4
RIGHT_WITHIN = 1.5
SCORES = ("train_loss", "train_accuracy", "test_accuracy", "gap", "test_loss")


def _specs(world: Mapping[str, Any], batch_size: int) -> list[RunSpec]:
    """Return the specs of batch norm alone at one batch size, one per seed."""
    training = {
        "learning_rate": 0.1 * batch_size / 128, "momentum": 0.9, "batch_size": batch_size, "epochs": world["epochs"],
        "schedule": "exponential", "schedule_factor": 0.02 ** (1 / world["epochs"]),
    }  # fmt: skip
    content = {"data": world["data"], "network": world["network"], "training": training}
    return [
        RunSpec.from_dict(content | {"seed": seed}).replace({"data.seed": seed})
        for seed in range(world["seeds"])
    ]


def _train_network(
    spec: RunSpec, root: str | None, before: str = "", rate: float = 0.0
) -> tuple[nn.Module, Problem, dict[str, Any]]:
    """Train a network, with dropout before a named layer, and return it with its scores."""
    problem, _ = prepare_data(spec, root)
    network = network_from_spec(spec, problem)
    if before:
        layers = list(network.named_children())
        layers.insert(
            [name for name, _ in layers].index(before), (f"{before}_dropout", nn.Dropout(rate))
        )
        network = nn.Sequential(OrderedDict(layers))
    history = train(network, problem.train, spec.training, seed=spec.seed).history
    network.eval()
    splits = {"train": problem.train, "test": problem.test}
    result = {
        f"{split}_{name}": value
        for split, s in splits.items()
        for name, value in evaluate(network, s).items()
    }
    return network, problem, result | {"curve": [float(row["train_loss"]) for row in history]}


def _measure_excess(network: nn.Module, samples: Samples, size: int) -> Estimate:
    return batch_norm_excess(
        network, samples, batch_sizes=(size,), passes=PASSES, noise_draws=0, draws=1
    )[-1].measured


def _apply_remedy(
    root: str | None, spec: RunSpec, normal: int, remedy: str, amount: float, before: str
) -> dict[str, Any]:
    """Train one network, and measure what batch statistics and remedy add to its loss."""
    large = size = spec.training.batch_size
    decay: Any = {
        "batch_size": normal,
        "strength": amount,
        "batch_norm_size": large,
        "seed": spec.seed,
    }
    if remedy == "ghost batches":
        size = int(amount)
        spec = spec.replace({"normalization.kind": "ghost", "normalization.emulated_size": size})
    if remedy == "gamma decay":
        steps = max(1, len(prepare_data(spec, root)[0].train) // large)
        options = decay | {"every": steps, "draws": 2}
        spec = spec.replace({"training.penalties": [{"name": "gamma_decay", "options": options}]})
    network, problem, result = _train_network(
        spec, root, before if remedy == "dropout" else "", amount
    )
    excess, from_remedy = _measure_excess(network, problem.train, size), 0.0
    if remedy == "dropout":
        from_remedy = float(DropoutLoss(network, problem.train, [before]).excess(amount))
    if remedy == "gamma decay":
        penalty = make_penalty("gamma_decay", decay | {"draws": 4, "data": problem.train})
        from_remedy = penalty(network, problem.train.inputs[:2]).item()
    return {
        **result,
        "amount": amount,
        "regularization": [excess + from_remedy, excess.standard_error or 0.0],
    }


def _advise(root: str | None, spec: RunSpec, sizes: Sequence[int], large: int) -> dict[str, Any]:
    """Train in small batches, and get advice on other batch sizes and on remedies."""
    network, problem, result = _train_network(spec, root)
    normal = spec.training.batch_size
    advice = advise_batch_norm(
        network,
        problem.train,
        batch_size=normal,
        new_batch_size=large,
        passes=PASSES,
        time_budget=None,
    )
    frozen = {
        size: _measure_excess(network, problem.train, size) for size in sizes if size != large
    }
    frozen |= {normal: advice.total.excess, large: advice.total.new_excess}
    return {
        **result,
        "amount": 0.0,
        "regularization": [float(advice.total.excess), advice.total.excess.standard_error or 0.0],
        "frozen": {
            str(size): [float(e), e.standard_error or 0.0] for size, e in sorted(frozen.items())
        },
        "advice": advice.to_dict(),
    }


def _train_methods(setting: RunSettings, world: Mapping[str, Any]) -> Table:
    """Return one row per method and seed, with the regularization that small batches predict."""
    normal, large, root = world["normal"], world["large"], setting.data_root
    jobs: dict[str, Any] = {spec.id: partial(_advise, root, spec, world["sizes"], large)
                            for spec in _specs(world, normal)}  # fmt: skip
    start = dict(enumerate(setting.cached("asked", jobs).values()))
    remedies = [(f"batches of {size}", size, "") for size in world["sizes"]]
    remedies += [(f"{large} with {remedy}", large, remedy) for remedy in REMEDIES]
    jobs, names = {}, {}
    for method, size, remedy in remedies:
        for spec in _specs(world, size):
            advice, amount, before = (
                start[spec.seed]["advice"],
                float(normal) if remedy else 0.0,
                "",
            )
            if remedy in ("dropout", "gamma decay"):
                estimate = advice["dropout" if remedy == "dropout" else "decay_strength"]
                if estimate is None:  # the advice abstains
                    continue
                amount, before = (
                    estimate["value"],
                    advice["dropout_before"][0] if remedy == "dropout" else "",
                )
            names[method, spec.seed] = name = f"{spec.id}-{remedy.replace(' ', '-')}-{amount:.6g}"
            jobs[name] = partial(_apply_remedy, root, spec, normal, remedy, amount, before)
    result = setting.cached("advice", jobs)
    rows = [(f"batches of {normal}", seed, run) for seed, run in start.items()]
    rows += [(method, seed, result[name]) for (method, seed), name in names.items()]
    table = pandas.DataFrame(
        {"method": method, "seed": seed, "run": run, "measured": run["regularization"][0], **run}
        # remedies restore what batches of the normal size have
        | {
            "predicted": start[seed]["frozen"][
                str(normal) if " with " in method else method.split()[-1]
            ][0]
        }
        for method, seed, run in rows
    )
    table["gap"] = table["train_accuracy"] - table["test_accuracy"]
    table["ratio"] = table["measured"] / table["predicted"]
    return table


def _figure(runs: Table) -> Figure:
    figure, axes = plots.panels(3)
    intervals = {
        column: {
            str(name): mean(values.to_numpy())
            for name, values in runs.groupby("method", sort=False)[column]
        }
        for column in ("predicted", "measured", "gap", "test_loss")
    }
    predicted: Any = {"marker": "s", "color": "C0", "label": "predicted from small batches"}
    plots.points(axes[0], intervals["predicted"], shift=0.12, **predicted)
    plots.points(
        axes[0], intervals["measured"], shift=-0.12, color="C1", label="measured after training"
    )
    plots.points(axes[1], intervals["gap"])
    plots.points(axes[2], intervals["test_loss"])
    titles = ("regularization, in units of the loss", "gap of accuracy", "test loss")
    for axis, title in zip(axes, titles, strict=True):
        plots.set_labels(axis, title=title)
    plots.legend(figure)
    return figure


def _claims(runs: Table, world: Mapping[str, Any], chance: float) -> list[Claim]:
    small, alone = f"batches of {world['normal']}", f"batches of {world['large']}"
    groups = dict(list(runs.groupby("method", sort=False)))
    arms = {name: dictionary_arm(name, group, chance) for name, group in groups.items()}

    def difference(one: str, other: str, says: str, **more: Any) -> Claim:
        return claim("advice", says, "difference of test loss", differences(runs, one, other, "test_loss"),
                     ours=True, compared=(arms[one], arms[other]), **more)  # fmt: skip

    claims = [
        difference(
            alone, small, f"{world['large']} alone have a larger test loss than {small}", above=0.0
        )
    ]
    for name, group in list(groups.items())[1:]:
        says = f"{name}: the predicted regularization is right within a factor of {RIGHT_WITHIN}"
        claims.append(claim("advice", says, "measured over predicted", group["ratio"], above=1 / RIGHT_WITHIN,
                            below=RIGHT_WITHIN, ours=True, compared=(arms[name],)))  # fmt: skip
        if " with " in name:
            says = f"{name}: a lower test loss than {alone}"
            claims.append(difference(name, alone, says, below=0.0, **REGULARIZED))
    return claims


def follow_advice(setting: RunSettings, name: str) -> Outcome:
    """Get advice from networks of small batches, follow it in large ones, and compare."""
    world = setting.read(__file__)["advice"][name]
    runs = _train_methods(setting, world)
    specs = [spec for size in (world["normal"], *world["sizes"]) for spec in _specs(world, size)]
    groups = runs.groupby("method", sort=False)
    titles = {"predicted": "predicted", "measured": "measured", "ratio": "measured over predicted"}
    table = interval_table(
        runs, "method", titles | {score: score.replace("_", " ") for score in SCORES}
    )
    amounts = groups["amount"].mean()
    table.insert(1, "amount", [f"{amount:.3g}" if amount else "" for amount in amounts])
    table.loc[0, "measured over predicted"] = ""  # batches of the normal size predict themselves
    return outcome(
        setting, specs,
        numbers={"methods": {method: group[["predicted", "measured"]].to_dict("list") | {"runs": group["run"].to_list()}
                             for method, group in groups}},
        claims=_claims(runs, world, 1 / prepare_data(specs[0], setting.data_root)[0].n_outputs),
        tables={"Predicted by the networks of small batches, and measured (mean over seeds, 95 % t interval)": table},
        figures={"advice": _figure(runs)},
    )  # fmt: skip
