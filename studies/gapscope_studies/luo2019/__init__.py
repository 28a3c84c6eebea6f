"""Batch norm as regularization in theory and networks (Luo, Wang, Shao and Peng 2019).

The paper's corrected formulas are `gapscope.theory` and `gapscope.batch_norm`; here are its figures, tables and claims.
"""

from __future__ import annotations

from gapscope_studies.kit.claims import cannot_run
from gapscope_studies.kit.study import Study
from gapscope_studies.kit.summary import Finding
from gapscope_studies.luo2019 import advice, convolutional, excess, formulas, fully_connected, students, theory

STUDY = Study(
    name="luo2019",
    title="Towards Understanding Regularization in Batch Normalization",
    reference="P. Luo, X. Wang, W. Shao, Z. Peng, ICLR 2019, arXiv 1809.00846.",
    parts=(
        *students.PARTS,
        *theory.PARTS,
        formulas.PART,
        *advice.PARTS,
        excess.PART,
        *convolutional.PARTS,
        *fully_connected.PARTS,
    ),
    untested=(
        cannot_run("Fig. 3", "on down-sampled ImageNet itself", "the data are not on this machine"),
    ),
    findings=(
        Finding("excess", f"fully connected: {excess.PRINTED}", picture="ratios",
                not_held="The gamma decay as printed, said to be what batch norm adds to the loss, does not describe "
                "fully connected layers: the excess is {value:.0f} times [{low:.0f}, {high:.0f}] what it predicts."),
        Finding("excess", f"single-unit: {excess.PRINTED}",
                not_held="Nor does the printed gamma decay describe single neurons, the theorem's own setting: "
                "{value:.2f} times [{low:.2f}, {high:.2f}]."),
        Finding("excess", "fully connected: the shipped gamma decay",
                held="With variances and curvature corrected, as shipped here, gamma decay is what batch norm adds: "
                "{value:.2f} times [{low:.2f}, {high:.2f}] in fully connected layers."),
        Finding("fig2cd", "BN has a lower validation loss than WN",
                held="Where all networks fit their images, batch norm lowers the validation loss of a CNN of six "
                "layers against weight norm: the difference is {value:.1f} [{low:.1f}, {high:.1f}]."),
        Finding("neurons", "batch means equalize the neurons",
                held="Networks centred by batch means have more equal neurons than weight-normalized ones, and rely "
                "less on one: the relative spread of their outputs differs by {value:.2f} [{low:.2f}, {high:.2f}]."),
        Finding("table1", "batch norm's effective learning rate",
                not_held="Batch norm's effective learning rate is not larger than SGD's but smaller: the difference is "
                "{value:.2f} of the rate."),
        Finding("constant_decay", "a constant decay does not help large batches",
                not_held="A constant decay of gamma does help large batches, if chosen on images kept back: the "
                "validation loss falls by half of what batch norm loses and {value:.3f} [{low:.3f}, {high:.3f}] more."),
        Finding("fig1b", "they lie on it after long training",
                not_held="Batch norm's students lie on the curve of gamma decay for a while, not in the end: after "
                "long training they are off by {value:.0%} [{low:.0%}, {high:.0%}]."),
    ),
)  # fmt: skip
