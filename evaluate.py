"""Evaluate or film what a run has learned: `python evaluate.py runs/RUN`, and with `--video out.mp4`.

Plays a checkpoint, or a policy of policies/, with the network of the script that trained it; see docs/running.md.
"""

import dataclasses
import importlib.util
import inspect
import math
import os
import sys
from fractions import Fraction
from types import SimpleNamespace
from typing import Literal, Optional, Tuple

import envs  # before torch: Isaac Gym must be imported first
import harness
from envs.adapters.adapter import Adapter
from envs.terminal import needs_output, plus_minus

import numpy as np
import torch
import tyro
from PIL import Image

FILM_SECONDS = 10  # at most
FILM_RATE = 20  # frames per second, at most
TRIALS = 16  # episodes of every agent in the search for the best
TRIAL_STEPS = 2_000  # steps after which these count as they stand, since the good ones may be long
FINALISTS = 4  # agents that then play FINAL_TRIALS episodes each
FINAL_TRIALS = 100
MAX_STEPS = 100_000  # steps after which an evaluation gives up episodes, unless training's were a tenth as long


@dataclasses.dataclass
class Args:
    # Policy
    run: tyro.conf.Positional[str]
    """a run's folder, a checkpoint file, or a folder that export.py wrote"""
    # Scores and films
    episodes: Optional[int] = None
    """finished episodes of each agent, one environment each; unset: 100, with --video none"""
    video: Optional[str] = None
    """film one episode of each of --agents, side by side, to this .mp4, .gif or .webp"""
    agents: Tuple[int, ...] = ()
    """agents to score or film; none: the leader, of PBT the best"""
    best: bool = False
    """add the best agent: all play 16 episodes, then the best four 100"""
    tolerance: Optional[float] = None
    """tolerance of AllegroKuka in metres, 1.5 times of which is near enough; unset: what training has reached"""
    # Simulation
    seed: int = 1_000_000
    """random seed of the environments and the action noise"""
    engine: Literal["auto", "mujoco", "warp", "isaacgym"] = "auto"
    """physics engine, may differ from the one used in training; auto: warp on a GPU if installed, else mujoco"""
    cuda: bool = True
    """use the GPU if there is one"""


def load(path):
    """The checkpoint of a run's or policy's folder, or of a file, and the module of the script that wrote it."""
    saved = harness.load_checkpoint(harness.policy_file(path), "run")
    name = os.path.basename(saved["script"])  # a file in these folders, whatever the checkpoint says
    saved["script"] = name
    here = os.path.dirname(os.path.abspath(__file__))
    paths = [os.path.join(folder, f"{name}.py") for folder in (os.getcwd(), here)]
    file = next(filter(os.path.isfile, paths), None)
    if not file:
        harness.refuse("run", path, f"was written by {name}.py, which must be in the working directory")
    spec = importlib.util.spec_from_file_location(name, file)
    script = importlib.util.module_from_spec(spec)
    sys.modules[name] = script  # dataclasses look it up there
    spec.loader.exec_module(script)
    harness.say_what_is_ignored(script.Args, saved)
    return saved, script


def seed_noise(seed):
    """Seed the noise of sampled actions. With the task's own seed it would repeat what the task draws."""
    torch.manual_seed(seed + 1)


def make_env(saved, num_envs, seed, engine, device):
    """Fresh environments of the checkpoint's task with its curriculum."""
    env_id = saved["args"]["env_id"]
    try:
        envs.find_engine(engine, env_id, device)
    except ValueError as error:
        harness.refuse("task", f"{env_id} on engine {engine}", error)
    try:
        env = envs.make(env_id, num_envs, device, seed, engine)
    except envs.UnsupportedError as error:
        harness.refuse("task", f"{env_id} on engine {engine}", error)
    copy_curriculum(env, saved)
    return env


def copy_curriculum(env, saved):
    """Put the curriculum of the environments where training left it."""
    for name in getattr(env, "curriculum", ()):
        getattr(env, name).copy_(saved["rollout"][0]["env"][name])


