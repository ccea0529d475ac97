"""Evaluate, record or export what a run has learned: `python evaluate.py runs/... --episodes 100 --video out.mp4`.

Plays the checkpoint of any of the scripts, or of a copy of one, or a policy of policies/: the network is built by the
script that trained it, found in the working directory or beside this file. Normalisers are frozen; a curriculum keeps
its state from training.
"""

import dataclasses
import importlib.util
import inspect
import math
import os
import sys
from fractions import Fraction
from types import SimpleNamespace
from typing import Optional, Tuple

import envs  # before torch: Isaac Gym must be imported first
import harness
from envs import uncaught
from envs.adapters.adapter import Adapter
from envs.base import VectorEnv, check_tensors
from harness import checkpoints

import torch
import tyro


@dataclasses.dataclass
class Args:
    run: tyro.conf.Positional[str]
    """a run's folder, a checkpoint file, or a folder that --save-policy wrote"""
    episodes: int = 100
    """finished episodes of each agent, one environment each"""
    seed: int = 1_000_000
    """random seed of the environments and the action noise"""
    engine: str = "auto"
    """physics engine, may differ from the one used in training; auto: warp on a GPU if installed, else mujoco"""
    cuda: bool = True
    """use the GPU if there is one"""
    video: Optional[str] = None
    """record one episode of each of --agents, side by side, to this .mp4"""
    export: Optional[str] = None
    """write one agent's policy to this .onnx instead of playing it (pip install -r requirements-onnx.txt)"""
    save_policy: Optional[str] = None
    """write the agents without optimizer and environments to policy.pt in this folder instead of playing them"""
    agents: Tuple[int, ...] = ()
    """agents to record, or the one to export; none: the leader"""


def load(path):
    """The checkpoint of a run's or policy's folder, or of a file, and the module of the script that wrote it."""
    policy = os.path.join(path, "policy.pt")
    saved = harness.load_checkpoint(policy if os.path.isfile(policy) else path)
    uncaught.env_id = saved["args"]["env_id"]
    folders = (os.getcwd(), os.path.dirname(os.path.abspath(__file__)))
    paths = [os.path.join(folder, f"{saved['script']}.py") for folder in folders]
    found = next((p for p in paths if os.path.isfile(p) and not harness.comes_with_run(p, path)), None)
    if found is None:
        harness.refuse("run", path, f"was written by {saved['script']}.py, which must be in the working directory")
    spec = importlib.util.spec_from_file_location(saved["script"], found)
    script = importlib.util.module_from_spec(spec)
    sys.modules[saved["script"]] = script
    spec.loader.exec_module(script)
    try:
        harness.check_saved_flags(script.Args, saved["args"])
        agents_of(saved)
    except Exception as error:  # damage shows as one of a dozen kinds
        harness.refuse("run", path, f"cannot be read: {error!r}")
    return saved, script


def make_env(saved, num_envs, args, device):
    """Fresh environments of the checkpoint's task with its curriculum."""
    env_id = saved["args"]["env_id"]
    try:
        envs.check_env_id(env_id)
    except ValueError as error:
        if uncaught.raised_in(error, env_id):
            raise
        harness.refuse("run", env_id, error)
    env = harness.make_checked("--engine", args.engine, env_id, num_envs, device, args.seed, args.engine)
    try:
        for name in getattr(env, "curriculum", ()):
            getattr(env, name).copy_(saved["state"]["env"][name])
    except (KeyError, TypeError, RuntimeError) as error:
        harness.refuse("run", env_id, f"state.env does not fit: {error!r}")
    return env


def make_agent(saved, script, env, device):
    try:
        agent = script.Agent(env.num_obs, env.num_actions, SimpleNamespace(**saved["args"])).to(device)
        check_tensors(saved["state"]["agent"], agent.state_dict())
        agent.load_state_dict(saved["state"]["agent"])
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, RuntimeError) as error:
        harness.refuse("run", saved["script"], f"state.agent does not fit: {' '.join(str(error).split())}")
    return agent


class Player:
    """Acts with one agent (id) in each environment, remembering the LSTM's state."""

    def __init__(self, agent, ids, deterministic):
        """ids (N,): the agent of each environment."""
        self.agent, self.deterministic, num_envs = agent, deterministic, len(ids)
        has_ids = "agent_ids" in inspect.signature(agent.encode).parameters  # ppo.py has one agent
        self.ids = (ids[None],) if has_ids else ()
        self.dones = torch.ones(1, num_envs, dtype=torch.bool, device=ids.device)
        self.lstm_state = torch.zeros(1, num_envs, agent.state_size, device=ids.device)

    @torch.no_grad()
    def act(self, obs):
        """obs (N, D) -> action (N, U)."""
        action, _, policy, _, self.lstm_state = self.agent.get_action_and_value(
            obs[None], *self.ids, self.dones, self.lstm_state
        )
        return policy.mean[0] if self.deterministic else action[0]


