"""Several labels per sample, and labels of positions: what applies is run, the rest is named."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import gapscope as gs
from gapscope.base.errors import GapscopeError, InvalidInput
from gapscope.checks.fixes import FIXES

N_TOKENS, N_CLASSES = 30, 4
Data = tuple[Tensor, Tensor]


class Tagger(nn.Module):
    """A GRU with one output per token."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(N_TOKENS, 16)
        self.rnn = nn.GRU(16, 32, batch_first=True, bidirectional=True)
        self.head = nn.Linear(64, N_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(self.embedding(x))[0])


def tokens(n: int, seed: int) -> Data:
    """Tokens with their remainder as label, a fifth at random."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(0, N_TOKENS, (n, 10), generator=generator)
    y = x % N_CLASSES
    wrong = torch.rand(n, 10, generator=generator) < 0.2
    y[wrong] = torch.randint(0, N_CLASSES, (int(wrong.sum()),), generator=generator)
    y[:, -1] = -100
    return x, y


def several(n: int, seed: int) -> Data:
    """Points with four labels, a fifth of them flipped."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 6, generator=generator)
    y = x @ torch.randn(6, 4, generator=torch.Generator().manual_seed(9)) > 0
    return x, y ^ (torch.rand(n, 4, generator=generator) < 0.2)


def fit(
    network: nn.Module, data: Data, loss: Callable[[Tensor, Tensor], Tensor], steps: int
) -> nn.Module:
    """Train until the labels are memorized."""
    optimizer = torch.optim.Adam(network.parameters(), lr=0.02)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(network(data[0]), data[1]).backward()
        optimizer.step()
    return network


def of_tokens(outputs: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs.flatten(0, 1), y.flatten())


def of_several(outputs: Tensor, y: Tensor) -> Tensor:
    return nn.functional.binary_cross_entropy_with_logits(outputs, y.float())


@pytest.fixture(scope="module", params=["positions", "multi-label"])
def trained(
    request: pytest.FixtureRequest,
) -> tuple[nn.Module, dict[str, Tensor], Callable[[int, int], Data]]:
    torch.manual_seed(0)
    is_tokens = request.param == "positions"
    network = (
        Tagger() if is_tokens else nn.Sequential(nn.Linear(6, 256), nn.ReLU(), nn.Linear(256, 4))
    )
    initial = {name: value.clone() for name, value in network.state_dict().items()}
    draw = tokens if is_tokens else several
    return fit(network, draw(120, 0), of_tokens if is_tokens else of_several, 100), initial, draw


@pytest.mark.thorough
def test_memorized_labels_are_found_with_test_samples(
    trained: tuple[nn.Module, dict[str, Tensor], Callable[[int, int], Data]],
) -> None:
    network, initial, draw = trained
    test = draw(100, 1)
    result = gs.check(network, draw(120, 0), initial_state=initial, test=test)
    assert "GS402" in result.codes and result.account is not None and result.account.training > 0.95
    outputs = network(test[0])
    right = (
        (outputs.argmax(-1) == test[1])[test[1] != -100]
        if test[1].dtype == torch.int64
        else (outputs > 0) == test[1]
    )
    unit = "position" if test[1].dtype == torch.int64 else "label"
    assert result.account.score == f"accuracy per {unit}"
    assert {"training_accuracy", "expected_accuracy"} <= result.account.metrics.keys()
    assert result.account.expected is not None
    assert result.account.expected.value == pytest.approx(float(right.double().mean()))


@pytest.mark.thorough
def test_without_test_samples_generalization_is_not_judged(
    trained: tuple[nn.Module, dict[str, Tensor], Callable[[int, int], Data]],
) -> None:
    network, initial, draw = trained
    result = gs.check(network, draw(120, 0), initial_state=initial)
    assert "Pass test=" in result.not_judged and "Nothing was found" not in repr(result)
    assert {"GS101", "GS106", "GS109", "GS201"} <= {item.code for item in result.fine}