def set_tolerance(saved, tolerance):
    """Replace the tolerance that training has reached by another one, in metres."""
    curriculum = saved["rollout"][0]["env"]
    if "tolerance" not in curriculum:
        harness.refuse("--tolerance", tolerance, f"{saved['args']['env_id']} has no tolerance that training changes")
    if not tolerance > 0.0:
        harness.refuse("--tolerance", tolerance, "must be above 0")
    curriculum["tolerance"].fill_(tolerance)


def can_render(env):
    """Whether the task's class has a method render of its own."""
    render = getattr(env, "render", None)
    return getattr(render, "__func__", render) not in (None, envs.VectorEnv.render)


def check_pictures(saved, args, device):
    """Refuse a film of a task that cannot be drawn here."""
    env = make_env(saved, 1, args.seed, args.engine, device)
    if not can_render(env):
        harness.refuse("--video", args.video, f"{saved['args']['env_id']} has no method render, see envs/base.py")
    env.reset()
    try:
        env.render(0)
    except RuntimeError as error:  # for example that OpenGL is missing
        harness.refuse("--video", args.video, error)


def make_agent(saved, script, env, device):
    """The network; flags that the script has got since the checkpoint have their defaults."""
    defaults = {f.name: f.default for f in dataclasses.fields(script.Args)}
    agent = script.Agent(env.num_obs, env.num_actions, SimpleNamespace(**{**defaults, **saved["args"]})).to(device)
    agent.load_state_dict(saved["learner"]["agent"])
    return agent


class Player:
    """Acts with agent ids[i] in environment i, remembering the LSTM's state. ids (N,).

    Attributes: dones (1, N), whether the next observation begins an episode; value (1, N), the last
    estimate, normalised.
    """

    def __init__(self, agent, ids, deterministic):
        num_envs = len(ids)
        self.agent = agent
        self.deterministic = deterministic
        takes_ids = "agent_ids" in inspect.signature(agent.get_action_and_value).parameters  # of a population
        self.ids = (ids[None],) if takes_ids else ()
        self.dones = torch.ones(1, num_envs, dtype=torch.bool, device=ids.device)
        self.lstm_state = torch.zeros(1, num_envs, agent.state_size, device=ids.device)
        self.value = torch.zeros(1, num_envs, device=ids.device)

    @torch.no_grad()
    def act(self, obs):
        """obs (N, D) -> action (N, U)."""
        action, _, policy, self.value, self.lstm_state = self.agent.get_action_and_value(
            obs[None], *self.ids, self.dones, self.lstm_state
        )
        return policy.mean[0] if self.deterministic else action[0]


def step_limit(saved):
    """How many steps an evaluation waits for its episodes: ten times training's longest, but at least MAX_STEPS.

    A policy may be so good that it never loses, and an environment need not have a time limit.
    """
    lengths = saved["rollout"][0]["episodes"]["means"][harness.LENGTH]  # of each agent's latest; NaN: none has finished
    return max(MAX_STEPS, int(10.0 * lengths.nan_to_num(0.0).max().item()))


def play(env, player, max_steps=MAX_STEPS, as_it_stands=False):
    """The first whole episode of every environment: return, length and objective, each (N,).

    NaN where an episode has not ended after max_steps; a line says after a tenth of them that some still run. With
    as_it_stands, such an episode has the objective that it has by then, and no line is printed.
    """
    obs = env.reset()
    results = torch.full((3, env.num_envs), math.nan, device=obs.device)
    missing = torch.ones(env.num_envs, dtype=torch.bool, device=obs.device)
    for step in range(1, max_steps + 1):
        obs, _, terminated, truncated, info = env.step(player.act(obs))
        player.dones = (terminated | truncated)[None]
        episode = info["episode"]
        ends = episode["done"] & missing
        results = torch.where(ends, torch.stack([episode[key] for key in ("return", "length", "objective")]), results)
        missing &= ~ends
        if not missing.any():
            break
        if step == max_steps // 10 and not as_it_stands:
            running = f"{missing.sum()} of {env.num_envs} episodes still run"
            print(f"after {step:,} steps {running}; those that do after {max_steps:,} are left out", file=sys.stderr)
    if as_it_stands:
        objective = results[harness.OBJECTIVE]
        results[harness.OBJECTIVE] = torch.where(missing, env.objective(), objective)
    return results


