"""Copies of networks equal the network, and share nothing with it."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from gapscope.inspection.copies import copy_network


def test_a_copy_keeps_values_ties_and_settings_and_shares_no_memory() -> None:
    torch.manual_seed(0)
    network: Any = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3), nn.GRU(3, 3))
    network[2].weight = network[0].weight
    network[0].bias.requires_grad_(False)
    network.table = torch.arange(3.0)  # neither parameter nor buffer
    network.register_buffer("whole", torch.arange(6.0))
    network.register_buffer("part", network.whole[:2])
    network[:3](torch.randn(4, 3)).sum().backward()
    made, usual = copy_network(network), copy.deepcopy(network)
    assert made.state_dict().keys() == usual.state_dict().keys()
    for name, tensor in network.state_dict().items():
        assert torch.equal(made.state_dict()[name], tensor)
        assert made.state_dict()[name].data_ptr() != tensor.data_ptr()
    assert made[2].weight is made[0].weight
    assert made.part.data_ptr() == made.whole.data_ptr()
    assert [p.requires_grad for p in made.parameters()] == [
        p.requires_grad for p in network.parameters()
    ]
    assert all(p.grad is None for p in made.parameters())
    assert torch.equal(made.table, network.table)


def test_no_storage_of_a_buffer_is_copied(monkeypatch: Any) -> None:
    def refuse(self: Any, memo: Any) -> Any:
        raise RuntimeError("a device whose storages torch cannot copy")

    monkeypatch.setattr(torch.TypedStorage, "_deepcopy", refuse, raising=False)
    monkeypatch.setattr(torch.UntypedStorage, "__deepcopy__", refuse)
    network = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    assert torch.equal(copy_network(network)[1].running_var, torch.ones(3))  # type: ignore[arg-type]


def test_networks_created_in_inference_mode() -> None:
    with torch.inference_mode():
        made = copy_network(nn.BatchNorm1d(3))
    assert not made.weight.is_inference()
