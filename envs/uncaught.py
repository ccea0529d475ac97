"""How an uncaught exception is shown. Imported before torch, which takes long enough for a Ctrl-C to come."""

import errno
import functools
import inspect
import os
import sys
import threading
import traceback

env_id = ""  # of the run; set by harness.parse_args


def report(kind, error, trace):
    """sys.excepthook. No traceback for Ctrl-C and lost output. From a custom task: then a line naming its method."""
    if issubclass(kind, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    where = raised_in(error, env_id, inherited=True)
    if issubclass(kind, BrokenPipeError) and not where:  # as in `epo.py | head`
        discard(sys.stdout)
        sys.exit(141)
    if getattr(error, "errno", None) == errno.ENOSPC and not (error.filename or where):  # of standard output
        discard(sys.stdout)
        print(f"no output: {error}", file=sys.stderr)
        sys.exit(1)
    sys.__excepthook__(kind, error, trace)
    if where:
        print(f"--env-id {env_id}: {kind.__name__} in {where}", file=sys.stderr)


def custom_class(env_id):
    """The class of a custom task that has been imported, else ()."""
    module, _, name = env_id.partition(":")
    task = getattr(sys.modules.get(module), name, None)
    return task if inspect.isclass(task) else ()


def raised_in(error, env_id, inherited=False):
    """Where in a custom task an exception was raised: "Class.method", or its module at import; "" if elsewhere.

    inherited: methods that the class has from envs/ count too.
    """
    module, task, found = env_id.partition(":")[0], custom_class(env_id), ""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        code = frame.f_code
        owner = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
        if code.co_name == "<module>" and frame.f_globals.get("__name__") == module:
            return module
        if isinstance(owner, task) and code.co_name in (*dir(type(owner)), "<lambda>"):  # no function that is given it
            method = f"{type(owner).__name__}.{code.co_name}"
            if not code.co_filename.startswith(os.path.dirname(os.path.abspath(__file__)) + os.sep):
                return method
            found = method if inherited else ""
    return found


def without_exit(method):
    """A custom task's method, in which sys.exit is an error like any other: it would end the run without a word."""

    @functools.wraps(method)
    def call(*inputs):
        try:
            return method(*inputs)
        except SystemExit as end:
            (frame, _), *_ = reversed(list(traceback.walk_tb(end.__traceback__)))
            if frame.f_globals.get("__name__", "").startswith("harness."):  # a refusal, or a second signal
                raise
            raise RuntimeError(f"sys.exit({end.code!r}) in an environment").with_traceback(end.__traceback__) from None

    return call


def report_in_thread(thread):
    """threading.excepthook: TensorBoard's thread has a full disk; `Run.log` gets the same error and says so."""
    if not issubclass(thread.exc_type, OSError):
        threading.__excepthook__(thread)


def say(line):
    """Print a line to standard output; a full disk behind it is reported."""
    try:
        print(line, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        warn(f"no output: {error}; training goes on")


def warn(line):
    """Print a line to standard error, unless that is on a full disk too."""
    try:
        print(line, file=sys.stderr)
    except OSError:
        discard(sys.stderr)


def discard(stream):
    """What is written to a stream reaches nobody any more: let Python write the rest, and at its end, to nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


sys.excepthook = report
threading.excepthook = report_in_thread
