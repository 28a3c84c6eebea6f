"""Measures beside other programs that compute them; numbers into a JSON, from which the docs' table is marked.

Peers are optional; put them somewhere on PYTHONPATH: `pip install --no-deps --target FOLDER pyhessian powerlaw mpmath
weightwatcher`, jax, a copy of github.com/nitarshan/robust-generalization-measures (its `data/generation/measures.py` is
what is run), and the authors' program of gradient-weight alignment (the file with `head_alignment` and `gwa`, in a
folder `gwa_src` as `alignment.py`); for the competition's winners see `competition.py`. One that cannot be imported is
a row with its reason. Where a number differs and the reason is known, the row says which of theirs it was compared
with.
"""

from __future__ import annotations

import argparse
import json
import math
import warnings
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from competition import pgdl_first_place, pgdl_second_place, pgdl_third_place
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import gapscope as gs
from gapscope.base.environment import environment
from gapscope.measures import pacbayes
from gapscope.measures._weights import squared_singular_values
from gapscope.measures.curvature import Hessian, hessian_top_eigenvalue
from gapscope.measures.norms import power_law_fit
from gapscope.measures.pacbayes import (
    MAGNITUDE_EPSILON,
    pacbayes_flatness,
    pacbayes_magnitude_flatness,
)
from gapscope.measures.registry import get_measure
from gapscope.measures.training_speed import gradient_weight_alignment


def subject() -> tuple[nn.Sequential, torch.Tensor, torch.Tensor]:
    """A small network of linear layers wide enough for a spectrum, with samples."""
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Linear(64, 96), nn.Tanh(), nn.Linear(96, 80), nn.Tanh(), nn.Linear(80, 10)
    )
    return network.eval(), torch.randn(64, 64), torch.arange(64) % 10


def pyhessian() -> list[dict[str, Any]]:
    """Largest eigenvalue and trace."""
    from pyhessian import hessian  # type: ignore[import-not-found]

    network, x, y = subject()
    own_top = float(hessian_top_eigenvalue(network, x, y, steps=60, tolerance=1e-7))
    peer = hessian(network, nn.CrossEntropyLoss(), data=(x, y), cuda=False)
    top = peer.eigenvalues(maxIter=300, tol=1e-7)[0][0]
    torch.manual_seed(7)
    theirs = float(np.mean(peer.trace(maxIter=8, tol=0)))
    # the very signs that PyHessian drew: both programs estimate from the same vectors
    torch.manual_seed(7)
    own = Hessian(network, x, y, None)
    signs = torch.stack([_random_signs(network) for _ in range(8)])
    traces = (own.matvec(signs).double() * signs.double()).sum(1).tolist()
    return [
        {"number": "hessian_top_eigenvalue", "ours": own_top, "theirs": float(top), "tolerance": 1e-3 * abs(top),
         "note": "Lanczos against power iteration, which finds the largest in magnitude: the same one here"},
        {"number": "hessian_trace", "ours": float(np.mean(traces)), "theirs": theirs,
         "tolerance": 1e-4 * max(abs(value) for value in traces),
         "note": "Hutchinson's estimate from the same 8 vectors of random signs, through our product with the Hessian"},
    ]  # fmt: skip


def _random_signs(network: nn.Module) -> torch.Tensor:
    """As PyHessian draws them."""
    return torch.cat(
        [torch.randint_like(p, high=2).mul(2).sub(1).flatten() for p in network.parameters()]
    )


def weightwatcher() -> list[dict[str, Any]]:
    """Power-law exponents of all layers."""
    import weightwatcher as peer  # type: ignore[import-not-found]

    network, x, _ = subject()
    details = peer.WeightWatcher(model=network).analyze(min_evals=10)
    own = [
        power_law_fit(values)[0]
        for values in squared_singular_values(network, x).values()
        if len(values) > 10
    ]
    return [
        {"number": "power_law_alpha.alpha", "ours": mine, "theirs": float(theirs), "tolerance": 1e-3 * mine,
         "note": f"of layer {i}; WeightWatcher drops eigenvalues below 1e-5, and fits by its own search for the start"}
        for i, (mine, theirs) in enumerate(zip(own, details.alpha, strict=False))
    ]  # fmt: skip