def play_agents(saved, script, ids, actions, seed, engine, stop_after=None):
    """One whole episode of agent ids[i] in environment i: return, length and objective (3, N), NaN as of `play`.

    actions: "sampled" or "mean". stop_after: steps after which objectives are taken as they stand. Equal seeds and
    numbers of environments mean equal beginnings.
    """
    env = make_env(saved, len(ids), seed, engine, ids.device)
    player = Player(make_agent(saved, script, env, ids.device), ids, deterministic=actions == "mean")
    seed_noise(seed)
    # other classes, and those behind an adapter, need not know the objective of a running episode
    knows_objective = isinstance(env, envs.VectorEnv) and not isinstance(env, Adapter)
    if stop_after and knows_objective:
        return play(env, player, stop_after, as_it_stands=True).double()
    return play(env, player, step_limit(saved)).double()


def num_agents_of(saved):
    return saved["args"].get("num_agents", 1)


def find_best(saved, script, seed, engine, device):
    """The agent with the highest mean objective, as found by evaluations with mean actions.

    Its latest episodes in training would name the luckiest of many agents. So all play TRIALS episodes, or as much of
    them as fits into TRIAL_STEPS, each agent in environments of its own. The best few then play FINAL_TRIALS others,
    all in the same environments.
    """
    num_agents = num_agents_of(saved)
    if num_agents == 1:
        return 0
    ids = torch.arange(num_agents, device=device).repeat_interleave(TRIALS)
    print(f"the best agent: {TRIALS} episodes of each of {num_agents}", flush=True)
    _, _, objectives = play_agents(saved, script, ids, "mean", seed + 1, engine, TRIAL_STEPS)
    trials = objectives.view(num_agents, TRIALS)
    finalists = trials.nanmean(1).nan_to_num(-math.inf).topk(min(FINALISTS, num_agents)).indices.tolist()
    print(f"the best agent: {FINAL_TRIALS} episodes of each of {', '.join(map(str, finalists))}", flush=True)
    scores = []
    for k in finalists:
        ids = torch.full((FINAL_TRIALS,), k, device=device)
        _, _, objectives = play_agents(saved, script, ids, "mean", seed + 2, engine, step_limit(saved))
        scores.append(objectives.nanmean())
    best = finalists[torch.stack(scores).nan_to_num(-math.inf).argmax()]
    print("the best agent:", ", ".join(f"{k} scores {score:.2f}" for k, score in zip(finalists, scores)), flush=True)
    return best


def default_player(saved, script, seed, engine, device):
    """Name and number of the agent that stands for all: the leader or, where none leads, the best."""
    if hasattr(script.Agent, "leader"):
        return "leader", script.Agent.leader
    if num_agents_of(saved) == 1:
        return "agent", 0
    return "best", find_best(saved, script, seed, engine, device)


def print_scores(saved, script, players, num_episodes, args, device):
    """Play each of players, [(name, agent)], with sampled and with mean actions: a table."""
    print(f"{saved['args']['env_id']}, {saved['script']}.py, {saved['global_step']:,} steps, {num_episodes} episodes")
    print("| agent | actions | return | objective | episode length |\n|-|-|-|-|-|", flush=True)
    for name, k in players:
        for actions in ("sampled", "mean"):
            ids = torch.full((num_episodes,), k, device=device)
            results = play_agents(saved, script, ids, actions, args.seed, args.engine)
            finished = results[:, ~results[harness.LENGTH].isnan()]  # their lengths are known
            returns, lengths, objectives = finished
            score = f"{mean_and_error(returns)} | {mean_and_error(objectives)} | {lengths.mean():.0f}"
            print(f"| {name}, {k} | {actions} | {score} |", flush=True)
            unfinished = num_episodes - finished.shape[1]
            if unfinished:
                print(f"of {num_episodes} episodes {unfinished} did not end and are left out", file=sys.stderr)


