"""Runs of a script in this process, and what they leave: what the environments showed, checkpoints and the log."""

import math
import re
import shutil
from types import SimpleNamespace

import pytest
import torch

import harness
from tests.conftest import Drift, parse, the_run, written
from tests.scripts.conftest import checkpoint


class RecordedDrift(Drift):
    """Drift that remembers its steps: obs, action, reward, terminated, truncated, final_obs, next_obs, objective and
    counts (N, ...): whether a whole episode ended."""

    steps = []  # of all that were made since it was cleared

    def step(self, action):
        seen = {"obs": self.observe(), "action": action}
        next_obs, reward, terminated, truncated, info = super().step(action)
        seen.update(reward=reward, terminated=terminated, truncated=truncated, next_obs=next_obs)
        seen.update(final_obs=info["final_obs"], objective=info["episode"]["objective"])
        seen.update(counts=info["episode"]["done"])
        self.steps.append(SimpleNamespace(**{key: value.clone() for key, value in seen.items()}))
        return next_obs, reward, terminated, truncated, info


RECORDED = f"--env-id {__name__}:RecordedDrift"


def train(script, flags):
    """The checkpoint that `python script.py flags` ends with, in a folder that has no other run."""
    shutil.rmtree("runs", ignore_errors=True)
    script.main(flags.split())
    return checkpoint(the_run())


def logs():
    """The logs of the only run, one for each time that it was started.

    Each is read by itself: the names of logs begun in one second do not say which came first.
    """
    return [written(path) for path in the_run().glob("events.out.tfevents.*")]


def logged():
    """What the only run logged: for each iteration, name -> number. What was not finite is not there."""
    rows = {}
    for log in logs():
        for key in log.Tags()["scalars"]:
            for event in log.Scalars(key):
                rows.setdefault(event.step, {})[key] = event.value
    return [rows[step] for step in sorted(rows)]


def lineages(args):
    """What the only run logged of its generations: iteration, from 0 -> [(child, parent, parent), ...]."""
    found = {}
    for log in logs():
        if "evolution/lineage/text_summary" not in log.Tags()["tensors"]:
            continue
        for event in log.Tensors("evolution/lineage/text_summary"):
            text = event.tensor_proto.string_val[0].decode()
            families = re.findall(r"(\d+) <- (\d+), (\d+)", text)
            iteration = event.step // (args.num_steps * args.num_envs) - 1
            found[iteration] = [tuple(map(int, family)) for family in families]
    return found


def record(script, flags):
    """One run of RecordedDrift: args, steps, logs and, in epo.py, lineages."""
    RecordedDrift.steps.clear()
    saved = train(script, f"{flags} {RECORDED}")
    args = SimpleNamespace(**saved["args"])
    return SimpleNamespace(args=args, steps=list(RecordedDrift.steps), logs=logged(), lineages=lineages(args))


def record_states(script, flags):
    """As `record`, and states[k]: the learner as a checkpoint has it before iteration k, and after the last one.

    The run is stopped after every iteration and resumed, which changes nothing (tests/scripts/test_checkpoints.py).
    """
    flags = f"{flags} {RECORDED}"
    args = parse(script, flags)
    harness.seed_everything(args.seed)
    agent = script.Agent(RecordedDrift.num_obs, RecordedDrift.num_actions, args)
    states = [{"agent": agent.state_dict(), "optimizer": torch.optim.Adam(agent.parameters()).state_dict()}]
    states[0]["optimizer"]["param_groups"][0]["lr"] = args.learning_rate
    if getattr(args, "adversarial_coef", 0.0):
        states[0]["discriminator"] = script.Discriminator(agent.obs_rms.mean.numel(), 2, args).state_dict()
    RecordedDrift.steps.clear()
    per_iteration = args.num_steps * args.num_envs
    saved = train(script, f"{flags} --total-timesteps {per_iteration}")
    states.append(saved["learner"])
    for k in range(2, args.num_iterations + 1):
        script.main(f"--no-cuda --resume {the_run()} --total-timesteps {k * per_iteration}".split())
        states.append(checkpoint(the_run())["learner"])
    return SimpleNamespace(
        script=script,
        args=args,
        steps=list(RecordedDrift.steps),
        logs=logged(),
        lineages=lineages(args),
        states=states,
    )


def assert_logged(log, expected):
    """The log of an iteration has these numbers, name -> number, to single precision; those that are finite."""
    numbers = {key: float(torch.as_tensor(number).detach()) for key, number in expected.items()}
    finite = {key: number for key, number in numbers.items() if math.isfinite(number)}
    found = {key: log[key] for key in expected if key in log}
    assert found == {key: pytest.approx(number, rel=1e-6, abs=1e-9) for key, number in finite.items()}
