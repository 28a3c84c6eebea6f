"""Networks and measures of the study: one row per run, one row per point of a figure."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import numpy
import torch
from jaxtyping import Float, Int
from scipy.optimize import brentq
from torch import Tensor, nn

from gapscope.base.errors import GapscopeError
from gapscope.base.samples import Samples
from gapscope.base.specs import RunSpec
from gapscope.data.problem import Problem
from gapscope.inspection.losses import default_loss, evaluate
from gapscope.inspection.outputs import network_outputs
from gapscope.measures.input_jacobian_norm import input_jacobian_norm
from gapscope.measures.output_sensitivity import output_sensitivity
from gapscope.measures.parameters import parameter_count
from gapscope.pools.from_spec import network_from_spec, prepared
from gapscope.training.checkpoints import load_tensors, set_weights
from gapscope_studies.kit.claims import downsample_curve
from gapscope_studies.kit.pool import weights_of
from gapscope_studies.kit.study import RunSettings, Table

POOL = "networks"
FITTED_ACCURACY = 0.9
INITIALIZATIONS = ("standard_normal", "xavier_uniform", "he_uniform", "he_normal")


@dataclass(frozen=True)
class Configuration:
    """One point of a figure: its family there, what is trained, and how many runs.

    Each run has its own weights and, where `redrawn`, its own training samples.
    """

    family: str
    spec: RunSpec
    runs: int
    redrawn: bool = True

    @property
    def name(self) -> str:
        """Network, settings and data in a few words."""
        options = ", ".join(f"{key} {value}" for key, value in self.spec.network.options.items())
        return f"{self.spec.network.name} ({options}), {self.spec.network.initialization}, {self.spec.data.train_size}"

    def specs(self) -> list[RunSpec]:
        """The spec of every run."""
        names = ("seed", "data.seed") if self.redrawn else ("seed",)
        return [self.spec.replace(dict.fromkeys(names, seed)) for seed in range(self.runs)]


def _joined(parts: Iterable[list[Configuration]]) -> list[Configuration]:
    return list(chain.from_iterable(parts))


class Grids:
    """Configurations of all figures and tables at one scale, with sizes in `<scale>.toml`.

    `runs` replaces the number of runs per configuration.
    """

    def __init__(self, setting: RunSettings, runs: int | None = None) -> None:
        self.sizes: Any = setting.read(__file__)
        self.runs: int = runs or self.sizes["runs"]
        self.base = RunSpec.from_dict(self.sizes["base"])

    def _all(
        self, family: str, network: str, options: Iterable[Mapping[str, Any]], changes: Mapping[str, Any] | None = None
    ) -> list[Configuration]:
        base = self.base.replace({"network.name": network, **(changes or {})})
        return [Configuration(family, base.replace({"network.options": item}), self.runs) for item in options]

    def dense(
        self,
        family: str,
        depth: int,
        changes: Mapping[str, Any] | None = None,
        widths: Sequence[int] = (),
        **options: Any,
    ) -> list[Configuration]:
        """Fully connected networks of one depth."""
        shapes = [{"n_hidden": depth, "width": width, **options} for width in widths or self.sizes["widths"]]
        return self._all(family, "fully_connected", shapes, changes)

    def cnns(
        self, family: str, n_conv: int, sizes: Sequence[Sequence[int]] = (), **options: Any
    ) -> list[Configuration]:
        """CNNs with `n_conv` convolutions."""
        shapes = [{"n_conv": n_conv, "channels": channels, "hidden": hidden, **options}
                  for channels, hidden in sizes or self.sizes["cnn_sizes"]]  # fmt: skip
        return self._all(family, "plain_cnn", shapes)

    def popular(
        self, networks: Sequence[str] = (), *, train_size: int | None = None, family: str = ""
    ) -> list[Configuration]:
        """AlexNet, VGG and ResNet from Xavier uniform weights."""
        sizes = self.sizes["popular"]
        changes = {
            "network.initialization": "xavier_uniform",
            "data.train_size": train_size or sizes["train_size"],
            "training.epochs": sizes["epochs"],
            "training.learning_rate": 1e-3,
        }
        return _joined(
            self._all(family or name, name, self._shapes(name), changes) for name in networks or sizes["networks"]
        )

    def _shapes(self, network: str, **options: Any) -> list[dict[str, Any]]:
        sizes = self.sizes["popular"]
        others = sizes["options"].get(network, {}) | options
        return [{"width_multiplier": multiplier, **others} for multiplier in sizes["multipliers"]]

    def unregularized_popular(self) -> list[Configuration]:
        """Return AlexNet, VGG-11 and VGG-13 without regularization, standard normal (Fig. 4).

        They have no batch normalization, dropout and pooling.
        """
        without: Any = {"alexnet": {"dropout": 0.0}}
        return _joined(
            self._all(f"{name}, standard normal", name,
                      self._shapes(name, max_pool=False, **without.get(name, {"batch_norm": False})))
            for name in self.sizes["popular"]["unregularized"]
        )  # fmt: skip

    def by_depth(self, changes: Mapping[str, Any] | None = None) -> list[Configuration]:
        """Fully connected networks of several depths and widths (Fig. 2b)."""
        result = _joined(self.dense(f"{m} hidden layers", m, changes) for m in self.sizes["depths"])
        return result + _joined(self.dense(f"{m} hidden layers", m, changes, [w]) for m, w in self.sizes["more"])

    def cnns_by_depth(self) -> list[Configuration]:
        """CNNs with one convolution and more, the wide ones among the shallow (Fig. 2c)."""
        first, more = min(self.sizes["convolutions"]), self.sizes["wide_cnns"]
        wide = self.cnns(f"{first} convolutions", first, more) if more else []
        return _joined(self.cnns(f"{m} convolutions", m) for m in self.sizes["convolutions"]) + wide

    def against_convolutions(self) -> list[Configuration]:
        """One hidden layer, and what another layer or a convolution adds to it (Fig. 2a)."""
        dense = self.dense("FC, 1 hidden layer", 1) + self.dense("FC, 2 hidden layers", 2)
        return dense + self.cnns("CNN, 1 convolution", 1)

    def regularized_dense(self) -> list[Configuration]:
        """Four hidden layers with and without dropout and batch normalization (Fig. 2d)."""
        dropped, normal = self.dense("dropout", 4, dropout=0.5), self.dense("batch normalisation", 4, batch_norm=True)
        return self.dense("none", 4) + dropped + normal

    def regularized_cnns(self) -> list[Configuration]:
        """Convolutions with and without dropout, batch normalization and max-pooling (Fig. 2e)."""
        ways: Any = {"none": {}, "dropout": {"dropout": 0.5}, "batch normalisation": {"batch_norm": True},
                     "max-pooling": {"max_pool": True}}  # fmt: skip
        n_conv = self.sizes["regularized_convolutions"]
        return _joined(self.cnns(family, n_conv, **options) for family, options in ways.items())

    def initialized(self) -> list[Configuration]:
        """Four hidden layers from four initializations (Fig. 3)."""
        return _joined(self.dense(kind, 4, {"network.initialization": kind}) for kind in INITIALIZATIONS)

    def popular_and_unregularized(self) -> list[Configuration]:
        """Return popular networks, most from Xavier uniform, some from standard normal (Fig. 1).

        The paper does not specify which.
        """
        return self.popular() + self.unregularized_popular()

    def popular_and_initialized(self) -> list[Configuration]:
        """The networks of Figs. 12, 13 and Table II."""
        return self.popular() + self.initialized()

    def randomly_labelled(self) -> list[Configuration]:
        """Return networks of four hidden layers on clean and on all-wrong labels (Sec. VI-B).

        Their weights are He normal.
        """
        start = {"network.initialization": "he_normal"}
        return self.dense("clean", 4, start) + self.dense("random labels", 4, start | {"data.label_noise": 1.0})

    def table_1(self) -> list[Configuration]:
        """Return VGG-13, VGG-16, ResNet-18 and ResNet-34 for Table I.

        The paper trains them on all of CIFAR-10 (accuracies up to 87 %).
        """
        sizes = self.sizes["popular"]
        return self.popular(sizes["table_1"], train_size=sizes["table_1_train_size"])

    def few_and_many(self) -> list[Configuration]:
        """ResNets on few and on many samples (Fig. 11a, b)."""
        sizes = self.sizes["popular"]
        few = self.popular(sizes["few_and_many"], train_size=sizes["few"], family="few")
        return few + self.popular(sizes["few_and_many"], family="many")

    def stages(self) -> list[Configuration]:
        """Return networks of four hidden layers at several stages of training (Fig. 11d).

        Their weights are He normal or standard normal.
        """
        return _joined(
            self.dense(f"{n} epochs", 4, {"network.initialization": kind, "training.epochs": n})
            for n in self.sizes["stages"]
            for kind in ("he_normal", "standard_normal")
        )

    def housing(self) -> list[Configuration]:
        """Fully connected networks for Boston housing (Figs. 5 and 10), all on the same split."""
        sizes = self.sizes["housing"]
        changes = {"data": sizes["data"], "network.initialization": "torch", "training.epochs": sizes["epochs"]}
        result = _joined(self.dense(f"{m} hidden layers", m, changes, sizes["widths"]) for m in sizes["depths"])
        return [replace(item, redrawn=False) for item in result]

    def mnist(self) -> list[Configuration]:
        """Fully connected networks, standard normal, on MNIST (appendix F)."""
        return self.by_depth({"data.name": self.sizes["other_images"]["mnist"]})

    def cifar100(self) -> list[Configuration]:
        """The same on CIFAR-100."""
        return self.by_depth({"data.name": self.sizes["other_images"]["cifar100"]})

    def untrained(self) -> list[Configuration]:
        """Return standard normal networks without any regularization (Fig. 4).

        They can be compared before training.
        """
        return self.by_depth() + self.cnns_by_depth() + self.unregularized_popular()

    def ranked(self) -> list[Configuration]:
        """Those, and fully connected networks from other initializations."""
        return self.untrained() + [item for item in self.initialized() if item.family != "standard_normal"]

    def authors(self) -> list[Configuration]:
        """Return the configurations of the authors' stored results.

        Networks have 4 hidden layers with standard normal weights, and the same 1,000 images.
        """
        sizes = self.sizes["authors"]
        return [replace(item, redrawn=False) for item in self.dense("authors", 4, sizes["changes"], sizes["widths"])]


def _spread(samples: Samples, n: int | None) -> Samples:
    """At most `n` samples, evenly spaced."""
    if n is None or n >= len(samples):
        return samples
    return samples.subset(torch.linspace(0, len(samples) - 1, n).round().long())


def measured_samples(setting: RunSettings, spec: RunSpec) -> tuple[Problem, Samples]:
    """Return the problem of a spec with its whole test split, and the measured test samples."""
    problem, _ = prepared(spec.replace({"data.test_size": None}), setting.data_root)
    return problem, _spread(problem.test, Grids(setting).sizes.get("measured"))


def trained_network(setting: RunSettings, spec: RunSpec, problem: Problem) -> nn.Module:
    """Return the trained network of a finished run."""
    network = network_from_spec(spec, problem)
    path = weights_of(setting, POOL, spec.id)
    set_weights(network, load_tensors(path)[0], str(path))
    return network.eval()


def outputs_of_runs(setting: RunSettings, configuration: Configuration) -> tuple[Tensor, Samples]:
    """Return outputs [runs, n, k] of a configuration's networks, and the test samples.

    The test samples are the same for all runs.
    """
    outputs, test = [], None
    for spec in configuration.specs():
        problem, test = measured_samples(setting, spec)
        outputs.append(network_outputs(trained_network(setting, spec, problem), test.inputs))
    assert test is not None
    return torch.stack(outputs), test


def _timed(name: str, measure: Any, network: nn.Module, samples: Samples, **options: Any) -> dict[str, float]:
    start = time.process_time()
    value = measure(network, samples.inputs, **options)
    return {name: float(value), f"{name}_seconds": time.process_time() - start}


def fit_temperature(logits: Float[Tensor, "n k"], labels: Int[Tensor, " n"]) -> float:
    r"""Return the temperature T > 0 of least negative log-likelihood of `softmax(logits / T)`.

    It minimizes the mean over samples. Guo et al., On Calibration of Modern Neural Networks, 2017. The log-likelihood
    is concave in 1/T, so the minimum is the only zero of its derivative, which is bracketed and found to rounding, in
    float64. NaN where the likelihood has no maximum: all samples are predicted right, or right classes have no larger
    logits than the average class.
    """
    logits = logits.detach().double()
    logits = logits - logits.max(1, keepdim=True).values
    right = logits.gather(1, labels[:, None]).squeeze(1)

    def slope(inverse: float) -> float:
        """Return the derivative of the mean negative log-likelihood by 1/T, which never decreases."""
        return ((logits * inverse).softmax(1) * logits).sum(1).sub(right).mean().item()

    if not bool((right < 0).any()) or slope(0.0) >= 0:
        return math.nan
    low = high = -1 / logits.mean().item()
    while slope(low) >= 0:
        low /= 2
    while slope(high) <= 0:
        high *= 2
    logarithm = brentq(lambda s: slope(math.exp(s)), math.log(low), math.log(high), xtol=1e-14)
    return math.exp(-float(logarithm))  # type: ignore[arg-type]


def _behind_softmax(network: nn.Module, test: Samples, few: Samples) -> dict[str, float]:
    """Return numbers of probabilities, with the temperature from one half of the samples.

    Error and loss are those of the other half.
    """
    labels: Any = test.targets
    outputs = network_outputs(network, test.inputs).double()
    held_out, judged = slice(0, None, 2), slice(1, None, 2)
    temperature = fit_temperature(outputs[held_out], labels[held_out])
    distances = (outputs.softmax(1) - nn.functional.one_hot(labels, outputs.shape[1])).norm(dim=1)
    return {
        "half_distance": float(distances.mean()) / math.sqrt(2),
        **_timed("s_softmax", output_sensitivity, network, few, space="probabilities"),
        **_timed("j_softmax", input_jacobian_norm, network, few, space="probabilities"),
        "temperature": temperature,
        "error_judged": 1 - (outputs[judged].argmax(1) == labels[judged]).double().mean().item(),
        "loss_judged": default_loss(outputs[judged], labels[judged]).item(),
        "loss_calibrated": default_loss(outputs[judged] / temperature, labels[judged]).item(),
    }


def measure_run(setting: RunSettings, spec: RunSpec) -> dict[str, float]:
    """Measure one finished run, on this scale's test samples unless a name states otherwise."""
    problem, test = measured_samples(setting, spec)
    few, train = _spread(test, Grids(setting).sizes["timed"]), _spread(problem.train, len(test))
    before, after = network_from_spec(spec, problem), trained_network(setting, spec, problem)
    row = {
        **{f"train_{name}": value for name, value in evaluate(after, problem.train).items()},
        **{f"test_{name}": value for name, value in evaluate(after, test).items()},
        "s_before": float(output_sensitivity(before, test.inputs)),
        "s_after": float(output_sensitivity(after, test.inputs)),
        "s_per_output": float(output_sensitivity(after, test.inputs, per_output=True)),
        "s_train": float(output_sensitivity(after, train.inputs)),
        **_timed("s_few", output_sensitivity, after, few),
        **_timed("j", input_jacobian_norm, after, few),
        "parameters": float(parameter_count(after)),
        "outputs": float(problem.n_outputs),
        "mean_square_input": test.inputs.double().square().mean().item(),
    }
    if test.is_classification:
        row |= _behind_softmax(after, test, few)
        return row | {"error": 1 - row["test_accuracy"], "s_calibrated": row["s_after"] / row["temperature"] ** 2}
    assert problem.train.targets is not None
    return row | {"train_r2": 1 - row["train_loss"] / problem.train.targets.double().var(0, correction=0).mean().item()}


