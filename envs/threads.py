"""How many threads step environments on a CPU."""

import os


def count_threads():
    """The processor cores that this process may use, shared with torchrun's other processes on the machine."""
    if hasattr(os, "sched_getaffinity"):  # Linux only
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count()
    return max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
