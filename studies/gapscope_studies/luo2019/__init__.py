"""Luo, Wang, Shao and Peng 2019: batch normalization as regularization, in theory and in networks.

The paper's corrected formulas are `gapscope.theory` and `gapscope.batch_norm`; here its figures, tables and claims
stand beside what they give.
"""

from gapscope_studies.luo2019.study import STUDY as STUDY
