"""Columns of pandas in types of Arrow (`dtype_backend="pyarrow"`) as columns of the usual types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas


def without_arrow_types(value: Any) -> Any:
    """Return a frame or column of pandas with the usual types for those of Arrow, any other value as it is.

    Integers and booleans with missing values have the nullable types of pandas, which keep their digits. Dictionaries
    without an order are text.

    Args:
        value: Data in any form.
    """
    if type(value).__module__.partition(".")[0] != "pandas":
        return value
    if not hasattr(value, "columns"):
        return _plain(value) if _is_of_arrow(getattr(value, "dtype", None)) else value
    places = [i for i, dtype in enumerate(value.dtypes) if _is_of_arrow(dtype)]
    if not places:
        return value
    frame = value.copy(deep=False)
    for i in places:
        frame.isetitem(i, _plain(value.iloc[:, i]))
    return frame


def _is_of_arrow(dtype: Any) -> bool:
    return type(dtype).__name__ == "ArrowDtype"


def _plain(column: Any) -> pandas.Series:
    """Return a column, an index or an array in the type that pandas has for its type of Arrow."""
    import pandas

    series = pandas.Series(column)
    if series.isna().any():
        if pandas.api.types.is_bool_dtype(series.dtype):
            return series.astype("boolean")
        if pandas.api.types.is_integer_dtype(series.dtype):
            return series.astype("Int64")
    values: Any = series.array
    plain: pandas.Series = values.__arrow_array__().to_pandas()
    if hasattr(plain, "cat") and not plain.cat.ordered:
        plain = plain.astype(object)  # a dictionary of Arrow lists values as they came
    plain = pandas.Series(plain.array, series.index, name=series.name)
    plain.attrs.update(series.attrs)
    return plain
