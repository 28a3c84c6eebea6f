"""Does the rate of label noise contain 0 on clean but hard data, and the truth on known rates?

    python -m gapscope_studies.labels.hard_clean results/labels/hard_clean.json

The rule (`gapscope.labels.results`, `gapscope.labels.noise_rate`) was chosen on other draws, with seeds 0 to 2 and
501 to 504; these draws have the seeds 200 to 239.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import make_classification, make_gaussian_quantiles

import gapscope as gs
from gapscope.base.environment import environment
from gapscope.base.errors import NotMeasurable
from gapscope.base.files import to_json
from gapscope_studies.kit.light import light_json

N = 400
HARD = {"parity of 3 signs": 2, "xor of 2 signs": 2, "4 clusters per class": 3, "gaussian quantiles": 3, "cifar10": 10}
KNOWN = {"linear": 2, "digits": 10, "blobs": 5, "fashion_mnist": 10}
RATES = (0.0, 0.1, 0.2, 0.35)


def draw(name: str, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """One clean data set of 400 samples."""
    rng = np.random.default_rng(seed)
    if name in ("digits", "cifar10", "fashion_mnist"):
        train = gs.load_dataset(name).train
        rows = torch.as_tensor(rng.permutation(len(train))[:N])
        assert train.targets is not None
        return train.inputs[rows], train.targets[rows]
    if name == "4 clusters per class":
        x, y = make_classification(
            N, 20, n_informative=6, n_classes=3, n_clusters_per_class=4, flip_y=0, random_state=seed
        )
    elif name == "gaussian quantiles":
        x, y = make_gaussian_quantiles(n_samples=N, n_features=10, n_classes=3, random_state=seed)
    elif name == "linear":
        x = rng.normal(size=(N, 50))
        y = x[:, :25].sum(1) > 0
    elif name == "blobs":
        centers = rng.normal(size=(5, 8)) * 3
        y = rng.integers(0, 5, N)
        x = centers[y] + rng.normal(size=(N, 8))
    else:
        x = rng.normal(size=(N, 10))
        y = np.sign(x[:, : 3 if name.startswith("parity") else 2]).prod(1) > 0
    return torch.tensor(x, dtype=torch.float32), torch.as_tensor(np.asarray(y).astype(int))


def answer(name: str, classes: int, rate: float, seed: int) -> dict[str, Any]:
    """What is estimated of one draw, and the true fraction of changed labels."""
    x, clean = draw(name, seed)
    y = gs.data.inject_label_noise(clean, rate, classes, torch.Generator().manual_seed(seed))
    truth = float((y != clean).double().mean())
    try:
        noise = gs.estimate_label_noise(None, (x, y), seed=seed)
    except NotMeasurable:
        return {"answered": False, "covered": None, "rate": None}
    return {"answered": True, "covered": noise.low - 1e-9 <= truth <= noise.high + 1e-9, "rate": noise.rate}


def row(name: str, classes: int, rate: float, seeds: range) -> dict[str, Any]:
    """Counts over draws."""
    answers = [answer(name, classes, rate, seed) for seed in seeds]
    answered = [one for one in answers if one["answered"]]
    rates = [one["rate"] for one in answered]
    return {
        "data": name,
        "injected": rate,
        "draws": len(answers),
        "abstained": len(answers) - len(answered),
        "covered": sum(bool(one["covered"]) for one in answered),
        "mean rate": float(np.mean(rates)) if rates else None,
    }


def main(path: Path) -> None:
    """Run all draws and write the counts."""
    torch.set_num_threads(1)
    start = time.process_time()
    hard = [row(name, classes, 0.0, range(200, 240)) for name, classes in HARD.items()]
    known = [row(name, classes, rate, range(200, 210)) for name, classes in KNOWN.items() for rate in RATES]
    good = sum(one["abstained"] + one["covered"] for one in hard)
    answered = sum(one["draws"] - one["abstained"] for one in known)
    content = {
        "environment": environment(),
        "cpu_seconds": time.process_time() - start,
        "samples": N,
        "hard": hard,
        "known": known,
        "zero_inside_or_abstained": [good, sum(one["draws"] for one in hard)],
        "covered_of_known": [sum(one["covered"] for one in known), answered],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(light_json(to_json(content)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
