"""Checks of a network and its training data, each with evidence and a recommendation.

Modules of this package register checks by code; `gapscope.check` runs them.
"""

from gapscope.checks.registry import Finding as Finding
from gapscope.checks.registry import Fine as Fine
from gapscope.checks.registry import NotChecked as NotChecked
from gapscope.checks.registry import list_checks as list_checks
from gapscope.checks.registry import register_check as register_check
from gapscope.checks.result import CheckResult as CheckResult
