"""Measuring eq. 3: batch-norm loss minus population-norm loss, layer by layer, beside everything that predicts it."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gapscope.base.randomness import stream_seed
from gapscope.base.samples import Samples
from gapscope.batch_norm import batch_norm_excess, gamma_decay, refresh_population
from gapscope.batch_norm.norm_layers import batch_norm_layers
from gapscope_studies.kit.study import Setting
from gapscope_studies.luo2019.cases import Case, digits, seeds
from gapscope_studies.luo2019.perceptrons import MODELS, fitted, population
from gapscope_studies.luo2019.runs import kept_results, problem_of, runs, trained_network

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


@dataclass(frozen=True)
class Effort:
    """How precisely a network is measured.

    Attributes:
        passes: How often the samples are dealt into batches of the smallest size; of larger ones in proportion, so that
            every size has about as many batches.
        draws: Noises drawn for each sample in the shipped prediction.
    """

    passes: int
    draws: int


def compare(
    network: nn.Module, samples: Samples, sizes: Sequence[int], layers: Sequence[str], effort: Effort, seed: int
) -> list[Row]:
    """Measure one network layer by layer, and predict it in every way.

    Args:
        network: A float64 network with batch norm.
        samples: Its population.
        sizes: Batch sizes, ascending.
        layers: Names of the layers.
        effort: How precisely.
        seed: Of batches and noise.

    Returns:
        One mapping a layer and batch size: layer, batch_size, measured and its standard_error, every prediction, and
        shipped_error, the standard error of the shipped one.
    """
    generator = torch.Generator().manual_seed(stream_seed(seed, "batches"))
    rows = []
    for size in sizes:
        printed = _printed(network, samples, size)
        for name in layers:
            common: Any = {"batch_sizes": (size,), "layers": [name], "chunk_size": 1024, "generator": generator}
            passes = effort.passes * size // sizes[0]
            [row] = batch_norm_excess(network, samples, passes=passes, noise_draws=effort.draws, **common)
            [second] = batch_norm_excess(network, samples, passes=1, noise_draws=0, **common)
            rows.append(
                {
                    "layer": name,
                    "batch_size": size,
                    "measured": float(row.measured),
                    "standard_error": row.measured.standard_error,
                    "shipped": float(row.predicted),
                    "shipped_error": row.predicted.standard_error,
                    "second_order": float(second.predicted),
                    **{kind: found[name] for kind, found in printed.items()},
                }
            )
    return rows


def _of_network(folder: Path, *, setting: Setting, case: Case, kind: str, effort: Effort) -> list[Row]:
    samples = problem_of(case, setting.data_root).train
    samples = Samples(samples.inputs.double(), samples.targets)
    network = trained_network(setting, case).double()
    layers = [name for name in batch_norm_layers(network) if name.startswith("conv") or kind == FULLY_CONNECTED]
    rows = compare(network, samples, sizes(setting), layers, effort, case.spec.seed)
    return [row | {"kind": kind, "layer": row["layer"].removesuffix("_norm")} for row in rows]


def _of_unit(folder: Path, *, setting: Setting, model: str, seed: int) -> list[Row]:
    n = setting.choose(smoke=400, small=4000, paper=20_000)
    effort = setting.choose(smoke=Effort(5, 2), small=Effort(400, 10), paper=Effort(400, 10))
    samples = population(model, n, torch.Generator().manual_seed(stream_seed(seed, model)))
    rows = compare(fitted(model, samples), samples, sizes(setting), ["0"], effort, seed)
    return [row | {"kind": UNIT, "layer": model} for row in rows]


def sizes(setting: Setting) -> tuple[int, ...]:
    """Batch sizes that are measured."""
    return setting.choose(smoke=(16, 32), small=(16, 32, 64, 128), paper=(16, 32, 64, 128))


def measured_rows(setting: Setting) -> list[Row]:
    """Measure what is missing of single units, a fully connected network and the CNN, on digits.

    But at paper scale the CNN sees digits of 4 x 4 pixels, for the cost; its channels then have 16 positions, not 64.

    Args:
        setting: Where and how large.

    Returns:
        What `compare` returns, with the kind of layer and the seed.
    """
    width = setting.choose(smoke=1 / 16, small=1 / 8, paper=1 / 4)
    pixels = setting.choose(smoke=2, small=2, paper=1)
    networks = {
        FULLY_CONNECTED: digits(setting, "fully_connected", {"n_hidden": 2, "width": 32, "batch_norm": True}),
        CONVOLUTION: digits(setting, "conv6", {"width_multiplier": width}, pixels),
    }
    efforts = {
        FULLY_CONNECTED: setting.choose(smoke=Effort(2, 2), small=Effort(400, 100), paper=Effort(400, 100)),
        CONVOLUTION: setting.choose(smoke=Effort(2, 2), small=Effort(4, 3), paper=Effort(400, 30)),
    }
    finished = [
        (kind, run.case) for kind, cases in networks.items() for run in runs(setting, cases) if run.status == "finished"
    ]
    folder = setting.work / "excess"
    quiet = Setting(scale=setting.scale, work=setting.work, data_root=setting.data_root)
    jobs = {
        folder / f"{model}-{seed}.json": (seed, partial(_of_unit, setting=quiet, model=model, seed=seed))
        for seed in seeds(setting)
        for model in MODELS
    }
    for kind, case in finished:
        job = partial(_of_network, setting=quiet, case=case, kind=kind, effort=efforts[kind])
        jobs[folder / f"{case.id}.json"] = case.spec.seed, job
    contents = kept_results(setting, [(path, job) for path, (_, job) in jobs.items()], "networks measured")
    return [row | {"seed": seed} for (seed, _), rows in zip(jobs.values(), contents, strict=True) for row in rows]
