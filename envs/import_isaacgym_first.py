"""Imports Isaac Gym, which must be imported before torch, if the command line asks for it. Must not import torch."""

import importlib.util
import sys

FAILURE = ""  # the message of the error that `import isaacgym` raised

requested = "--engine=isaacgym" in sys.argv or ("--engine", "isaacgym") in zip(sys.argv, sys.argv[1:])
if requested and sys.version_info < (3, 9) and importlib.util.find_spec("isaacgym"):
    try:
        import isaacgym.gymapi  # noqa: F401, missing if the archive was unpacked but not installed
    except (ImportError, RuntimeError) as error:  # RuntimeError: no build for this Python
        FAILURE = str(error)
