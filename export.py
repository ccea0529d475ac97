"""Export what a run has learned: `python export.py runs/RUN policy.onnx`, or `policies/NAME` for a folder to evaluate.

An .onnx file holds one agent, for a robot or another program; a folder gets policy.pt, all agents without optimizer and
environments, which evaluate.py plays and this script exports.
"""

import dataclasses
import inspect
import logging
import os
import warnings
from typing import Optional

import envs  # noqa: F401, before torch: Isaac Gym must be imported first
import harness
from envs.adapters.adapter import Adapter
from envs.terminal import needs_output
from evaluate import Player, default_player, load, make_agent, make_env, num_agents_of

import torch
import tyro


SEED = 1_000_000  # of the evaluations that find PBT's best agent


@dataclasses.dataclass
class Args:
    # Policy
    run: tyro.conf.Positional[str]
    """a run's folder, a checkpoint file, or a folder that this script wrote"""
    # Export
    output: tyro.conf.Positional[str]
    """a file that ends with .onnx (pip install -e '.[onnx]'), or a folder for policy.pt"""
    agent: Optional[int] = None
    """the agent of an .onnx file; none: the leader, of PBT the best"""


class MeanPolicy(torch.nn.Module):
    """The mean action of one agent (id), clamped to [-1, 1], none drawn; normaliser and latent are part of it."""

    def __init__(self, agent, k):
        super().__init__()
        self.agent = agent[k] if isinstance(agent, torch.nn.ModuleList) else agent
        self.k = k

    def forward(self, obs, lstm_state):
        """obs (B, D), lstm_state (B, 2H) after the previous step -> action (B, U), lstm_state (B, 2H)."""
        player = Player(self.agent, torch.full((len(obs),), self.k), deterministic=True)
        outputs = self.agent.get_action_and_value(obs[None], *player.ids, None, lstm_state[None], torch.zeros(()))
        _, _, policy, _, lstm_states = outputs
        return policy.mean[0].clamp(-1.0, 1.0), lstm_states[0]


class MeanPolicyWithoutMemory(MeanPolicy):
    def forward(self, obs):
        return super().forward(obs, torch.zeros(len(obs), 0))[0]


@torch.no_grad()  # as in evaluations: with gradients --bf16 would go into the file
def export_onnx(path, saved, agent, k, env):
    """Write agent k's policy as ONNX: obs -> action, with an LSTM obs, lstm_state -> action, next_lstm_state.

    The file's metadata says task, agent, steps trained, observation layout and control period in seconds.
    """
    import onnx

    names = ["obs"]
    outputs = ["action"]
    inputs = [torch.zeros(2, env.num_obs)]
    if agent.state_size:
        names.append("lstm_state")
        outputs.append("next_lstm_state")
        inputs.append(torch.zeros(2, agent.state_size))
        policy = MeanPolicy(agent, k)
    else:
        policy = MeanPolicyWithoutMemory(agent, k)
    # PyTorch logs that torchvision is missing, which no policy needs, and warns of how it works itself
    logging.getLogger("torch.onnx._internal.exporter._registration").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            policy.eval(),
            tuple(inputs),
            dynamo=True,
            verbose=False,
            input_names=names,
            output_names=outputs,
            dynamic_shapes={name: {0: "batch"} for name in names},
        )
    model = program.model_proto
    adapted = isinstance(env, Adapter)
    timed = any("frame_rate" in vars(x) for x in (env, *type(env).__mro__) if x is not envs.VectorEnv)
    metadata = {
        "task": saved["args"]["env_id"],
        "script": saved["script"],
        "agent": k,
        "steps": saved["global_step"],
        "observation": f"of {saved['args']['env_id']}" if adapted else inspect.getdoc(type(env)) or "",
        "control_period": float(1 / env.frame_rate) if timed else "unknown",
    }
    for key, value in metadata.items():
        model.metadata_props.add(key=key, value=str(value))
    onnx.checker.check_model(model)
    onnx.save(model, path + ".tmp")
    os.replace(path + ".tmp", path)
    print(f"{path}: {', '.join(names)} -> {', '.join(outputs)}, agent {k}, {os.path.getsize(path):,} bytes")


def save_policy(folder, saved, env):
    """Write what evaluations need of a checkpoint to folder/policy.pt: agents, flags, the curriculum of env's task."""
    rollout = saved["rollout"][0]
    curriculum = {name: rollout["env"][name] for name in getattr(env, "curriculum", ())}
    policy = {
        **saved,
        "args": {**saved["args"], "resume": None, "load": None},
        "learner": {"agent": saved["learner"]["agent"]},
        "rollout": [{"env": curriculum, "episodes": {"means": rollout["episodes"]["means"]}}],
        "random": [],
    }
    path = os.path.join(folder, "policy.pt")
    os.makedirs(folder, exist_ok=True)
    torch.save(policy, path + ".tmp")
    os.replace(path + ".tmp", path)
    print(f"{path}: {saved['args']['env_id']}, {saved['global_step']:,} steps, {os.path.getsize(path):,} bytes")


@needs_output()
def main(argv=None):
    args = harness.parse_program_args(Args, "export", __doc__, argv)
    folder = os.path.dirname(args.output) or "."
    if args.output.endswith(".onnx") and not os.path.isdir(folder):
        harness.refuse("output", args.output, "must be in an existing folder")
    if not args.output.endswith(".onnx") and os.path.isfile(args.output):
        harness.refuse("output", args.output, "must be a file that ends with .onnx, or a folder")
    saved, script = load(args.run)
    last = num_agents_of(saved) - 1
    if args.agent is not None and not (args.output.endswith(".onnx") and 0 <= args.agent <= last):
        harness.refuse("--agent", args.agent, f"needs an .onnx file as output, and must be between 0 and {last}")
    env = make_env(saved, 1, 1, "auto", "cpu")
    if args.output.endswith(".onnx"):
        k = args.agent
        if k is None:
            name, k = default_player(saved, script, SEED, "auto", "cpu")
            if name == "leader":
                print(f"agent {k} is the leader; evaluate.py --best finds the best agent")
        export_onnx(args.output, saved, make_agent(saved, script, env, "cpu"), k, env)
    elif os.path.exists(os.path.join(args.output, "checkpoint.pt")):  # an evaluation of that run would play the policy
        harness.refuse("output", args.output, "must not be the folder of a run")
    else:
        save_policy(args.output, saved, env)


if __name__ == "__main__":
    main()
