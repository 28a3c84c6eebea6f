"""Luo et al. 2019: its helpers on known answers and its protocol; that its numbers stand is `test_frozen`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch

from gapscope.base.samples import Samples
from gapscope.batch_norm.norm_layers import BATCH_KINDS
from gapscope.data import Problem, load_dataset
from gapscope.pools.from_spec import network_from_spec, prepare_data
from gapscope.results.records import Record
from gapscope.theory import order_parameter_integrals, stability_eigenvalues
from gapscope_studies import luo2019
from gapscope_studies.kit.data import write_images
from gapscope_studies.kit.provenance import DECLARED
from gapscope_studies.kit.study import RunSettings
from gapscope_studies.luo2019 import advice, convolutional, excess, fully_connected
from gapscope_studies.luo2019.networks import PLAIN, claims_of, make_specs
from gapscope_studies.luo2019.students import Plan, simulate_point
from gapscope_studies.luo2019.theory import (
    APPROACHES,
    largest_settling_rate,
    overlap_rate,
    printed_i2,
)


def at(scale: str, work: Path = Path()) -> RunSettings:
    return RunSettings(scale=scale, work=work, workers=1, say=lambda line: None)


def test_batches_of_every_size_get_as_many_steps_at_small_scale() -> None:
    steps = set()
    for size in (8, 16, 32, 128):
        spec = make_specs(at("small"), "resnet", size)[0]
        assert spec.data.train_size is not None
        steps.add(spec.training.epochs * math.ceil(spec.data.train_size / size))
    assert steps == {12 * 64}


def test_the_papers_protocol_at_paper_scale() -> None:
    small_batch, large_batch = (make_specs(at("paper"), "resnet", size)[0] for size in (128, 1024))
    assert small_batch.network.options == {"width_multiplier": 1.0}
    assert (small_batch.training.learning_rate, small_batch.training.momentum) == (0.1, 0.9)
    assert large_batch.training.learning_rate == pytest.approx(0.8)
    assert small_batch.training.schedule_factor == pytest.approx(math.exp(-391e-4), rel=1e-4)
    assert small_batch.data.train_size is None
    imagenet = convolutional._on_images(at("paper"), 128)[0]
    training = imagenet.training
    assert (training.schedule, training.schedule_factor, training.schedule_epochs) == (
        "step",
        0.1,
        30,
    )
    assert imagenet.data.options == {"folder": "imagenet32", "side": 32}


@pytest.mark.parametrize("scale", ["smoke", "small", "paper"])
def test_every_scale_has_the_same_settings_and_whole_grids(scale: str) -> None:
    content, other = at(scale).read(luo2019.__file__), at("smoke").read(luo2019.__file__)
    assert content.keys() - {DECLARED} == other.keys() - {DECLARED}
    assert all(
        content[name].keys() == other[name].keys()
        for name in ("theory", "excess", "advice", "fig2ef")
    )
    slow = make_specs(at(scale), "resnet", 10, options=PLAIN, weight_norm=True)
    assert len(slow) == content["seeds"] and [spec.seed for spec in slow] == list(
        range(content["seeds"])
    )
    assert slow[0].training.learning_rate == pytest.approx(
        content["slower_weight_norm"]
        * make_specs(at(scale), "resnet", 10)[0].training.learning_rate
    )


def test_differences_pair_seeds_and_leave_out_what_diverged() -> None:
    rows = []
    for name, losses in {"a": [1.0, 2.0, math.nan], "b": [0.5, 3.0, 1.0]}.items():
        for seed, loss in enumerate(losses):
            status: Any = "finished" if math.isfinite(loss) else "diverged"
            record = Record(
                id="a", spec={}, status=status, scores={"test_loss": loss, "train_accuracy": 1.0}
            )
            rows.append(
                {"method": name, "seed": seed, "n_classes": 10, "status": status, "record": record}
            )
            rows[-1] |= {"test_loss": loss, "test_accuracy": loss / 10}
    claim, control = claims_of("", pandas.DataFrame(rows), [("", "a", "b", "smaller", "test_loss")])
    assert claim.values == (0.5, -1.0) and (claim.above, claim.below) == (-math.inf, 0.0)
    assert control.values == pytest.approx((0.05, -0.1)) and (control.above, control.ours) == (
        0.0,
        True,
    )


def test_folding_keeps_the_norms_that_act() -> None:
    spec = make_specs(at("smoke"), "cnn", 10)[0]
    problem, _ = prepare_data(spec, None)
    network = network_from_spec(spec, problem)
    network(problem.train.inputs)
    with torch.no_grad():
        for layer in network.modules():
            if isinstance(layer, BATCH_KINDS):
                layer.weight.uniform_(-2, 2)
    x = problem.train.inputs[:2]
    folded = convolutional.replace_batch_norm(network.eval(), "none", inputs=x)
    parameters = dict(folded.named_parameters())
    plain = {
        name: float(parameters[f"{name}.weight"].detach().norm())
        for name in convolutional.TUNED_LAYERS
    }
    assert convolutional.effective_norms(network, x) == pytest.approx(plain, rel=1e-5)
    assert convolutional.effective_norms(folded, x) == pytest.approx(plain, rel=1e-6)


def test_images_are_written_so_that_they_are_read_back(tmp_path: Path) -> None:
    inputs = torch.arange(5 * 3 * 4 * 4).view(5, 3, 4, 4) / 255
    for split in ("train", "val"):
        write_images(Samples(inputs, torch.tensor([1, 0, 1, 0, 1])), tmp_path / split)
    result = load_dataset("image_folder", folder=str(tmp_path), side=4)
    torch.testing.assert_close(result.train.inputs, inputs[[1, 0, 3, 2, 4]])
    assert result.train.y.tolist() == [0, 1, 0, 1, 1]


@pytest.mark.parametrize("model", excess.MODELS)
def test_single_units_are_at_their_optimum(model: str) -> None:
    samples = excess.unit_population(model, 20_000, torch.Generator().manual_seed(0))
    network: Any = excess.fit_unit(model, samples)
    # the loss is of order 1 and its curvature too: gamma is at its optimum within 1e-4
    assert max(float(p.grad.abs().max()) for p in network.parameters()) < 1e-4
    assert float(network[0].weight.detach()) == pytest.approx(1.5, abs=0.1)


def test_the_printed_decay_of_units_is_the_closed_form() -> None:
    factor = (4000 - 20) / 3999
    for model in ("linear", "softplus"):
        samples = excess.unit_population(model, 4000, torch.Generator().manual_seed(0))
        network, loss = excess.fit_unit(model, samples), excess.unit_loss(model)
        [row] = excess.compare(network, samples, (20,), ["0"], 0, passes=2, draws=4, loss=loss)
        u = samples.inputs
        # squared error: A'' = 2, softplus: A'' = sigmoid(h); the excess kurtosis of u is 0: (A'' u^2 / 4 + A'' / 2) / M
        second = torch.full_like(u, 2.0) if model == "linear" else (1.5 * u + 0.3).sigmoid()
        closed = float((second * u.square() / 4 + second / 2).mean())
        assert row["hessian"] == pytest.approx(factor * closed * 1.5**2 / 20, rel=0.06)
        # the loss is the likelihood
        assert row["stated"] == pytest.approx(row["hessian"], rel=0.04)
        assert row["shipped"] == pytest.approx(row["second_order"], rel=0.15)


def test_theorem_1_of_a_linear_unit_needs_the_noise_of_its_likelihood() -> None:
    generator = np.random.default_rng(1)
    u = generator.normal(size=64_000)
    u = (u - u.mean()) / u.std()
    ratios = {}
    for variance in (0.5, 0.25):
        y = 1.5 * u + 0.3 + variance**0.5 * generator.normal(size=len(u))
        rises = []
        for _ in range(10):
            order = generator.permutation(len(u)).reshape(-1, 64)
            x, target = u[order], y[order]
            h = 1.5 * (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True) + 0.3
            rises.append(((h - target) ** 2).mean() - ((1.5 * u + 0.3 - y) ** 2).mean())
        score = 2 * (1.5 * u + 0.3 - y)
        squared_score = (0.5 * (score * u) ** 2 + score**2).mean() * 1.5**2 / (2 * 64)
        ratios[variance] = np.mean(rises) / squared_score
    assert ratios[0.5] == pytest.approx(1.0, abs=0.03)
    assert ratios[0.25] == pytest.approx(2.0, abs=0.06)


def test_the_partition_function_has_the_papers_derivatives() -> None:
    h = torch.linspace(-7, 7, 29, dtype=torch.float64)[:, None].requires_grad_()
    (first,) = torch.autograd.grad(
        excess.softplus_loss(h, torch.zeros_like(h)).sum(), h, create_graph=True
    )
    (second,) = torch.autograd.grad(first.sum(), h)
    torch.testing.assert_close(first, torch.nn.functional.softplus(h), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(second, h.sigmoid(), rtol=1e-8, atol=1e-9)


def test_ratio_and_its_standard_error_by_hand() -> None:
    rows = pandas.DataFrame(
        {"measured": [1.0, 2.0], "standard_error": [0.3, 0.4], "shipped": [2.0, 4.0]}
    )
    assert excess.ratio(rows, "shipped") == 0.5
    assert excess.standard_error(rows.assign(shipped_error=0.0)) == pytest.approx(0.5 / 6)
    assert excess.standard_error(rows.assign(shipped_error=1.0)) == pytest.approx(
        (0.25 + 0.25 * 2) ** 0.5 / 6
    )


@pytest.mark.thorough
def test_simulated_ridge_students_lie_on_the_curve_and_batch_norm_goes_to_least_squares() -> None:
    plan = Plan(
        student="linear", n_inputs=256, students=4, longest=200, full_epochs=0, loads=(2.0,)
    )
    point = simulate_point(plan, 2.0)
    assert np.mean(point["decayed"]) == pytest.approx(float(plan.curve(2.0, 1 / 64)), rel=0.06)
    assert np.mean(point["plain"]) == pytest.approx(0.25, rel=0.06)
    assert min(point["cosine"]) > 0.99 and list(point["batch_norm"]) == [
        "10",
        "30",
        "60",
        "100",
        "200",
    ]
    assert np.mean(point["batch_norm"]["10"]) < np.mean(point["batch_norm"]["200"])


@pytest.mark.thorough
def test_table_1_by_integration_agrees_with_its_closed_forms() -> None:
    for approach in APPROACHES:
        closed = stability_eigenvalues(1e-8, zeta=approach.zeta).overlap / 1e-8
        assert overlap_rate(approach, "relu") == pytest.approx(float(closed), rel=2e-3)
    assert largest_settling_rate("linear", tolerance=0.1) == pytest.approx(2.0, abs=0.06)


def test_the_printed_i2_is_right_at_full_overlap_alone() -> None:
    for overlap in (1.0, 0.4):
        right = float(order_parameter_integrals(0.7, overlap).i2)
        assert (abs(printed_i2(0.7, overlap) - right) < 1e-12) == (overlap == 1.0)
    assert printed_i2(0.7, 0.4) == pytest.approx(right - (1 - 0.4) / 4)


def world() -> dict[str, Any]:
    return at("smoke").read(luo2019.__file__)["advice"]["advice"]


def test_remedies_change_the_network_and_add_to_its_regularization() -> None:
    alone = advice._specs(world(), 30)[0]
    runs = [
        advice._apply_remedy(None, alone, 8, *remedy)
        for remedy in (
            ("", 0.0, ""),
            ("dropout", 0.5, "output"),
            ("gamma decay", 30.0, ""),
            ("ghost batches", 8.0, ""),
        )
    ]
    assert len({run["train_loss"] for run in runs}) == 4
    assert all(run["regularization"][0] > runs[0]["regularization"][0] + 0.02 for run in runs[1:3])


def test_single_neurons_are_measured_on_a_network_whose_neurons_are_known() -> None:
    first, last = torch.nn.Linear(2, 3), torch.nn.Linear(3, 2)
    with (
        torch.no_grad()
    ):  # the third neuron is dead, the first decides class 0 alone, the second class 1
        first.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]))
        first.bias.copy_(torch.tensor([0.0, 0.0, -1.0]))
        last.weight.copy_(torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]))
        last.bias.copy_(torch.tensor([0.0, 0.1]))
    network = torch.nn.Sequential(first, torch.nn.ReLU(), last)
    inputs = torch.tensor([[1.0, 0.0]] * 3 + [[0.0, 1.0]])
    (values,) = fully_connected.hidden_values(network, inputs).values()
    assert torch.equal(values[:, :2], inputs) and values[:, 2].eq(-1).all()
    samples = Samples(inputs, torch.tensor([0, 0, 0, 1]))
    problem = Problem("toy", "classification", samples, samples, 2)
    assert fully_connected.reliance(network, problem) == pytest.approx(
        0.75
    )  # without the first neuron class 1 is said to all
    assert fully_connected.correlation(values) == pytest.approx(1.0)
    assert fully_connected.inequality(values) == pytest.approx(
        np.std([0.75, 0.25, 0.0], ddof=1) / (1 / 3)
    )
    normal = torch.randn(200_000, 2, generator=torch.Generator().manual_seed(0))
    assert fully_connected.kurtosis(normal) == pytest.approx(3, abs=0.05)
    assert fully_connected.correlation(normal) == pytest.approx(0, abs=0.01)
