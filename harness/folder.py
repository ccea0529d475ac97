"""A run's folder, runs/TASK__SCRIPT__SEED__TIME, and its lock against a second process that trains there."""

import errno
import fcntl
import os
import sys
import time

from harness.errors import refuse


def create_folder(args, script):
    """Make a new folder for a run; returns its absolute path. Runs of one name that begin in one second differ.

    Refuses a name that is too long, and a working directory where there can be no folder.
    """
    name = f"{args.env_id}__{args.exp_name or script}".replace(":", "-").replace("/", "-")
    second = int(time.time())
    while True:
        folder = os.path.abspath(f"runs/{name}__{args.seed}__{second}")
        try:
            os.makedirs(folder)
        except FileExistsError:
            second += 1
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG and args.exp_name:
                refuse("--exp-name", args.exp_name, "must be shorter, it is part of the name of the run's folder")
            reason = f"must be one in which runs/{os.path.basename(folder)} can be made ({error.strerror})"
            refuse("working directory", os.getcwd(), reason)
        else:
            return folder


def lock_folder(folder):
    """Lock a run's folder until the returned file is closed. Refuses it if another process trains there."""
    file = open(os.path.join(folder, "lock"), "a")
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        refuse("--resume", folder, "another process is training in this folder")
    except OSError as error:  # some network file systems have no locks
        print(f"{folder} is not locked against a second process: {error}", file=sys.stderr)
    return file
