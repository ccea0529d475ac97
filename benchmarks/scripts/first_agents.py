"""The first agents of a trained population: `python -m benchmarks.scripts.first_agents POLICY 8 first_8.pt`.

POLICY is a run or an exported policy of sapg.py, cpo.py or epo.py. The new file can be evaluated, and a run with
`--load first_8.pt --num-agents 8` goes on with these agents. The leader is agent 0, so it is among them.
"""

import argparse

import torch

from benchmarks.scripts.help import HelpFormatter
from envs.terminal import needs_output
from harness.checkpoints import policy_file, read_checkpoint

PER_AGENT = ("latents", "actor_logstd")  # parameters that have one row per agent


def first_agents(saved, num_agents):
    """What evaluations and --load need of a population's checkpoint, for its first agents alone.

    num_agents: how many; ValueError unless between 1 and the population's.
    """
    there = len(saved["learner"]["agent"]["latents"])
    if not 1 <= num_agents <= there:
        raise ValueError(f"{num_agents} agents: must be between 1 and {there}")
    agent = dict(saved["learner"]["agent"])
    for name in PER_AGENT:
        agent[name] = agent[name][:num_agents].clone()
    rollout = saved["rollout"][0]
    means = rollout["episodes"]["means"][:, :num_agents].clone()
    return {
        **saved,
        "args": {**saved["args"], "num_agents": num_agents, "num_elites": None},
        "learner": {"agent": agent},
        "rollout": [{"env": rollout["env"], "episodes": {"means": means}}],
        "random": [],
    }


@needs_output()
def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument("policy", help="a run's folder, a policy's, or a file")
    parser.add_argument("num_agents", type=int, help="how many agents to keep")
    parser.add_argument("output", help="the file to write")
    args = parser.parse_args(argv)
    try:
        saved = first_agents(read_checkpoint(policy_file(args.policy)), args.num_agents)
    except ValueError as error:
        parser.error(str(error))
    torch.save(saved, args.output)
    print(f"{args.output}: agents 0 to {args.num_agents - 1} of {args.policy}")


if __name__ == "__main__":
    main()
