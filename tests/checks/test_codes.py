"""Each check: one planted fault that it finds, and one clean case in which it is silent."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import gapscope as gs
from gapscope.checks import list_checks
from gapscope.checks.fixes import FIXES
from gapscope_studies.checks import faults
from support.cases import CLASSES, Encoder
from support.door_networks import bert_classifier


@dataclass
class Case:
    """A network, its data, and options of `check`."""

    network: nn.Module
    data: Any
    options: dict[str, Any] = field(default_factory=dict[str, Any])


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def blobs(n: int = 240, spread: float = 0.4) -> tuple[torch.Tensor, torch.Tensor]:
    """Four separable classes in eight dimensions, every column with a spread of about 1."""
    g = generator()
    y = torch.arange(n) % 4
    centers = torch.randn(4, 8, generator=g)
    x = centers[y] + spread * torch.randn(n, 8, generator=g)
    return (x - x.mean(0)) / x.std(0), y


def mlp(batch_norm: bool = False) -> nn.Module:
    torch.manual_seed(0)
    return gs.build_network(
        "fully_connected", input_shape=(8,), n_outputs=4, width=32, batch_norm=batch_norm
    )


def trained(
    network: nn.Module, data: Any, epochs: int = 15, learning_rate: float = 0.1
) -> dict[str, Any]:
    """Train the network in place, and return options of `check`."""
    initial = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    result = gs.train(
        network, data, gs.TrainingSpec(epochs=epochs, learning_rate=learning_rate, momentum=0.9)
    )
    return {"initial_state": initial, "history": result.history, "batch_size": 50}


def on_data(plant: Callable[[Any], Any]) -> Callable[[bool], Case]:
    return lambda faulty: Case(mlp(), plant(blobs()) if faulty else blobs())


def more_data(faulty: bool) -> Case:
    if not faulty:
        return Case(mlp(), blobs())
    digits = gs.load_dataset("digits").train
    rows = torch.randperm(len(digits), generator=generator())[:80]
    network = gs.build_network("fully_connected", input_shape=(1, 8, 8), n_outputs=10, width=16)
    return Case(network, (digits.inputs[rows], digits.y[rows]))


def signal(faulty: bool) -> Case:
    network = mlp()
    return Case(faults.rescale_weights(network, generator()) if faulty else network, blobs())


def indistinguishable(faulty: bool) -> Case:
    x, y = blobs()
    return Case(mlp(), (x + 1000 if faulty else x, y))


def statistics(faulty: bool) -> Case:
    network, data = mlp(batch_norm=True), blobs()
    options = trained(network, data)
    return Case(faults.age_statistics(network) if faulty else network, data, options)


def gain(faulty: bool) -> Case:
    network, data = mlp(), blobs()
    return Case(faults.add_bottleneck(network, data[0], generator()) if faulty else network, data)


def memorization(faulty: bool) -> Case:
    alarm = SimpleNamespace(
        raised=faulty, raised_at=7 if faulty else None, peak=5 if faulty else None
    )
    return Case(mlp(), blobs(), {"monitor": SimpleNamespace(alarm=alarm, epochs=list(range(1, 9)))})


def no_signal(faulty: bool) -> Case:
    x, y = blobs(120)
    network = mlp()
    labels = y[torch.randperm(120, generator=generator())] if faulty else y
    return Case(network, (x, labels), trained(network, (x, labels), 200))


def leak(faulty: bool) -> Case:
    x, y = blobs(spread=3.0)
    column = y[:, None] + 0.01 * torch.randn(len(y), 1, generator=generator())
    return Case(mlp(), (torch.cat([column, x[:, 1:]], 1) if faulty else x, y))


def windows(faulty: bool) -> Case:
    series = torch.randn(400, generator=generator()).cumsum(0)
    x = series.unfold(0, 8, 1)[:300]
    y = (x[:, -1] > x.median()).long()
    return Case(mlp(), (x if faulty else torch.randn(300, 8), y))


def rare(faulty: bool) -> Case:
    x, y = blobs()
    keep = torch.cat([torch.nonzero(y != 3).flatten(), torch.nonzero(y == 3).flatten()[:2]])
    return Case(mlp(), (x[keep], y[keep]) if faulty else (x, y))


def unchanged(faulty: bool) -> Case:
    network, data = mlp(), blobs()
    options = trained(network, data)
    if faulty:
        name = next(name for name, weight in network.named_parameters() if weight.ndim > 1)
        network.load_state_dict(network.state_dict() | {name: options["initial_state"][name]})
    return Case(network, data, options)


def convergence(faulty: bool) -> Case:
    network, data = mlp(), blobs()
    return Case(
        network, data, trained(network, data, 1, 1e-3) if faulty else trained(network, data)
    )


def configuration(faulty: bool) -> Case:
    case = convergence(faulty)
    case.options["test"] = blobs(400)
    return case


def overfitting(faulty: bool) -> Case:
    x, y = blobs()
    network = mlp()
    labels = gs.data.inject_label_noise(y, 0.5, 4, generator()) if faulty else y
    options = trained(network, (x, labels), 200)
    return Case(network, (x, labels), options | {"test": blobs(400)})


def dead_units(faulty: bool) -> Case:
    network, data = mlp(), blobs()
    options = trained(network, data)
    return Case(faults.switch_off_units(network, generator()) if faulty else network, data, options)


def sensitivity(faulty: bool) -> Case:
    network, data = mlp(), blobs()
    trained(network, data)
    return Case(faults.Wiggly(network, data[0], generator()) if faulty else network, data)


CASES: dict[str, Callable[[bool], Case]] = {
    "GS101": on_data(lambda data: faults.add_duplicates(data, generator(), exact=False)),
    "GS102": on_data(
        lambda data: (data[0], gs.data.inject_label_noise(data[1], 0.2, 4, generator()))
    ),
    "GS103": more_data,
    "GS104": on_data(lambda data: faults.thin_out_class(data, generator())),
    "GS105": on_data(lambda data: faults.unscale(data, generator())),
    "GS106": no_signal,
    "GS107": leak,
    "GS108": windows,
    "GS109": rare,
    "GS201": signal,
    "GS202": indistinguishable,
    "GS203": statistics,
    "GS204": gain,
    "GS301": memorization,
    "GS302": convergence,
    "GS303": unchanged,
    "GS401": configuration,
    "GS402": overfitting,
    "GS403": dead_units,
    "GS404": sensitivity,
}


@pytest.mark.parametrize("faulty", [True, False])
@pytest.mark.parametrize("code", CASES)
def test_a_planted_fault_is_reported_and_a_clean_case_is_fine(code: str, faulty: bool) -> None:
    case = CASES[code](faulty)
    result = gs.check(case.network, case.data, only=[code], time_budget=None, **case.options)
    assert result.codes == ((code,) if faulty else ()), repr(result)
    assert [outcome.code for outcome in result.fine] == ([] if faulty else [code]), repr(result)


def test_duplicates_are_the_planted_ones() -> None:
    x, y = blobs()
    result = gs.check(mlp(), (torch.cat([x, x[10:30]]), torch.cat([y, y[10:30]])), only=["GS101"])
    assert result.indices("GS101") == list(range(240, 260))


def test_indices_of_a_subset_are_those_of_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gapscope.checks.run.MAX_SAMPLES", 200)
    monkeypatch.setattr("gapscope.checks.context.MAX_SAMPLES", 200)
    monkeypatch.setattr("gapscope.checks.context.SECONDS_PER_SAMPLE", 0.15)
    x, y = blobs(600)
    labels = gs.data.inject_label_noise(y, 0.2, 4, generator())
    result = gs.check(mlp(), (x, labels), only=["GS102"])
    flagged = torch.tensor(result.indices("GS102"))
    assert (result.n_samples, result.total) == (200, 600) and int(flagged.max()) > 200
    assert float((labels != y)[flagged].double().mean()) > 0.8
    assert result.label_issues is not None and torch.equal(
        labels[flagged], result.label_issues.given_labels[: len(flagged)]
    )


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::FutureWarning")  # of peft and transformers
@pytest.mark.parametrize("name", ["resnet18", "encoder", "bert with lora"])
def test_residual_networks_and_transformers_are_checked(name: str) -> None:
    g = generator()
    torch.manual_seed(0)
    if name == "encoder":
        network: nn.Module = Encoder()
        x = torch.randint(11, (90, 6), generator=g)
    elif name == "bert with lora":
        peft = pytest.importorskip("peft")
        network = peft.get_peft_model(
            bert_classifier(), peft.LoraConfig(target_modules=["query", "value"], r=2)
        )
        x = torch.randint(1, 20, (90, 7), generator=g)
    else:
        network = gs.build_network(
            "resnet18", input_shape=(3, 16, 16), n_outputs=CLASSES, width_multiplier=0.125
        )
        x = torch.randn(90, 3, 16, 16, generator=g)
    before = copy.deepcopy(network.state_dict())
    y = torch.arange(90) % 2
    data = {"input_ids": x, "labels": y} if name == "bert with lora" else (x, y)
    result = gs.check(network, data, time_budget=None, batch_size=30)
    assert "GS101" in {outcome.code for outcome in result.fine}
    assert len(result.findings) + len(result.fine) + len(result.not_checked) == len(list_checks())
    assert all(torch.equal(before[key], value) for key, value in network.state_dict().items())


def test_a_column_of_rounding_counts_as_constant() -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(100, 5, generator=g)
    x[:, 3] = -9.6e-8 + 2e-9 * torch.randn(100, generator=g)
    y = (x[:, 0] > 0).long()
    result = gs.check(None, (x, y), only=["GS105"])
    assert not result.findings and "1 constant column" in result.fine[0].evidence
    raw = gs.Samples(10 * x, y)
    scaled, _ = FIXES["standardize inputs"].apply(raw, {})
    assert float(scaled.inputs[:, 3].abs().max()) < 1e-5
    assert float(scaled.inputs[:, 0].std()) == pytest.approx(1.0, abs=0.02)


def test_token_ids_are_not_to_be_standardized() -> None:
    network = nn.Sequential(nn.Embedding(9, 8), nn.Flatten(), nn.Linear(32, 2))
    with torch.no_grad():
        for weight in network.parameters():
            weight.mul_(100)
    ids = torch.randint(0, 9, (60, 4), generator=generator())
    for x, model in ((ids, network), (ids[:, :2].float() * 1e3, nn.Linear(2, 2))):
        result = gs.check(model, (x, torch.arange(60) % 2), only=["GS201"])
        is_scaled = x.is_floating_point()
        assert ("standardize" in result.findings[0].action) == is_scaled
        assert ("standardize inputs" in result.findings[0].fixes) == is_scaled
