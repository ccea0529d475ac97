"""The first agents of a trained population: `python -m benchmarks.scripts.first_agents POLICY 8 first_8.pt`.

POLICY is the folder of an exported policy of sapg.py, cpo.py or epo.py. The new file can be evaluated, and a run with
`--load first_8.pt --num-agents 8` begins with these agents. The leader is agent 0, so it is among them.
"""

import argparse

import torch

from benchmarks.scripts.help import HelpFormatter
from envs.terminal import needs_output
from harness.checkpoints import policy_file, read_checkpoint

PER_AGENT = ("latents", "actor_logstd")  # parameters that have one row per agent


def keep_first_agents(saved, num_agents):
    """Remove all but the first agents from an exported policy, in place.

    num_agents: how many to keep, from 1 to the population's number. ValueError (one line) for any other number, and for
    a policy without latents, such as those of ppo.py and pbt.py.
    """
    agent = saved["learner"]["agent"]
    if "latents" not in agent:
        raise ValueError(f"a policy of {saved['script']}.py has no latents; those of sapg.py, cpo.py and epo.py do")
    episodes = saved["rollout"][0]["episodes"]
    there = len(agent["latents"])
    if not 1 <= num_agents <= there:
        raise ValueError(f"{num_agents} agents: must be between 1 and {there}")
    for name in PER_AGENT:
        agent[name] = agent[name][:num_agents].clone()  # a view would be saved with all agents
    episodes["means"] = episodes["means"][:, :num_agents].clone()
    saved["args"].update(num_agents=num_agents, num_elites=None)


@needs_output()
def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument("policy", help="the folder of an exported policy, or its file")
    parser.add_argument("num_agents", type=int, help="how many agents to keep")
    parser.add_argument("output", help="the file to write")
    args = parser.parse_args(argv)
    try:
        saved = read_checkpoint(policy_file(args.policy))
        keep_first_agents(saved, args.num_agents)
    except ValueError as error:
        parser.error(str(error))
    torch.save(saved, args.output)
    print(f"{args.output}: agents 0 to {args.num_agents - 1} of {args.policy}")


if __name__ == "__main__":
    main()
