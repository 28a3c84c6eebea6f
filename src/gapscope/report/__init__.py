"""One self-contained HTML page from records (never torch)."""

from gapscope.report.summary import summary as summary
from gapscope.report.training import write_training_report as write_training_report
from gapscope.report.write import write_report as write_report
