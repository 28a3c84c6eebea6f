"""Measures beside other programs that compute them: PyHessian and WeightWatcher; numbers into a JSON.

Peers are optional; put them somewhere on PYTHONPATH (`pip install --no-deps --target FOLDER pyhessian powerlaw
weightwatcher`). One that cannot be imported is a row with its reason.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from gapscope.base.environment import environment
from gapscope.measures._weights import squared_singular_values
from gapscope.measures.curvature.hessian_top_eigenvalue import hessian_top_eigenvalue
from gapscope.measures.curvature.hessian_trace import hessian_trace
from gapscope.measures.norms.stable_rank import stable_rank
from gapscope.measures.spectra.power_law_alpha import power_law_fit


def subject() -> tuple[nn.Sequential, torch.Tensor, torch.Tensor]:
    """A small network of linear layers wide enough for a spectrum, with samples."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(64, 96), nn.Tanh(), nn.Linear(96, 80), nn.Tanh(), nn.Linear(80, 10))
    return network.eval(), torch.randn(64, 64), torch.arange(64) % 10


def pyhessian() -> list[dict[str, Any]]:
    """Largest eigenvalue and trace."""
    from pyhessian import hessian  # type: ignore[import-not-found]

    network, x, y = subject()
    own_top = float(hessian_top_eigenvalue(network, x, y, steps=60, tolerance=1e-7))
    own_trace = hessian_trace(network, x, y, probes=60)
    peer = hessian(network, nn.CrossEntropyLoss(), data=(x, y), cuda=False)
    top = peer.eigenvalues(maxIter=300, tol=1e-7)[0][0]
    draws = peer.trace(maxIter=60, tol=0)
    error = (own_trace.standard_error**2 + np.var(draws, ddof=1) / len(draws)) ** 0.5  # type: ignore[operator]
    return [
        {"number": "hessian_top_eigenvalue", "ours": own_top, "theirs": float(top), "tolerance": 1e-3 * abs(top),
         "note": "Lanczos against power iteration, which finds the largest in magnitude: the same one here"},
        {"number": "hessian_trace", "ours": float(own_trace), "theirs": float(np.mean(draws)), "tolerance": 4 * error,
         "note": "both by random signs, 60 of each: equal within 4 standard errors of the difference"},
    ]  # fmt: skip


def weightwatcher() -> list[dict[str, Any]]:
    """Exponents and stable ranks of all layers."""
    import weightwatcher as peer  # type: ignore[import-not-found]

    network, x, _ = subject()
    details = peer.WeightWatcher(model=network).analyze(min_evals=10)
    own = [power_law_fit(values)[0] for values in squared_singular_values(network, x).values() if len(values) > 10]
    rows = [
        {"number": f"alpha of layer {i}", "ours": mine, "theirs": float(theirs), "tolerance": 1e-3 * mine,
         "note": "WeightWatcher drops eigenvalues below 1e-5, and fits by its own search for the start"}
        for i, (mine, theirs) in enumerate(zip(own, details.alpha, strict=False))
    ]  # fmt: skip
    ranks = float(details.stable_rank.sum())
    note = "sum over the layers that WeightWatcher looks at"
    return [*rows, {"number": "stable_rank.sum", "ours": stable_rank(network, x)["sum"], "theirs": ranks,
                    "tolerance": 1e-3 * ranks, "note": note}]  # fmt: skip


PEERS: tuple[Callable[[], list[dict[str, Any]]], ...] = (pyhessian, weightwatcher)


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
                found = compare()
        except Exception as error:  # what a peer needs, or breaks on, is a row
            rows.append({"peer": compare.__name__, "failed": f"{type(error).__name__}: {error}"[:300]})
            continue
        for row in found:
            agrees = abs(row["ours"] - row["theirs"]) <= row["tolerance"]
            rows.append({"peer": compare.__name__, **row, "agrees": bool(agrees)})
    for row in rows:
        print(row)
    output.write_text(json.dumps({"environment": environment(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
