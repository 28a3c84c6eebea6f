"""Fig. 3: the protocol of down-sampled ImageNet, on that folder of images or on a stand-in for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from torch import Tensor

from gapscope.base.files import write_atomically
from gapscope.data import load
from gapscope_studies.kit.study import Outcome, Setting
from gapscope_studies.luo2019.cases import batch_sizes, folder
from gapscope_studies.luo2019.methods import curves, larger, smaller, trained
from gapscope_studies.luo2019.training_figures import ACCURACY_PANEL, LOSS_PANEL, compared

IMAGENET = "imagenet32"


def write_images(inputs: Tensor, labels: Tensor, folder: Path) -> None:
    """Write images [n, c, h, w] in [0, 1] as folder/CLASS/NUMBER.png, of grey or RGB pixels.

    Args:
        inputs: The images.
        labels: Their classes [n].
        folder: Made if missing.
    """
    import io

    from PIL import Image

    for number, (image, label) in enumerate(zip(inputs, labels.tolist(), strict=True)):
        pixels = (image * 255).round().byte().numpy()
        whole = pixels[0] if len(pixels) == 1 else np.moveaxis(pixels, 0, -1)
        target = folder / f"{label:03d}"
        target.mkdir(parents=True, exist_ok=True)
        content = io.BytesIO()
        Image.fromarray(whole).save(content, format="PNG")
        write_atomically(target / f"{number:05d}.png", content.getvalue(), durable=False)


def stand_in(setting: Setting) -> str:
    """Write the images of CIFAR-100 (smoke: a few digits) as a folder, once, and return its path."""
    target = setting.work / "images"
    if not (target / "complete").exists():
        name, most = setting.choose(smoke=("digits", 60), small=("cifar100", 1000), paper=(None, None))
        problem = load(name, root=setting.data_root)
        for split, samples in (("train", problem.train), ("val", problem.test)):
            assert samples.targets is not None
            write_images(samples.inputs[:most], samples.targets[:most], target / split)
        write_atomically(target / "complete", "")
    return str(target.resolve())


def figure_3(setting: Setting) -> Outcome:
    """BN of two batch sizes against PN + gamma decay in large batches, ResNet-18, rate over 10 at 30, 60, 90 epochs.

    Down-sampled ImageNet must lie as a folder of PNG images, `imagenet32`/train/CLASS/ and `imagenet32`/val/CLASS/,
    below the data root; only at paper scale it is used. The others train on a stand-in: CIFAR-100 written as such a
    folder, with the schedule shortened in proportion.

    Args:
        setting: Where and how large.

    Returns:
        Methods, claims, curves.
    """
    images = IMAGENET if setting.scale == "paper" else stand_in(setting)
    normal, large = batch_sizes(setting)
    cases = {
        f"BN {normal}": folder(setting, images, normal),
        f"BN {large}": folder(setting, images, large),
        f"PN {large}": folder(setting, images, large, normalization="population"),
        f"PN {large} + decay": folder(setting, images, large, normalization="population", emulated_size=normal),
    }
    methods = trained(setting, cases)
    bn, bn_large, _, decayed = methods.values()
    claims = [
        larger("Fig. 3", "BN's validation loss grows with the batch size", bn_large, bn, "test_loss"),
        smaller("Fig. 3", "BN's accuracy falls with the batch size", bn_large, bn, "test_accuracy"),
        larger("Fig. 3", "PN + gamma decay is better than BN in large batches", decayed, bn_large, "test_accuracy"),
    ]
    note = "" if setting.scale == "paper" else "Not ImageNet but a stand-in, for the protocol alone. "
    return compared(setting, methods, claims, curves(methods, [LOSS_PANEL, ACCURACY_PANEL]), note)
