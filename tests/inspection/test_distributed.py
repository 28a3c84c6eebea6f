"""Several processes that measure together find what one finds alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gapscope as gs
from gapscope.base.errors import InvalidInput
from gapscope.inspection import outputs as outputs_module
from gapscope.inspection.execution import Processes, compute_distributed, distribute_over
from support.two_processes import together

N = 23
MEASURES = (
    "ntk_trace", "output_sensitivity", "unit_sparsity", "margin_signature", "kernel_leave_one_out", "accuracy", "loss",
)  # fmt: skip


def _network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3), nn.ReLU(),
        nn.Flatten(), nn.Linear(24, 8), nn.ReLU(), nn.Linear(8, 3),
    ).double().eval()  # fmt: skip


def _data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    y = torch.arange(N) % 3
    x = torch.randn(N, 1, 8, 8, generator=generator, dtype=torch.float64)
    return x + y[:, None, None, None], y


def _found() -> dict[str, Any]:
    network, (x, y) = _network(), _data()
    readings = gs.measure(
        network, (x, y), MEASURES, initial_state=_network().state_dict(), progress=False
    )
    assert not readings.unmeasured, readings.unmeasured
    return {
        **readings.values(),
        "probe": float(gs.functional.ntk_trace(network, x, method="probe")),
        "kernel": gs.functional.empirical_ntk(network, x),
        "block": gs.functional.empirical_ntk(network, x, x[:5], outputs="traced"),
        "few": gs.functional.empirical_ntk(network, x[:1]),
    }


def _process(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", f"file://{folder}/meeting", rank=rank, world_size=2
    )
    seen: list[int] = []
    network = _network()
    network.register_forward_hook(lambda module, given, result: seen.append(len(result)))
    with distribute_over():
        outputs_module.network_outputs(network, _data()[0], chunk_size=4)
        passes = sum(seen)
        results = _found()
    torch.save({"passes": passes, **results}, Path(folder) / f"{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.thorough
def test_two_processes_find_what_one_finds(tmp_path: Path) -> None:
    together(_process, tmp_path)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    assert (first.pop("passes"), second.pop("passes")) == (11, 12), "each runs its part"
    for name, value in _found().items():
        one, other, alone = (
            torch.as_tensor(result) for result in (first[name], second[name], value)
        )
        torch.testing.assert_close(one, alone, rtol=1e-9, atol=1e-12, msg=name)
        assert torch.equal(one, other), name


def test_stretches_cover_all_rows_once() -> None:
    for n, size in ((7, 2), (8, 3), (3, 3)):
        rows = [
            row for rank in range(size) for row in range(n)[Processes(rank, size).rows_of_rank(n)]
        ]
        assert rows == list(range(n))


def test_alone_nothing_is_divided_and_processes_must_have_met() -> None:
    assert compute_distributed(3, lambda part: torch.arange(part.start, part.stop)).tolist() == [
        0,
        1,
        2,
    ]
    with pytest.raises(InvalidInput, match="init_process_group"), distribute_over():
        pass


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    torch.distributed.init_process_group("gloo", f"file://{tmp_path}/one", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("part", ["", "0"])
def test_sharded_weights_are_refused_also_after_a_pass(part: str) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    network = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))
    x, y = torch.randn(8, 6), torch.arange(8) % 3
    fully_shard(network.get_submodule(part), mesh=init_device_mesh("cpu", (1,)))
    for _ in range(2):
        for refused in (
            lambda: gs.measure(network, (x, y), ["loss"]),
            lambda: gs.GradientSimilarityPenalty(0.1)(network, x),
            lambda: gs.functional.parameter_norm(network),
            lambda: gs.functional.parameter_count(network),
        ):
            with pytest.raises(InvalidInput, match="is sharded over processes"):
                refused()
        network(x)
