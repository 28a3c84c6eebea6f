"""Szolnoky et al. 2022: model gradient similarity as a metric and as a penalty, in every table and figure.

The paper's appendix could not be had and no code was published: data, networks, methods and noise levels are the
paper's; learning rates, epochs, strengths, the test bench and the ranges of Fig. 5 are our own, as `setups` says. Every
method is tuned once a setup, all with the same budget, on held-out training samples with their wrong labels as they
are; test labels are never used to choose anything. Tables and figures share networks where they can.
"""

from __future__ import annotations

from gapscope_studies.kit.study import Part, Study
from gapscope_studies.szolnoky2022 import circles, curves, scenarios, tables

STUDY = Study(
    name="szolnoky2022",
    title="On the Interpretability of Regularisation for Neural Networks Through Model Gradient Similarity",
    reference="V. Szolnoky, V. Andersson, B. Kulcsár, R. Jörnsten, NeurIPS 2022, arXiv 2205.12642.",
    parts=(
        Part("tuning", "How the methods of Table 1 were tuned", tables.tuning_part),
        Part("table1", "Table 1: corrupted MNIST, LeNet-5, four noise levels", tables.table_1),
        Part("table1_fc", "Table 1 with a fully connected network", tables.table_1_fully_connected),
        Part("fig2", "Fig. 2: two circles, boundaries and metrics", circles.figure_2),
        Part("fig3", "Fig. 3: AlexNet on corrupted MNIST", curves.figure_3),
        Part("fig4", "Fig. 4: ResNet-20 on corrupted Fashion-MNIST", curves.figure_4),
        Part("bench", "Test bench: noise by training size, LeNet-5", scenarios.bench_lenet5),
        Part("bench_fc", "Test bench: noise by training size, fully connected", scenarios.bench_fully_connected),
        Part("table2", "Table 2: facial keypoints, LeNet-5", tables.table_2),
        Part("table2_fc", "Table A.2: facial keypoints, fully connected", tables.table_2_fully_connected),
        Part("fig5", "Fig. 5: robustness to five training variables", scenarios.robustness),
    ),
)
