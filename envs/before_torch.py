"""Imports Isaac Gym where the command line asks for it: it refuses to be imported after torch. Imports nothing else."""

import importlib.util
import sys

FAILURE = ""  # what `import isaacgym` raised

asked = "--engine=isaacgym" in sys.argv or ("--engine", "isaacgym") in zip(sys.argv, sys.argv[1:])
if asked and sys.version_info < (3, 9) and importlib.util.find_spec("isaacgym"):
    try:
        import isaacgym.gymapi  # noqa: F401, an unpacked archive that is not installed has none
    except (ImportError, RuntimeError) as error:  # RuntimeError: an old one, not for this Python
        FAILURE = str(error)
