"""Out-of-sample predictions and forecasts of tokens and pixels, each by the other samples alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gapscope.accuracy.held_out_sources import NO_SIGNAL, Held, to_probabilities
from gapscope.base.errors import InvalidInput
from gapscope.base.samples import Samples
from gapscope.inspection.validation import ready
from gapscope.measures.positions import (
    LabelledPositions,
    feature_scores,
    input_scores,
    labelled_positions,
    position_scores,
)
from gapscope.statistics.baselines import target_matrix
from gapscope.statistics.calibration import cross_entropy


@dataclass(frozen=True)
class HeldPositions:
    """Held-out scores of positions by several methods.

    Attributes:
        positions: The positions.
        n_classes: Number of classes.
        scores: Scores [m, K] of each method, those that need no network first.
        frequencies: Frequencies of the classes, the prediction without any input.
        notes: Sentences about the data and the network.
        first_place: Place of the first position in the labels that were passed: 1 for causal language models, which
            have no label for the first token.
    """

    positions: LabelledPositions
    n_classes: int
    scores: Mapping[str, Tensor]
    frequencies: Tensor
    notes: tuple[str, ...]
    first_place: int = 0

    def best(self) -> Held:
        """Return the calibrated predictions of the smallest held-out cross-entropy."""
        labels = self.positions.labels
        candidates = [Held(NO_SIGNAL, 0.0, self.frequencies, None, (*self.notes, "No method predicts these better."))]
        for name, scores in self.scores.items():
            predictions, calibration = to_probabilities(scores, labels)
            candidates.append(Held(f"{name}, leave-one-sample-out", 0.0, predictions, calibration, self.notes))
        return min(candidates, key=lambda item: cross_entropy(item.predictions, labels))


def _given_features(source: Any, samples: Samples, positions: LabelledPositions) -> Tensor:
    values = torch.as_tensor(np.asarray(source.detach().cpu() if isinstance(source, Tensor) else source))
    shape = tuple(samples.y.shape)
    if tuple(values.shape[:-1]) != shape:
        needed = ", ".join(map(str, shape))
        raise InvalidInput(
            f"Features of positions must have the shape [{needed}, d]; got {list(values.shape)}. Pass "
            "gs.embed(network, data, pooling='none')."
        )
    features = positions.take(values).double()
    if not bool(features.isfinite().all()):
        raise InvalidInput("Features must be finite at every labelled position; got NaN or infinity. Check the layer.")
    return features


def hold_out_positions(source: Any, samples: Samples, *, seed: int) -> HeldPositions:
    """Return held-out scores of all methods that a source allows.

    Args:
        source: None, a network, or features [n, ..., d].
        samples: Samples with one label per position.
        seed: Seed of the positions that are drawn, if there are many.

    Raises:
        InvalidInput: The source is of another kind, its features do not fit, or nothing predicts the positions.
    """
    notes: list[str] = []
    passed = samples
    if isinstance(source, nn.Module):
        prepared = ready(source, samples, needs=("outputs",))
        samples = prepared.samples
        positions = labelled_positions(samples.y, seed=seed)
        n_classes = _count_classes(positions)
        scores, notes = position_scores(prepared, samples, positions, n_classes)
        notes = [*prepared.notes, *notes]
    elif source is None:
        positions = labelled_positions(samples.y, seed=seed)
        n_classes = _count_classes(positions)
        scores, notes = position_scores(None, samples, positions, n_classes)
        if not scores:
            raise InvalidInput(
                "Without a network, positions are predicted from token ids, pictures [n, C, H, W] or features "
                f"[n, ..., d]; got inputs {list(samples.inputs.shape)}. Pass a network, or features."
            )
    elif isinstance(source, Tensor | np.ndarray):
        positions = labelled_positions(samples.y, seed=seed)
        n_classes = _count_classes(positions)
        features = _given_features(source, samples, positions)
        scores = input_scores(samples, positions, n_classes)
        scores |= feature_scores(features, positions, n_classes, "the features")
        notes = [positions.note] if positions.note else []
    else:
        raise InvalidInput(
            "Positions are predicted from a network, from features [n, ..., d] or from None (the inputs); got "
            f"{type(source).__name__}. Pass the network that it trains, before training."
        )
    frequencies = target_matrix(positions.labels, n_classes).mean(0).expand(len(positions), -1)
    first_place = passed.y.shape[1] - samples.y.shape[1]
    return HeldPositions(positions, n_classes, scores, frequencies, tuple(notes), first_place)


def _count_classes(positions: LabelledPositions) -> int:
    if len(positions.labels.unique()) < 2:
        raise InvalidInput("Positions need labels of two classes or more; got one. Pass other samples too.")
    return int(positions.labels.max()) + 1
