"""Type checker for `pytest --jaxtyping-packages=gapscope,shape_checks.checked`: shapes and types of every call."""

from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))  # an int is a float, as PEP 484 has it