@pytest.mark.thorough
def test_labels_without_signal_are_found() -> None:
    x, y = tokens(100, 0)
    y = torch.where(
        y == -100,
        y,
        torch.randint(0, N_CLASSES, y.shape, generator=torch.Generator().manual_seed(3)),
    )
    torch.manual_seed(0)
    network = fit(Tagger(), (x, y), of_tokens, 100)
    result = gs.check(network, (x, y), initial_state=Tagger().state_dict(), only=["GS106"])
    assert list(result.codes) == ["GS106"]


def test_rare_labels_are_named() -> None:
    x, y = several(100, 0)
    y[:, 2] = torch.arange(100) < 3
    finding = gs.check(None, (x, y), only=["GS109"]).findings[0]
    assert "1 of 4 labels" in finding.evidence and finding.indices == (0, 1, 2)


def test_a_second_data_set_of_tokens_fits_the_network() -> None:
    x, y = tokens(60, 0)
    result = gs.check(Tagger(), (x, y), test=(x[:20], y[:20]), only=["GS101"])
    assert "20 of 20 test samples" in result.findings[0].evidence


def test_copies_in_the_test_samples_are_found_among_several_inputs() -> None:
    x, y = tokens(60, 0)
    data = {"input_ids": x, "attention_mask": torch.ones_like(x), "labels": y}
    other = tokens(40, 5)
    both = torch.cat([x[:10], other[0]]), torch.cat([y[:10], other[1]])
    test = {"input_ids": both[0], "attention_mask": torch.ones_like(both[0]), "labels": both[1]}
    finding = gs.check(None, data, test=test, only=["GS101"]).findings[0]
    assert "10 of 50 test samples" in finding.evidence


CODES = torch.tensor([10, 20, 30_000_000])


def test_codes_as_labels_give_the_findings_of_classes_numbered_from_0() -> None:
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(150) % 3
    y[-2:] = 0
    x = torch.randn(150, 4, generator=generator) + 2 * y[:, None]
    by_code, by_number = (
        gs.check(None, (x[:100], labels[:100]), test=(x[100:], labels[100:]))
        for labels in (CODES[y], y)
    )
    assert [item.code for item in by_code.findings] == [item.code for item in by_number.findings]
    assert len(by_code.not_checked) == len(by_number.not_checked)
    assert not any("memory" in item.reason for item in by_code.not_checked)


def test_codes_of_rare_classes_are_named_by_their_number() -> None:
    y = torch.zeros(100, dtype=torch.int64)
    y[:3] = 2
    finding = gs.check(None, (torch.randn(100, 3), CODES[y]), only=["GS104"]).findings[0]
    assert "class 30000000 has 3 samples" in finding.evidence


def test_codes_of_positions_are_refused_before_the_memory_is_full() -> None:
    tokens = torch.randint(0, 50, (200, 6), generator=torch.Generator().manual_seed(0))
    labels = CODES[tokens % 3]
    for verb in (gs.find_label_issues, gs.forecast_accuracy, gs.out_of_sample):
        with pytest.raises(InvalidInput, match="and only 3 classes"):
            verb(None, (tokens, labels))
    assert gs.check(None, (tokens, labels), only=["GS109"]).findings == ()


@pytest.mark.filterwarnings("error")
def test_inputs_that_track_gradients_warn_of_nothing() -> None:
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    y = torch.arange(60) % 2
    assert gs.check(None, (x, y), test=(x, y)).n_samples == 60
    assert x.requires_grad


def test_labels_0_and_1_beside_signs_get_the_way_from_one_to_the_other() -> None:
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    y = torch.arange(60) % 2
    for first, second in ((2 * y - 1, y), (y, 2 * y - 1)):
        with pytest.raises(InvalidInput, match=r"-1 and 1.*0 and 1.*2 \* y - 1"):
            gs.check(None, (x, first), test=(x, second))


def masks(n: int) -> Data:
    """Smooth pictures with three levels as labels of pixels, a twelfth of them wrong."""
    generator = torch.Generator().manual_seed(0)
    x = nn.functional.avg_pool2d(torch.randn(n, 1, 8, 8, generator=generator), 3, 1, padding=1) * 3
    y = (x[:, 0] > 0).long() + (x[:, 0] > 1).long()
    return x, torch.where(torch.rand(y.shape, generator=generator) < 0.08, (y + 1) % 3, y)


