"""The registry of penalties: made by name."""

from __future__ import annotations

import inspect
import math
from pathlib import Path

import pytest
import torch

from gapscope.base.errors import InvalidInput
from gapscope.penalties import base
from gapscope.penalties.base import make_penalty, penalties, register_penalty
from gapscope.penalties.weight import L2Penalty


def test_penalties_are_made_by_name() -> None:
    made = make_penalty("weight", {"strength": 0.5})
    assert isinstance(made, L2Penalty) and made.strength == 0.5
    with pytest.raises(InvalidInput, match=r"no penalty 'wieght'.*Did you mean 'weight'"):
        make_penalty("wieght", {})
    with pytest.raises(InvalidInput, match=r"has no setting 'strenth'.*Did you mean 'strength'"):
        make_penalty("weight", {"strenth": 1})
    with pytest.raises(InvalidInput, match="Penalty 'weight' needs the setting 'strength'; got no settings"):
        make_penalty("weight", {})


@pytest.mark.parametrize("name", sorted(penalties()))
def test_help_describes_every_parameter(name: str) -> None:
    for parameter in inspect.signature(penalties()[name]).parameters:
        assert f"\n    {parameter}: " in (penalties()[name].__doc__ or ""), f"help() must describe {parameter}"


def test_two_classes_of_one_name_are_refused() -> None:
    with pytest.raises(InvalidInput, match="A penalty called 'weight' is registered already"):
        register_penalty("weight")(int)
    assert register_penalty("weight")(L2Penalty) is L2Penalty


def test_the_penalty_of_the_docs_stands_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_PENALTIES", dict(penalties()))
    page = (Path(__file__).parents[2] / "docs" / "add-a-penalty.md").read_text(encoding="utf-8")
    exec(page.split("```python\n")[1].split("```")[0], {"__name__": "confidence"})  # as a user's own file would
    penalty = make_penalty("confidence", {"strength": 0.3})
    sure = torch.tensor([[1000.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    assert float(penalty(torch.nn.Identity(), sure)) == pytest.approx(0.3 * math.log(4))
    logits = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: penalty(torch.nn.Identity(), x), logits)
    entropy = float(torch.distributions.Categorical(logits=logits.detach()).entropy().mean())
    assert float(penalty(torch.nn.Identity(), logits.detach())) == pytest.approx(0.3 * (math.log(4) - entropy))
