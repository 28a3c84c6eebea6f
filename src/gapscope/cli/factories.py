"""Functions of the user's code, named `module:function` or `path/to/file.py:function` on the command line."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import typer

from gapscope.base.errors import InvalidInput, describe_value, did_you_mean
from gapscope.base.type_guards import is_list_or_tuple

# a file or a module (hyphens are allowed in names of files), a colon, and a function
_FACTORY = re.compile(
    r"(?P<module>(?:.*[/\\])?[^/\\:]+|[A-Za-z]:\\[^:]+):(?P<function>[A-Za-z_]\w*)"
)


def is_factory(source: Path | str) -> bool:
    """Return True for `module:function`, `file.py:function` or a Python file alone, False for another file."""
    if str(source).endswith(".py"):
        return True  # `import_object` says that the name of a function is missing
    return _FACTORY.fullmatch(str(source)) is not None and not Path(source).exists()


def _describe(error: BaseException) -> str:
    """Return an error with the last line of the user's code that led to it."""
    text = f"{type(error).__name__}: {error}".removesuffix(": ")
    lines = traceback.extract_tb(error.__traceback__)
    libraries = (str(Path(__file__).parents[1]), "<frozen", *sysconfig.get_paths().values())
    own = [line for line in lines if not line.filename.startswith(libraries)]
    if isinstance(error, SyntaxError) or not lines:
        return text  # with its own line
    line = (own or lines)[-1]
    return f"{text} ({line.filename}, line {line.lineno})"


def _import_file(path: Path) -> ModuleType:
    """Import a Python file, with its folder on the path for its own imports."""
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    loaded = sys.modules.get(path.stem)
    if loaded is not None and getattr(loaded, "__file__", None) == str(path):
        return loaded
    # two files may have one name, or that of an installed module
    name = path.stem if loaded is None else f"{path.stem} of {folder}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None, "a .py file has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _import_module(name: str, source: Path | str) -> ModuleType:
    """Return the module or file of `source`, or raise InvalidInput."""
    path = Path(name)
    is_file = path.suffix == ".py" or path.name != name
    if is_file and path.suffix != ".py":
        path = path.with_name(f"{path.name}.py")
    if is_file and not path.is_file():
        raise InvalidInput(f"{source} must name a Python file; there is no {path}. Check the path.")
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        if is_file:
            return _import_file(path.resolve())
        module = importlib.import_module(name)
        own = Path(folder, f"{name}.py").resolve()
        # a file of this folder may have the name of an installed module
        if own.is_file() and getattr(module, "__file__", None) != str(own):
            return _import_file(own)
        return module
    except ModuleNotFoundError as error:
        if is_file or error.name not in (name, name.split(".")[0]):
            raise InvalidInput(
                f"{source} could not be imported: {_describe(error)}. Install it."
            ) from error
        raise InvalidInput(
            f"{source} must name a module that can be imported from here; there is no {name!r}. Run the command in the "
            "folder that contains it, or pass path/to/file.py:function."
        ) from None
    except (Exception, SystemExit) as error:
        raise InvalidInput(
            f"{source} could not be imported: {_describe(error)}. Correct the module."
        ) from error


def import_object(source: Path | str) -> Any:
    """Return the object named by `module:name` or `file.py:name`.

    Raises:
        InvalidInput: There is no such module or name, or the module raises an error.
    """
    match = _FACTORY.fullmatch(str(source))
    if match is None:
        raise InvalidInput(
            f"{source} must be module:function, such as my_models:load or code/my_models.py:load."
        )
    module_name = match["module"]
    name = match["function"]
    module = _import_module(module_name, source)
    if not hasattr(module, name):
        suggestion = did_you_mean(
            name, [known for known in vars(module) if not known.startswith("_")]
        )
        raise InvalidInput(
            f"{source} must name a function of {module_name}; it has no {name!r}.{suggestion}"
        )
    return getattr(module, name)


def import_function(source: Path | str) -> Callable[..., Any]:
    """Return the function named by `module:function` or `file.py:function` (raises InvalidInput as `import_object`)."""
    function = import_object(source)
    if not callable(function):
        raise InvalidInput(
            f"{source} must name a function; got {type(function).__name__}. Name a function."
        )
    return function


def call_function(source: Path | str, *arguments: Path, needed: str) -> Any:
    """Call the user's function.

    Args:
        source: `module:function`.
        arguments: Arguments of the function.
        needed: What it must return, for messages.

    Raises:
        InvalidInput: The function raises an error; the message names its place.
    """
    function = import_function(source)
    _check_call(source, function, arguments, needed)
    try:
        return function(*arguments)
    except (Exception, SystemExit) as error:
        raise InvalidInput(
            f"{_call(source, arguments)} must return {needed}; it raised {_describe(error)}. Call it in "
            "Python to see the traceback."
        ) from error


