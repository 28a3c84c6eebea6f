"""One self-contained HTML page from records (never torch)."""

from gapscope.report.write import write_report as write_report
