"""The study's list of parts, and the claims of the paper that none tests."""

from __future__ import annotations

from gapscope_studies.kit.claims import cannot_run, not_run
from gapscope_studies.kit.study import Study
from gapscope_studies.luo2019 import advice, convolutional, excess, fine_tuning, theory

STUDY = Study(
    name="luo2019",
    title="Towards Understanding Regularization in Batch Normalization",
    reference="P. Luo, X. Wang, W. Shao, Z. Peng, ICLR 2019, arXiv 1809.00846.",
    parts=(
        *theory.PARTS,
        *advice.PARTS,
        excess.PART,
        *convolutional.PARTS,
        fine_tuning.PART,
    ),
    untested=(
        not_run("Sec. 1.1", "batch means equalise neurons", "no part"),
        not_run("Sec. 1.1", "batch variances lower the kurtosis and correlation of neurons", "no part"),
        not_run("App. B.3", "a constant decay does not help large batches", "no part"),
        not_run("App. B.3", "dropout before BN harms", "no part"),
        cannot_run("Fig. 3", "on down-sampled ImageNet itself", "the data are not on this machine"),
    ),
)  # fmt: skip
