"""Advice on batch norm put to the test: networks trained in small batches, asked, and retrained in large ones.

Two worlds: a fully connected network, where the 1/M law is exact, and the CNN of the paper's figures on data with a
fifth of the labels wrong. SGD with momentum 0.9; the learning rate is 0.1 at batches of 128, grows with the batch size
and falls to a fiftieth over the run; the number of epochs is the same for all batch sizes. All of it is ours.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
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
from gapscope_studies.kit.claims import REGULARIZED, Claim, ComparisonArm, claim, downsample_curve
from gapscope_studies.kit.pool import outcome
from gapscope_studies.kit.statistics import mean
from gapscope_studies.kit.study import Outcome, Part, RunSettings

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


def _trained(spec: RunSpec, root: str | None, before: str = "", rate: float = 0.0) -> tuple[nn.Module, Problem, Row]:
    """The network of a spec, with dropout before a layer if asked, trained. Its problem. Its scores."""
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
    network, problem, result = _trained(spec, root, before if remedy == "dropout" else "", amount)
    excess, more = _batch_norm_part(network, problem.train, size), 0.0
    if remedy == "dropout":
        more = float(DropoutLoss(network, problem.train, [before]).excess(amount))
    if remedy == "gamma decay":
        penalty = make_penalty("gamma_decay", decay | {"draws": 4, "data": problem.train})
        more = penalty(network, problem.train.inputs[:2]).item()
    return {**result, "amount": amount, "regularization": [excess + more, excess.standard_error or 0.0]}


def _asked(root: str | None, spec: RunSpec, sizes: Sequence[int], large: int) -> dict[str, Any]:
    """Train in small batches. Ask what other batch sizes would change and what would restore it."""
    network, problem, result = _trained(spec, root)
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


def _follow(remedy: str, advice: Mapping[str, Any], normal: int) -> tuple[float, str] | None:
    """Amount and layer of what the advice says. None where it has nothing to say."""
    if remedy == "ghost batches":
        return float(normal), ""
    given = advice["dropout" if remedy == "dropout" else "decay_strength"]
    before = advice["dropout_before"][0] if remedy == "dropout" else ""
    return None if given is None else (given["value"], before)


@dataclass(frozen=True)
class AdviceOutcome:
    """Runs of one method by seed, with the regularization that networks of small batches predict."""

    name: str
    predicted: Mapping[int, float]
    runs: Mapping[int, dict[str, Any]]

    def score(self, name: str) -> dict[int, float]:
        """Scores by seed ("gap": train minus test accuracy, "measured": regularization)."""
        if name == "gap":
            return {seed: run["train_accuracy"] - run["test_accuracy"] for seed, run in self.runs.items()}
        if name == "measured":
            return {seed: run["regularization"][0] for seed, run in self.runs.items()}
        return {seed: run[name] for seed, run in self.runs.items()}

    def minus(self, other: AdviceOutcome, name: str) -> list[float]:
        """Differences of a score, seed by seed, where both have one."""
        theirs = other.score(name)
        return [value - theirs[seed] for seed, value in self.score(name).items() if seed in theirs]

    def learnt(self, chance: float) -> ComparisonArm:
        """Return how well its networks learned, for the guard."""
        return ComparisonArm(
            name=self.name, train_accuracy=float(np.median([*self.score("train_accuracy").values()])), chance=chance,
            train_loss=float(np.median([*self.score("train_loss").values()])),
            curve=downsample_curve([run.get("curve", ()) for run in self.runs.values()]), falling=True,
        )  # fmt: skip

    @property
    def ratios(self) -> list[float]:
        """Measured over predicted regularization."""
        return [value / self.predicted[seed] for seed, value in self.score("measured").items()]


def _methods(setting: RunSettings, world: Mapping[str, Any]) -> list[AdviceOutcome]:
    normal, large, root = world["normal"], world["large"], setting.data_root
    jobs = {spec.id: partial(_asked, root, spec, world["sizes"], large) for spec in _specs(world, normal)}
    asked = dict(enumerate(setting.cached("asked", jobs).values()))
    start = {seed: run["frozen"][str(normal)][0] for seed, run in asked.items()}
    expected: dict[tuple[str, int], Any] = {}
    for size in world["sizes"]:
        for spec in _specs(world, size):
            expected[f"batches of {size}", spec.seed] = spec, ("", 0.0, "")
    for remedy in REMEDIES:
        for spec in _specs(world, large):
            followed = _follow(remedy, asked[spec.seed]["advice"], normal)
            if followed is not None:
                expected[f"{large} with {remedy}", spec.seed] = spec, (remedy, *followed)
    jobs = {
        f"{spec.id}-{remedy.replace(' ', '-')}-{amount:.6g}": partial(
            _apply_remedy, root, spec, normal, remedy, amount, before
        )
        for spec, (remedy, amount, before) in expected.values()
    }
    result = dict(zip(expected, setting.cached("advice", jobs).values(), strict=True))
    methods = [AdviceOutcome(f"batches of {normal}", start, asked)]
    for name in dict.fromkeys(name for name, _ in expected):
        size = name.removeprefix("batches of ")
        predicted = {s: r["frozen"][size][0] for s, r in asked.items()} if name.startswith("batches") else start
        methods.append(
            AdviceOutcome(name, predicted, {seed: run for (there, seed), run in result.items() if there == name})
        )
    return methods


def _row(found: AdviceOutcome) -> dict[str, Any]:
    amounts, measured = list(found.score("amount").values()), list(found.score("measured").values())
    predicted = [found.predicted[seed] for seed in found.runs]
    row: dict[str, Any] = {
        "method": found.name,
        "amount": f"{np.mean(amounts):.3g}" if any(amounts) else "",
        "predicted": str(mean(predicted)),
        "measured": str(mean(measured)),
        "measured over predicted": "" if measured == predicted else str(mean(found.ratios)),
    }
    return row | {name.replace("_", " "): str(mean(list(found.score(name).values()))) for name in SHOWN}


def _figure(methods: Sequence[AdviceOutcome]) -> Figure:
    figure, axes = plots.panels(3)
    predicted = {m.name: mean([m.predicted[seed] for seed in m.runs]) for m in methods}
    plots.points(axes[0], predicted, shift=0.12, marker="s", color="C0", label="predicted from small batches")
    for axis, score in zip(axes, ("measured", "gap", "test_loss"), strict=True):
        result = {m.name: mean(list(m.score(score).values())) for m in methods}
        label = "measured after training" if score == "measured" else None
        plots.points(axis, result, shift=-0.12 if label else 0.0, color="C1" if label else "black", label=label)
    for axis, title in zip(axes, ("regularization, in units of the loss", "gap of accuracy", "test loss"), strict=True):
        plots.named(axis, title=title)
    plots.legend(figure)
    return figure


def _claims(methods: Sequence[AdviceOutcome], world: Mapping[str, Any], chance: float) -> list[Claim]:
    """The advice is right if networks that follow it have the regularization it predicts, and a lower test loss."""
    by_name = {result.name: result for result in methods}
    small, alone = by_name[f"batches of {world['normal']}"], by_name[f"batches of {world['large']}"]
    claims = [
        claim("advice", f"{world['large']} alone have a larger test loss than {small.name}", "difference of test loss",
              alone.minus(small, "test_loss"), above=0.0, ours=True,
              compared=(alone.learnt(chance), small.learnt(chance)))
    ]  # fmt: skip
    for result in methods[1:]:
        claims.append(
            claim("advice", f"{result.name}: the predicted regularization is right within a factor of {RIGHT_WITHIN}",
                  "measured over predicted", result.ratios, above=1 / RIGHT_WITHIN, below=RIGHT_WITHIN, ours=True,
                  compared=(result.learnt(chance),))
        )  # fmt: skip
        if result.name.startswith(f"{world['large']} with"):
            claims.append(
                claim("advice", f"{result.name}: a lower test loss than {alone.name}", "difference of test loss",
                      result.minus(alone, "test_loss"), below=0.0, ours=True,
                      compared=(result.learnt(chance), alone.learnt(chance)), **REGULARIZED)
            )  # fmt: skip
    return claims


def _tried_out(setting: RunSettings, name: str) -> Outcome:
    """Ask networks of small batches, do in large ones what they advise, and compare."""
    world = setting.read(__file__)["advice"][name]
    methods = _methods(setting, world)
    others = {m.name: m for m in methods}
    specs = [spec for size in (world["normal"], *world["sizes"]) for spec in _specs(world, size)]
    against = [
        {"method": result.name, "against": other}
        | {score.replace("_", " "): str(mean(result.minus(others[other], score)))
           for score in ("test_accuracy", "gap", "test_loss")}
        for result in methods if " with " in result.name
        for other in (f"batches of {world['large']}", f"batches of {world['normal']}")
    ]  # fmt: skip
    return outcome(
        setting, specs,
        numbers={
            "methods": {
                m.name: {"predicted": [m.predicted[seed] for seed in m.runs],
                         "measured": list(m.score("measured").values()), "runs": list(m.runs.values())}
                for m in methods
            }
        },
        claims=_claims(methods, world, 1 / prepared(_specs(world, world["normal"])[0], setting.data_root)[0].n_outputs),
        tables={
            "Predicted by the networks of small batches, and measured (mean over seeds, 95 % t interval)": (
                pandas.DataFrame([_row(result) for result in methods])
            ),
            "Differences, paired by seed": pandas.DataFrame(against),
        },
        figures={"advice": _figure(methods)},
    )  # fmt: skip


PARTS = (
    Part("advice", "Advice on batch norm, followed: fully connected networks", partial(_tried_out, name="advice"),
         "Ours: what a change of batch size does to the regularization of batch norm, and what restores it.",
         ours=True),
    Part("advice_cnn", "Advice on batch norm, followed: CNN, wrong labels", partial(_tried_out, name="advice_cnn"),
         "Ours: as above, in a CNN on data with wrong labels.", ours=True),
)  # fmt: skip
