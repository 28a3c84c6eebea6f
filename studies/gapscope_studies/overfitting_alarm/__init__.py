"""Can the training samples alone say when test accuracy has peaked? The alarm beside its rivals, on runs of its own.

Rules are tuned on one pool, all with the same budget, and judged on another of other data sizes, architectures,
optimisers, noise levels and seeds. The true peak is known from test data, which no rule sees.
"""

from __future__ import annotations

from gapscope_studies.kit.study import Part, Study
from gapscope_studies.overfitting_alarm import parts

STUDY = Study(
    name="overfitting_alarm",
    title="An overfitting alarm without validation data",
    reference="Our own; it follows Szolnoky et al. 2022 (arXiv:2205.12642), Sec. 3.3.",
    parts=(
        Part("tuning", "Rules tuned on one pool of runs", parts.tuning),
        Part("judging", "Rules judged on another pool of runs", parts.judging),
    ),
)
