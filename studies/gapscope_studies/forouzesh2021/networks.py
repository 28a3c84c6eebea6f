"""Networks of the study, measured: one row per run, one row per point of a figure."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy
import pandas
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
from gapscope.pools.from_spec import network_from_spec, prepare_data
from gapscope.training.checkpoints import load_tensors, set_weights
from gapscope_studies.forouzesh2021.grids import Configuration
from gapscope_studies.kit.claims import downsample_curve
from gapscope_studies.kit.pool import weights_of
from gapscope_studies.kit.study import RunSettings, Table

POOL = "networks"
FITTED_ACCURACY = 0.9


def _subsample(samples: Samples, n: int | None) -> Samples:
    if n is None or n >= len(samples):
        return samples
    return samples.subset(torch.linspace(0, len(samples) - 1, n).round().long())


def load_samples(setting: RunSettings, spec: RunSpec) -> tuple[Problem, Samples]:
    """Return a problem with its whole test split, and the test samples to measure on."""
    problem, _ = prepare_data(spec.replace({"data.test_size": None}), setting.data_root)
    return problem, _subsample(problem.test, setting.read(__file__).get("measured"))


def load_run(setting: RunSettings, spec: RunSpec, problem: Problem) -> nn.Module:
    """Return the trained network of a finished run."""
    network = network_from_spec(spec, problem)
    path = weights_of(setting, POOL, spec.id)
    set_weights(network, load_tensors(path)[0], str(path))
    return network.eval()


def compute_outputs(setting: RunSettings, configuration: Configuration) -> tuple[Tensor, Samples]:
    """Return outputs [runs, n, k] of the runs of a configuration, and their test samples."""
    outputs, test = [], None
    for spec in configuration.specs():
        problem, test = load_samples(setting, spec)
        outputs.append(network_outputs(load_run(setting, spec, problem), test.inputs))
    assert test is not None
    return torch.stack(outputs), test


def _time(
    name: str, measure: Any, network: nn.Module, samples: Samples, **options: Any
) -> dict[str, float]:
    start = time.process_time()
    value = measure(network, samples.inputs, **options)
    return {name: float(value), f"{name}_seconds": time.process_time() - start}


def fit_temperature(logits: Float[Tensor, "n k"], labels: Int[Tensor, " n"]) -> float:
    """Return the temperature T > 0 of least negative log-likelihood of `softmax(logits / T)`.

    Guo et al., On Calibration of Modern Neural Networks, 2017. The log-likelihood is concave in 1/T: its derivative has
    one zero, found by bracketing in float64. NaN without a maximum, where all samples are predicted correctly or the
    logits of the true classes are no larger than the average.
    """
    logits = logits.detach().double()
    logits = logits - logits.max(1, keepdim=True).values
    right = logits.gather(1, labels[:, None]).squeeze(1)

    def slope(inverse: float) -> float:
        """Return the derivative of the mean negative log-likelihood by 1/T, which never falls."""
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


def _measure_probabilities(network: nn.Module, test: Samples, few: Samples) -> dict[str, float]:
    """Measure probabilities, with a temperature fitted to the other half of the samples."""
    labels: Any = test.targets
    outputs = network_outputs(network, test.inputs).double()
    held_out, scored = slice(0, None, 2), slice(1, None, 2)
    temperature = fit_temperature(outputs[held_out], labels[held_out])
    distances = (outputs.softmax(1) - nn.functional.one_hot(labels, outputs.shape[1])).norm(dim=1)
    return {
        "half_distance": float(distances.mean()) / math.sqrt(2),
        **_time("s_softmax", output_sensitivity, network, few, space="probabilities"),
        **_time("j_softmax", input_jacobian_norm, network, few, space="probabilities"),
        "temperature": temperature,
        "error_judged": 1 - (outputs[scored].argmax(1) == labels[scored]).double().mean().item(),
        "loss_judged": default_loss(outputs[scored], labels[scored]).item(),
        "loss_calibrated": default_loss(outputs[scored] / temperature, labels[scored]).item(),
    }


def measure_run(setting: RunSettings, spec: RunSpec) -> dict[str, float]:
    """Measure one finished run, on the scale's test samples unless a name states otherwise."""
    problem, test = load_samples(setting, spec)
    few, train = (
        _subsample(test, setting.read(__file__)["timed"]),
        _subsample(problem.train, len(test)),
    )
    before, after = network_from_spec(spec, problem), load_run(setting, spec, problem)
    row = {
        **{f"train_{name}": value for name, value in evaluate(after, problem.train).items()},
        **{f"test_{name}": value for name, value in evaluate(after, test).items()},
        "s_before": float(output_sensitivity(before, test.inputs)),
        "s_after": float(output_sensitivity(after, test.inputs)),
        "s_per_output": float(output_sensitivity(after, test.inputs, per_output=True)),
        "s_train": float(output_sensitivity(after, train.inputs)),
        **_time("s_few", output_sensitivity, after, few),
        **_time("j", input_jacobian_norm, after, few),
        "parameters": float(parameter_count(after)),
        "outputs": float(problem.n_outputs),
        "mean_square_input": test.inputs.double().square().mean().item(),
    }
    if test.is_classification:
        row |= _measure_probabilities(after, test, few)
        return row | {
            "error": 1 - row["test_accuracy"],
            "s_calibrated": row["s_after"] / row["temperature"] ** 2,
        }
    return row | {
        "train_r2": 1
        - row["train_loss"] / problem.train.y.double().var(0, correction=0).mean().item()
    }


def measure_runs(setting: RunSettings, configurations: Sequence[Configuration]) -> Table:
    """Train and measure missing runs, and return a row with all measures per finished run."""
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
        | {
            name: item.spec.network.options.get(name)
            for name in ("n_hidden", "width", "n_conv", "channels")
        }
        | {"seed": spec.seed, "epochs": record.epochs_trained}
        | {"stopped": record.epochs_trained < spec.training.epochs}
        | {"curve": [float(row["test_loss"]) for row in record.history]}
        | {"loss curve": [float(row["train_loss"]) for row in record.history]}
        | {name: float(value) for name, value in result[spec.id].items()}
        for number, item in enumerate(configurations)
        for spec in item.specs()
        if (record := finished.get(spec.id)) is not None
    )


def average_runs(table: Table) -> Table:
    """Return one row per configuration with the mean of every number, as the authors do.

    `draws` holds the runs, a table by seed. `fitted`: a mean training accuracy of 0.9 or more (always for regression),
    since the paper asks for a loss near zero. `stopped`: the stop rule ended every run.
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
    means["fitted"] = (
        means["train_accuracy"] >= FITTED_ACCURACY if "train_accuracy" in means else True
    )
    return means.reset_index(drop=True)


def by_draw(table: Table, *columns: str) -> numpy.ndarray:
    """Return values [columns, configurations, draws] of averaged runs, for common draws."""
    frames = list(table["draws"])
    seeds = sorted(set.intersection(*(set(frame.index) for frame in frames))) if frames else []
    return numpy.array(
        [[frame.loc[seeds, column] for frame in frames] for column in columns], dtype=float
    )
