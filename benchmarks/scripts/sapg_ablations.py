"""SAPG with another treatment of off-policy data, for which `sapg.py` has no flag.

    python benchmarks/scripts/sapg_ablations.py trace-for-advantages-too --env-id Moat --num-agents 6

The first argument is one of

    trace-for-advantages-too    advantages of off-policy rows look several steps ahead too, as the critic's targets do
    trace-for-advantages-alone  advantages look several steps ahead, the critic's targets one
    v-trace-targets             trace-for-advantages-too, and in the critic's targets each step is weighted by
                                min(1, pi_leader / pi_behaviour), as in V-trace
    normalised-separately       advantages of on-policy and of off-policy rows each have mean 0 and standard deviation
                                1 within a minibatch

and all others are those of `sapg.py`.
"""

import sys
from dataclasses import replace

import sapg

offpolicy_batch = sapg.offpolicy_batch
offpolicy_targets = sapg.offpolicy_targets
minibatch_loss = sapg.minibatch_loss


def trace_for_advantages_too(agent, *others):
    off = offpolicy_batch(agent, *others)
    return {**off, "advantages": off["returns"] - agent.value_rms.denormalize(off["values"])}


def trace_for_advantages_alone(*batch_and_args):
    off = trace_for_advantages_too(*batch_and_args)
    papers = replace(batch_and_args[-1], off_policy_lambda=0.0)
    return {**off, "returns": offpolicy_batch(*batch_and_args[:-1], papers)["returns"]}


def v_trace_targets(*batch_and_args):
    off = trace_for_advantages_too(*batch_and_args)
    sapg.offpolicy_targets = weighted_targets
    off["returns"] = offpolicy_batch(*batch_and_args)["returns"]
    sapg.offpolicy_targets = offpolicy_targets
    return off


def weighted_targets(rewards, values, next_values, ends, ratios, gamma, off_policy_lambda):
    """`sapg.offpolicy_targets` with rho of arXiv 1802.01561, Eq. 1: the error of each step, weighted."""
    errors = ratios.clamp(max=1.0) * (rewards + gamma * next_values - values)
    no_values = errors.new_zeros(errors.shape)
    return values + offpolicy_targets(errors, no_values, no_values, ends, ratios, gamma, off_policy_lambda)


def normalised_separately(agent, mb, *others):
    advantages = mb["advantages"].clone()
    is_offpolicy = mb["is_offpolicy"].bool()
    for rows in (is_offpolicy, ~is_offpolicy):
        if rows.sum() > 1:
            advantages[rows] = (advantages[rows] - advantages[rows].mean()) / (advantages[rows].std() + 1e-8)
    return minibatch_loss(agent, {**mb, "advantages": advantages}, *others)


# Name -> the function of sapg.py that it replaces, and by what
ABLATIONS = {
    "trace-for-advantages-too": ("offpolicy_batch", trace_for_advantages_too),
    "trace-for-advantages-alone": ("offpolicy_batch", trace_for_advantages_alone),
    "v-trace-targets": ("offpolicy_batch", v_trace_targets),
    "normalised-separately": ("minibatch_loss", normalised_separately),
}

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in ABLATIONS:
        sys.exit(f"the first argument must be one of {', '.join(ABLATIONS)}")
    name, replacement = ABLATIONS[sys.argv[1]]
    setattr(sapg, name, replacement)
    sapg.main(sys.argv[2:])
