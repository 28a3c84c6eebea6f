"""Names of an earlier release, kept for one release."""

from __future__ import annotations

from gapscope.base.user_warnings import warn_user

RENAMED = {
    "gapscope": {"prediction": "gap"},
    "AccuracyEstimate": {"same_noise": "estimate", "clean_abstained_because": "notes"},
    "LabelNoiseEstimate": {"unreliable_because": "abstained_because"},
    "LearningCurve": {
        "is_interrupted": "interrupted",
        "unreliable_because": "abstained_because",
        "note": "notes",
    },
    "NetworkRanking": {"unreliable_because": "abstained_because"},
    "ValidatedAccuracy": {
        "plain_score": "plain.value",
        "plain_low": "plain.low",
        "plain_high": "plain.high",
    },
    # constructor parameters in files of schema 1, which are read without a warning
    "GapEstimator": {"spread": "error_scale", "logarithm": "log_features"},
}
"""Owner (package or class) -> earlier name -> name."""


def new_name(owner: str, name: str) -> str | None:
    """Return what an earlier name of `owner` is called now, with a warning; None if it never had this name."""
    found = RENAMED.get(owner, {}).get(name)
    if found is not None:
        warn_user(f"{owner}.{name} is now {owner}.{found}.", DeprecationWarning)
    return found
