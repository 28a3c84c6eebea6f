"""Accepted forms of networks and data, and the errors for others."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pandas
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import gapscope as gs
from gapscope.base.errors import InvalidInput, NotMeasurable
from gapscope.base.samples import as_samples
from gapscope.inspection.initial_states import own_state
from gapscope.inspection.validation import ready
from gapscope.measures.parameters import distance_from_initialization
from gapscope.measures.registry import get_measure
from gradients.reference import Wrapped
from support.door_networks import bert, logits_of

X, Y = torch.randn(20, 4, generator=torch.Generator().manual_seed(1)), torch.arange(20) % 2


def mlp(n_outputs: int = 2, *more: nn.Module) -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, n_outputs), *more)


@pytest.mark.parametrize("form", ["mapping", "encoding and labels", "datasets"])
def test_a_bert_takes_every_form_of_data(form: str) -> None:
    network, data = bert()
    inputs = {name: data[name] for name in ("input_ids", "attention_mask")}
    given: Any = {
        "mapping": data,
        "encoding and labels": (UserDict(inputs), data["labels"]),
        "datasets": None,
    }[form]
    if form == "datasets":
        datasets = pytest.importorskip("datasets")
        given = datasets.Dataset.from_dict({name: tensor.tolist() for name, tensor in data.items()})
    readings = gs.measure(network, given)
    logits = logits_of(network, data)
    assert readings["loss"].value == pytest.approx(
        F.cross_entropy(logits, data["labels"]).item(), rel=1e-5
    )
    assert readings["accuracy"].value == (logits.argmax(1) == data["labels"]).double().mean().item()
    assert readings["ntk_trace"].value > 0
    assert readings["parameter_count"].value == sum(p.numel() for p in network.parameters())
    assert "token ids" in readings.unmeasured["output_sensitivity"]
    assert len(repr(readings).splitlines()) <= 15 and network.training


@pytest.mark.parametrize("targets", ["[n]", "[n, 1]"])
@pytest.mark.parametrize("squeezing", [True, False])
def test_one_float_logit_is_binary_classification(targets: str, squeezing: bool) -> None:
    network = mlp(1, *([nn.Flatten(0)] if squeezing else []))
    y = Y.float() if targets == "[n]" else Y.float()[:, None]
    readings = gs.measure(network, (X, y))
    logits = network(X).reshape(-1).detach()
    expected = F.binary_cross_entropy_with_logits(logits, Y.float()).item()
    assert readings["loss"].value == pytest.approx(expected, rel=1e-6)
    assert readings["accuracy"].value == ((logits > 0) == (Y == 1)).double().mean().item()
    assert (
        "unit_sparsity.zeta" in readings.values()
        and "margin_signature.h1.median" in readings.values()
    )
    assert "two classes" in readings.notes[0]


def test_two_logits_of_one_output_have_its_margins() -> None:
    one, two = mlp(1), mlp(2)
    with torch.no_grad():
        two[2].weight[0], two[2].bias[0] = 0.0, 0.0  # type: ignore[index]
        two[2].weight[1], two[2].bias[1] = one[2].weight[0], one[2].bias[0]  # type: ignore[index]
        two[0].load_state_dict(one[0].state_dict())  # type: ignore[index]
    names = ["margin_signature", "unit_sparsity", "loss", "accuracy"]
    expected = gs.measure(two, (X, Y), names).values()
    result = gs.measure(one, (X, Y.float()), names).values()
    assert list(result) == list(expected)
    for name, value in result.items():
        assert value == pytest.approx(expected[name], rel=1e-5, nan_ok=True), name


@pytest.mark.parametrize("targets", ["[n]", "[n, 1]"])
@pytest.mark.parametrize("squeezing", [True, False])
def test_regression_on_one_number_takes_both_shapes(targets: str, squeezing: bool) -> None:
    network = mlp(1, *([nn.Flatten(0)] if squeezing else []))
    y = X.sum(1) if targets == "[n]" else X.sum(1)[:, None]
    readings = gs.measure(network, (X, y))
    expected = F.mse_loss(network(X).reshape(-1), X.sum(1)).item()
    assert readings["loss"].value == pytest.approx(expected, rel=1e-6)
    assert readings.unmeasured["accuracy"] == "needs class labels; these are regression targets"


def test_zeros_and_ones_stay_regression_targets_on_request() -> None:
    network, y = mlp(1), Y.float()[:, None]
    readings = gs.measure(network, gs.Samples(X, y, task="regression"))
    assert readings["loss"].value == pytest.approx(F.mse_loss(network(X), y).item(), rel=1e-6)


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("channels_first", [True, False])
def test_outputs_with_positions_have_a_loss_and_an_accuracy(channels_first: bool) -> None:
    def forward(net: Any, x: Tensor) -> Any:
        outputs = net.convolution(x)
        return {"out": outputs if channels_first else outputs.movedim(1, -1)}

    network: Any = Wrapped(forward, convolution=nn.Conv2d(1, 3, 3, padding=1))
    x = torch.randn(20, 1, 4, 5)
    y = torch.randint(0, 3, (20, 4, 5))
    y[:, 0] = -100
    readings = gs.measure(network, (x, y))
    logits = network.convolution(x)
    assert readings["loss"].value == pytest.approx(F.cross_entropy(logits, y).item(), rel=1e-5)
    right = (logits.argmax(1) == y)[y != -100].double().mean().item()
    assert readings["accuracy"].value == pytest.approx(right)
    assert readings.unmeasured["unit_sparsity"].startswith("needs one label per sample")
    # 3 * 3 * 5 outputs with a label, each with its 3 x 3 patch and a bias
    patches = F.unfold(x, 3, padding=1)[:, :, 5:].square().sum()
    assert readings["ntk_trace"].value == pytest.approx(3 * (patches.item() + 20 * 15), rel=1e-5)
    refused = gs.measure(network, (x, y[:, 0, 0].clamp_min(0))).unmeasured
    assert (
        "outputs have positions" in refused["loss"]
        and "outputs have positions" in refused["accuracy"]
    )
    with pytest.raises(InvalidInput, match="outputs: outputs have positions"):
        gs.measure(network, (x, y[:, 1, 0]), ["accuracy"])


def test_a_bert_for_tokens_counts_the_tokens_that_have_labels() -> None:
    transformers: Any = pytest.importorskip("transformers")
    network, data = bert()
    tokens = transformers.BertForTokenClassification(network.config)
    labels = torch.where(data["attention_mask"] == 1, data["input_ids"] % 2, -100)
    readings = gs.measure(tokens, {**data, "labels": labels}, ["loss", "accuracy"])
    expected = F.cross_entropy(logits_of(tokens, data).transpose(1, 2), labels).item()
    assert readings["loss"].value == pytest.approx(expected, rel=1e-5)


@dataclass
class Output:
    logits: Tensor


def returning(make: Any) -> nn.Module:
    return Wrapped(lambda net, x: make(net.inner(x)), inner=mlp())


@pytest.mark.parametrize(
    "make", [Output, lambda logits: {"logits": logits}], ids=["dataclass", "mapping"]
)
def test_the_network_may_return_an_object_with_logits(make: Any) -> None:
    expected = gs.measure(mlp(), (X, Y)).values()
    result = gs.measure(returning(make), (X, Y)).values()
    assert result == {
        name: pytest.approx(value, rel=1e-6, nan_ok=True) for name, value in expected.items()
    }


def test_two_float_inputs_are_one_input_of_both() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = mlp()

        def forward(self, left: Tensor, right: Tensor) -> Tensor:
            return self.inner(torch.cat([left, right.flatten(1)], 1))

    names = ["input_jacobian_norm", "ntk_trace", "loss"]
    expected = gs.measure(mlp(), (X, Y), names).values()
    for data in (
        ((X[:, :2], X[:, 2:, None]), Y),
        {"right": X[:, 2:, None], "left": X[:, :2], "label": Y},
    ):
        result = gs.measure(Two(), data, names).values()
        assert result == {name: pytest.approx(value, rel=1e-5) for name, value in expected.items()}


def test_what_is_excluded_or_looks_wrong_is_reported() -> None:
    triple = TensorDataset(X, Y, torch.rand(20))
    assert "ignored: Tensor [20]" in gs.measure(mlp(), triple).notes[0]
    ignored = gs.measure(mlp(), (X, torch.where(torch.arange(20) < 5, -100, Y)), ["accuracy"])
    assert "5 of 20 samples have the label -100" in ignored.notes[0]
    assert (
        ignored["accuracy"].value
        == gs.measure(mlp(), (X[5:], Y[5:]), ["accuracy"])["accuracy"].value
    )


ATTENDING = Wrapped(
    lambda net, x: net.head(net.attention(x[:, None], x[:, None], x[:, None])[0][:, 0]),
    attention=nn.MultiheadAttention(4, 2, batch_first=True),
    head=nn.Linear(4, 2),
)
RECURRENT = Wrapped(
    lambda net, x: net.head(net.rnn(x[..., None])[0][:, -1]),
    rnn=nn.LSTM(1, 5, batch_first=True),
    head=nn.Linear(5, 2),
)
LOOSE = Wrapped(lambda net, x: x @ net.weight, weight=nn.Parameter(torch.randn(4, 2)))


@pytest.mark.parametrize(
    ("network", "missing"),
    [
        (nn.Linear(4, 2), {"unit_sparsity"}),
        (ATTENDING, {"unit_sparsity"}),
        (RECURRENT, {"unit_sparsity"}),
        (LOOSE, {"unit_sparsity"}),
        (mlp().requires_grad_(False), {"ntk_trace"}),
        (
            nn.Sequential(
                nn.Linear(4, 6), nn.BatchNorm1d(6, track_running_stats=False), nn.Linear(6, 2)
            ),
            {"ntk_trace"},
        ),
    ],
    ids=[
        "logistic regression",
        "attention",
        "LSTM",
        "loose parameters",
        "frozen",
        "batch norm without statistics",
    ],
)
def test_a_measure_that_does_not_apply_is_a_row_with_its_reason(
    network: nn.Module, missing: set[str]
) -> None:
    readings = gs.measure(network, (X, Y))
    assert missing <= set(readings.unmeasured) and all(readings.unmeasured.values())
    assert {"accuracy", "loss", "parameter_norm", "parameter_count"} <= set(readings.values())
    with pytest.raises(NotMeasurable, match=f"{min(missing)} has no value: "):
        _ = readings[min(missing)]


def test_no_correct_sample_is_no_reason_to_lose_other_measures() -> None:
    network = mlp()
    readings = gs.measure(network, (X, 1 - network(X).argmax(1)))
    assert readings["accuracy"].value == 0 and "got none" in readings.unmeasured["margin_signature"]


def test_a_compiled_network_is_measured_through_the_original() -> None:
    network = mlp()
    compiled: Any = torch.compile(network, backend="eager")
    assert gs.measure(compiled, (X, Y)).values() == gs.measure(network, (X, Y)).values()


@pytest.mark.parametrize(
    ("network", "data", "message"),
    [
        (
            nn.LazyLinear(2),
            (X, Y),
            "'weight' belongs to a lazy layer that has not run yet. Run the network once",
        ),
        (
            nn.Linear(5, 2),
            (X, Y),
            r"must run on the inputs; Linear on the first 8 samples, \[8, 4\], raised RuntimeError: mat1 and mat2",
        ),
        (mlp(), ((X * 255).long(), Y), r"use x.float\(\) / 255"),
        (
            returning(lambda logits: logits + 0j),
            (X, Y),
            "outputs must be real.*; got torch.complex64",
        ),
        (
            returning(lambda logits: [logits, logits]),
            (X, Y),
            "must return a tensor of shape .* got list",
        ),
    ],
    ids=["lazy", "shape", "integers", "complex", "list"],
)
def test_what_cannot_be_measured_at_all_gets_one_sentence(
    network: Any, data: Any, message: str
) -> None:
    with pytest.raises((InvalidInput, NotMeasurable), match=message):
        gs.measure(network, data)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_script_hides_its_layers() -> None:
    with pytest.raises(InvalidInput, match=r"TopLevelTracedModule.*must be an nn.Module"):
        gs.measure(torch.jit.trace(mlp(), X), (X, Y))  # type: ignore[arg-type]


def test_an_exported_program_hides_its_layers() -> None:
    program = torch.export.export(mlp(), (X,))
    whole: Any = nn.Sequential(program.module(), nn.Softmax(1))
    for network in (program.module(), whole, program):
        for verb in (gs.measure, gs.check, gs.forecast_accuracy):
            with pytest.raises(InvalidInput, match="module that was exported"):
                verb(network, (X, Y))  # type: ignore[operator]


@pytest.mark.parametrize("n_labels", [2, 4])
@pytest.mark.parametrize("activation", [nn.Identity, nn.Sigmoid])
def test_several_labels_need_one_output_each(n_labels: int, activation: Any) -> None:
    x = torch.randn(60, 8, generator=torch.Generator().manual_seed(0))
    last = nn.Linear(8, 3)
    nn.init.normal_(last.weight, std=0.02)
    network = nn.Sequential(last, activation())
    data = (x, x[:, :n_labels] > 0)
    measure = partial(gs.measure, measures=["loss"])
    verbs: list[Any] = [gs.check, gs.forecast_accuracy, gs.find_label_issues, measure]
    for verb in verbs:
        with pytest.raises(
            InvalidInput, match=f"got {n_labels} labels and 3 outputs|one output per label"
        ):
            verb(network, data)


def test_weights_that_diverged_are_named() -> None:
    network = mlp()
    network[2].weight.data[0, 0] = float("nan")  # type: ignore[index, union-attr, operator]
    with pytest.raises(InvalidInput, match=r"'2.weight' holds NaN"):
        gs.measure(network, (X, Y))


def test_a_bert_that_is_called_with_a_wrong_name_names_what_it_takes() -> None:
    network, data = bert()
    with pytest.raises(InvalidInput, match=r"forward takes .*input_ids"):
        gs.measure(network, {"attention_mask": data["attention_mask"], "labels": data["labels"]})


def test_weights_before_training_go_by_the_names_of_the_network_that_is_measured() -> None:
    one_number = nn.Sequential(nn.Linear(3, 1), nn.Flatten(0))
    result = ready(one_number, as_samples((torch.ones(4, 3), torch.zeros(4))))
    initial = {f"_orig_mod.{name}": tensor for name, tensor in one_number.state_dict().items()}
    of_inputs, of_weights = (
        get_measure("pacbayes_distance"),
        get_measure("distance_from_initialization"),
    )
    assert result.initial_for(of_inputs, None) is None
    assert list(result.initial_for(of_inputs, initial) or ()) == list(result.network.state_dict())
    assert list(result.initial_for(of_weights, initial) or ()) == list(one_number.state_dict())


def test_layers_of_a_bert_go_by_its_own_names() -> None:
    network, data = bert()
    names = [name for name, _ in network.named_modules() if name.endswith("intermediate")]
    options = {
        "unit_sparsity": {"layers": names[-1], "unit_axis": -1},
        "margin_signature": {"layers": names[-1:]},
    }
    readings = gs.measure(network, data, list(options), options=options)
    assert not readings.unmeasured
    assert {"unit_sparsity.zeta", "margin_signature.h1.median"} <= {
        reading.name for reading in readings
    }


@pytest.mark.parametrize("weights", [torch.float32, torch.float64])
def test_inputs_get_the_precision_of_the_weights(weights: torch.dtype) -> None:
    network = mlp().to(weights)
    expected = gs.measure(network, (X.to(weights), Y)).values()
    other = torch.float64 if weights == torch.float32 else torch.float32
    readings = gs.measure(network, (X.to(other), Y))
    assert readings.values() == {
        name: pytest.approx(value, nan_ok=True) for name, value in expected.items()
    }
    assert any(f"from {other} to {weights}" in note for note in readings.notes)


def test_autocast_around_a_measure_changes_nothing() -> None:
    network = mlp()
    expected = gs.measure(network, (X, Y)).values()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = gs.measure(network, (X, Y)).values()
        assert torch.is_autocast_enabled("cpu")
    assert result == {name: pytest.approx(value, nan_ok=True) for name, value in expected.items()}


def test_a_network_made_in_inference_mode_raises_by_the_name_of_a_weight() -> None:
    with torch.inference_mode():
        network = nn.Linear(4, 2)
    with pytest.raises(InvalidInput, match="'weight' was created"):
        gs.measure(network, (X, Y))


@pytest.mark.parametrize("wrapper", ["", "module.", "_orig_mod.", "module._orig_mod."])
def test_an_initial_state_has_the_names_of_a_wrapped_network(wrapper: str) -> None:
    network = mlp()
    state = {wrapper + name: tensor + 1 for name, tensor in network.state_dict().items()}
    data = X, Y
    wrapped = nn.DataParallel(network) if wrapper == "module." else network
    distance = gs.measure(wrapped, data, ["distance_from_initialization"], initial_state=state)
    expected = sum(parameter.numel() for parameter in network.parameters()) ** 0.5
    assert distance["distance_from_initialization"].value == pytest.approx(expected)
    gs.check(wrapped, data, initial_state=state, only=["GS303"])


def test_a_network_may_have_a_part_called_module() -> None:
    network = Wrapped(lambda net, x: net.module(x), module=nn.Linear(4, 2))
    state = {name: tensor + 1 for name, tensor in network.state_dict().items()}
    for names in (state, {f"module.{name}": tensor for name, tensor in state.items()}):
        assert own_state(network, names) == state


def test_an_initial_state_of_another_network_is_refused() -> None:
    network = mlp()
    state = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    measures = ["distance_from_initialization"]
    arrays = {name: tensor.numpy() for name, tensor in state.items()}
    for wrong, match in (
        ({**state, "4.weight": torch.zeros(1)}, r"4\.weight differ"),
        (arrays, r"must hold tensors; 0\.weight is of type ndarray"),
        (list(state.values()), "must be a state dictionary"),
    ):
        with pytest.raises(InvalidInput, match=match):
            gs.measure(network, (X, Y), measures, initial_state=wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="is of type ndarray"):
        distance_from_initialization(network, initial_state=arrays)  # type: ignore[arg-type]


def _fitted(
    loss: Callable[[Tensor, Tensor], Tensor], n_outputs: int
) -> tuple[nn.Sequential, Tensor, Tensor]:
    """Return a small network after 60 steps, inputs, and labels of 0 and 1 [n, n_outputs]."""
    torch.manual_seed(0)
    x = torch.randn(300, 8)
    labels = (x[:, :n_outputs] > 0).long()
    network = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, n_outputs))
    optimizer = torch.optim.Adam(network.parameters(), 1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        loss(network(x), labels.float()).backward()
        optimizer.step()
    return network.eval(), x, labels


@pytest.mark.parametrize("n_outputs", [1, 3])
def test_outputs_fitted_to_zero_and_one_by_squared_error_are_no_logits(n_outputs: int) -> None:
    network, x, labels = _fitted(F.mse_loss, n_outputs)
    targets = labels.squeeze(1)
    message = "the network was fitted to the numbers 0 and 1"
    with pytest.raises(InvalidInput, match=message):
        gs.measure(network, (x, targets), measures=["accuracy"])
    measured = gs.measure(network, (x, targets), measures=["accuracy", "ntk_trace"], strict=False)
    assert [reading.measure for reading in measured] == ["ntk_trace"]
    last: Any = network[-1]
    with torch.no_grad():
        last.bias -= 0.5
    right = ((network(x) > 0).long() == labels).double().mean()
    assert gs.measure(network, (x, targets))["accuracy"].value == pytest.approx(float(right))


@pytest.mark.parametrize("n_outputs", [1, 3])
def test_logits_near_zero_and_one_are_logits(n_outputs: int) -> None:
    network, x, labels = _fitted(F.binary_cross_entropy_with_logits, n_outputs)
    last: Any = network[-1]
    with torch.no_grad():
        last.weight *= 0.05
        last.bias *= 0.05
        assert (network(x).abs() < 1).all()
    assert "accuracy" in gs.measure(network, (x, labels.squeeze(1)))


def test_an_unused_category_is_named() -> None:
    labels = pandas.Series(pandas.Categorical(["b", "c"] * 20, categories=["a", "b", "c"]))
    with pytest.raises(InvalidInput, match="'a' has no sample"):
        ready(nn.Linear(3, 2), (torch.rand(40, 3), labels), needs=("outputs",))
    with pytest.raises(InvalidInput, match="'a' has no sample"):
        gs.measure(nn.Linear(3, 2), (torch.rand(40, 3), labels), ["accuracy"])
    ready(nn.Linear(3, 3), (torch.rand(40, 3), labels), needs=("outputs",))
    ready(
        nn.Linear(3, 2),
        (torch.rand(40, 3), labels.cat.reorder_categories(["b", "c", "a"])),
        needs=("outputs",),
    )


@pytest.mark.parametrize("inputs", [torch.ones(4, 2), [[1.0, 2.0]] * 4])
def test_data_in_the_place_of_the_network(inputs: Any) -> None:
    with pytest.raises(InvalidInput, match="network comes first"):
        gs.check(inputs, torch.arange(4) % 2)
