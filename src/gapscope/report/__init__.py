"""Self-contained HTML pages about pools and trainings (torch is not imported).

Common parameters:
    view: Finished networks of the pool, prepared for display (`PoolView`).
    records: Networks, failed ones included, or the pool that holds them.
    gaps: Finite generalization gaps, one per network.
    gap_label: Name of the gap on an axis.
    path: File to write; its folder must exist.
    title: Heading of the page.
    classes: Names of the classes; None for their numbers.
    estimator: Fitted gap estimator, to show its formula.
    level: Nominal coverage of intervals.
"""

from gapscope.report.training import write_training_report as write_training_report
from gapscope.report.verdict import summary as summary
from gapscope.report.write import write_report as write_report
