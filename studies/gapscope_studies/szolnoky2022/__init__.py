"""Szolnoky et al. 2022: model gradient similarity as a metric and as a penalty.

The paper's appendix could not be had and no code was published: data, networks, methods and noise levels are the
paper's; learning rates, epochs, strengths, the test bench and the ranges of Fig. 5 are our own, as `setups.toml` says.
Strengths were never chosen by test labels; epochs, rates, sizes and ranges were set by hand and changed once after the
first test results. Tables and figures share networks where they can.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from gapscope_studies.kit.claims import cannot_run
from gapscope_studies.kit.study import Part, Study
from gapscope_studies.kit.summary import read_findings
from gapscope_studies.szolnoky2022 import bench, curves, tables
from gapscope_studies.szolnoky2022.exact import exact_checks
from gapscope_studies.szolnoky2022.setups import ROBUST_LOSSES
from gapscope_studies.szolnoky2022.synthetic_faces import DRAWN_FACES

MNIST = {"data": "MNIST, 3,000 training images, motion-blurred, 10,000 test images"}
FACES = {"data": "facial keypoints of photographs, 96 x 96, motion-blurred"}
LABELS: dict[str, Any] = {"number": 1, "unit": "per cent"}
TABLE_1: dict[str, Any] = {
    **LABELS, "name": "lenet5", "source": "Table 1", "paper": {**MNIST, "network": "LeNet-5"}, "also": ROBUST_LOSSES,
}  # fmt: skip
POINTS: dict[str, Any] = {"number": 2, "unit": "squared pixels"}
STUDY = Study(
    name="szolnoky2022",
    title="On the Interpretability of Regularization for Neural Networks Through Model Gradient Similarity",
    reference="V. Szolnoky, V. Andersson, B. Kulcsár, R. Jörnsten, NeurIPS 2022, arXiv 2205.12642.",
    parts=(
        Part("tuning", "How the methods of Table 1 were tuned", tables.tuning_part),
        Part("table1", "Table 1: corrupted MNIST, LeNet-5, four noise levels", partial(tables.paper_table, **TABLE_1),
             "MGS ends best at 30, 60 and 80 % wrong labels (93.1, 88.4, 74.5 %), above the best epoch of all others."),
        Part("table1_long", "Table 1 at 80 % wrong labels, trained until it has flattened",
             partial(tables.paper_table, **TABLE_1, long=True),
             "At 80 % wrong labels MGS ends at 74.5 %, 35 points above the best other method."),
        Part("table1_fc", "Table 1 with a fully connected network",
             partial(tables.paper_table, **LABELS, name="fully_connected", source="Table 1, fully connected",
                     same_network=False, paper={**MNIST, "network": "fully connected"}),
             "The same with a fully connected network (its table is lost with the supplement)."),
        Part("fig2", "Fig. 2: two circles, boundaries and metrics", curves.figure_2,
             "All methods slow the growth of the metrics, and low metrics go with generalization."),
        Part("fig3", "Fig. 3: AlexNet on corrupted MNIST",
             partial(curves.metrics_along_training, name="alexnet", source="Fig. 3",
                     paper={**MNIST, "network": "AlexNet"}),
             "All methods slow the growth of the metrics; accuracy falls as they grow; MGS alone keeps its best."),
        Part("fig4", "Fig. 4: ResNet-20 on corrupted Fashion-MNIST",
             partial(curves.metrics_along_training, name="resnet20", source="Fig. 4",
                     paper={"data": "Fashion-MNIST, motion-blurred", "network": "ResNet-20"}),
             "The same with ResNet-20, Adam and cyclical learning rates among the methods."),
        Part("bench", "Test bench: noise by training size, LeNet-5", partial(bench.bench, name="lenet5"),
             "Over 143 scenarios MGS is the best overall."),
        Part("bench_fc", "Test bench: noise by training size, fully connected",
             partial(bench.bench, name="fully_connected"), "Over 143 scenarios MGS is the best overall."),
        Part("table2", "Table 2: facial keypoints, LeNet-5",
             partial(tables.paper_table, **POINTS, name="keypoints_lenet5", source="Table 2",
                     paper={**FACES, "network": "LeNet-5"}),
             "MGS ends with the lowest loss at every level of noise."),
        Part("table2_fc", "Table A.2: facial keypoints, fully connected",
             partial(tables.paper_table, **POINTS, name="keypoints_fully_connected", source="Table A.2",
                     same_network=False, paper={**FACES, "network": "fully connected"}),
             "Only MGS works at all."),
        Part("exact", "Equations 1 to 3 and their consequences", exact_checks, ours=True),
        Part("fig5", "Fig. 5: robustness to five training variables", bench.robustness,
             "MGS has the highest median whichever variable is changed, and the least spread for all but the rate."),
    ),
    data_sets=(DRAWN_FACES,),
    untested=(
        cannot_run("Table 2", "the losses on photographs of faces", "they are on Kaggle; drawn faces stand in"),
    ),
    findings=read_findings(__file__),
)  # fmt: skip
