"""Zhao, Zhang and Hu 2022: the generalization gap from the sparsity of units, and what that estimate is worth.

Figures 1 to 6 and Table 1, and then what the paper does not ask: when zeta and kappa go with the gap and when not, and
how much estimators from these and other readings tell about networks of the same and of another pool, beside the mean
gap, the parameter count and the training loss.
"""

from __future__ import annotations

from gapscope_studies.kit.study import Part, Study
from gapscope_studies.zhao2022 import conditions, figures, imagenet, worth

STUDY = Study(
    name="zhao2022",
    title="Estimating the Generalization in Deep Neural Networks via Sparsity",
    reference="Y. Zhao, H. Zhang, X. Hu, 2022.",
    parts=(
        Part("fig1", "Fig. 1: turning points and areas", figures.figure_1),
        Part("fig2", "Fig. 2: partially corrupted labels", figures.figure_2),
        Part("fig3ab", "Fig. 3(A, B): zeta, kappa and the gap", figures.figure_3ab),
        Part("fig3cd", "Fig. 3(C, D): the linear model and 100 repeated splits", figures.figure_3cd),
        Part("fig3e", "Fig. 3(E): the margin signature on the same splits", figures.figure_3e),
        Part("fig4", "Table 1 and Fig. 4: five networks on photographs in folders", imagenet.figure_4),
        Part("fig5", "Fig. 5: MobileNet", figures.figure_5),
        Part("fig6", "Fig. 6: ResNet-34", figures.figure_6),
        Part("conditions", "When zeta and kappa go with the gap", conditions.conditions),
        Part("depth", "Which layer is ablated", conditions.depth),
        Part("worth", "What an estimate is worth within a pool", worth.worth),
        Part("transfer", "What an estimate is worth on another pool", worth.transfer),
    ),
)
