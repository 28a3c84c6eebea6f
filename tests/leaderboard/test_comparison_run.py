"""Ranking networks: directions, intervals, the size baseline."""

from __future__ import annotations

import copy
import math
import statistics
from dataclasses import replace
from pathlib import Path

import numpy
import pandas
import pytest
import torch
from torch import nn

import gapscope as gs
from gapscope.base.errors import InvalidInput, UnreadableFile
from gapscope.leaderboard.comparison import LeaderboardEvidence
from gapscope.statistics.correlations import ranks_of

X = torch.randn(200, 5, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()


def sharp(scale: float) -> nn.Module:
    network = nn.Linear(5, 2, bias=False)
    with torch.no_grad():
        network.weight.zero_()
        network.weight[:, 0] = torch.tensor([-scale, scale])
    return network


NETWORKS = {"flat": sharp(0.1), "steep": sharp(3.0)}


def test_the_direction_of_each_measure_decides_the_rank() -> None:
    table = gs.compare(NETWORKS, (X, Y), ["input_jacobian_norm", "loss"]).to_pandas()
    rows = table.to_dict("records")
    ranks = {(row["measure"], row["network"]): row["rank"] for row in rows}
    assert ranks["input_jacobian_norm", "flat"] == 1 and ranks["input_jacobian_norm", "steep"] == 2
    assert ranks["loss", "flat"] != ranks["loss", "flat"]  # NaN: no direction is known
    assert {row["measure"] for row in rows} == {"input_jacobian_norm", "loss", "parameter_count"}


def test_the_jackknife_of_means_and_sums_is_that_of_leaving_groups_out() -> None:
    network, names = NETWORKS["steep"], ["loss", "input_jacobian_norm", "ntk_trace", "accuracy"]
    table = gs.compare(NETWORKS, (X, Y), names).to_pandas()
    keeps = [torch.arange(200) % 10 != j for j in range(10)]
    for name in names:
        left_out = [gs.measure(network, (X[keep], Y[keep]), [name])[name].value for keep in keeps]
        expected = (9 * statistics.pvariance(left_out)) ** 0.5
        (row,) = (
            row
            for row in table.to_dict("records")
            if (row["measure"], row["network"]) == (name, "steep")
        )
        assert row["standard_error"] == pytest.approx(expected, rel=1e-5), name


def test_the_verdict_is_a_sentence_and_the_table_is_small() -> None:
    result = gs.compare(
        NETWORKS, (X, Y), ["input_jacobian_norm", "parameter_norm", "ntk_trace", "unit_sparsity"]
    )
    assert result.order() == ["flat", "steep"]
    assert result.verdict[0].startswith("flat is expected to have the smallest gap: ")
    assert (
        "input_jacobian_norm" in result.verdict[0] and "All have the same size" in result.verdict[1]
    )
    lines = repr(result).splitlines()
    assert len(lines) <= 10 and lines[2].startswith("flat") and result.verdict[0] in lines
    assert "<table" in result._repr_html_() and set(result.unmeasured["flat"]) == {"unit_sparsity"}


def test_the_same_network_twice_is_a_tie() -> None:
    result = gs.compare(
        {"a": NETWORKS["flat"], "b": NETWORKS["flat"]}, (X, Y), ["ntk_trace", "input_jacobian_norm"]
    )
    assert (
        result.verdict[0]
        == "a and b are tied: none is ranked first by more than half of the 2 measures."
    )


def test_one_function_with_its_units_in_another_order_is_a_tie() -> None:
    generator = torch.Generator().manual_seed(2)
    network = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 2))
    for parameter in network.parameters():
        nn.init.normal_(parameter, generator=generator)
    other = copy.deepcopy(network)
    order = torch.randperm(16, generator=generator)
    with torch.no_grad():
        other[0].weight.copy_(network[0].weight[order])  # type: ignore[arg-type, index, operator]
        other[0].bias.copy_(network[0].bias[order])  # type: ignore[arg-type, index, operator]
        other[2].weight.copy_(network[2].weight[:, order])  # type: ignore[index, operator]
    names = ["input_jacobian_norm", "parameter_norm", "ntk_trace"]
    result = gs.compare({"a": network, "b": other, "c": network}, (X[:50], Y[:50]), names)
    assert result.verdict[0].startswith("a and b and c are tied")
    assert {row.rank for row in result} == {1.0}


