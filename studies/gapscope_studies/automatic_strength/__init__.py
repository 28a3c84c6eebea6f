"""A penalty whose strength sets itself, against strengths that were fixed beforehand."""