def play(env, player):
    """The first whole episode of every environment: return, length and objective, each (N,)."""
    obs = env.reset()
    results = torch.full((3, env.num_envs), math.nan, device=obs.device)
    missing = torch.ones(env.num_envs, dtype=torch.bool, device=obs.device)
    while missing.any():
        obs, _, terminated, truncated, info = env.step(player.act(obs))
        player.dones, episode = (terminated | truncated)[None], info["episode"]
        ends = episode["done"] & missing
        results = torch.where(ends, torch.stack([episode[key] for key in ("return", "length", "objective")]), results)
        missing &= ~ends
    return results


def score(saved, script, k, deterministic, args, device):
    """`play` with agent k in new environments, which are gone afterwards: some take gigabytes."""
    env = make_env(saved, args.episodes, args, device)
    ids = torch.full((args.episodes,), k, device=device)
    player = Player(make_agent(saved, script, env, device), ids, deterministic)
    torch.manual_seed(args.seed)
    return play(env, player)


def agents_of(saved):
    """Number of agents, and the one whose latest episodes in training had the highest objective."""
    num_agents = saved["args"].get("num_agents", 1)
    return num_agents, saved["state"]["episodes"]["means"][2].nan_to_num(-math.inf).argmax().item()


def record_video(path, env, agent, ids):
    """One episode of each agent of ids (K,), in a grid, to an mp4 file of at most 10 s and 30 frames per second."""
    import av
    import numpy as np

    player, obs, frames = Player(agent, ids, deterministic=True), env.reset(), []
    playing = torch.ones(len(ids), dtype=torch.bool, device=ids.device)
    pictures, columns = [None] * len(ids), math.ceil(math.sqrt(len(ids)))
    rate = getattr(env, "frame_rate", VectorEnv.frame_rate)  # control steps per second
    period = math.ceil(rate / 30)  # control steps per frame
    for step in range(10 * rate):
        if step % period == 0:  # of a finished episode the last picture stays
            pictures = [env.render(i) if playing[i] else picture for i, picture in enumerate(pictures)]
            blank = [np.zeros_like(pictures[0])] * (-len(ids) % columns)
            rows = [(pictures + blank)[i : i + columns] for i in range(0, len(ids), columns)]
            frames.append(np.concatenate([np.concatenate(row, 1) for row in rows]))
        obs, _, terminated, truncated, _ = env.step(player.act(obs))
        player.dones = (terminated | truncated)[None]
        playing &= ~player.dones[0]
        if not playing.any():
            break
    try:
        with av.open(path, "w") as file:
            stream = file.add_stream("libx264", rate=Fraction(rate, period))
            stream.height, stream.width = (size - size % 2 for size in frames[0].shape[:2])
            stream.pix_fmt = "yuv420p"
            for frame in frames:
                picture = np.ascontiguousarray(frame[: stream.height, : stream.width])
                file.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
            file.mux(stream.encode())
    except OSError as error:
        harness.refuse("--video", path, error)
    print(f"{path}: {len(frames)} frames of agent {', '.join(map(str, ids.tolist()))}")


class MeanPolicy(torch.nn.Module):
    """The mean action of one agent (id), clamped to [-1, 1]; normaliser and latent are part of it."""

    def __init__(self, agent, k):
        super().__init__()
        self.agent, self.k = agent, k

    def forward(self, obs, lstm_state):
        """obs (B, D), lstm_state (B, 2H) after the previous step -> action (B, U), lstm_state (B, 2H)."""
        player = Player(self.agent, torch.full((len(obs),), self.k), deterministic=True)
        dones, action = torch.zeros(1, len(obs), dtype=torch.bool), torch.zeros(())
        outputs = self.agent.get_action_and_value(obs[None], *player.ids, dones, lstm_state[None], action)
        return outputs[2].mean[0].clamp(-1.0, 1.0), outputs[4][0]


class MeanPolicyWithoutMemory(MeanPolicy):
    def forward(self, obs):
        return super().forward(obs, torch.zeros(len(obs), 0))[0]


def export(path, saved, agent, k, env):
    """Write agent k's policy as ONNX: obs -> action, with an LSTM obs, lstm_state -> action, next_lstm_state.

    The file's metadata says task, agent, steps trained, observation layout and control period in seconds.
    """
    try:
        import onnx
        import onnxscript  # noqa: F401, torch's exporter needs it
    except ImportError as error:
        harness.refuse("--export", path, f"{error}: pip install -r requirements-onnx.txt")
    names, outputs = ["obs", "lstm_state"], ["action", "next_lstm_state"]
    inputs = [torch.zeros(2, env.num_obs), torch.zeros(2, agent.state_size)]
    policy = MeanPolicy(agent.cpu(), k)
    if not agent.state_size:
        names, outputs, inputs, policy = names[:1], outputs[:1], inputs[:1], MeanPolicyWithoutMemory(agent.cpu(), k)
    batch = {name: {0: "batch"} for name in names}
    program = torch.onnx.export(
        policy.eval(), tuple(inputs), dynamo=True, verbose=False, input_names=names, output_names=outputs,
        dynamic_shapes=batch,
    )  # fmt: skip
    model, adapted = program.model_proto, isinstance(env, Adapter)
    timed = "frame_rate" in vars(env) if adapted else hasattr(env, "frame_rate")
    metadata = {
        "task": saved["args"]["env_id"], "script": saved["script"], "agent": k, "steps": saved["global_step"],
        "observation": f"of {saved['args']['env_id']}" if adapted else inspect.getdoc(type(env)) or "",
        "control_period": 1 / env.frame_rate if timed else "unknown",
    }  # fmt: skip
    for key, value in metadata.items():
        model.metadata_props.add(key=key, value=str(value))
    onnx.checker.check_model(model)
    try:
        onnx.save(model, path)
    except OSError as error:
        harness.refuse("--export", path, error)
    print(f"{path}: {', '.join(names)} -> {', '.join(outputs)}, agent {k}, {os.path.getsize(path):,} bytes")


