"""Training problem of a DataSpec, with metadata of its corruptions."""

from __future__ import annotations

import base64
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Int64
from torch import Tensor

from gapscope.base.errors import InvalidInput
from gapscope.base.random_streams import make_generator
from gapscope.base.samples import Samples
from gapscope.base.specs import DataSpec
from gapscope.data import corruptions
from gapscope.data.catalogue import load_dataset
from gapscope.data.problem import Problem

Metadata = dict[str, Any]


def pack_mask(mask: Bool[Tensor, " n"]) -> str:
    """Return a mask as base64 text: bit i (least significant first) is sample i."""
    return base64.b64encode(np.packbits(mask.numpy(), bitorder="little").tobytes()).decode()


def unpack_mask(text: str) -> Int64[Tensor, " k"]:
    """Return the indices of the samples marked by a packed mask, in ascending order.

    Args:
        text: Mask in base64, one bit per sample, as the record of a run holds it (`corruption`).
    """
    bits = np.unpackbits(np.frombuffer(base64.b64decode(text), np.uint8), bitorder="little")
    return torch.from_numpy(np.flatnonzero(bits))


def _check_compatibility(spec: DataSpec, problem: Problem) -> None:
    for split, size, samples in (
        ("train_size", spec.train_size, problem.train),
        ("test_size", spec.test_size, problem.test),
    ):
        if size is not None and size > len(samples):
            raise InvalidInput(
                f"data.{split} must be at most {len(samples):,}, the samples of '{spec.name}'; got {size:,}."
            )
    for setting, task in (
        ("label_noise", "classification"),
        ("balanced", "classification"),
        ("target_noise", "regression"),
        ("center_targets", "regression"),
    ):
        if getattr(spec, setting) and problem.task != task:
            raise InvalidInput(
                f"data.{setting} needs a {task} problem; '{spec.name}' is a {problem.task} problem. Omit it."
            )
    for setting, neutral in (("blur_severity", 0), ("pixels_averaged", 1)):
        if getattr(spec, setting) != neutral and problem.train.inputs.ndim != 4:
            raise InvalidInput(
                f"data.{setting} needs images [n, channels, height, width]; the inputs of '{spec.name}' have shape "
                f"{['n', *problem.input_shape]}. Set it to {neutral}."
            )
    if spec.pixels_averaged > 1 and spec.pixels_averaged > min(problem.input_shape[-2:]):
        raise InvalidInput(
            f"data.pixels_averaged must be at most the images' smaller side, {min(problem.input_shape[-2:])}; got "
            f"{spec.pixels_averaged}."
        )


def _training_subset(spec: DataSpec, problem: Problem) -> Samples:
    generator = make_generator(spec.seed, "training subset")
    if not spec.balanced:
        if spec.train_size is None:
            return problem.train
        return corruptions.subset(problem.train, spec.train_size, generator)
    rarest = int(torch.bincount(problem.train.y, minlength=problem.n_outputs).min())
    size = spec.train_size or rarest * problem.n_outputs
    return corruptions.balanced_subset(problem.train, size, problem.n_outputs, generator)


def prepare(spec: DataSpec, *, root: str | Path | None = None) -> tuple[Problem, Metadata]:
    """Return the problem of `spec`, and JSON values that describe data and corruption.

    The steps are: sample the subsets, blur training images, replace training labels, add noise to training targets,
    centre the targets, and average the pixels of both splits. Every step has its own generator, which depends on
    spec.seed alone, so that changing one setting does not change the randomness of the others. A larger train_size
    keeps the samples of a smaller one and their blur, a larger label_noise keeps the label errors of a smaller one.

    Args:
        spec: Data set and its corruption.
        root: Folder of the data sets; None for GAPSCOPE_DATA or the cache folder of the user.

    Returns:
        The problem, and metadata: "train" and "test" (`available` and `used` samples) and, if applied, "motion_blur",
        "label_noise" (`wrong` labels and their `wrong_mask`, see `unpack_mask`), "target_noise", "center_targets".

    >>> problem, metadata = prepare(DataSpec(train_size=100, label_noise=0.3))
    >>> len(problem.train), metadata["label_noise"]["wrong"], len(unpack_mask(metadata["label_noise"]["wrong_mask"]))
    (100, 30, 30)
    """
    problem = load_dataset(spec.name, root=root, **spec.options)
    _check_compatibility(spec, problem)
    train = _training_subset(spec, problem)
    test = problem.test
    if spec.test_size is not None:
        test = corruptions.subset(test, spec.test_size, make_generator(spec.seed, "test subset"))
    metadata: Metadata = {
        "train": {"available": len(problem.train), "used": len(train), "balanced": spec.balanced},
        "test": {"available": len(problem.test), "used": len(test)},
    }
    if spec.blur_severity:
        blurred = corruptions.motion_blur(
            train.inputs, spec.blur_severity, make_generator(spec.seed, "motion blur")
        )
        radius, sigma = corruptions.blur_settings(spec.blur_severity, min(train.inputs.shape[-2:]))
        metadata["motion_blur"] = {
            "severity": spec.blur_severity,
            "radius": radius,
            "sigma": sigma,
            "images": len(train),
        }
        train = replace(train, inputs=blurred)
    if spec.label_noise:
        rate = spec.label_noise
        may_keep = spec.label_noise_may_keep_class
        generator = make_generator(spec.seed, "label noise")
        noisy = corruptions.inject_label_noise(
            train.y, rate, problem.n_outputs, generator, may_keep_class=may_keep
        )
        wrong = noisy != train.y
        metadata["label_noise"] = {
            "rate": rate,
            "may_keep_class": may_keep,
            "drawn_again": round(rate * len(train)),
            "wrong": int(wrong.sum()),
            "wrong_mask": pack_mask(wrong),
        }
        train = replace(train, targets=noisy)
    if spec.target_noise:
        generator = make_generator(spec.seed, "target noise")
        train = replace(
            train, targets=corruptions.add_target_noise(train.y, spec.target_noise, generator)
        )
        metadata["target_noise"] = {"std": spec.target_noise, "samples": len(train)}
    if spec.center_targets:
        mean = train.y.mean(0)
        train = replace(train, targets=train.y - mean)
        test = replace(test, targets=test.y - mean)
        metadata["center_targets"] = {"mean": mean.tolist()}
    if spec.pixels_averaged > 1:
        train, test = (
            replace(s, inputs=F.avg_pool2d(s.inputs, spec.pixels_averaged)) for s in (train, test)
        )
    return replace(problem, train=train, test=test), metadata
