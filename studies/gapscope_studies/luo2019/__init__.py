"""Batch norm as regularization in theory and networks (Luo, Wang, Shao and Peng 2019).

The paper's corrected formulas are `gapscope.theory` and `gapscope.batch_norm`; here are its figures, tables and claims.
"""

from __future__ import annotations

from functools import partial

from gapscope_studies.kit.claims import cannot_run
from gapscope_studies.kit.study import Part, Study
from gapscope_studies.kit.summary import read_findings
from gapscope_studies.luo2019 import (
    advice,
    convolutional,
    excess,
    formulas,
    fully_connected,
    students,
    theory,
)

STUDY = Study(
    name="luo2019",
    title="Towards Understanding Regularization in Batch Normalization",
    reference="P. Luo, X. Wang, W. Shao, Z. Peng, ICLR 2019, arXiv 1809.00846.",
    parts=(
        Part("fig1a", "Fig. 1(a): generalization of linear students, BN and gamma decay",
             partial(students.figure_1, student="linear"),
             "Batch norm's students lie on the curve of gamma decay 1/2M."),
        Part("fig1b", "Fig. 1(b): generalization of ReLU students, BN and gamma decay",
             partial(students.figure_1, student="relu"),
             "SGD's error peaks at P/N = 2; batch norm's, like gamma decay 1/4M's, does not."),
        Part("table1", "Table 1: fixed points, largest and effective learning rates", theory.table_1,
             "Batch norm has a fixed point of its own, and allows larger maximal and effective learning rates."),
        Part("dynamics", "Eqs. 6 to 10: learning dynamics against simulated students", theory.dynamics,
             "Differential equations of three order parameters describe learning for large N."),
        Part("formulas", "Priors, eq. 4, Props. 3 to 5, eqs. 21 to 25: what computation alone decides",
             formulas.formulas,
             "Priors of batch statistics, stability of the fixed points, and the saddle of the free energy."),
        Part("advice", "Advice on batch norm, followed: fully connected networks",
             partial(advice.follow_advice, name="advice"),
             "Ours: what a change of batch size does to the regularization of batch norm, and what restores it.",
             ours=True),
        Part("advice_cnn", "Advice on batch norm, followed: CNN, wrong labels",
             partial(advice.follow_advice, name="advice_cnn"),
             "Ours: as above, in a CNN on data with wrong labels.", ours=True),
        Part("excess", "Eq. 3: gamma decay against the measured excess loss of batch norm", excess.excess,
             "The loss with batch statistics is, in expectation, that with population statistics plus a decay of "
             "gamma."),
        Part("fig2ab", "Fig. 2(a, b): BN, PN and gamma decay over batch sizes, ResNet-18", convolutional.figure_2ab,
             "BN loses its regularization in large batches; population norm with gamma decay keeps it."),
        Part("fig2cd", "Fig. 2(c, d): SGD, WN, mean-only, variance-only and BN", convolutional.figure_2cd,
             "BN generalizes better than WN and than SGD without it; both batch statistics contribute."),
        Part("fig2ef", "Fig. 2(e, f): gamma^2 and loss over batch sizes, BN in one layer", convolutional.figure_2ef,
             "With larger batches gamma^2 grows, and so does the validation loss: the network overfits."),
        Part("fig2gh", "Fig. 2(g, h): dropout with BN in large batches and with WN", convolutional.figure_2gh,
             "Dropout helps BN in large batches, and WN, which stays below BN."),
        Part("fig3", "Fig. 3: down-sampled ImageNet's protocol on a folder of images", convolutional.figure_3,
             "What Fig. 2(a, b) shows holds on down-sampled ImageNet."),
        Part("fig4", "Fig. 4: fine-tuning without BN and the norms of the weights", convolutional.figure_4,
             "Once BN is gone, norms of the weights grow, the training loss falls and the validation loss rises."),
        Part("neurons", "Sec. 1.1: single neurons under batch means and batch variances", fully_connected.neurons,
             "Batch means discourage reliance on single neurons and equalize them; batch variances lower their "
             "kurtosis and correlation."),
        Part("constant_decay", "App. B.3: a constant decay in large batches, dropout before and behind BN",
             fully_connected.constant_decay,
             "A constant decay of gamma does not make up for what BN loses in large batches; dropout before BN "
             "harms."),
    ),
    untested=(
        cannot_run("Fig. 3", "on down-sampled ImageNet itself", "the data are not on this machine"),
    ),
    findings=read_findings(__file__),
)  # fmt: skip
