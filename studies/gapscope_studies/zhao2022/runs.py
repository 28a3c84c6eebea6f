"""From specs to a table: networks trained and measured once, and what else is measured of them, kept beside them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gapscope.base.errors import GapscopeError
from gapscope.base.files import read_json, to_json, write_atomically
from gapscope.base.records import Record, records_to_pandas
from gapscope.base.samples import Samples
from gapscope.base.specs import Spec
from gapscope.data.problem import Problem
from gapscope.measures.unit_sparsity import FITTED_FROM, UnitSparsity, unit_sparsity
from gapscope.pools import Pool
from gapscope.pools.from_spec import build_network, prepared
from gapscope.pools.processes import run_local
from gapscope.training.checkpoints import load_tensors, load_weights
from gapscope_studies.kit.study import Setting
from gapscope_studies.zhao2022.analysis import Table


def trained_network(setting: Setting, pool: str, spec: Spec) -> tuple[nn.Module, Problem]:
    """Return the trained network of a finished run, in evaluation mode, and its problem."""
    problem, _ = prepared(spec, setting.data_root)
    network = build_network(spec, problem)
    load_weights(network, Pool(setting.work / pool).run_folder(spec.id) / "weights.safetensors")
    return network.eval(), problem


def sparsity(setting: Setting, pool: str, spec: Spec) -> UnitSparsity:
    """Zeta and kappa of the default layer with all their curves, on all training samples."""
    network, problem = trained_network(setting, pool, spec)
    assert problem.train.targets is not None
    return unit_sparsity(network, problem.train.inputs, problem.train.targets)


def layers_by_depth(network: nn.Module, default: str) -> dict[str, str]:
    """Activations at a third and two thirds of the convolutions, and the one behind the last convolution's.

    Args:
        network: The network; its activations are modules.
        default: The activation behind the last convolution.

    Returns:
        "first third", "second third", "fully connected" -> name of the module, those that are not the default.

    >>> relus = nn.Sequential(*(nn.ReLU() for _ in range(5)))
    >>> layers_by_depth(relus, "3")
    {'first third': '1', 'second third': '2', 'fully connected': '4'}
    """
    names = [name for name, module in network.named_modules() if isinstance(module, nn.ReLU)]
    last = names.index(default)
    places = {"first third": last // 3, "second third": round(2 * last / 3), "fully connected": last + 1}
    found = {label: names[place] for label, place in places.items() if place != last and place < len(names)}
    return {label: name for label, name in found.items() if list(found.values()).count(name) == 1}


def _few(samples: Samples, n: int) -> Samples:
    return samples.subset(torch.arange(min(n, len(samples))))


def measure_layers(setting: Setting, pool: str, spec: Spec, n_samples: int) -> dict[str, float]:
    """Zeta and kappa of other layers, and of the default one, on the first training samples.

    Args:
        setting: Where networks and data lie.
        pool: Name of the pool.
        spec: A finished run.
        n_samples: How many samples; layers near the input are slow.

    Returns:
        "zeta, first third", "kappa, first third", ...
    """
    network, problem = trained_network(setting, pool, spec)
    samples = _few(problem.train, n_samples)
    assert samples.targets is not None
    default = unit_sparsity(network, samples.inputs, samples.targets)
    found = {"last convolution": default}
    for label, name in layers_by_depth(network, default.layer).items():
        found[label] = unit_sparsity(network, samples.inputs, samples.targets, layers=name)
    return {f"{number}, {label}": value for label, item in found.items() for number, value in item.numbers().items()}


def _measure_job(job: tuple[Setting, str, Spec, int, Path]) -> None:
    setting, pool, spec, n_samples, path = job
    torch.set_num_threads(1)
    write_atomically(path, to_json(measure_layers(setting, pool, spec, n_samples)) + "\n")


def _measure_missing(setting: Setting, pool: str, specs: Sequence[Spec], n_samples: int) -> dict[str, Path]:
    folder = setting.work / "layers"
    folder.mkdir(parents=True, exist_ok=True)
    paths = {spec.id: folder / f"{spec.id}.json" for spec in specs}
    quiet = Setting(scale=setting.scale, work=setting.work, data_root=setting.data_root)
    jobs = [(quiet, pool, spec, n_samples, paths[spec.id]) for spec in specs if not paths[spec.id].exists()]
    if setting.workers == 1:
        for job in jobs:
            _measure_job(job)
    else:
        for _, _, error in run_local(_measure_job, jobs, setting.workers):
            if error is not None:
                raise error
    return paths


def finished(setting: Setting, pool: str, specs: Sequence[Spec]) -> list[Record]:
    """Train and measure what is missing; return the records of the networks that finished.

    Args:
        setting: Where and how large.
        pool: Name of the pool.
        specs: What to train.

    Returns:
        The records, in the order of the specs.

    Raises:
        GapscopeError: No network finished.
    """
    records = setting.train(pool, specs)
    kept = [record for record in records if record.status == "finished"]
    if not kept:
        raise GapscopeError(f"No network of {pool} finished; the first one: {records[0].message}.")
    return kept


def _has_batch_norm(setting: Setting, pool: str, record: Record) -> bool:
    tensors, _ = load_tensors(Pool(setting.work / pool).run_folder(record.id) / "weights.safetensors")
    return any(name.endswith("running_mean") for name in tensors)


def networks(setting: Setting, pool: str, specs: Sequence[Spec], *, layer_samples: int = 0) -> Table:
    """Table of the finished networks of a pool.

    Args:
        setting: Where and how large.
        pool: Name of the pool.
        specs: What to train.
        layer_samples: Number of samples on which further layers are measured; 0 measures none.

    Returns:
        One row a network, indexed by id: the columns of `records_to_pandas` (settings, scores, gap, readings), `pool`,
        `corruption`, `batch_norm`, `fitted` (training accuracy at least 0.97, the paper's condition), `family`
        (architecture and normalisation), and zeta and kappa of further layers.
    """
    import pandas

    records = finished(setting, pool, specs)
    table: Table = records_to_pandas(records)
    norm = [_has_batch_norm(setting, pool, record) for record in records]
    table = table.assign(
        pool=pool,
        corruption=table["data.label_noise"].astype(float),
        batch_norm=norm,
        fitted=table["train_accuracy"] >= FITTED_FROM,
    )
    kinds = ["batch norm" if value else "no batch norm" for value in norm]
    table["family"] = [f"{name}, {kind}" for name, kind in zip(table["network.name"], kinds, strict=True)]
    if layer_samples:
        kept = [spec for spec in specs if spec.id in table.index]
        paths = _measure_missing(setting, pool, kept, layer_samples)
        extra: Any = {key: read_json(path) for key, path in paths.items()}
        table = table.join(pandas.DataFrame.from_dict(extra, orient="index").astype(float))
    return table
