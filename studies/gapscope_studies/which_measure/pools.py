"""The networks of the study as tables that `gapscope leaderboard` reads: gap, hyperparameters hp.*, measures m.*."""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING, Any

import pandas
import torch
from torch import Tensor

from gapscope.base.specs import RunSpec
from gapscope.results.records import Record
from gapscope_studies.kit.pool import trained
from gapscope_studies.kit.study import RunSettings

if TYPE_CHECKING:
    from gapscope.base.samples import Samples
    from gapscope.data import Problem

LEARNT = 0.75
NOISE = "_noise"
SIZE = "parameter_count"
# one number per measure, chosen before any network was trained; left out are measures whose cost grows faster than the
# number of samples, and the local learning coefficient, which costs more than the training
MEASURES: dict[str, tuple[str, ...]] = {
    "adaptive_sharpness": (),
    "augmentation_margin": (),
    "augmentation_robustness": ("penalty",),
    "connection_sensitivity": (),
    "davies_bouldin_mixup": ("product",),
    "distance_from_initialization": (),
    "fisher_rao_norm": (),
    "fisher_trace": (),
    "frobenius_norms": ("log_product",),
    "gradient_disparity": (),
    "gradient_noise": (),
    "gradient_norm": ("whole",),
    "gradient_weight_alignment": ("alignment",),
    "graph_label_variation": ("features",),
    "hessian_top_eigenvalue": (),
    "hessian_trace": (),
    "input_jacobian_norm": (),
    "jacobian_covariance": (),
    "loss": (),
    "margin_signature": ("input.median",),
    "mixup_margin": (),
    "mixup_robustness": ("accuracy",),
    "multiply_accumulates": (),
    "neural_collapse": ("within_over_between",),
    "ntk_trace": (),
    "operator_norms": ("log_product",),
    "output_margin": ("percentile_10",),
    "output_sensitivity": (),
    "pacbayes_distance": (),
    "pacbayes_flatness": (),
    "pacbayes_magnitude_distance": (),
    "pacbayes_magnitude_flatness": (),
    "pacbayes_magnitude_norm": (),
    "pacbayes_norm": (),
    SIZE: (),
    "parameter_norm": (),
    "path_norm": (),
    "path_norm_over_margin": (),
    "power_law_alpha": ("alpha",),
    "spectral_complexity": (),
    "spectral_distance_complexity": (),
    "spectral_norms": ("log_product",),
    "stable_rank": ("mean",),
    "synaptic_flow": (),
    "training_loss_sum": ("all",),
    "unit_sparsity": ("zeta", "kappa"),
    "vc_dimension_bound": (),
    "worst_case_sharpness": (),
}
NUMBERS = tuple(f"{name}.{part}" if part else name for name, parts in MEASURES.items() for part in parts or ("",))


def specs_of(setting: RunSettings, pool: str) -> list[RunSpec]:
    """The training configurations of a grid, each with a seed and a training subset of its own, in random order.

    In random order a run that is stopped leaves a fair sample of the grid.
    """
    first = 1000 if pool.endswith(NOISE) else 0
    specs = [
        spec.replace({"seed": first + number, "data.seed": first + number})
        for number, spec in enumerate(setting.grid(__file__, pool))
    ]
    return random.Random(0).sample(specs, len(specs))


def networks(setting: RunSettings, pool: str) -> list[Record]:
    """Train and measure a pool. The networks that learned their training labels."""
    settings = setting.read(__file__)
    chosen = settings.get("measures", list(MEASURES))
    records = setting.train(
        pool,
        specs_of(setting, pool),
        measures=chosen,
        measure_samples=settings["measured_samples"],
        measure_options=settings.get("measure_options", {}),
    )
    return [record for record in records if record.scores.get("train_accuracy", 0.0) > LEARNT]


def _images(inputs: Tensor) -> list[bytes]:
    return [image.numpy().tobytes() for image in inputs.contiguous()]


def held_out(trained_on: Samples, everything: Problem) -> Samples:
    """All images, of both splits, that a network was not trained on."""
    from gapscope.base.samples import Samples

    known = set(_images(trained_on.inputs))
    unused = everything.train.subset(
        torch.tensor([i not in known for i in _images(everything.train.inputs)]).nonzero()[:, 0]
    )
    assert unused.targets is not None and everything.test.targets is not None
    return Samples(
        torch.cat([everything.test.inputs, unused.inputs]), torch.cat([everything.test.targets, unused.targets])
    )


def _held_out_accuracy(setting: RunSettings, pool: str, spec_id: str) -> float:
    from gapscope.inspection.losses import evaluate
    from gapscope.pools import Pool
    from gapscope.pools.from_spec import prepared

    network, problem = trained(setting, pool, spec_id)
    record = Pool(setting.work / pool).get_record(spec_id)
    assert record is not None
    # the same for all networks of a data set, so that it is read once
    everything = {
        "data.train_size": None, "data.test_size": None, "data.balanced": False, "data.label_noise": 0.0,
        "data.seed": 0,
    }  # fmt: skip
    whole, _ = prepared(RunSpec.from_dict(record.spec).replace(everything), setting.data_root)
    return evaluate(network, held_out(problem.train, whole))["accuracy"]


def _settings_of(spec: RunSpec) -> dict[str, Any]:
    penalties = spec.training.penalties
    return {
        "hp.width": spec.network.options.get("width_multiplier", spec.network.options.get("width")),
        "hp.depth": spec.network.options.get("depth"),
        "hp.samples": spec.data.train_size,
        "hp.augmentation": spec.training.augmentation,
        "hp.weight_penalty": penalties[0].options["strength"] if penalties else 0.0,
        "hp.wrong_labels": spec.data.label_noise,
    }


def table_of(setting: RunSettings, pool: str, records: list[Record]) -> pandas.DataFrame:
    """One row per network. The gap is training accuracy minus accuracy on all images not trained on."""
    jobs = {record.id: partial(_held_out_accuracy, setting, pool, record.id) for record in records}
    accuracies = setting.cached(f"{pool}-held-out", jobs)
    rows = []
    for record in records:
        spec = RunSpec.from_dict(record.spec)
        values = {reading.name: reading.value for reading in record.readings}
        rows.append(
            {"id": record.id, "gap": record.scores["train_accuracy"] - accuracies[record.id]}
            | _settings_of(spec)
            | {f"m.{name}": values[name] for name in NUMBERS if name in values}
        )
    return pandas.DataFrame(rows).set_index("id")
