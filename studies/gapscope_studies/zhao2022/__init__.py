"""Zhao, Zhang and Hu 2022: the generalization gap from the sparsity of units."""

from __future__ import annotations

from functools import partial

from gapscope_studies.kit.claims import cannot_run
from gapscope_studies.kit.study import Part, Study
from gapscope_studies.kit.summary import read_findings
from gapscope_studies.zhao2022 import curves, fits

STUDY = Study(
    name="zhao2022",
    title="Estimating the Generalization in Deep Neural Networks via Sparsity",
    reference="Y. Zhao, H. Zhang, X. Hu, 2022.",
    parts=(
        Part("fig1", "Fig. 1: turning points and areas", curves.figure_1,
             "Where a network generalizes, n0 is small, n0r and the area kappa are large."),
        Part("fig2", "Fig. 2: partially corrupted labels", curves.figure_2,
             "With the fraction of corrupted labels n0 and zeta rise, n0r and kappa fall."),
        Part("fig3ab", "Fig. 3(A, B): zeta, kappa and the gap", fits.figure_3ab,
             "Over 80 networks the gap rises with zeta and falls with kappa."),
        Part("fig3cd", "Fig. 3(C, D): the linear model and 100 repeated splits", fits.figure_3cd,
             "A linear model of both fits the gap (Pearson .979) and errs little on held-out networks (SSR < .035)."),
        Part("fig3e", "Fig. 3(E): the margin signature on the same splits", fits.figure_3e,
             "The margin signature errs much more on the same splits."),
        Part("vgg16", "Figs. 2 and 3 with a narrow VGG-16",
             partial(fits.other_architecture, pool="vgg", source="Fig. 3, narrow VGG-16", paper={}, fit=0.979,
                     cluster="corruption", unit="noise levels"),
             "Over 80 VGG-16 the gap rises with zeta and falls with kappa, and a linear model of both fits it (.979)."),
        Part("fig4", "Table 1 and Fig. 4: five networks on photographs in folders", fits.figure_4,
             "Over five VGG-16 on ImageNet the gap goes with zeta (.998) and against kappa (.967)."),
        Part("fig5", "Fig. 5: MobileNet",
             partial(fits.other_architecture, pool="mobilenet", source="Fig. 5", ssr=0.074,
                     paper={"networks": "not said", "network": "MobileNet"}),
             "The same with MobileNet; the linear fit leaves an SSR of .074."),
        Part("fig6", "Fig. 6: ResNet-34",
             partial(fits.other_architecture, pool="resnet34", source="Fig. 6", ssr=0.122,
                     paper={"networks": "not said", "network": "ResNet-34"}),
             "The same with ResNet-34; the linear fit leaves an SSR of .122."),
        Part("wide", "Fig. 3(A, B) with LeNets of 64 units", fits.wide_lenets,
             "Not in the paper: the signs of zeta and kappa at 64 units, where the LeNets of Fig. 3 have 11 and 22.",
             ours=True),
        Part("conditions", "When zeta and kappa go with the gap", fits.conditions,
             "Not in the paper: the two in subsets of three pools in which more is varied.", ours=True),
    ),
    untested=(
        cannot_run("Figs. 1 to 3", "the same of VGG-16 on all of CIFAR-100", "20 of its classes are here, and no GPU"),
        cannot_run("Table 1", "accuracies of five VGG-16 on ImageNet", "its photographs are not here"),
        cannot_run("Fig. 4", "the same of VGG-16 on ImageNet", "its photographs are not here"),
    ),
    findings=read_findings(__file__),
)  # fmt: skip