@pytest.mark.thorough
def test_label_errors_of_masks_are_found_as_an_untrained_network_finds_them() -> None:
    x, y = masks(50)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 3, 1))
    noise = gs.estimate_label_noise(network, (x, y))
    result = gs.check(network, (x, y), test=(x, y), only=["GS102"])
    assert noise.low > 0 and result.codes == ("GS102",), result
    issues = result.label_issues
    assert issues is not None and issues.noise is not None and issues.noise.low > 0
    without = gs.check(None, (x, y), only=["GS102", "GS105"])
    assert "GS102" not in [outcome.code for outcome in without.fine]
    assert "labels may be wrong" in without.headline, without


def test_label_errors_of_several_labels_are_found() -> None:
    x, _ = several(400, 0)
    clean = x @ torch.randn(6, 4, generator=torch.Generator().manual_seed(9)) > 0
    wrong = torch.rand(400, 4, generator=torch.Generator().manual_seed(5)) < 0.08
    result = gs.check(None, (x, clean ^ wrong), only=["GS102"])
    assert result.codes == ("GS102",), result
    assert bool(wrong[list(result.indices("GS102")[:10])].any(1).all())


def test_wrong_targets_of_regression_are_found_and_dropping_them_is_tried() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 4, generator=generator)
    y = x[:, :1] + 0.5 * x[:, 1:2] + 0.1 * torch.randn(200, 1, generator=generator)
    noisy = y.clone()
    noisy[:16] = y[:16] + 6
    result = gs.check(None, (x, noisy), only=["GS102"])
    assert result.codes == ("GS102",) and set(result.indices("GS102")) >= set(range(16))
    finding = result.findings[0]
    assert finding.cost is not None and finding.cost > 0.1 and finding.fixes
    samples = gs.Samples(x, noisy)
    assert len(FIXES["drop flagged labels"].apply(samples, {})[0]) <= 184
    corrected, _ = FIXES["correct flagged labels"].apply(samples, {})
    assert float((corrected.y - y).abs()[:16].max()) < 1.0
    assert not gs.check(None, (x, y), only=["GS102"]).codes


@pytest.mark.parametrize("network", [nn.LazyLinear(2), nn.Linear(5, 2, device="meta")])
def test_weights_without_values_are_one_message(network: nn.Module) -> None:
    with pytest.raises(GapscopeError, match=r"'weight'"):
        gs.check(network, (torch.randn(40, 5), torch.arange(40) % 2))


def test_the_network_comes_first() -> None:
    with pytest.raises(InvalidInput, match="network first"):
        gs.check((torch.randn(40, 5), torch.arange(40) % 2), nn.Linear(5, 2))


X_REGRESSION = torch.randn(120, 3, generator=torch.Generator().manual_seed(0))
VARYING = X_REGRESSION[:, :1]
EQUAL = torch.full((120, 1), 3.7)
ONE_DIFFERS = torch.where(torch.arange(120) == 5, 5.0, 3.7)


@pytest.mark.parametrize(
    ("targets", "evidence"),
    [
        (EQUAL, "the target is 3.7 in 120 of 120"),
        (EQUAL[:, 0], "the target is 3.7 in 120 of 120"),
        (ONE_DIFFERS, "3.7 in 119 of 120"),
        (EQUAL + 2e-7 * VARYING, "no more than rounding from 3.7"),
        (torch.cat([VARYING, EQUAL], 1), "target 1 is 3.7 in 120"),
    ],
)
def test_equal_targets_of_regression_are_a_finding(targets: Tensor, evidence: str) -> None:
    (finding,) = gs.check(None, (X_REGRESSION, targets), only=["GS104"]).findings
    assert evidence in finding.evidence and finding.title == "equal targets"


@pytest.mark.parametrize(
    "targets",
    [VARYING, 1e-9 * VARYING, 1000 + VARYING, (VARYING > 1).float() * VARYING, VARYING[:6]],
)
def test_targets_that_vary_are_not_called_equal(targets: Tensor) -> None:
    result = gs.check(None, (X_REGRESSION[: len(targets)], targets), only=["GS104"])
    assert not result.findings and [item.code for item in result.not_checked] == ["GS104"]
