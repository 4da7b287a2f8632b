"""Modules of the user's own, by name: what they register on import is then there."""

from __future__ import annotations

import importlib
import os
import sys

from sebulba.validation import ConfigError


def resolve(name: str) -> str:
    """The name of a preset without its module, which is imported: ``module:preset``.

    A name without a module is returned as it is. Modules are found as always, and last in the
    current directory, so that nothing there takes the place of an installed package.

    Raises:
      ConfigError: there is no such module.
    """
    module, colon, preset = name.rpartition(":")
    if not colon:
        return name
    if module.endswith(".py") or not all(map(str.isidentifier, module.split("."))):
        raise ConfigError(
            f"preset {name!r} names the module {module!r}: it must be a name as in Python's import "
            "statement, without .py. Write it as in: my_package.my_module:my-preset."
        )
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        # Not one that the module itself misses, which its own traceback tells best.
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise ConfigError(
            f"preset {name!r} is registered by the module {module!r}, which cannot be imported "
            f"({error}): start from the directory that holds it, or add that to PYTHONPATH."
        ) from error
    return preset
