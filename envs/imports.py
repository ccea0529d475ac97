"""Imports of modules that a user names: a custom task's, or the package that registers a Gymnasium environment."""

import importlib
import os
import sys


def import_module(name):
    """A module by name; the working directory comes last, so that nothing there hides a package.

    Raises ValueError (one line) where there is no such module.
    """
    if not all(part.isidentifier() for part in name.split(".")):
        raise ValueError(f"{name!r} is not the name of a module; must be package.module:Class")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and f"{name}.".startswith(f"{error.name}."):
            raise ValueError(f"no module named {error.name}; must be in the working directory or installed") from error
        raise  # one that the module itself imports
