"""Luo, Wang, Shao and Peng 2019: batch normalisation as regularisation, in theory and in networks.

The paper's corrected formulas are `gapscope.theory` and `gapscope.batch_norm`; here its figures and tables stand
beside what they give. Networks are trained once: parts share them. What the paper leaves open, and how small scale
shrinks it, is in the heads of `cases` (networks) and of the theory files.
"""

from __future__ import annotations

from gapscope_studies.kit.study import Part, Study
from gapscope_studies.luo2019 import (
    advice_part,
    theory_dynamics,
    theory_figures,
    theory_table,
    verdicts,
)

STUDY = Study(
    name="luo2019",
    title="Towards Understanding Regularization in Batch Normalization",
    reference="P. Luo, X. Wang, W. Shao, Z. Peng, ICLR 2019, arXiv 1809.00846.",
    parts=(
        Part("fig1a", "Fig. 1(a): generalization of linear students, BN and gamma decay", theory_figures.figure_1a),
        Part("fig1b", "Fig. 1(b): generalization of ReLU students, BN and gamma decay", theory_figures.figure_1b),
        Part("table1", "Table 1: fixed points, largest and effective learning rates", theory_table.table_1),
        Part("dynamics", "Eqs. 6 to 10: learning dynamics against simulated students", theory_dynamics.dynamics),
        Part("advice", "Advice on batch norm, followed: fully connected networks", advice_part.advice),
        Part("advice_cnn", "Advice on batch norm, followed: CNN, wrong labels", advice_part.advice_cnn),
        Part("excess", "Eq. 3: gamma decay against the measured excess loss of batch norm", verdicts.figure("excess")),
        Part("fig2ab", "Fig. 2(a, b): BN, PN and gamma decay over batch sizes, ResNet-18", verdicts.figure("fig2ab")),
        Part("fig2cd", "Fig. 2(c, d): SGD, WN, mean-only, variance-only and BN", verdicts.figure("fig2cd")),
        Part("fig2ef", "Fig. 2(e, f): gamma^2 and loss over batch sizes, BN in one layer", verdicts.figure("fig2ef")),
        Part("fig2gh", "Fig. 2(g, h): dropout with BN in large batches and with WN", verdicts.figure("fig2gh")),
        Part("fig3", "Fig. 3: down-sampled ImageNet's protocol on a folder of images", verdicts.figure("fig3")),
        Part("fig4", "Fig. 4: fine-tuning without BN and the norms of the weights", verdicts.figure("fig4")),
        Part("claims", "The paper's claims about networks: held or not", verdicts.claims),
    ),
)
