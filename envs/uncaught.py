"""How an uncaught exception is shown. Imported before torch, which takes long enough for a Ctrl-C to come."""

import inspect
import os
import sys
import traceback

env_id = ""  # of the run; set by harness.parse_args


def report(kind, error, trace):
    """sys.excepthook. Ctrl-C and a closed pipe: no traceback. From a custom task: then a line naming its method."""
    if issubclass(kind, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    if issubclass(kind, BrokenPipeError):  # as in `epo.py | head`
        close_stdout()
        sys.exit(141)
    sys.__excepthook__(kind, error, trace)
    where = raised_in(error, env_id)
    if where:
        print(f"--env-id {env_id}: {kind.__name__} in {where}", file=sys.stderr)


def raised_in(error, env_id):
    """Where in a custom task an exception was raised: "Class.method", or its module at import; "" if elsewhere."""
    module, _, name = env_id.partition(":")
    task = getattr(sys.modules.get(module), name, None)
    for frame, _ in traceback.walk_tb(error.__traceback__):
        code, owner = frame.f_code, frame.f_locals.get("self")
        if code.co_name == "<module>" and frame.f_globals.get("__name__") == module:
            return module
        ours = code.co_filename.startswith(os.path.dirname(os.path.abspath(__file__)) + os.sep)
        if inspect.isclass(task) and isinstance(owner, task) and not ours:
            return f"{type(owner).__name__}.{code.co_name}"
    return ""


def close_stdout():
    """Nobody reads standard output any more: let Python write the rest, and at its end, to nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


sys.excepthook = report