class AllConvolutional(nn.Module):
    """Convolutions with batch norm and nothing else, the only networks that robust-generalization-measures takes."""

    def __init__(self) -> None:
        super().__init__()
        self.dataset_type = SimpleNamespace(D=(3, 8, 8))
        self.conv1, self.bn1 = nn.Conv2d(3, 12, 3, padding=1), nn.BatchNorm2d(12)
        self.conv2, self.bn2 = nn.Conv2d(12, 10, 3, padding=1), nn.BatchNorm2d(10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        return self.bn2(self.conv2(self.bn1(self.conv1(x)).relu())).relu().mean((2, 3))


def _trained_a_little() -> tuple[AllConvolutional, AllConvolutional, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    network = AllConvolutional()
    initial, x, y = deepcopy(network), torch.rand(100, 3, 8, 8), torch.arange(100) % 10
    optimizer = torch.optim.Adam(network.parameters(), lr=0.02)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(x), y).backward()
        optimizer.step()
    return network.eval(), initial.eval(), x, y


# theirs -> ours; what they print is half of (value - log m) of logarithms, the root of value / m of all else
SAME = {
    "LOG_PROD_OF_SPEC_FFT": "operator_norms.log_product",
    "LOG_SPEC_ORIG_MAIN": "spectral_complexity",
    "LOG_SPEC_INIT_MAIN": "spectral_distance_complexity",
    "PATH_NORM": "path_norm",
    "INVERSE_MARGIN": "output_margin.inverse_square",
}


def robust_generalization_measures() -> list[dict[str, Any]]:
    """Norms and margins of an all-convolutional network, and the noise that it bears."""
    from data.generation.measures import get_all_measures  # type: ignore[import-not-found]

    network, initial, x, y = _trained_a_little()
    accuracy = float((network(x).argmax(1) == y).double().mean())
    loader = DataLoader(TensorDataset(x, y), batch_size=50)
    result = get_all_measures(network, initial, loader, accuracy, 0)
    theirs = {item.name: value for item, value in result.items()}
    names = sorted({name.split(".")[0] for name in SAME.values()})
    own = gs.measure(
        network, (x, y), names, initial_state=initial.state_dict(), time_budget=None, progress=False
    )
    values = {reading.name: reading.value for reading in own}
    rows = []
    for name, ours in SAME.items():
        printed = float(theirs[name])
        value = 2 * printed + math.log(len(x)) if name.startswith("LOG_") else printed**2 * len(x)
        rows.append({"number": ours, "ours": values[ours], "theirs": value, "tolerance": 1e-4 * abs(value),
                     "note": f"{name}, without their last step"})  # fmt: skip
    return [
        *rows,
        *_noise_borne(network, x, y, accuracy),
        *_bounds(network, initial, x, y, loader, accuracy),
    ]


def _by_standard_deviation(mean: float, variance: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
    """What robust-generalization-measures means: it passes variances to torch.normal, which takes their roots."""
    return _NORMAL(
        mean,
        variance.sqrt() if isinstance(variance, torch.Tensor) else variance**0.5,
        *args,
        **kwargs,
    )


_NORMAL = torch.normal
# theirs -> ours
BOUNDS = {"PACBAYES_INIT": "pacbayes_distance", "PACBAYES_ORIG": "pacbayes_norm"}


def _noise_borne(
    network: nn.Module, x: torch.Tensor, y: torch.Tensor, accuracy: float
) -> list[dict[str, Any]]:
    """The deviations that both find, over seeds: they are searched with ten draws, and other ones."""
    from data.generation.measures import _pacbayes_sigma, _reparam  # type: ignore[import-not-found]

    folded, loader, seeds = (
        _reparam(network).eval(),
        DataLoader(TensorDataset(x, y), batch_size=50),
        range(8),
    )
    rows = []
    for measure, epsilon in (
        (pacbayes_flatness, None),
        (pacbayes_magnitude_flatness, MAGNITUDE_EPSILON),
    ):
        with torch.no_grad(), mock.patch.object(torch, "normal", _by_standard_deviation):
            theirs = [_pacbayes_sigma(folded, loader, accuracy, seed, epsilon) for seed in seeds]
        streams = [torch.Generator().manual_seed(seed) for seed in seeds]
        ours = [
            float(measure(folded, x, y, draws=10, generator=stream)) ** -0.5 for stream in streams
        ]
        error = math.sqrt((np.var(ours, ddof=1) + np.var(theirs, ddof=1)) / len(seeds))
        rows.append(
            {"number": measure.__name__, "ours": float(np.mean(ours)), "theirs": float(np.mean(theirs)),
             "tolerance": 3 * error,
             "note": "mean over 8 seeds of the standard deviation that their folded network bears, equal within 3 "
             "standard errors; they pass variances to torch.normal, which takes standard deviations: mended for this"}
        )  # fmt: skip
    return rows


def _bounds(
    network: nn.Module,
    initial: nn.Module,
    x: torch.Tensor,
    y: torch.Tensor,
    loader: Any,
    accuracy: float,
) -> list[dict[str, Any]]:
    """Their two bounds: ours of the folded network's kernels, at the deviation that they found."""
    from data.generation.measures import _pacbayes_sigma, _reparam, get_all_measures  # type: ignore[import-not-found]

    theirs = {
        item.name: value
        for item, value in get_all_measures(network, initial, loader, accuracy, 0).items()
    }
    folded, start = _reparam(network).eval(), _reparam(initial).state_dict()
    for name, parameter in folded.named_parameters():
        parameter.requires_grad_(not any(part in name for part in ("bias", "bn")))
    rows = []
    for name, measure in BOUNDS.items():
        with torch.no_grad():
            sigma = _pacbayes_sigma(folded, loader, accuracy, 0, None)
        with mock.patch.object(
            pacbayes, "_noise_tolerance", lambda *args, found=sigma, **options: found
        ):
            given = {"initial_state": start} if "initial" in get_measure(measure).needs else {}
            ours = float(get_measure(measure).function(folded, x, y, **given))
        value = float(theirs[name]) ** 2 * len(x)
        rows.append({"number": measure, "ours": ours, "theirs": value, "tolerance": 1e-4 * abs(value),
                     "note": f"{name}, without their last step: our bound of their folded network's kernels, at the "
                     "deviation that they found"})  # fmt: skip
    return rows


def gwa() -> list[dict[str, Any]]:
    """Alignment of the samples' gradients with the weights of the last layer."""
    from gwa_src.alignment import gwa as quotient  # type: ignore[import-not-found]
    from gwa_src.alignment import head_alignment  # type: ignore[import-not-found]

    network, x, y = subject()
    result = gradient_weight_alignment(network, x, y)
    with torch.no_grad():
        features, logits = network[:-1](x).numpy(), network(x).numpy()
    head: Any = network[-1]
    labels, weight = nn.functional.one_hot(y).numpy(), head.weight.detach().numpy().T
    cosines = np.array(head_alignment(weight, logits, features, labels))
    pairs = {"alignment": float(quotient(cosines[None])[0]), "mean": float(cosines.mean())}
    note = "the authors' program in jax, float32"
    return [
        {"number": f"gradient_weight_alignment.{name}", "ours": float(result[name]), "theirs": theirs,
         "tolerance": 1e-4 * abs(theirs), "note": note}
        for name, theirs in pairs.items()
    ]  # fmt: skip


def torch_func() -> list[dict[str, Any]]:
    """Log determinant of the kernel from the Jacobian by torch.func."""
    network, x, _ = subject()
    network, x = network.double(), x[:20].double()
    parameters = dict(network.named_parameters())

    def output(values: Any, sample: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(network, values, (sample[None],))[0]

    rows = torch.func.vmap(torch.func.jacrev(output), (None, 0))(parameters, x)
    jacobian = torch.cat([value.flatten(2) for value in rows.values()], dim=2).flatten(0, 1)
    theirs = float(torch.linalg.slogdet(jacobian @ jacobian.T).logabsdet)
    ours = gs.measure(network, x, ["ntk_logdet"], time_budget=None, progress=False).values()[
        "ntk_logdet"
    ]
    return [{"number": "ntk_logdet", "ours": ours, "theirs": theirs, "tolerance": 1e-8 * abs(theirs),
             "note": "slogdet of the kernel from its Jacobian, float64"}]  # fmt: skip


PEERS: tuple[Callable[[], list[dict[str, Any]]], ...] = (
    torch_func, pyhessian, weightwatcher, robust_generalization_measures, gwa,
    pgdl_first_place, pgdl_second_place, pgdl_third_place,
)  # fmt: skip


def main() -> None:
    """Compare with each peer that is there, and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("peers.json"))
    rows: list[dict[str, Any]] = []
    output = parser.parse_args().output
    for compare in PEERS:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = compare()
        except Exception as error:  # what a peer needs, or breaks on, is a row
            rows.append(
                {"peer": compare.__name__, "failed": f"{type(error).__name__}: {error}"[:300]}
            )
            continue
        for row in result:
            agrees = abs(row["ours"] - row["theirs"]) <= row["tolerance"]
            rows.append({"peer": compare.__name__, **row, "agrees": bool(agrees)})
    for row in rows:
        print(row)
    output.write_text(json.dumps({"environment": environment(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
