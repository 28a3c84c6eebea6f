"""Out-of-sample predictions and forecasts of tokens and pixels, each by the other samples alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gapscope.accuracy.held_out_sources import NO_SIGNAL, Held, to_probabilities
from gapscope.accuracy.subset_problems import comparable_outputs
from gapscope.base.errors import InvalidInput
from gapscope.base.samples import Samples
from gapscope.measures.positions import (
    LabelledPositions,
    feature_scores,
    position_scores,
    prepare_positions,
    require_scores,
)
from gapscope.statistics.baselines import target_matrix
from gapscope.statistics.calibration import cross_entropy


@dataclass(frozen=True)
class HeldPositions:
    """Held-out scores of positions by several methods.

    Attributes:
        positions: The positions.
        scores: Scores [m, K] of each method, those that need no network first.
        frequencies: Frequencies of the classes, the prediction without any input.
        notes: Sentences about the data and the network.
    """

    positions: LabelledPositions
    scores: Mapping[str, Tensor]
    frequencies: Tensor
    notes: tuple[str, ...]

    def best(self) -> tuple[str, Held]:
        """Return the method of the smallest held-out cross-entropy (empty for the frequencies), and its predictions."""
        labels = self.positions.labels
        nothing = Held(
            NO_SIGNAL,
            0.0,
            self.frequencies,
            None,
            (*self.notes, "No method predicts these better."),
        )
        candidates = {"": nothing}
        for name, scores in self.scores.items():
            predictions, calibration = to_probabilities(scores, labels)
            candidates[name] = Held(
                f"{name}, {self.positions.how}", 0.0, predictions, calibration, self.notes
            )
        return min(candidates.items(), key=lambda item: cross_entropy(item[1].predictions, labels))


def _given_features(source: Any, samples: Samples, positions: LabelledPositions) -> Tensor:
    values = torch.as_tensor(
        np.asarray(source.detach().cpu() if isinstance(source, Tensor) else source)
    )
    shape = tuple(samples.y.shape)
    if tuple(values.shape[:-1]) != shape:
        needed = ", ".join(map(str, shape))
        raise InvalidInput(
            f"Features of positions must have the shape [{needed}, d]; got {list(values.shape)}. Pass "
            "gs.embed(network, data, pooling='none')."
        )
    features = positions.take(values).double()
    if not bool(features.isfinite().all()):
        raise InvalidInput(
            "Features must be finite at every labelled position; got NaN or infinity. Check the layer."
        )
    return features


def hold_out_positions(
    source: Any, samples: Samples, *, seed: int, groups: Tensor | None = None
) -> HeldPositions:
    """Return held-out scores of all methods that a source allows.

    Args:
        source: None, a network, or features [n, ..., d].
        samples: Samples with one label per position.
        seed: Seed of the positions that are drawn, if there are many.
        groups: Group of each sample, whose positions are predicted without it; None for each sample alone.

    Raises:
        InvalidInput: The source is of another kind, its features do not fit, or nothing predicts the positions.
        NotMeasurable: The network has outputs that are NaN or infinite.
    """
    if not (source is None or isinstance(source, nn.Module | Tensor | np.ndarray)):
        raise InvalidInput(
            "Positions are predicted from a network, from features [n, ..., d] or from None (the inputs); got "
            f"{type(source).__name__}. Pass the network that it trains, before training."
        )
    network = source if isinstance(source, nn.Module) else None
    prepared, samples, positions = prepare_positions(network, samples, seed=seed, groups=groups)
    if prepared is not None:
        comparable_outputs(prepared)
    scores, notes = position_scores(prepared, samples, positions)
    if prepared is not None:
        notes = [*prepared.notes, *notes]
    elif source is None:
        require_scores(scores, samples)
    else:
        scores |= feature_scores(
            _given_features(source, samples, positions), positions, "the features"
        )
    frequencies = (
        target_matrix(positions.labels, positions.n_classes).mean(0).expand(len(positions), -1)
    )
    return HeldPositions(positions, scores, frequencies, tuple(notes))
