"""The normalization of a spec: inserted into its network and updated during training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from gapscope.base.errors import InvalidInput
from gapscope.base.specs import DataSpec, NetworkSpec, RunSpec, TrainingSpec
from gapscope.batch_norm import refresh_population
from gapscope.batch_norm.norm_layers import BATCH_NORMS
from gapscope.data import Problem, prepare
from gapscope.pools import Pool
from gapscope.pools.from_spec import network_from_spec
from gapscope.pools.loading import load_with_initial
from gapscope.pools.normalization import make_penalties, population_samples, population_statistics
from gapscope.pools.readings import RunOptions
from gapscope.pools.run import run

BASE = RunSpec(
    data=DataSpec(train_size=60, test_size=40),
    network=NetworkSpec(
        name="conv6", options={"width_multiplier": 1 / 16}, initialization="he_normal"
    ),
    training=TrainingSpec(learning_rate=0.05, momentum=0.9, batch_size=10, epochs=2),
)
POPULATION = {"normalization.kind": "population", "normalization.population_samples": 24}
DECAY = POPULATION | {"normalization.emulated_size": 4}


@pytest.fixture(scope="module")
def problem() -> Problem:
    return prepare(BASE.data)[0]


def spec(**changes: Any) -> RunSpec:
    return BASE.replace({f"normalization.{name}": value for name, value in changes.items()})


def test_kinds_of_batch_statistics_start_from_the_same_network(problem: Problem) -> None:
    batch, ghost, population_norm = (
        network_from_spec(made, problem)
        for made in (
            BASE,
            spec(kind="ghost", emulated_size=5),
            spec(kind="population", emulated_size=5),
        )
    )
    weights = {name: value for name, value in batch.state_dict().items() if name.endswith("weight")}
    for other in (ghost, population_norm):
        assert all(torch.equal(value, other.state_dict()[name]) for name, value in weights.items())
    assert isinstance(batch.get_submodule("conv1_norm"), nn.BatchNorm2d)
    assert (ghost.get_submodule("conv1_norm").ghost_size, type(population_norm.get_submodule("fc1_norm")).__name__) == (
        5, "PopulationNorm1d",
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["batch", "mean_only", "variance_only"])
def test_weight_normalized_networks_start_with_standardized_outputs(
    problem: Problem, kind: str
) -> None:
    made = spec(kind=kind, weight_norm=True)
    made = made.replace({"network.options.normalization": "none"}) if kind == "batch" else made
    network = network_from_spec(made, problem)
    assert not any(isinstance(layer, BATCH_NORMS) for layer in network.modules())
    outputs = network.eval()(problem.train.inputs)
    torch.testing.assert_close(outputs.std(0, unbiased=False), torch.ones(10), atol=1e-3, rtol=0)
    torch.testing.assert_close(outputs.mean(0), torch.zeros(10), atol=1e-3, rtol=0)


def test_batch_norm_in_one_layer_alone(problem: Problem) -> None:
    network = network_from_spec(spec(only_in="conv3_norm"), problem)
    assert [name for name, layer in network.named_modules() if isinstance(layer, BATCH_NORMS)] == [
        "conv3_norm"
    ]
    x = problem.train.inputs[:3]
    torch.testing.assert_close(
        network.eval()(x), network_from_spec(BASE, problem).eval()(x), atol=1e-4, rtol=1e-4
    )
    with pytest.raises(InvalidInput, match="Did you mean 'conv3_norm'"):
        network_from_spec(spec(only_in="conv3"), problem)


def test_population_statistics_are_exact_after_training_and_measured_before_every_step(
    tmp_path: Path,
) -> None:
    made = BASE.replace(DECAY)
    record = run(made, tmp_path / "run", RunOptions(measures=()))
    assert record.status == "finished" and all(row["penalty"] > 0 for row in record.history)
    network, _, problem = load_with_initial(tmp_path / "run" / "weights.safetensors")
    before = {
        name: value.clone() for name, value in network.state_dict().items() if "running" in name
    }
    samples = population_samples(made, problem.train)
    refresh_population(network, samples, samples=len(samples))
    for name, value in before.items():
        torch.testing.assert_close(network.state_dict()[name], value, atol=1e-6, rtol=1e-5)
    # 2 epochs of 60 samples in batches of 10, once more for the scores of each epoch, and once here
    assert int(network.get_submodule("conv1_norm").num_batches_tracked) == 2 * (6 + 1) + 1  # type: ignore[arg-type]


def test_statistics_of_other_kinds_do_not_change(problem: Problem) -> None:
    network = network_from_spec(BASE, problem)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    with population_statistics(network, BASE, problem) as refresh:
        refresh()
        assert not network._forward_pre_hooks
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_the_population_is_a_random_part_of_the_training_samples(problem: Problem) -> None:
    samples = population_samples(BASE.replace(POPULATION), problem.train)
    assert len(samples) == 24 and not torch.equal(samples.inputs, problem.train.inputs[:24])
    assert len(population_samples(spec(kind="population"), problem.train)) == 60


def test_decay_is_added_to_the_penalties_of_the_spec(problem: Problem) -> None:
    weight = {"training.penalties": [{"name": "weight", "options": {"strength": 0.1}}]}
    kinds = [type(item).__name__ for item in make_penalties(BASE.replace(DECAY | weight), problem)]
    assert kinds == ["L2Penalty", "GammaDecayPenalty"]
    assert make_penalties(BASE.replace(POPULATION), problem) == []


def counted(network: nn.Module, problem: Problem, row: dict[str, Any]) -> None:
    """Add numbers to the history, in the worker."""
    assert not network.training and "test_loss" in row
    row["weights"] = float(sum(parameter.numel() for parameter in network.parameters()))
    row["samples"] = len(problem.train)


@pytest.mark.usefixtures("without_workers")
def test_on_epoch_extends_the_history(tmp_path: Path) -> None:
    small = RunSpec.from_dict(
        {
            "data": {"train_size": 30},
            "training": {"epochs": 2},
            "network": {"options": {"width": 4}},
        }
    )
    [record] = Pool(tmp_path / "pool").run([small], workers=1, measures=(), on_epoch=counted)
    assert [(row["epoch"], row["samples"]) for row in record.history] == [(1, 30), (2, 30)]
    assert {row["weights"] for row in record.history} == {
        float(64 * 4 + 4 + 4 * 4 + 4 + 4 * 10 + 10)
    }
