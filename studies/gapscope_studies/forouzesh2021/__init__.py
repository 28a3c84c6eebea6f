"""Forouzesh, Salehi and Thiran 2021: output sensitivity against the test loss.

Where the paper leaves a setting open (its appendix lists them), the study follows the authors' published code, and
where that is silent too, `paper.toml` says what was chosen. Every network is trained once: parts share one pool.
Sensitivities are measured on test inputs, with one draw of noise of standard deviation 0.1.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from gapscope_studies.forouzesh2021 import equations, figures, tables
from gapscope_studies.forouzesh2021.analysis import run_part
from gapscope_studies.forouzesh2021.figures import HOUSING, IMAGES, POPULAR, TABLE_1_PAPER, WIDTHS
from gapscope_studies.kit.claims import cannot_run
from gapscope_studies.kit.study import Part, Study
from gapscope_studies.kit.summary import read_findings


def _part(
    name: str, title: str, says: str, analyse: Callable[..., Any], grid: str, paper: dict[str, str] = IMAGES,
    ours: bool = False,
) -> Part:  # fmt: skip
    return Part(name, title, partial(run_part, analyse=analyse, grid=grid, paper=paper), says, ours)


def _figure(
    name: str, title: str, says: str, grid: str, paper: dict[str, str] = WIDTHS, **options: Any
) -> Part:
    analyse = partial(figures.loss_against_sensitivity, source=title.split(":")[0], **options)
    return _part(name, title, says, analyse, grid, paper=paper)


STUDY = Study(
    name="forouzesh2021",
    title="Generalization Comparison of Deep Neural Networks via Output Sensitivity",
    reference="M. Forouzesh, F. Salehi, P. Thiran, ICPR 2020, arXiv 2007.15378.",
    parts=(
        _part("table1", "Table I: J and S, before and after the softmax, with the test loss",
              "S before the softmax goes best with the loss (.648), and costs a tenth of J.",
              tables.table_1, "table_1", paper=TABLE_1_PAPER),
        _figure("fig1", "Fig. 1: test loss against S, popular CNNs",
                "The test loss rises with S, with a correlation of .9707 of the logarithms.",
                "popular_and_unregularized", POPULAR, rho=0.9707, clusters="initialization",
                check=figures.xavier_alone),
        _figure("fig2a", "Fig. 2(a): a further layer or a convolution",
                "At equal parameters a convolution gives a lower S and a lower loss than a further layer.",
                "against_convolutions", check=figures.convolutions_for_layers),
        _figure("fig2b", "Fig. 2(b): depth and width of fully connected networks",
                "S and loss grow with depth and width; networks of equal (H/2)^M have the same of both.",
                "by_depth", check=figures.depth_and_width),
        _figure("fig2c", "Fig. 2(c): depth and width of CNNs",
                "The same relation for CNNs, of which narrower and deeper ones are better.", "cnns_by_depth",
                check=figures.deeper_cnns),
        _figure("fig2d", "Fig. 2(d): regularization of fully connected networks",
                "Dropout and batch normalization lower S and the loss together.",
                "regularized_dense", check=partial(figures.shifts, source="Fig. 2(d)")),
        _figure("fig2e", "Fig. 2(e): regularization of CNNs",
                "Dropout, batch normalization and max-pooling lower S and the loss together.",
                "regularized_cnns", check=partial(figures.shifts, source="Fig. 2(e)")),
        _figure("fig3", "Fig. 3: initializations", "S and the loss are lowest from He normal weights.",
                "initialized", check=figures.initializations),
        _figure("fig4", "Fig. 4: test loss against S of untrained networks",
                "S before training already goes with the loss after it.", "untrained", x="s_before"),
        _figure("fig5", "Fig. 5: regression, Boston housing", "The squared error rises with S.", "housing", HOUSING),
        _part("fig10cd", "Fig. 10(c, d): bias and variance, Boston housing",
              "The squared error is bias + variance, and the variance rises with S.",
              figures.figure_10, "housing", paper=HOUSING),
        _part("fig11ab", "Fig. 11(a, b): few and many training samples",
              "The match of loss and S is poor with few and better with many samples.",
              figures.figure_11_amount, "few_and_many"),
        _part("fig11d", "Fig. 11(d): stages of training",
              "Loss and S come closer to eq. (9) as training continues.",
              figures.figure_11_stages, "stages", paper=WIDTHS),
        _part("fig12", "Fig. 12: behind the softmax",
              "The relation is lost where S is measured behind the softmax.",
              figures.figure_12, "popular_and_initialized"),
        _part("fig13", "Fig. 13: training and test inputs",
              "S is practically the same on training and on test inputs.",
              figures.figure_13, "popular_and_initialized"),
        _figure("mnist", "Appendix F: MNIST", "The test loss rises with S.", "mnist",
                {**WIDTHS, "data": "MNIST, 1,000 images"}),
        _figure("cifar100", "Appendix F: CIFAR-100", "The test loss rises with S.", "cifar100",
                {**WIDTHS, "data": "CIFAR-100, 100 classes, 1,000 images"}),
        _part("table2", "Table II: temperature scaling",
              "Temperature scaling brings loss and S closer to the error (the table itself is lost).",
              tables.table_2, "popular_and_initialized"),
        _part("equations", "Eqs. 3 and 7: the loss and the variance of probabilities",
              "The loss is the distance of probabilities to labels, and their variance follows from S.",
              equations.equations, "initialized"),
        _part("labels", "Sec. VI-B: random labels", "S knows nothing of the labels, and so nothing of random ones.",
              equations.random_labels, "randomly_labelled"),
        Part("exact", "Eqs. 8 and 10, Sec. VI-B: what computation alone decides", equations.exact_checks,
             "Closed forms of the biases' part of the variance, of S at random weights, and of S under rescaling."),
        _part("authors", "The authors' stored results",
              "Three stored results of the authors' code: 4 hidden layers of 200, 300 and 500 units, ten runs each.",
              tables.authors, "authors"),
        _part("ranking", "S before training or the number of parameters?",
              "Not in the paper: does S before training rank networks better than their size?",
              tables.ranking, "ranked", paper=WIDTHS, ours=True),
    ),
    untested=(
        cannot_run("Figs. 6 to 9, 10(a, b), 11(c)", "further relations", "they are lost with the supplement"),
    ),
    findings=read_findings(__file__),
)  # fmt: skip
