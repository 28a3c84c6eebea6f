"""Samples whose labels are checked, from data, or from features or probabilities with labels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from gapscope.base.errors import InvalidInput
from gapscope.base.label_marks import notes_beside
from gapscope.base.row_order import check_sample_order
from gapscope.base.samples import Samples, as_samples
from gapscope.base.targets import SOFT_NOTE, require_targets
from gapscope.base.type_guards import is_list
from gapscope.inspection.validation import settled_by
from gapscope.labels.prediction_columns import check_finite, inputs_of_labels
from gapscope.measures.embed import features_of_samples

# by judgment: one error is then 2 % of the labels
MIN_SAMPLES = 50


def collect_samples(source: Any, data: Any, features: Any, labels: Any, pred_probs: Any) -> Samples:
    """Return the samples, from `data`, from features and labels, or from probabilities and labels."""
    if features is not None and labels is None and data is None:
        raise InvalidInput(
            "Got features without labels. Pass labels= too, or the data that the features are of."
        )
    if features is not None and source is not None:
        raise InvalidInput("Got features as well as a network. Pass one of them.")
    if features is not None and data is not None and pred_probs is not None:
        raise InvalidInput("Got features as well as pred_probs. Pass one of them with the data.")
    if labels is not None and (data is not None or source is not None):
        raise InvalidInput(
            "Got labels as well as a network or data. Pass features and labels alone."
        )
    if pred_probs is not None and source is not None:
        raise InvalidInput(
            "Got pred_probs as well as a network. Pass pred_probs with data, or with labels alone."
        )
    if labels is not None:
        if features is None and pred_probs is None:
            raise InvalidInput("Got labels without features. Pass features= or pred_probs= too.")
        inputs = np.asarray(features) if is_list(features) else features
        if inputs is None:
            inputs = inputs_of_labels(pred_probs, labels)
            if len(inputs) != len(labels):
                raise InvalidInput(
                    f"Got pred_probs {list(inputs.shape)} for {len(labels)} labels; one row per label is needed. "
                    "Pass both for the same samples."
                )
            check_finite(inputs)
            if inputs.ndim == 1:
                inputs = inputs[:, None]
        data = (inputs, labels)
    if data is None:
        raise InvalidInput(
            "Got no training data; an untrained network, or None, needs them. Pass data as (x, y)."
        )
    samples = as_samples(data, is_exact=source is None)
    samples = settled_by(features, settled_by(source, samples))
    if pred_probs is not None:
        samples = replace(samples, notes=notes_beside(samples.notes, np.shape(pred_probs)))
    targets = require_targets(samples, "A search for label issues")
    if len(samples) < MIN_SAMPLES:
        raise InvalidInput(
            f"Got {len(samples)} samples; label issues need at least {MIN_SAMPLES}. Pass more samples."
        )
    if samples.kind == "regression" and targets[0].numel() != 1:
        got = list(targets.shape)
        if SOFT_NOTE in samples.notes:
            raise InvalidInput(
                f"Got probabilities of classes {got} as targets; one label per sample is needed, since an error is a "
                "class that the other samples contradict. Pass y.argmax(1)."
            )
        raise InvalidInput(
            f"Got regression targets {got}; one target per sample is needed. Pass one column at a time."
        )
    if samples.is_classification and len(targets.unique()) < 2:
        raise InvalidInput(
            "Got labels of one class; two or more are needed. Pass samples of other classes too."
        )
    if samples.kind == "regression" and len(targets.unique()) < 2:
        raise InvalidInput(
            f"Got targets that are all {float(targets[0]):.4g}; different ones are needed. Pass another column."
        )
    return samples


def with_features(samples: Samples, features: Any) -> Samples:
    """Return the samples with features [n, d] in place of the inputs; rows without a label are dropped from them."""
    if samples.kind == "positions":
        raise InvalidInput(
            "Got data and features with labels of positions. Pass features= [n, T, d] with labels=, or data alone."
        )
    return replace(samples, inputs=features_of_samples(features, samples))


def check_label_order(data: Any, labels: Any, **values: Any) -> None:
    """Raise InvalidInput if values per sample have the index of the data, or of the labels, in another order."""
    reference = data
    if data is None:
        reference = (labels, values.get("features"))
    for name, value in values.items():
        check_sample_order(reference, value, name)
