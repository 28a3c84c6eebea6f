"""The network parts of the study: normalisations put in and trained, claims judged, everything at smoke scale."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from gapscope.base.errors import NotMeasurable
from gapscope.base.samples import Samples
from gapscope.batch_norm import refresh_population
from gapscope.batch_norm.norm_layers import BATCH_KINDS, BATCH_NORMS
from gapscope.cli.study import load_study
from gapscope.data import load
from gapscope_studies.kit.statistics import t_interval
from gapscope_studies.kit.study import Setting, run_study
from gapscope_studies.luo2019 import STUDY, cases, excess, excess_figures, folders, norms, perceptrons, runs, verdicts
from gapscope_studies.luo2019.methods import Method, differences, smaller
from gapscope_studies.luo2019.old_claims import Claim, in_words
from gapscope_studies.luo2019.training_figures import LAYERS, slope


def at(scale: str, work: Path = Path()) -> Setting:
    return Setting(scale=scale, work=work, workers=1, say=lambda line: None)


def case(**changes: Any) -> cases.Case:
    return replace(cases.small_cnn(at("smoke"), 10)[0], **changes)


def test_t_interval_by_hand() -> None:
    low, high = t_interval([1.0, 2.0, 3.0])
    assert (low, high) == (pytest.approx(2 - 4.302653 / math.sqrt(3)), pytest.approx(2 + 4.302653 / math.sqrt(3)))
    assert t_interval([1.0]) == (-math.inf, math.inf)
    assert t_interval([1.0, math.nan]) == (-math.inf, math.inf)
    assert in_words([1.0, 2.0, 3.0], 1) == "2.0 [-0.5, 4.5]" and in_words([1.0], 1) == "1.0" and in_words([]) == "none"


@pytest.mark.parametrize(
    ("values", "outcome"),
    [
        ((1.0, 1.1, 0.9), "held"),
        ((-1.0, -1.1, -0.9), "not held"),
        ((1.0, -1.1, 0.9), "open"),
        ((1.0,), "open"),
        ((), "open"),
    ],
)
def test_a_claim_is_decided_by_its_interval(values: tuple[float, ...], outcome: str) -> None:
    assert Claim("here", "it is positive", "number", values, above=0.0).outcome == outcome
    mirrored = Claim("here", "it is negative", "number", tuple(-v for v in values), below=0.0)
    assert mirrored.outcome == outcome


def test_a_claim_of_a_range_fails_on_both_sides() -> None:
    outcomes = [
        Claim("", "", "", (value, value + 0.01), above=0.5, below=2.0).outcome for value in (0.1, 0.45, 1.0, 3.0)
    ]
    assert outcomes == ["not held", "open", "held", "not held"]


def test_slopes_are_those_of_a_line() -> None:
    assert slope([4, 16, 64], [1.0, 2.0, 3.0]) == pytest.approx(0.5)


def made_up(losses: list[float]) -> Method:
    found = [
        runs.Run(case(), "finished" if math.isfinite(loss) else "diverged", [], {"test_loss": loss}, {})
        for loss in losses
    ]
    return Method("made up", tuple(found))


def test_differences_pair_seeds_and_leave_out_what_diverged() -> None:
    one, other = made_up([1.0, 2.0, math.nan]), made_up([0.5, 3.0, 1.0])
    assert differences(one, other, "test_loss") == (0.5, -1.0)
    assert smaller("", "", one, other, "test_loss").values == (0.5, -1.0)
    assert one.final("test_loss") == [1.0, 2.0]


def test_every_setting_of_a_case_makes_another_run() -> None:
    first = case()
    others = [
        case(normalization="ghost"), case(emulated_size=5), case(only_in="conv1_norm"), case(pixels_averaged=2),
        replace(first, spec=first.spec.replace({"seed": 1})),
    ]  # fmt: skip
    assert len({first.id, *(other.id for other in others)}) == 6
    assert first.id == case().id


def test_the_papers_protocol_at_paper_scale() -> None:
    normal, large = cases.batch_sizes(at("paper"))
    small_batch, large_batch = (cases.resnet(at("paper"), size)[0].spec for size in (normal, large))
    assert (normal, large) == (128, 1024)
    assert small_batch.network.options == {"width_multiplier": 1.0}
    assert (small_batch.training.learning_rate, small_batch.training.momentum) == (0.1, 0.9)
    assert large_batch.training.learning_rate == pytest.approx(0.8)
    assert small_batch.training.schedule_factor == pytest.approx(math.exp(-391e-4), rel=1e-4)
    assert small_batch.data.train_size is None
    imagenet = cases.folder(at("paper"), "imagenet32", 128)[0].spec
    training = imagenet.training
    assert (training.schedule, training.schedule_factor, training.schedule_epochs) == ("step", 0.1, 30)
    assert imagenet.data.options == {"folder": "imagenet32", "side": 32}


def weights(network: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value for name, value in network.state_dict().items() if name.endswith("weight")}


def test_kinds_of_batch_statistics_start_from_the_same_network() -> None:
    problem = runs.problem_of(case(), None)
    batch, ghost, population = (
        runs.untrained_network(case(normalization=kind, emulated_size=5), problem)
        for kind in ("batch", "ghost", "population")
    )
    for other in (ghost, population):
        assert all(torch.equal(value, weights(other)[name]) for name, value in weights(batch).items())
    assert isinstance(batch.get_submodule("conv1_norm"), nn.BatchNorm2d)
    assert (ghost.get_submodule("conv1_norm").ghost_size, type(population.get_submodule("fc1_norm")).__name__) == (
        5, "PopulationNorm1d",
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["weight", "weight_mean_only", "weight_variance_only"])
def test_weight_normalised_networks_start_with_standardised_outputs(kind: str) -> None:
    problem = runs.problem_of(case(), None)
    network = runs.untrained_network(case(normalization=kind), problem)
    assert not any(isinstance(layer, BATCH_NORMS) for layer in network.modules())
    outputs = network.eval()(problem.train.inputs)
    torch.testing.assert_close(outputs.std(0, unbiased=False), torch.ones(10), atol=1e-3, rtol=0)
    torch.testing.assert_close(outputs.mean(0), torch.zeros(10), atol=1e-3, rtol=0)


def test_batch_norm_in_one_layer_alone() -> None:
    problem = runs.problem_of(case(), None)
    network = runs.untrained_network(case(only_in="conv3_norm"), problem)
    there = [name for name, layer in network.named_modules() if isinstance(layer, BATCH_NORMS)]
    assert there == ["conv3_norm"]
    whole = runs.untrained_network(case(), problem)
    x = problem.train.inputs[:3]
    torch.testing.assert_close(network.eval()(x), whole.eval()(x), atol=1e-4, rtol=1e-4)


def test_averaged_pixels_keep_the_mean() -> None:
    whole, halved = (runs.problem_of(case(pixels_averaged=side), None) for side in (1, 2))
    assert halved.input_shape == (1, 4, 4)
    torch.testing.assert_close(halved.test.inputs.mean((1, 2, 3)), whole.test.inputs.mean((1, 2, 3)))


def population_case(**changes: Any) -> cases.Case:
    return case(normalization="population", emulated_size=4, **changes)


def test_population_statistics_are_exact_after_training(tmp_path: Path) -> None:
    setting = at("smoke", tmp_path)
    [run] = runs.runs(setting, [population_case()])
    network = runs.trained_network(setting, run.case)
    kept = {name: value.clone() for name, value in network.state_dict().items() if "running" in name}
    samples = runs.population(runs.problem_of(run.case, None).train)
    refresh_population(network, samples, samples=len(samples))
    for name, value in kept.items():
        torch.testing.assert_close(network.state_dict()[name], value, atol=1e-6, rtol=1e-5)
    assert all(row["penalty"] > 0 for row in run.history)


def test_statistics_are_refreshed_before_every_step(tmp_path: Path) -> None:
    setting = at("smoke", tmp_path)
    [run] = runs.runs(setting, [population_case()])
    network: Any = runs.trained_network(setting, run.case)
    # 3 epochs of 60 samples in batches of 10, and once more for the scores of each epoch
    assert int(network.conv1_norm.num_batches_tracked) == 3 * (6 + 1)


def test_gamma_decay_shrinks_gamma(tmp_path: Path) -> None:
    wanted = [population_case(), case(normalization="population")]
    decayed, plain = runs.runs(at("smoke", tmp_path), wanted)
    assert sum(decayed.gamma_squared.values()) < sum(plain.gamma_squared.values())
    assert plain.history[0]["penalty"] == 0


def test_an_interrupted_run_goes_on_as_if_unbroken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [unbroken] = runs.runs(at("smoke", tmp_path / "unbroken"), [population_case()])
    calls, scores = 0, runs.scores

    def stops(*arguments: Any) -> dict[str, float]:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt
        return scores(*arguments)

    monkeypatch.setattr(runs, "scores", stops)
    with pytest.raises(KeyboardInterrupt):
        runs.runs(at("smoke", tmp_path / "broken"), [population_case()])
    [resumed] = runs.runs(at("smoke", tmp_path / "broken"), [population_case()])
    assert resumed.scores == unbroken.scores
    assert [row["test_loss"] for row in resumed.history] == [row["test_loss"] for row in unbroken.history]


def test_a_trained_run_is_kept_and_a_diverged_one_is_marked(tmp_path: Path) -> None:
    setting, wild = at("smoke", tmp_path), case()
    wild = replace(wild, normalization="none", spec=wild.spec.replace({"training.learning_rate": 1e30}))
    [first] = runs.runs(setting, [wild])
    assert (first.status, first.scores) == ("diverged", {})
    path = runs.folder_of(setting, wild) / "run.json"
    written = path.stat().st_mtime_ns
    assert runs.runs(setting, [wild]) == [first]
    assert path.stat().st_mtime_ns == written


def test_folding_keeps_the_norms_that_act() -> None:
    problem = runs.problem_of(case(), None)
    network = runs.untrained_network(case(), problem)
    network(problem.train.inputs)
    with torch.no_grad():
        for layer in network.modules():
            if isinstance(layer, BATCH_KINDS):
                layer.weight.uniform_(-2, 2)
    x = problem.train.inputs[:2]
    folded = norms.replace_normalization(network.eval(), "none", inputs=x)
    parameters = dict(folded.named_parameters())
    plain = {name: float(parameters[f"{name}.weight"].detach().norm()) for name in norms.LAYERS}
    assert norms.effective_norms(network, x) == pytest.approx(plain, rel=1e-5)
    assert norms.effective_norms(folded, x) == pytest.approx(plain, rel=1e-6)
    assert norms.growth([{"n": 2.0}, {"n": 9.0}, {"n": 3.0}], "n") == 1.5


def test_images_are_written_so_that_they_are_read_back(tmp_path: Path) -> None:
    inputs = torch.arange(5 * 3 * 4 * 4).view(5, 3, 4, 4) / 255
    for split in ("train", "val"):
        folders.write_images(inputs, torch.tensor([1, 0, 1, 0, 1]), tmp_path / split)
    found = load("image_folder", folder=str(tmp_path), side=4)
    torch.testing.assert_close(found.train.inputs, inputs[[1, 0, 3, 2, 4]])
    assert found.train.targets is not None and found.train.targets.tolist() == [0, 1, 0, 1, 1]


@pytest.mark.parametrize("model", perceptrons.MODELS)
def test_single_units_are_at_their_optimum(model: str) -> None:
    samples = perceptrons.population(model, 20_000, torch.Generator().manual_seed(0))
    network: Any = perceptrons.fitted(model, samples)
    # the loss is of order 1 and its curvature too: gamma is at its optimum within 1e-4
    assert max(float(p.grad.abs().max()) for p in network.parameters()) < 1e-4
    assert float(network[0].weight.detach()) == pytest.approx(1.5, abs=0.1)


def test_the_printed_decay_of_a_linear_unit_is_the_closed_form() -> None:
    samples = perceptrons.population("linear", 4000, torch.Generator().manual_seed(0))
    network = perceptrons.fitted("linear", samples)
    [row] = excess.compare(network, samples, (20,), ["0"], excess.Effort(2, 4), 0)
    # squared error, normal u: 2 / 2 * (2 / 4M + 1 / M) gamma^2; the squared score is 4 noise^2 in the place of 2
    factor = (4000 - 20) / 3999
    assert row["printed_curvature"] == pytest.approx(factor * 1.5 * 1.5**2 / 20, rel=0.06)
    assert row["printed"] == pytest.approx(factor * 0.75 * 1.5**2 / 20, rel=0.1)
    assert row["shipped"] == pytest.approx(row["second_order"], rel=0.1)


def test_ratios_and_targets_by_hand() -> None:
    group = [{"measured": 1.0, "standard_error": 0.3, "p": 2.0}, {"measured": 2.0, "standard_error": 0.4, "p": 4.0}]
    assert excess_figures.ratio(group, "p") == (0.5, pytest.approx(0.5 / 6))
    unsure = [row | {"p_error": 1.0} for row in group]
    assert excess_figures.ratio(unsure, "p") == (0.5, pytest.approx((0.25 + 0.25 * 2) ** 0.5 / 6))
    judged = excess_figures.judged
    assert judged(excess.UNIT, 16, 1.07, 0.004) == "met"
    assert judged(excess.UNIT, 16, 1.09, 0.004) == "missed"
    assert judged(excess.FULLY_CONNECTED, 128, 1.03, 0.006) == "open"
    assert judged(excess.FULLY_CONNECTED, 64, 1.03, 0.006) == "-"
    assert [judged(excess.CONVOLUTION, 64, value, 0.1) for value in (1.2, 1.8, 0.3, 0.7)] == [
        "met", "missed", "missed", "open",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> tuple[Setting, Path]:
    return at("smoke", tmp_path_factory.mktemp("work")), tmp_path_factory.mktemp("results")


def results(places: tuple[Setting, Path], *parts: str) -> Path:
    """Run what has no result yet of these parts."""
    run_study(STUDY, *places, parts=parts)
    return places[1] / "luo2019" / "smoke"


def content(folder: Path, part: str) -> Any:
    return json.loads((folder / f"{part}.json").read_text())


@pytest.mark.parametrize("part", verdicts.FIGURES)
def test_every_part_is_written_with_its_claims(places: tuple[Setting, Path], part: str) -> None:
    folder = results(places, part)
    found = content(folder, part)
    assert found["verdict"] and found["numbers"]["claims"]
    assert {row["outcome"] for row in found["numbers"]["claims"]} <= {"held", "not held", "open"}
    page = (folder / f"{part}.md").read_text()
    assert page.count("![") == len(list(folder.glob(f"{part}-*.svg"))) == 1


def test_the_claims_are_those_of_the_other_parts(places: tuple[Setting, Path]) -> None:
    results(places, "excess", "fig4")
    folder = results(places, "claims")
    collected = content(folder, "claims")["numbers"]
    assert {row["part"] for row in collected["claims"]} | set(collected["missing"]) == set(verdicts.FIGURES)
    assert sum(collected["counts"].values()) == len(collected["claims"])
    for part in ("excess", "fig4"):
        ours = [row["ours"] for row in collected["claims"] if row["part"] == part]
        assert ours == [row["ours"] for row in content(folder, part)["numbers"]["claims"]]


def test_gamma_is_reported_for_every_layer_and_batch_size(places: tuple[Setting, Path]) -> None:
    page = (results(places, "fig2ef") / "fig2ef.md").read_text()
    assert all(page.count(f"| {layer} | ") == 2 for layer in LAYERS)


def test_claims_without_any_part_say_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(NotMeasurable, match="Run excess, fig2ab"):
        verdicts.claims(at("smoke", tmp_path))


def test_the_study_is_found_by_its_name() -> None:
    assert load_study("luo2019") is STUDY


def test_the_population_is_a_share_of_the_training_samples() -> None:
    samples = Samples(torch.arange(400.0)[:, None])
    assert len(runs.population(samples)) == 160
    assert len(set(runs.population(samples).inputs.flatten().tolist())) == 160