def mean_and_error(values):
    """Mean and standard error of values (B,), as text; nan where there are too few."""
    error = values.std() / len(values) ** 0.5 if len(values) > 1 else math.nan
    return f"{values.mean():.2f} {plus_minus()} {error:.2f}"


def record_video(env, player):
    """One episode of every environment, at most FILM_SECONDS. Returns frames in a grid, and how many make a second."""
    obs = env.reset()
    frames = []
    num_envs = env.num_envs
    playing = [True] * num_envs
    pictures = [None] * num_envs
    columns = math.ceil(math.sqrt(num_envs))
    rate = getattr(env, "frame_rate", envs.VectorEnv.frame_rate)  # control steps per second
    period = math.ceil(rate / FILM_RATE)  # control steps per frame
    for step in range(max(1, int(FILM_SECONDS * rate))):
        if step % period == 0:  # of a finished episode the last picture stays
            pictures = [env.render(i) if playing[i] else picture for i, picture in enumerate(pictures)]
            blank = [np.zeros_like(pictures[0])] * (-num_envs % columns)
            rows = [(pictures + blank)[i : i + columns] for i in range(0, num_envs, columns)]
            frames.append(np.concatenate([np.concatenate(row, 1) for row in rows]))
        obs, _, terminated, truncated, _ = env.step(player.act(obs))
        player.dones = (terminated | truncated)[None]
        playing = [still and not done for still, done in zip(playing, player.dones[0].tolist())]
        if not any(playing):
            break
    return frames, Fraction(rate).limit_denominator(1000) / period


def write_video(path, frames, rate):
    """Write frames (H, W, 3) uint8 as H.264, or as an animated GIF or WebP."""
    if not path.endswith(".mp4"):
        first, *others = map(Image.fromarray, frames)
        first.save(path, save_all=True, append_images=others, duration=float(1000 / rate), loop=0)
        return
    import av

    with av.open(path, "w") as file:
        stream = file.add_stream("libx264", rate=rate)
        stream.height, stream.width = (size - size % 2 for size in frames[0].shape[:2])
        stream.pix_fmt = "yuv420p"
        for frame in frames:
            picture = np.ascontiguousarray(frame[: stream.height, : stream.width])
            file.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        file.mux(stream.encode())


@needs_output()
def main(argv=None):
    args = harness.parse_program_args(Args, "evaluate", __doc__, argv)
    folder = os.path.dirname(args.video or "") or "."
    if args.video and not (args.video.endswith((".mp4", ".gif", ".webp")) and os.path.isdir(folder)):
        harness.refuse("--video", args.video, "must be a .mp4, .gif or .webp file in an existing folder")
    if args.episodes is not None and args.episodes < 1:
        harness.refuse("--episodes", args.episodes, "must be at least 1")
    device = "cuda" if args.cuda and torch.cuda.is_available() else "cpu"
    saved, script = load(args.run)
    if args.tolerance is not None:
        set_tolerance(saved, args.tolerance)
    last = num_agents_of(saved) - 1
    for k in args.agents:
        if not 0 <= k <= last:
            harness.refuse("--agents", k, f"must be between 0 and {last}")
    if args.video:
        check_pictures(saved, args, device)
    players = [("agent", k) for k in args.agents]
    if not players:
        players.append(default_player(saved, script, args.seed, args.engine, device))
    if args.best and last > 0 and players[-1][0] != "best":
        players.append(("best", find_best(saved, script, args.seed, args.engine, device)))
    if args.episodes or not args.video:
        print_scores(saved, script, players, args.episodes or 100, args, device)
    if args.video:
        ids = torch.tensor([k for _, k in players], device=device)
        env = make_env(saved, len(ids), args.seed, args.engine, device)
        hint = " (the leader; --best finds the best agent)" if players[-1][0] == "leader" else ""
        print(f"{args.video}: agent {', '.join(map(str, ids.tolist()))} with mean actions{hint}", flush=True)
        player = Player(make_agent(saved, script, env, device), ids, deterministic=True)
        write_video(args.video, *record_video(env, player))


if __name__ == "__main__":
    main()