def runs(setting: RunSettings, configurations: Sequence[Configuration]) -> Table:
    """Train and measure missing runs, and return a row with all measures per finished run."""
    import pandas

    specs = list(dict.fromkeys(spec for item in configurations for spec in item.specs()))
    records = setting.train(POOL, specs, measures=())
    finished = {record.id: record for record in records if record.status == "finished"}
    if not finished:
        raise GapscopeError(f"No network finished; the first one: {records[0].message}.")
    jobs = {spec.id: partial(measure_run, setting, spec) for spec in specs if spec.id in finished}
    result = setting.cached("measurements", jobs)
    return pandas.DataFrame(
        {"configuration": number, "family": item.family, "name": item.name}
        | {"initialization": item.spec.network.initialization}
        | {name: item.spec.network.options.get(name) for name in ("n_hidden", "width", "n_conv", "channels")}
        | {"seed": spec.seed, "epochs": record.epochs_trained}
        | {"stopped": record.epochs_trained < spec.training.epochs}
        | {"curve": [float(row["test_loss"]) for row in record.history]}
        | {"loss curve": [float(row["train_loss"]) for row in record.history]}
        | {name: float(value) for name, value in result[spec.id].items()}
        for number, item in enumerate(configurations)
        for spec in item.specs()
        if (record := finished.get(spec.id)) is not None
    )


