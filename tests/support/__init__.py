"""Helpers of the tests."""

# the option --jaxtyping-packages names this module by its attribute, also where no test has imported it
from support import shape_checks as shape_checks
