"""From configurations to numbers: networks trained once for the whole study, measured once, averaged over runs."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gapscope.base.errors import GapscopeError, NotMeasurable
from gapscope.base.files import read_json, to_json, write_atomically
from gapscope.base.samples import Samples
from gapscope.base.specs import Spec
from gapscope.data.problem import Problem
from gapscope.inspection.losses import loss_of, scores
from gapscope.inspection.outputs import network_outputs
from gapscope.measures.input_jacobian_norm import input_jacobian_norm
from gapscope.measures.output_sensitivity import output_sensitivity
from gapscope.measures.parameter_count import parameter_count
from gapscope.measures.temperature_scaling import fit_temperature
from gapscope.pools import Pool
from gapscope.pools.from_spec import build_network, prepared
from gapscope.pools.processes import run_local
from gapscope.training.checkpoints import load_weights
from gapscope_studies.forouzesh2021.analysis import Table
from gapscope_studies.forouzesh2021.grids import Configuration
from gapscope_studies.kit.study import Setting

POOL = "networks"
FITTED_ACCURACY = 0.9


def _spread(samples: Samples, n: int | None) -> Samples:
    """At most `n` samples, evenly spaced."""
    if n is None or n >= len(samples):
        return samples
    return samples.subset(torch.linspace(0, len(samples) - 1, n).round().long())


def measured_samples(setting: Setting, spec: Spec) -> tuple[Problem, Samples]:
    """Return the problem of a spec with its whole test split, and the test samples that the study measures on."""
    problem, _ = prepared(spec.replace({"data.test_size": None}), setting.data_root)
    return problem, _spread(problem.test, setting.choose(smoke=100, small=1000, paper=None))


def few_inputs(setting: Setting) -> int:
    """Number of test inputs on which S and J are timed, and J is measured."""
    return setting.choose(smoke=20, small=100, paper=1000)


def trained_network(setting: Setting, spec: Spec, problem: Problem) -> nn.Module:
    """Return the trained network of a finished run."""
    network = build_network(spec, problem)
    load_weights(network, Pool(setting.work / POOL).run_folder(spec.id) / "weights.safetensors")
    return network.eval()


def _seconds(function: Any, *arguments: Any, **options: Any) -> tuple[float, float]:
    start = time.perf_counter()
    value = function(*arguments, **options)
    return float(value), time.perf_counter() - start


def _calibrated(outputs: Tensor, labels: Tensor) -> dict[str, float]:
    """Temperature from one half of the samples; error and loss of the other half before and after."""
    held_out, judged = slice(0, None, 2), slice(1, None, 2)
    try:
        temperature = fit_temperature(outputs[held_out], labels[held_out])
    except NotMeasurable:  # a network no better than chance has none
        temperature = math.nan
    right = (outputs[judged].argmax(1) == labels[judged]).double().mean().item()
    return {
        "temperature": temperature,
        "error_judged": 1 - right,
        "loss_judged": loss_of(outputs[judged].double(), labels[judged]).item(),
        "loss_calibrated": loss_of(outputs[judged].double() / temperature, labels[judged]).item(),
    }


def _behind_softmax(network: nn.Module, test: Samples, few: Samples) -> dict[str, float]:
    outputs = network_outputs(network, test.inputs)
    assert test.targets is not None
    few_s, few_s_seconds = _seconds(output_sensitivity, network, few.inputs, space="probabilities")
    few_j, few_j_seconds = _seconds(input_jacobian_norm, network, few.inputs, space="probabilities")
    return {
        "s_softmax": few_s,
        "s_softmax_seconds": few_s_seconds,
        "j_softmax": few_j,
        "j_softmax_seconds": few_j_seconds,
        **_calibrated(outputs, test.targets),
    }


def measure_run(setting: Setting, spec: Spec) -> dict[str, float]:
    """Measure one finished run.

    Args:
        setting: Says where the networks and the data lie, and how many samples are measured.
        spec: The run.

    Returns:
        Scores on all training and the measured test samples; S on test inputs before and after training, after it
        also per output and on training inputs; on fewer test inputs S and J of raw outputs and probabilities with
        their wall time; parameters, outputs and mean square input; for classifiers the temperature.
    """
    problem, test = measured_samples(setting, spec)
    few = _spread(test, few_inputs(setting))
    before, after = build_network(spec, problem), trained_network(setting, spec, problem)
    train = _spread(problem.train, len(test))
    few_s, few_s_seconds = _seconds(output_sensitivity, after, few.inputs)
    few_j, few_j_seconds = _seconds(input_jacobian_norm, after, few.inputs)
    row = {
        **{f"train_{name}": value for name, value in scores(after, problem.train).items()},
        **{f"test_{name}": value for name, value in scores(after, test).items()},
        "s_before": float(output_sensitivity(before, test.inputs)),
        "s_after": float(output_sensitivity(after, test.inputs)),
        "s_per_output": float(output_sensitivity(after, test.inputs, per_output=True)),
        "s_train": float(output_sensitivity(after, train.inputs)),
        "s_few": few_s,
        "s_few_seconds": few_s_seconds,
        "j": few_j,
        "j_seconds": few_j_seconds,
        "parameters": float(parameter_count(after)),
        "outputs": float(problem.n_outputs),
        "mean_square_input": test.inputs.double().square().mean().item(),
    }
    return row | (_behind_softmax(after, test, few) if test.is_classification else {})


def _measure_job(job: tuple[Setting, Spec, Path]) -> None:
    setting, spec, path = job
    torch.set_num_threads(1)
    write_atomically(path, to_json(measure_run(setting, spec)) + "\n")


def _measure_missing(setting: Setting, specs: Sequence[Spec]) -> None:
    folder = setting.work / "measurements"
    folder.mkdir(parents=True, exist_ok=True)
    paths = {spec: folder / f"{spec.id}.json" for spec in specs}
    quiet = Setting(scale=setting.scale, work=setting.work, data_root=setting.data_root)
    jobs = [(quiet, spec, path) for spec, path in paths.items() if not path.exists()]
    if setting.workers == 1:
        for job in jobs:
            _measure_job(job)
        return
    for _, _, error in run_local(_measure_job, jobs, setting.workers):
        if error is not None:
            raise error


def runs(setting: Setting, configurations: Sequence[Configuration]) -> Table:
    """Train and measure what is missing; return one row a finished run.

    Args:
        setting: Where and how large.
        configurations: What to train; a run that another part trained is not trained again.

    Returns:
        Columns: index of the configuration, family, name, seed, epochs, and what `measure_run` measured.

    Raises:
        GapscopeError: No run finished.
    """
    import pandas

    specs = list(dict.fromkeys(spec for item in configurations for spec in item.specs()))
    records = setting.train(POOL, specs, measures=())
    finished = {record.id: record for record in records if record.status == "finished"}
    if not finished:
        raise GapscopeError(f"No network finished; the first one: {records[0].message}.")
    _measure_missing(setting, [spec for spec in specs if spec.id in finished])
    rows = []
    for number, item in enumerate(configurations):
        options = item.spec.network.options
        facts = {
            "configuration": number,
            "family": item.family,
            "name": item.name,
            "initialization": item.spec.network.initialization,
            "n_hidden": options.get("n_hidden"),
            "width": options.get("width"),
        }
        for spec in item.specs():
            if spec.id in finished:
                content = read_json(setting.work / "measurements" / f"{spec.id}.json")
                run = {"seed": spec.seed, "epochs": finished[spec.id].epochs_trained}
                rows.append(facts | run | {name: float(value) for name, value in content.items()})
    return pandas.DataFrame(rows)


def points(table: Table) -> Table:
    """Average runs: one row a configuration, means of every number (a log is taken of means, as the authors do).

    Args:
        table: What `runs` returned.

    Returns:
        Family, name, initialisation, means, `runs`, smallest and largest S after training, and `fitted`: whether the
        mean training accuracy is 0.9 or more (always for regression), as near-zero training loss is the paper's
        condition.
    """
    groups = table.groupby("configuration", sort=True)
    means = groups.mean(numeric_only=True).drop(columns=["seed"])
    for place, name in enumerate(("family", "name", "initialization")):
        means.insert(place, name, groups[name].first())
    means["runs"] = groups.size()
    means["s_after_min"], means["s_after_max"] = groups["s_after"].min(), groups["s_after"].max()
    means["fitted"] = means["train_accuracy"] >= FITTED_ACCURACY if "train_accuracy" in means else True
    return means.reset_index(drop=True)