def points(table: Table) -> Table:
    """Average runs: one row per configuration with the mean of every number.

    A log is taken of means, as the authors do. `draws` holds the runs themselves, a table by seed. `fitted` says
    whether the mean training accuracy is 0.9 or more (always for regression): the paper asks for a loss near zero.
    `stopped` says whether the stop rule ended every run.
    """
    groups = table.groupby("configuration", sort=True)
    means = groups.mean(numeric_only=True).drop(columns=["seed", "stopped"])
    for place, name in enumerate(("family", "name", "initialization")):
        means.insert(place, name, groups[name].first())
    means["draws"] = [group.set_index("seed") for _, group in groups]
    means["runs"] = groups.size()
    means["stopped"] = groups["stopped"].all()
    for name in ("curve", "loss curve"):
        means[name] = groups[name].apply(lambda curves: list(downsample_curve(curves.to_list())))
    means["s_after_min"], means["s_after_max"] = groups["s_after"].min(), groups["s_after"].max()
    means["fitted"] = means["train_accuracy"] >= FITTED_ACCURACY if "train_accuracy" in means else True
    return means.reset_index(drop=True)


def by_draw(table: Table, *columns: str) -> numpy.ndarray:
    """Return values [columns, configurations, draws] of `points`, for the draws of all rows."""
    frames = list(table["draws"])
    seeds = sorted(set.intersection(*(set(frame.index) for frame in frames))) if frames else []
    return numpy.array([[frame.loc[seeds, column] for frame in frames] for column in columns], dtype=float)
