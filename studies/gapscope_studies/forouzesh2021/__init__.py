"""Forouzesh, Salehi and Thiran 2021: output sensitivity against the test loss, in every figure and table.

Where the paper leaves a setting open (its appendix lists them), the study follows the authors' published code, and
where that is silent too, the docstring of the grid says what was chosen. Every network is trained once: parts share
one pool. Sensitivities are measured on test inputs, with one draw of noise of standard deviation 0.1.
"""

from __future__ import annotations

from gapscope_studies.forouzesh2021 import appendix, figures, tables
from gapscope_studies.kit.study import Part, Study

STUDY = Study(
    name="forouzesh2021",
    title="Generalization Comparison of Deep Neural Networks via Output Sensitivity",
    reference="M. Forouzesh, F. Salehi, P. Thiran, ICPR 2020, arXiv 2007.15378.",
    parts=(
        Part("table1", "Table I: J and S, before and after the softmax, with the test loss", tables.table_1),
        Part("fig1", "Fig. 1: test loss against S, popular CNNs", figures.figure_1),
        Part("fig2a", "Fig. 2(a): a further layer or a convolution", figures.figure_2a),
        Part("fig2b", "Fig. 2(b): depth and width of fully connected networks", figures.figure_2b),
        Part("fig2c", "Fig. 2(c): depth and width of CNNs", figures.figure_2c),
        Part("fig2d", "Fig. 2(d): regularisation of fully connected networks", figures.figure_2d),
        Part("fig2e", "Fig. 2(e): regularisation of CNNs", figures.figure_2e),
        Part("fig3", "Fig. 3: initialisations", figures.figure_3),
        Part("fig4", "Fig. 4: test loss against S of untrained networks", figures.figure_4),
        Part("fig5", "Fig. 5: regression, Boston housing", figures.figure_5),
        Part("fig10cd", "Fig. 10(c, d): bias and variance, Boston housing", appendix.figure_10),
        Part("fig11ab", "Fig. 11(a, b): few and many training samples", appendix.figure_11_amount),
        Part("fig11d", "Fig. 11(d): stages of training", appendix.figure_11_stages),
        Part("fig12", "Fig. 12: behind the softmax", appendix.figure_12),
        Part("fig13", "Fig. 13: training and test inputs", appendix.figure_13),
        Part("mnist", "Appendix F: MNIST", figures.mnist),
        Part("cifar100", "Appendix F: CIFAR-100", figures.cifar100),
        Part("table2", "Table II: temperature scaling", tables.table_2),
        Part("authors", "The authors' stored results", tables.authors),
        Part("ranking", "S before training or the number of parameters?", tables.ranking),
    ),
)
