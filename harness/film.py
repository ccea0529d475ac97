"""Films of --capture-video: evaluate.py, in a process of its own, films the policy that a run has just saved."""

import os
import subprocess
import sys

from envs.terminal import say

EVALUATE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "evaluate.py")


def film_agent(folder, agent, device):
    """Film an agent of the checkpoint in a run's folder. Returns the path of the .gif, or None and says so."""
    path = os.path.join(folder, "film.gif")
    command = [sys.executable, EVALUATE, folder, "--video", path, "--agents", str(agent)]
    if device == "cpu":
        command.append("--no-cuda")
    if subprocess.run(command).returncode:
        say("no film: evaluate.py failed; training goes on", file=sys.stderr)
        return None
    return path
