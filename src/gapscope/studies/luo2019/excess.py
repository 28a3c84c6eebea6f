"""Measuring eq. 3: batch-norm loss minus population-norm loss, layer by layer, beside everything that predicts it."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gapscope.normalization import batch_norm_excess, gamma_decay, refresh_population
from gapscope.normalization.excess import ALL_LAYERS
from gapscope.normalization.sites import batch_norm_layers
from gapscope.samples import Samples
from gapscope.seeds import stream_seed
from gapscope.studies.base import Setting
from gapscope.studies.luo2019.cases import Case, digits, seeds
from gapscope.studies.luo2019.perceptrons import MODELS, fitted, population
from gapscope.studies.luo2019.runs import kept_results, problem_of, runs, trained_network

UNIT, FULLY_CONNECTED, CONVOLUTION = "single-unit", "fully connected", "convolutional"
Row = dict[str, Any]


def _printed(network: nn.Module, samples: Samples, size: int) -> dict[str, Mapping[str, float]]:
    """Layer -> decay by theorem 1 as printed, and with the curvature corrected."""
    network = copy.deepcopy(network)
    refresh_population(network, samples, samples=len(samples), layers=list(batch_norm_layers(network)))
    as_printed: Any = {"covariance": "diagonal", "skewness": False, "analytic": True}
    decays = {
        "printed": gamma_decay(network, samples, batch_size=size, curvature="squared_score", **as_printed),
        "printed_curvature": gamma_decay(network, samples, batch_size=size, **as_printed),
    }
    return {name: {layer: float(found.decay) for layer, found in decay.items()} for name, decay in decays.items()}


def compare(network: nn.Module, samples: Samples, sizes: Sequence[int], passes: int, seed: int) -> list[Row]:
    """Measure one network, and predict it in every way.

    Args:
        network: A float64 network with batch norm.
        samples: Its population.
        sizes: Batch sizes.
        passes: How often the samples are dealt into batches.
        seed: Of batches and noise.

    Returns:
        One mapping a layer and batch size: layer, batch_size, measured, standard_error, and every prediction.
    """
    generator = torch.Generator().manual_seed(stream_seed(seed, "batches"))
    shipped = batch_norm_excess(
        network, samples, batch_sizes=sizes, passes=passes, noise_draws=10, chunk_size=1024, generator=generator
    )
    second = batch_norm_excess(network, samples, batch_sizes=sizes, passes=1, noise_draws=0, generator=generator)
    printed = {size: _printed(network, samples, size) for size in sizes}
    rows = []
    for row, other in zip(shipped, second, strict=True):
        if row.layer == ALL_LAYERS:
            continue
        rows.append(
            {
                "layer": row.layer,
                "batch_size": row.batch_size,
                "measured": float(row.measured),
                "standard_error": row.measured.standard_error,
                "shipped": float(row.predicted),
                "second_order": float(other.predicted),
                **{name: found[row.layer] for name, found in printed[row.batch_size].items()},
            }
        )
    return rows


def _of_network(folder: Path, *, setting: Setting, case: Case, passes: int) -> list[Row]:
    samples = problem_of(case, setting.data_root).train
    samples = Samples(samples.inputs.double(), samples.targets)
    rows = compare(trained_network(setting, case).double(), samples, sizes(setting), passes, case.spec.seed)
    return [
        row
        | {
            "kind": CONVOLUTION if row["layer"].startswith("conv") else FULLY_CONNECTED,
            "layer": f"{case.spec.network.name}: {row['layer'].removesuffix('_norm')}",
        }
        for row in rows
    ]


def _of_unit(folder: Path, *, setting: Setting, model: str, seed: int) -> list[Row]:
    n, passes = setting.choose(smoke=(400, 5), small=(10_000, 100), paper=(20_000, 400))
    samples = population(model, n, torch.Generator().manual_seed(stream_seed(seed, model)))
    rows = compare(fitted(model, samples), samples, sizes(setting), passes, seed)
    return [row | {"kind": UNIT, "layer": model} for row in rows]


def sizes(setting: Setting) -> tuple[int, ...]:
    """Batch sizes that are measured."""
    return setting.choose(smoke=(16, 32), small=(16, 32, 64, 128), paper=(16, 32, 64, 128))


def measured_rows(setting: Setting) -> list[Row]:
    """Measure what is missing of single units, a fully connected network and the CNN, on digits.

    Args:
        setting: Where and how large.

    Returns:
        What `compare` returns, with the kind of layer and the seed.
    """
    passes = setting.choose(smoke=2, small=60, paper=600)
    width = setting.choose(smoke=1 / 16, small=1 / 8, paper=1 / 4)
    cases = digits(setting, "fully_connected", {"n_hidden": 2, "width": 32, "batch_norm": True})
    cases += digits(setting, "conv6", {"width_multiplier": width})
    finished = [run.case for run in runs(setting, cases) if run.status == "finished"]
    folder = setting.work / "excess"
    quiet = Setting(scale=setting.scale, work=setting.work, data_root=setting.data_root)
    jobs = {
        folder / f"{model}-{seed}.json": (seed, partial(_of_unit, setting=quiet, model=model, seed=seed))
        for seed in seeds(setting)
        for model in MODELS
    }
    jobs |= {
        folder / f"{case.id}.json": (case.spec.seed, partial(_of_network, setting=quiet, case=case, passes=passes))
        for case in finished
    }
    contents = kept_results(setting, [(path, job) for path, (_, job) in jobs.items()], "networks measured")
    return [row | {"seed": seed} for (seed, _), rows in zip(jobs.values(), contents, strict=True) for row in rows]
