"""Table 1 and Fig. 4: five VGG-16 on photographs in folders, trained with less and less regularisation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor

from gapscope.base.samples import Samples
from gapscope.base.specs import DataSpec, Spec
from gapscope.data import prepare
from gapscope_studies.kit.study import Outcome, Setting
from gapscope_studies.zhao2022 import drawing
from gapscope_studies.zhao2022.analysis import (
    KAPPA,
    ZETA,
    comparison,
    related,
    sparsity_model,
    sum_of_squares,
    with_interval,
)
from gapscope_studies.zhao2022.runs import networks, sparsity

POOL, FOLDER = "photographs", "imagenet"
# training and test accuracy of Table 1
PAPER = {"A": (0.732, 0.657), "B": (0.730, 0.600), "C": (0.818, 0.543), "D": (0.828, 0.444), "E": (0.978, 0.374)}


def _write(folder: Path, samples: Samples, class_names: tuple[str, ...]) -> None:
    """Write images [n, c, h, w] as PNG files, one folder a class."""
    from PIL import Image

    assert samples.targets is not None
    pixels: Tensor = (samples.inputs * 255).round().to(torch.uint8)
    for number, (image, label) in enumerate(zip(pixels, samples.targets.tolist(), strict=True)):
        path = folder / class_names[label] / f"{number:05}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        content = image.permute(1, 2, 0).numpy()
        Image.fromarray(content[..., 0] if content.shape[2] == 1 else content).save(path)


def _stand_in(setting: Setting) -> Setting:
    """Unpack a small data set into folders below the work folder, once; the setting looks for data there."""
    folder = setting.work / FOLDER
    small = DataSpec(name="cifar100", train_size=600, test_size=500)
    source = setting.choose(smoke=DataSpec(train_size=100, test_size=100), small=small, paper=None)
    if not (folder / "complete").exists():
        problem, _ = prepare(source, root=setting.data_root)
        names = problem.class_names or tuple(str(label) for label in range(problem.n_outputs))
        for split, samples in (("train", problem.train), ("val", problem.test)):
            _write(folder / split, samples, names)
        (folder / "complete").touch()
    return replace(setting, data_root=str(setting.work))


def where(setting: Setting) -> Setting:
    """Return the setting whose data root holds `imagenet/train` and `imagenet/val`.

    Args:
        setting: Where and how large.

    Returns:
        At paper scale the same; at the smaller scales its data root is the work folder, where CIFAR-100 (small: 600
        images) or digits (smoke) are unpacked into folders.
    """
    return setting if setting.scale == "paper" else _stand_in(setting)


def recipes(setting: Setting) -> dict[str, Spec]:
    """Models A to E of appendix D, each with less regularisation than the one before.

    A is the recipe of Simonyan and Zisserman 2015 (momentum 0.9, weight decay 5e-4, dropout 0.5, augmentation, batch
    256, 74 epochs, the learning rate of 0.01 divided by ten twice); B has no augmentation, C no momentum, D a dropout
    of 0.3 (the paper: before the first fully connected layer alone; here before all), E neither dropout nor weight
    decay. Images are scaled to 64 pixels (the paper's 224 would need 770 GB of memory).

    Args:
        setting: Says the scale.

    Returns:
        Name -> spec.
    """
    narrow = {"width_multiplier": setting.choose(smoke=0.25, small=0.375, paper=1.0)}
    options: dict[str, Any] = setting.choose(smoke=narrow, small=narrow, paper={"head": "paper", "batch_norm": False})
    rate, epochs = setting.choose(smoke=0.02, small=0.02, paper=0.01), setting.choose(smoke=4, small=25, paper=74)
    base = Spec().replace(
        {
            "data.name": "image_folder",
            "data.options": {"folder": FOLDER, "side": setting.choose(smoke=8, small=32, paper=64)},
            "network.name": setting.choose(smoke="small_cnn", small="small_cnn", paper="vgg16"),
            "network.initialization": "he_normal",
            "training.learning_rate": rate,
            "training.batch_size": setting.choose(smoke=25, small=32, paper=256),
            "training.epochs": epochs,
            "training.schedule": "step",
            "training.schedule_epochs": max(1, round(0.4 * epochs)),
        }
    )
    decay = [{"name": "weight", "options": {"strength": 2.5e-4}}]
    changes = {
        "A": {"dropout": 0.5, "momentum": 0.9, "penalties": decay, "augmentation": "flip_shift_rotate"},
        "B": {"dropout": 0.5, "momentum": 0.9, "penalties": decay, "augmentation": "none"},
        "C": {"dropout": 0.5, "momentum": 0.0, "penalties": decay, "augmentation": "none"},
        "D": {"dropout": 0.3, "momentum": 0.0, "penalties": decay, "augmentation": "none"},
        "E": {"dropout": 0.0, "momentum": 0.0, "penalties": [], "augmentation": "none"},
    }
    return {
        name: base.replace(
            {
                "network.options": {**options, "dropout": change.pop("dropout")},
                **{f"training.{key}": value for key, value in change.items()},
            }
        )
        for name, change in changes.items()
    }


def figure_4(setting: Setting) -> Outcome:
    """Accuracies, zeta and kappa of the five models, and the linear fit.

    Args:
        setting: Where and how large; at paper scale `imagenet/train/CLASS/*` and `imagenet/val/CLASS/*` must lie in
            the data root.

    Returns:
        Table 1 and the correlations, the paper's beside ours.
    """
    here, specs = where(setting), recipes(setting)
    table = networks(here, POOL, list(specs.values()))
    names = {spec.id: name for name, spec in specs.items()}
    table = table.assign(model=[names[key] for key in table.index])
    table["paper's gap"] = [PAPER[name][0] - PAPER[name][1] for name in table["model"]]
    found = related(table, [ZETA, KAPPA])
    pearson, squares = sum_of_squares(sparsity_model(), table)
    theirs = 5 * float(numpy.var([train - test for train, test in PAPER.values()]))
    _, spread = sum_of_squares(sparsity_model().set_params(features=[]), table)
    rows = [
        ("gap and zeta: Pearson", 0.998, with_interval(found.loc[ZETA], "pearson")),
        ("gap and kappa: Pearson", "0.967 (its size)", with_interval(found.loc[KAPPA], "pearson")),
        ("SSR of the fit on five networks, three coefficients", 0.004, f"{squares:.4f}"),
        ("SSR about the mean gap", f"{theirs:.3f}", f"{spread:.4f}"),
    ]
    verdict = (
        f"Over {len(table)} networks with gaps of {table['gap'].min():.3f} to {table['gap'].max():.3f} Pearson of the "
        f"gap is {rows[0][2]} with zeta (paper 0.998) and {rows[1][2]} with kappa (paper 0.967 in size); the fit of "
        f"three coefficients leaves an SSR of {squares:.4f} of {spread:.4f} about the mean (paper 0.004 of "
        f"{theirs:.3f}) and has Pearson {pearson:.2f}. {_what(setting)}"
    )
    curves = {f"model {name}": sparsity(here, POOL, spec) for name, spec in specs.items() if spec.id in table.index}
    shown = ["model", "paper's gap", "gap", "train_accuracy", "test_accuracy", ZETA, KAPPA]
    return Outcome(
        numbers={"correlations": found.to_dict("index"), "ssr": squares, "models": table[shown].to_dict("records")},
        tables={"Paper and ours": comparison(rows), "Table 1": table[shown]},
        figures={
            "curves": drawing.curves(curves),
            "clouds": drawing.clouds(curves),
            "gap": drawing.against_gap(table, {ZETA: "ζ", KAPPA: "κ"}),
        },
        verdict=verdict,
        seeds=[0],
    )


def _what(setting: Setting) -> str:
    return {
        "smoke": "Digits in folders stand in for ImageNet.",
        "small": "600 images of CIFAR-100 in folders, and a narrow CNN of three convolutions stand in for ImageNet.",
        "paper": "ImageNet, scaled to 64 pixels.",
    }[setting.scale]