def test_noise_of_a_measure_and_the_choice_of_samples_both_widen_its_interval() -> None:
    names = ["pacbayes_flatness"]
    (reading,) = gs.measure(NETWORKS["flat"], (X[:40], Y[:40]), names)
    rows = gs.compare(NETWORKS, (X[:40], Y[:40]), names).of(names[0])
    (row,) = (row for row in rows if row.network == "flat")
    assert row.standard_error > (reading.standard_error or 0.0) > 0


def test_counts_that_differ_by_few_are_no_tie() -> None:
    assert ranks_of({"a": 1_000_001, "b": 1_000_000, "c": math.nan}, {"a": 0.0}) == {
        "a": 2.0,
        "b": 1.0,
        "c": pytest.approx(math.nan, nan_ok=True),
    }


def board(**correlations: float) -> gs.Leaderboard:
    """A leaderboard of 40 networks whose gap is a sum of these measures and noise, at three widths."""
    rng = numpy.random.default_rng(3)
    measures = {name: rng.normal(size=42) for name in correlations}
    gap = sum(weight * measures[name] for name, weight in correlations.items()) + 0.3 * rng.normal(
        size=42
    )
    table = pandas.DataFrame(
        {"hp.width": numpy.arange(42) % 3, "hp.rate": numpy.arange(42) // 3, "gap": gap}
    )
    table["m.parameter_count"] = table["hp.width"]
    table = table.assign(**{f"m.{name}": values for name, values in measures.items()})
    return gs.rank_measures(table, n_permutations=200, n_bootstrap=50)


def test_measures_with_evidence_vote_in_the_direction_that_they_have_there() -> None:
    measures = ["input_jacobian_norm", "loss", "parameter_norm"]
    evidence = board(loss=-1.0, parameter_norm=0.0)
    result = gs.compare(NETWORKS, (X, Y), measures, evidence=evidence)
    assert [vote.measure for vote in result.votes()] == ["loss"]
    losses = {row.network: row.value for row in result.of("loss")}
    assert result.order()[0] == max(losses, key=lambda name: losses[name])
    row = evidence.row("loss").partial
    message = f"loss: r {row.value:.2f} [{row.low:.2f}, {row.high:.2f}], p {row.p:.3f}. Baselines: the size: r"
    assert result.verdict[0].startswith(
        "Evidence at equal hyperparameters in 42 networks whose gap is known: " + message
    )
    assert "; a random measure: r" in result.verdict[0]
    assert gs.Comparison.from_json(result.to_json()).verdict == result.verdict


def test_a_number_without_a_value_in_one_network_does_not_vote() -> None:
    rows = list(gs.compare(NETWORKS, (X, Y), ["loss"]))
    rows = [
        replace(row, value=math.nan) if (row.measure, row.network) == ("loss", "steep") else row
        for row in rows
    ]
    evidence = LeaderboardEvidence.of(board(loss=-1.0))
    assert not gs.Comparison(rows, evidence=evidence).votes()


def test_without_evidence_the_verdict_is_stated_first() -> None:
    result = gs.compare(
        NETWORKS, (X, Y), ["input_jacobian_norm"], evidence=board(input_jacobian_norm=0.0)
    )
    assert (
        result.verdict[0].startswith("No evidence: in ")
        and "none of the 2 numbers" in result.verdict[0]
    )
    assert result.verdict[1].startswith("flat is expected") and not result.trusted
    nothing = gs.compare(NETWORKS, (X, Y), ["input_jacobian_norm"])
    assert nothing.verdict[-1].endswith("is unknown; pass evidence=gs.rank_measures(POOL).")
    with pytest.raises(InvalidInput, match="leaderboard; got str"):
        gs.compare(NETWORKS, (X, Y), ["loss"], evidence="pool")


def test_a_comparison_survives_the_disk(tmp_path: Path) -> None:
    result = gs.compare(NETWORKS, (X, Y), ["input_jacobian_norm", "loss", "unit_sparsity"])
    result.save(tmp_path / "comparison.json")
    read = gs.Comparison.load(tmp_path / "comparison.json")
    assert (
        repr(read) == repr(result) and read.unmeasured == result.unmeasured and read.level == 0.95
    )
    gs.measure(NETWORKS["flat"], X, ["ntk_trace"]).save(tmp_path / "readings.json")
    with pytest.raises(UnreadableFile, match="must hold a comparison"):
        gs.Comparison.load(tmp_path / "readings.json")
    assert gs.Readings.load(tmp_path / "readings.json")["ntk_trace"].value > 0
    with pytest.raises(UnreadableFile, match="must hold readings"):
        gs.Readings.load(tmp_path / "comparison.json")


def test_wrong_input_gets_one_sentence() -> None:
    with pytest.raises(InvalidInput, match="two networks; got 1"):
        gs.compare({"one": nn.Linear(5, 2)}, X)
    with pytest.raises(InvalidInput, match=r"at least 2; got 1"):
        gs.compare(NETWORKS, X[:1])


def test_networks_that_are_finished_are_returned_after_an_interrupt() -> None:
    passes: list[int] = []  # not an attribute of the network, which measuring would put back

    class Stopping(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            passes.append(len(input))
            if len(passes) > 2:  # the first two are those of the input validation
                raise KeyboardInterrupt
            return super().forward(input)

    result = gs.compare({**NETWORKS, "stopping": Stopping(5, 2)}, (X, Y), ["loss"])
    assert {row["network"] for row in result.to_pandas().to_dict("records")} == {"flat", "steep"}
    assert result.interrupted and "Interrupted before stopping was finished." in result.verdict
    assert result.unmeasured["stopping"]["loss"] == "stopped before it was finished"
    assert gs.Comparison.from_json(result.to_json()).interrupted
    passes.clear()
    with pytest.raises(KeyboardInterrupt):
        gs.compare({"flat": NETWORKS["flat"], "stopping": Stopping(5, 2)}, (X, Y), ["loss"])


def test_an_error_names_the_network() -> None:
    with pytest.raises(InvalidInput, match=r"^other: The network must"):
        gs.compare({**NETWORKS, "other": nn.Linear(4, 2)}, (X, Y), ["loss"])
    with pytest.raises(InvalidInput, match=r"^diverged: All .* finite"):
        gs.compare({**NETWORKS, "diverged": sharp(float("nan"))}, (X, Y), ["loss"])


class Clock:
    """CPU time that the networks of this file spend."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_comparison_keeps_the_budget_of_each_network_and_tells_what_it_omits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    monkeypatch.setattr("time.process_time", clock)

    class Slow(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            clock.now += 1e-3 * len(input)
            return super().forward(input)

    x = torch.randn(1200, 5, generator=torch.Generator().manual_seed(1))
    data = (x, (x[:, 0] > 0).long())
    result = gs.compare({"a": Slow(5, 2), "b": Slow(5, 2)}, data, time_budget=2.0)
    assert clock.now < 2 * 3.0
    reasons = result.unmeasured["a"]
    assert "omitted to keep the budget of 2 s" in reasons["margin_signature"]
    assert set(reasons) == set(result.unmeasured["b"])
    assert {"accuracy", "parameter_count"} <= {row.measure for row in result}
    text = repr(result)
    assert "accuracy" in text and " of 1,200 samples" in text and "not measured: " in text


class Costly(nn.Linear):
    """A layer whose passes take a millisecond of the clock per sample."""

    clock = Clock()

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self.clock.now += 1e-3 * len(input)
        return super().forward(input)


@pytest.mark.parametrize("budget", [0.3, 0.02])
def test_a_small_budget_first_measures_what_the_verdict_needs(
    monkeypatch: pytest.MonkeyPatch, budget: float
) -> None:
    monkeypatch.setattr("time.process_time", Costly.clock)
    x = torch.randn(1200, 5, generator=torch.Generator().manual_seed(1))
    y = (x[:, 0] > 0).long()
    networks = {"fitted": Costly(5, 2), "constant": Costly(5, 2)}
    with torch.no_grad():
        for network, factor in zip(networks.values(), (5.0, 0.0), strict=True):
            network.weight.zero_()[1, 0] = factor
            network.bias.zero_()
    result = gs.compare(networks, (x, y), time_budget=budget)
    verdict = " ".join(result.verdict)
    assert "output_sensitivity" in result.unmeasured["fitted"]
    is_measured = "accuracy" not in result.unmeasured["fitted"]
    assert is_measured == ("Training accuracies differ" in verdict)
    assert is_measured != ("Training accuracies are missing" in verdict)
    assert is_measured == (budget == 0.3)


def test_networks_without_class_labels_miss_no_accuracy() -> None:
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(1))
    networks = {"a": nn.Linear(3, 1), "b": nn.Linear(3, 1)}
    verdict = " ".join(gs.compare(networks, (x, x[:, :1]), time_budget=1.0).verdict)
    assert "accuracies" not in verdict


def test_labels_that_do_not_fit_the_outputs_raise() -> None:
    for labels in (Y + 5, torch.where(Y == 1, 255, Y)):
        for names in (["loss", "accuracy"], None, ["loss", "ntk_trace"]):
            with pytest.raises(InvalidInput, match="labels must be smaller"):
                gs.compare(NETWORKS, (X, labels), names)
        assert gs.compare(NETWORKS, (X, labels), ["ntk_trace"]).of("ntk_trace")
    with pytest.raises(InvalidInput, match="flat: needs targets"):
        gs.compare(NETWORKS, X, ["loss"])
    with pytest.raises(InvalidInput, match=r"flat: .*class labels.*steep: "):
        gs.compare(NETWORKS, (X, X[:, :2]), ["accuracy"])


class Noisy(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input) + torch.rand(2)


def test_notes_of_the_networks_are_printed_once() -> None:
    result = gs.compare({**NETWORKS, "noisy": Noisy(5, 2)}, (X, Y), ["loss"])
    (note,) = gs.measure(Noisy(5, 2), (X, Y), ["loss"]).notes
    assert result.notes == (f"noisy: {note}",) and repr(result).count(note) == 1
    sigmoid = nn.Sequential(nn.Linear(5, 2), nn.Sigmoid())
    result = gs.compare({"a": sigmoid, "b": sigmoid}, (X, Y), ["ntk_trace"])
    assert len(result.notes) == 1 and not result.notes[0].startswith("a")
    assert gs.Comparison.from_json(result.to_json()).notes == result.notes


def test_several_networks_are_named_in_a_tie() -> None:
    """One measure ranks "a" first, the others are equal."""
    a, b = nn.Linear(5, 2), nn.Linear(5, 2)
    with torch.no_grad():
        for network in (a, b):
            network.weight.zero_()
            network.bias.zero_()
        b.bias[0] = 1.0
    result = gs.compare(
        {"a": a, "b": b}, (X, Y), ["ntk_trace", "input_jacobian_norm", "parameter_norm"]
    )
    assert sum(vote.first == "a" for vote in result.votes()) == 1
    assert result.verdict[0].startswith("a and b are tied: none is ranked first by more than half")
