"""Products by oneDNN equal torch's, for all strides; where they do not apply, torch multiplies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gapscope.functional import empirical_ntk
from gapscope.gradients import products
from gapscope.gradients.products import fast_products, multiply

needs_onednn = pytest.mark.skipif(products._linear() is None, reason="this torch has no oneDNN")


def matrices() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(96, 80, generator=generator), torch.randn(80, 112, generator=generator)


def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    made: list[Any] = []
    linear = products._linear()

    def counted(*arguments: Any) -> Tensor:
        made.append(arguments)
        return linear(*arguments)

    monkeypatch.setattr(products, "_linear", lambda: counted)
    monkeypatch.setattr(products, "_is_faster", lambda: True)
    return made


FORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "rows": lambda a: a,
    "columns": lambda a: a.T.contiguous().T,
    "every second row": lambda a: a.repeat_interleave(2, 0)[::2],
    "every second column": lambda a: a.repeat_interleave(2, 1)[:, ::2],
    "equal rows": lambda a: a[:1].expand_as(a),
}


@needs_onednn
@pytest.mark.parametrize("left", FORMS)
@pytest.mark.parametrize("right", FORMS)
def test_products_of_any_strides(left: str, right: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = calls(monkeypatch)
    a, b = (FORMS[form](matrix) for form, matrix in zip((left, right), matrices(), strict=True))
    torch.testing.assert_close(
        multiply(a, b).double(), a.double() @ b.double(), rtol=1e-5, atol=1e-4
    )
    assert len(made) == 1


@needs_onednn
def test_numbers_that_are_not_finite_stay_so() -> None:
    a, b = matrices()
    a[3, 4], a[5, 6] = torch.nan, torch.inf
    assert torch.equal(multiply(a, b).isfinite(), (a @ b).isfinite())


@pytest.mark.parametrize("kind", ["float64", "small", "disabled", "subclass"])
def test_torch_multiplies_what_is_left(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Subclass(Tensor):
        pass

    made = calls(monkeypatch)
    a, b = matrices()
    if kind == "float64":
        a, b = a.double(), b.double()
    elif kind == "small":
        a, b = a[:2], b[:, :2]
    elif kind == "subclass":
        a = a.as_subclass(Subclass)
    elif kind == "disabled":
        monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    assert torch.equal(multiply(a, b), a @ b)
    assert not made


@needs_onednn
def test_the_backward_pass_of_all_outputs_uses_them(monkeypatch: pytest.MonkeyPatch) -> None:
    made = calls(monkeypatch)
    network, x = (
        nn.Sequential(nn.Linear(80, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 5)),
        matrices()[0],
    )
    fast = empirical_ntk(network, x)
    assert any(len(rows) == 5 * len(x) for rows, *_ in made)
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    slow = empirical_ntk(network, x)
    torch.testing.assert_close(fast, slow, rtol=1e-5, atol=1e-5)


@needs_onednn
def test_gradients_below_it_are_differentiable(monkeypatch: pytest.MonkeyPatch) -> None:
    made = calls(monkeypatch)
    a, b = (matrix.requires_grad_() for matrix in matrices())
    with fast_products():
        (a @ b).square().sum().backward()
    assert len(made) == 3
    expected = 2 * (a.detach() @ b.detach()) @ b.detach().T
    torch.testing.assert_close(a.grad, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(("vendor", "expected"), [("AuthenticAMD", True), ("GenuineIntel", False)])
def test_the_processor_decides(
    vendor: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products.Path, "read_text", lambda *_, **__: f"vendor_id\t: {vendor}\n")
    assert products._is_faster.__wrapped__() is expected