def _check_call(
    source: Path | str, function: Callable[..., Any], arguments: tuple[Path, ...], needed: str
) -> None:
    """Raise InvalidInput for a class, a network, or a function that needs other arguments."""
    taken = "path" if arguments else ""
    example = f"Write a function, def build({taken}), that returns {needed}."
    if isinstance(function, type) or hasattr(function, "named_parameters"):
        if isinstance(function, type):
            kind = f"the class {function.__name__}"
        else:
            kind = f"a {type(function).__name__}"
        raise InvalidInput(f"{source} must name a function; got {kind}. {example}")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # written in C
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        wanted = "no arguments" if not arguments else "the path of the checkpoint alone"
        called = getattr(function, "__name__", type(function).__name__)
        raise InvalidInput(
            f"{source} must take {wanted}; got {called}{signature}: {error}. Give its other arguments defaults. "
            f"{example}"
        ) from None


def _call(source: Path | str, arguments: tuple[Path, ...]) -> str:
    return f"{source}{''.join(f' of {path}' for path in arguments)}"


# Arguments of `gapscope.check` that a function may return beside network and data.
OPTIONS = ("initial_state", "monitor", "history", "test", "batch_size", "train_fn")


@dataclass(frozen=True)
class Returned:
    """What a function of the user's code returned.

    Attributes:
        network: The network, estimator or training function; None where that is allowed.
        data: Training data.
        settings: Hyperparameters of the network.
        options: By their name in `OPTIONS`, others that it returned.
    """

    network: Any
    data: Any
    settings: Mapping[str, Any]
    options: dict[str, Any]


def _is_state(value: Mapping[Any, Any]) -> bool:
    """Return whether a mapping is a state dictionary: all values are arrays, and not only numbers of NumPy."""
    arrays = [entry for name, entry in value.items() if not str(name).endswith("_extra_state")]
    return all(hasattr(entry, "shape") for entry in arrays) and any(
        len(entry.shape) > 0 for entry in arrays
    )


def _split_mapping(
    call: str, result: Mapping[str, Any], first: str
) -> tuple[Any, Any, dict[str, Any]]:
    """Return the first value, data and other values of a mapping, or raise InvalidInput for unknown keys."""
    others = {str(name): value for name, value in result.items()}
    network = others.pop(first)
    data = others.pop("data")
    known = (*OPTIONS, "settings")
    unknown = sorted(set(others) - {*known, "network"})
    if unknown:
        raise InvalidInput(
            f"{call} returned {', '.join(unknown)}; known are {', '.join(known)}. Omit others."
        )
    return network, data, others


def call_for_all(source: Path | str, *arguments: Path, what: str = "network") -> Returned:
    """Call a function that returns (network, data), with settings or the initial state as a third value, or a mapping.

    Args:
        source: `module:function`.
        arguments: Arguments of the function.
        what: Name of the first value in messages and in a mapping; "network or None" allows None.

    Raises:
        InvalidInput: The function raises, or returns anything else.
    """
    needed = f"({what}, training data)"
    result = call_function(source, *arguments, needed=needed)
    call = _call(source, arguments)
    first = what.split()[0]
    third: Any = None
    options: dict[str, Any] = {}
    if isinstance(result, Mapping) and {first, "data"} <= set(result):
        network, data, options = _split_mapping(call, result, first)
        third = options.pop("settings", None)
    elif isinstance(result, tuple) and len(result) in (2, 3):
        network, data, third = (*result, None)[:3]
    else:
        raise InvalidInput(
            f"{call} must return {needed}, optionally with settings or the initial state as a third value, or a "
            f"mapping with {first}, data and any of {', '.join(OPTIONS)}, settings; it returned "
            f"{describe_value(result)}. End it with: return {first}, (inputs, targets)."
        )
    is_usable = callable(network) or hasattr(network, "fit") or hasattr(network, "predict")
    if not is_usable and not (network is None and "None" in what):
        raise InvalidInput(
            f"{call} must return {needed}; the first of its values is a {type(network).__name__}. Return the "
            f"{first} first, and (inputs, targets) as the data."
        )
    if third is not None and not isinstance(third, Mapping):
        raise InvalidInput(
            f"{call} may return hyperparameters as a third value, a dict such as {{'width': 64}}, or the state "
            f"dictionary before training; it returned a {type(third).__name__}."
        )
    if third is not None and _is_state(third):
        return Returned(network, data, {}, {"initial_state": third})
    return Returned(network, data, third or {}, options)


def split_returned(
    data: Any, column: str | None, source: Path | str, test: Path | None = None
) -> Any:
    """Return data of `module:function` as (inputs, targets) if --target names a column of them, else as they are.

    Args:
        data: The data.
        column: Column from --target.
        source: `module:function`, for the message.
        test: Table of --test, whose column --target may name as well.

    Raises:
        BadParameter: The data have no named columns, and there is no other table.
        InvalidInput: They have no such column.
    """
    from gapscope.base.samples import Samples
    from gapscope.data.table_targets import split_frame

    if column is None:
        return data
    if not isinstance(data, Samples) and not (is_list_or_tuple(data) and len(data) == 2):
        return split_frame(data, column)
    if test is None:
        raise typer.BadParameter(
            f"--target names the column of the labels in a table; {source} returned inputs and targets. Omit it, or "
            "return the whole table."
        )
    return data