def save_policy(folder, saved, env):
    """Write what evaluations need of a checkpoint to folder/policy.pt: agents, flags, the curriculum of env's task."""
    state = {"agent": saved["state"]["agent"], "episodes": {"means": saved["state"]["episodes"]["means"]}}
    state["env"] = {name: saved["state"]["env"][name] for name in getattr(env, "curriculum", ())}
    flags, path = {**saved["args"], "resume": None}, os.path.join(folder, "policy.pt")
    data = checkpoints.encode({**saved, "args": flags, "state": state, "random": {}, "other_processes": []})
    try:
        os.makedirs(folder, exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)
    except OSError as error:
        harness.refuse("--save-policy", folder, error)
    print(f"{path}: {saved['args']['env_id']}, {saved['global_step']:,} steps, {len(data):,} bytes")


def could_be_file(path, suffix):
    """Whether a file of this name can be in a folder that exists."""
    return path.endswith(suffix) and os.path.isdir(os.path.dirname(path) or ".") and not os.path.isdir(path)


def main(argv=None):
    args = tyro.cli(Args, args=argv)
    if not 1 <= args.episodes <= 100_000:
        harness.refuse("--episodes", args.episodes, "must be between 1 and 100,000; each has an environment of its own")
    if not 0 <= args.seed < 2**32:
        harness.refuse("--seed", args.seed, "must be at least 0 and below 2**32")
    if args.video and not could_be_file(args.video, ".mp4"):
        harness.refuse("--video", args.video, "must be a path.mp4 in a folder that exists")
    if args.video and args.engine == "isaacgym":
        harness.refuse("--video", args.video, "Isaac Gym draws nothing here; another --engine records the same policy")
    if args.export and not could_be_file(args.export, ".onnx"):
        harness.refuse("--export", args.export, "must be a path.onnx in a folder that exists")
    if args.export and len(args.agents) > 1:
        harness.refuse("--agents", args.agents, "must be one agent with --export")
    if args.save_policy is not None:
        names = ("checkpoint.pt", "checkpoint_previous.pt")
        taken = any(os.path.exists(os.path.join(args.save_policy, name)) for name in names)
        if taken or not args.save_policy:  # an evaluation of that run would play the policy
            harness.refuse("--save-policy", repr(args.save_policy), "must be a folder, and not that of a run")
    saved, script = load(args.run)
    num_agents, best = agents_of(saved)
    for k in args.agents:
        if not 0 <= k < num_agents:
            harness.refuse("--agents", k, f"must be between 0 and {num_agents - 1}")
    device = "cuda" if args.cuda and torch.cuda.is_available() else "cpu"
    if args.export:
        env = make_env(saved, 1, args, "cpu")
        export(args.export, saved, make_agent(saved, script, env, "cpu"), (args.agents or (0,))[0], env)
        return
    if args.save_policy:
        save_policy(args.save_policy, saved, make_env(saved, 1, args, "cpu"))
        return
    print(f"{saved['args']['env_id']}, {saved['script']}.py, {saved['global_step']:,} steps, {args.episodes} episodes")
    print("| agent | actions | return | objective | episode length |\n|-|-|-|-|-|")
    players = {"leader": 0, "best": best} if best else {"leader" if num_agents > 1 else "agent": 0}
    for name, k in players.items():
        for deterministic in (False, True):
            returns, lengths, objectives = score(saved, script, k, deterministic, args, device).double()
            error = 1 / math.sqrt(args.episodes)
            numbers = [f"{x.mean():.2f} ± {x.std(unbiased=False) * error:.2f}" for x in (returns, objectives)]
            actions = "mean" if deterministic else "sampled"
            print(f"| {name}, {k} | {actions} | {' | '.join(numbers)} | {lengths.mean():.0f} |", flush=True)
    if args.video:
        ids = torch.tensor(args.agents or (0,), device=device)
        env = make_env(saved, len(ids), args, device)
        if not hasattr(env, "render"):
            harness.refuse("--video", args.video, f"{type(env).__name__} has no method render")
        try:
            record_video(args.video, env, make_agent(saved, script, env, device), ids)
        except (NotImplementedError, RuntimeError) as error:
            harness.refuse("--video", args.video, (str(error) or repr(error)).splitlines()[0])


if __name__ == "__main__":
    main()
