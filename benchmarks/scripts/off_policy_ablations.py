"""SAPG or EPO with another treatment of off-policy data, for which the scripts have no flag.

    python benchmarks/scripts/off_policy_ablations.py epo targets-alone --env-id Moat --num-agents 48

The first argument is the script, sapg or epo. The second is one of

    targets-alone          of off-policy rows only the critic's targets look several steps ahead, advantages look one
    advantages-alone       only the advantages do
    v-trace-targets        in the critic's targets the first action is weighted by min(1, pi_leader / pi_behaviour)
                           too, as in V-trace
    normalised-separately  advantages of on-policy and of off-policy rows each have mean 0 and standard deviation 1
                           within a minibatch

and all others are those of the script.
"""

import importlib
import sys
from dataclasses import replace


def look_one_step_ahead(script, field):
    """Let this field of off-policy rows be the papers', of one step."""
    offpolicy_batch = script.offpolicy_batch

    def mixed_batch(*batch_and_args):
        papers = replace(batch_and_args[-1], off_policy_lambda=0.0)
        return {**offpolicy_batch(*batch_and_args), field: offpolicy_batch(*batch_and_args[:-1], papers)[field]}

    script.offpolicy_batch = mixed_batch


def v_trace_targets(script):
    """Weigh the first action too, in the critic's targets (arXiv 1802.01561, Eq. 1)."""
    offpolicy_batch = script.offpolicy_batch
    offpolicy_advantages = script.offpolicy_advantages

    def weighted(rewards, values, next_values, ends, ratios, *gamma_and_lambda):
        advantages = offpolicy_advantages(rewards, values, next_values, ends, ratios, *gamma_and_lambda)
        return ratios.clamp(max=1.0) * advantages

    def mixed_batch(*batch_and_args):
        off = offpolicy_batch(*batch_and_args)
        script.offpolicy_advantages = weighted
        off["returns"] = offpolicy_batch(*batch_and_args)["returns"]
        script.offpolicy_advantages = offpolicy_advantages
        return off

    script.offpolicy_batch = mixed_batch


def normalised_separately(script):
    minibatch_loss = script.minibatch_loss

    def loss(agent, mb, *others):
        advantages = mb["advantages"].clone()
        is_offpolicy = mb["is_offpolicy"].bool()
        for rows in (is_offpolicy, ~is_offpolicy):
            if rows.sum() > 1:
                advantages[rows] = (advantages[rows] - advantages[rows].mean()) / (advantages[rows].std() + 1e-8)
        return minibatch_loss(agent, {**mb, "advantages": advantages}, *others)

    script.minibatch_loss = loss


ABLATIONS = {
    "targets-alone": lambda script: look_one_step_ahead(script, "advantages"),
    "advantages-alone": lambda script: look_one_step_ahead(script, "returns"),
    "v-trace-targets": v_trace_targets,
    "normalised-separately": normalised_separately,
}

if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] not in ("sapg", "epo") or sys.argv[2] not in ABLATIONS:
        sys.exit(f"the first argument must be sapg or epo, the second one of {', '.join(ABLATIONS)}")
    script = importlib.import_module(sys.argv[1])
    ABLATIONS[sys.argv[2]](script)
    script.main(sys.argv[3:])
