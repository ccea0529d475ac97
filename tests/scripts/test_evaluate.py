"""evaluate.py plays what a run has learned: the same numbers as in memory, forks too, and films."""

import itertools
import pathlib
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from typing import List

import av
import numpy as np
import onnx
import pytest
import torch

import cpo
import envs
import epo
import evaluate
import harness
import ppo
import sapg
from envs.base import VectorEnv
from tests.conftest import the_run

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPTS = {ppo: "", sapg: "--num-agents 4", cpo: "--num-agents 4", epo: "--num-agents 4"}
FLAGS = "--no-cuda --num-envs 32 --num-steps 32 --num-minibatches 2 --hidden-sizes 16 --lstm-size 8"


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def train(script, flags="--env-id Cartpole --total-timesteps 4096"):
    script.main(f"{FLAGS} {SCRIPTS[script]} {flags}".split())
    return str(max(pathlib.Path("runs").iterdir(), key=lambda path: path.stat().st_mtime))


@pytest.mark.parametrize("script, network, new_process", [
    (ppo, "", False), (ppo, "--lstm", False), (ppo, "--separate-critic", False), (sapg, "--separate-critic", False),
    (cpo, "", False), (epo, "", False), (epo, "--lstm", True),
])  # fmt: skip
def test_a_checkpoint_scores_as_the_agent_in_memory(script, network, new_process, monkeypatch, capsys):
    agents, make = [], script.Agent
    monkeypatch.setattr(script, "Agent", lambda *args: agents.append(make(*args)) or agents[-1])
    run = train(script, f"--env-id Cartpole --total-timesteps 4096 {network}")
    before = {key: value.clone() for key, value in agents[0].state_dict().items()}
    rows, (num_agents, best) = [], evaluate.agents_of(evaluate.load(run)[0])
    assert num_agents == (1 if script is ppo else 4)
    for k, deterministic in itertools.product((0, best) if best else (0,), (False, True)):
        torch.manual_seed(7)
        player = evaluate.Player(agents[0], torch.full((6,), k), deterministic)
        returns, lengths, _ = evaluate.play(envs.make("Cartpole", 6, "cpu", 7), player).double()
        error = returns.std(unbiased=False) / 6**0.5
        score = f"{returns.mean():.2f} ± {error:.2f}"  # the pole's objective is the return
        rows.append(f"{score} | {score} | {lengths.mean():.0f} |")
    assert all(torch.equal(before[key], value) for key, value in agents[0].state_dict().items())  # nothing moved
    flags = [run, "--episodes", "6", "--seed", "7", "--no-cuda"]
    capsys.readouterr()
    if new_process:
        result = subprocess.run([sys.executable, str(ROOT / "evaluate.py"), *flags], capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        out = result.stdout
    else:
        evaluate.main(flags)
        out = capsys.readouterr().out
    first, _, _, *table = out.splitlines()
    assert first == f"Cartpole, {script.__name__}.py, 4,096 steps, 6 episodes"
    assert [row.split(" | ", 2)[2] for row in table] == rows
    names = ("leader", "best") if best else ("agent" if script is ppo else "leader",)
    assert [row.split(", ")[0] for row in table] == [f"| {name}" for name in names for _ in range(2)]


def test_a_copy_of_a_script_trains_resumes_and_plays(capsys):
    """cp epo.py mine.py, another activation, a flag more and some less, python mine.py, --resume, evaluate.py."""
    text = (ROOT / "epo.py").read_text().replace("nn.ELU()", "nn.Tanh()")
    text = text.replace("    # EPO\n    num_elites", "    std_range: Tuple[float, float] = (0.1, 2.0)\n    num_elites")
    for name, value in dict(reward_scale="1.0", separate_critic="False", lstm="False", critic_n_step="0").items():
        text = re.sub(rf"    {name}: .*\n    \"\"\".*\"\"\"\n", "", text)
        text = re.sub(rf"\bargs\.{name}\b", value, text)
    pathlib.Path("mine.py").write_text(text)
    command = [sys.executable, "mine.py", "--no-cuda"]
    flags = [*FLAGS.split(), *SCRIPTS[epo].split(), "--env-id", "Cartpole", "--total-timesteps", "2048"]
    options = dict(check=True, env={"PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL)
    subprocess.run([*command, *flags], **options)
    run = the_run()
    assert run.name.startswith("Cartpole__mine__1__")
    subprocess.run([*command, "--resume", str(run), "--total-timesteps", "4096"], **options)
    saved, script = evaluate.load(str(run))
    assert (saved["script"], saved["global_step"]) == ("mine", 4096) and list(pathlib.Path("runs").iterdir()) == [run]
    assert script.__file__ == str(pathlib.Path("mine.py").resolve()) and saved["args"]["std_range"] == (0.1, 2.0)
    assert any(isinstance(layer, torch.nn.Tanh) for layer in script.Agent(4, 1, script.Args()).mlp)
    evaluate.main([str(run), "--episodes", "2", "--no-cuda"])
    assert "| leader, 0 | mean |" in capsys.readouterr().out


def test_a_copys_flag_that_cannot_be_resumed_is_found_at_the_start():
    @dataclass
    class Args(ppo.Args):
        sizes: List[int] = field(default_factory=lambda: [1])

    with pytest.raises(ValueError, match=r"^args.sizes is \[1\], which is not what this flag of the script can be$"):
        harness.parse_args(Args, {}, argv=["--no-cuda", "--env-id", "Cartpole"])


def test_a_damaged_checkpoint_gives_way_to_the_one_before():
    run = pathlib.Path(train(ppo, "--env-id Cartpole --total-timesteps 4096 --checkpoint-interval 3"))
    (run / "checkpoint.pt").write_text("broken")
    assert evaluate.load(str(run))[0]["iteration"] == 3


def test_the_best_agent_is_the_one_with_the_highest_objective():
    means = torch.tensor([[9.0, 1.0, 1.0, 1.0], [9.0, 1.0, 1.0, 1.0], [1.0, -3.0, 7.0, float("nan")]])
    assert evaluate.agents_of({"args": {"num_agents": 4}, "state": {"episodes": {"means": means}}}) == (4, 2)
    assert evaluate.agents_of({"args": {}, "state": {"episodes": {"means": means[:, 3:]}}}) == (1, 0)


class Counting(VectorEnv):
    """The return says how many steps an episode had."""

    num_obs, num_actions, max_episode_steps = 1, 1, 5
    curriculum = ("level",)

    def __init__(self, num_envs, device, seed):
        super().__init__(num_envs, device, seed)
        self.level = torch.tensor(1.0)

    def reset_where(self, mask):
        pass

    def advance(self, action):
        nothing = torch.zeros(self.num_envs, dtype=torch.bool)
        return torch.ones(self.num_envs), nothing, nothing

    def observe(self):
        return torch.zeros(self.num_envs, 1)


@torch.no_grad()
def test_only_whole_episodes_count_and_all_begin_without_memory():
    agent = ppo.Agent(1, 1, ppo.Args(hidden_sizes=(4,), lstm=True, lstm_size=4))
    env = Counting(3, "cpu", 1)
    env.training = True
    player = evaluate.Player(agent, torch.zeros(3, dtype=torch.long), False)
    assert evaluate.play(env, player).tolist() == [[5.0] * 3] * 3
    states = [torch.zeros(1, 1, 8)]  # after each step of an episode; the last step is followed by a reset
    for step in range(5):
        dones = torch.full((1, 1), step == 0)
        states.append(agent.get_action_and_value(torch.zeros(1, 1, 1), dones, states[-1])[4])
    torch.testing.assert_close(player.lstm_state[0], torch.cat(states[1:])[(env.episode_step - 1) % 5, 0])


def test_an_evaluation_begins_whole_episodes_with_the_curriculum_of_training():
    saved = {"args": {"env_id": f"{__name__}:Counting"}, "state": {"env": {"level": torch.tensor(3.5)}}}
    args = evaluate.Args(run="", engine="auto")
    env = evaluate.make_env(saved, 2, args, "cpu")
    env.reset()
    assert env.level == 3.5 and env.episode_step.tolist() == [0, 0] and not env.shortened.any()


@pytest.mark.parametrize("env_id, agents, shape", [("Cartpole", (), (1, 1)), ("Moat", (0, 1, 3), (2, 2))])
def test_videos(env_id, agents, shape, monkeypatch, capsys):
    monkeypatch.setattr(envs.find_class(env_id), "max_episode_steps", 20)  # without a GPU a picture takes 0.3 s
    run = train(sapg, f"--env-id {env_id} --total-timesteps 4096")
    flags, players, make = ["--agents", *map(str, agents)] if agents else [], [], evaluate.Player
    monkeypatch.setattr(evaluate, "Player", lambda *args, **kw: players.append(make(*args, **kw)) or players[-1])
    evaluate.main([run, "--episodes", "2", "--no-cuda", "--video", "film.mp4", *flags])
    assert f"frames of agent {', '.join(map(str, agents or (0,)))}" in capsys.readouterr().out
    assert players[-1].ids[0].tolist() == [list(agents or (0,))] and players[-1].deterministic
    with av.open("film.mp4") as film:
        frames = [frame.to_ndarray(format="rgb24") for frame in film.decode(video=0)]
    assert 5 < len(frames) <= 20 and frames[0].shape == (480 * shape[0], 640 * shape[1], 3)
    assert (frames[0] != frames[-1]).any()


class Wrapped:
    """A custom class that keeps the contract without being a VectorEnv, and cannot be drawn."""

    num_obs, num_actions, device = 1, 1, "cpu"

    def __init__(self, num_envs, device, seed):
        self.num_envs, self.env = num_envs, Counting(num_envs, device, seed)

    def reset(self):
        return self.env.reset()

    def step(self, action):
        return self.env.step(action)

    def state_dict(self):
        return self.env.state_dict()

    def load_state_dict(self, state):
        self.env.load_state_dict(state)


class Drawn(Wrapped):
    def render(self, index):
        return np.full((32, 32, 3), 7, np.uint8)


def test_film_and_export_of_a_class_that_is_no_vector_env(capsys):
    run = train(ppo, f"--env-id {__name__}:Drawn --total-timesteps 1024")
    evaluate.main(f"{run} --episodes 2 --no-cuda --video film.mp4".split())
    assert "frames of agent 0" in capsys.readouterr().out
    evaluate.main(f"{run} --no-cuda --export policy.onnx".split())
    assert {"unknown"} == {x.value for x in onnx.load("policy.onnx").metadata_props if x.key == "control_period"}
    run = train(ppo, f"--env-id {__name__}:Wrapped --total-timesteps 1024")
    with pytest.raises(SystemExit) as end:
        evaluate.main(f"{run} --episodes 2 --no-cuda --video film.mp4".split())
    assert end.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1] == "--video film.mp4: Wrapped has no method render"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a run of sapg.py."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("trained"))
        return pathlib.Path(train(sapg, "--env-id Cartpole --total-timesteps 1024")).resolve()


@pytest.mark.parametrize("flags, line", [
    ("nowhere", "run nowhere: no such file or folder"),
    ("empty", "run empty: must be a folder with a checkpoint.pt"),
    ("pickled.pt", "run pickled.pt: pickled.pt cannot be read: "),
    ("truncated.pt", "run truncated.pt: truncated.pt cannot be read: "),
    ("text.pt", "run text.pt: text.pt cannot be read: "),
    ("foreign.pt", "run foreign.pt: foreign.pt cannot be read: must be a checkpoint of a training script"),
    ("orphan.pt", "run orphan.pt: was written by lost.py, which must be in the working directory"),
    ("run --episodes 0", "--episodes 0: must be between 1 and 100,000"),
    ("run --episodes 1000000000", "--episodes 1000000000: must be between 1 and 100,000"),
    ("run --seed -1", "--seed -1: must be at least 0"),
    ("run --agents 0 4", "--agents 4: must be between 0 and 3"),
    ("run --agents -1", "--agents -1: must be between 0 and 3"),
    ("run --video film.gif", "--video film.gif: must be a path.mp4"),
    ("run --video nowhere/film.mp4", "--video nowhere/film.mp4: must be a path.mp4 in a folder that exists"),
    ("run --video folder.mp4", "--video folder.mp4: must be a path.mp4"),
    ("run --engine physx", "--engine physx: not available; valid here: auto"),
    ("run --engine isaacgym", "--engine isaacgym: needs Python 3.8, this is 3."),
    ("run --engine isaacgym --video film.mp4", "--video film.mp4: Isaac Gym draws nothing here"),
])  # fmt: skip
def test_bad_input(flags, line, trained, capsys):
    shutil.copytree(trained, "run")
    pathlib.Path("empty").mkdir()
    pathlib.Path("folder.mp4").mkdir()
    data = pathlib.Path("run/checkpoint.pt").read_bytes()
    pathlib.Path("truncated.pt").write_bytes(data[:1000])
    pathlib.Path("text.pt").write_text("broken")
    saved = torch.load("run/checkpoint.pt", weights_only=True)
    torch.save({**saved, "args": VectorEnv}, "pickled.pt")
    torch.save({**saved, "script": "lost"}, "orphan.pt")
    torch.save({"weight": torch.zeros(2)}, "foreign.pt")
    before = sorted(pathlib.Path().rglob("*"))
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        evaluate.main(f"{flags} --no-cuda".split())
    captured = capsys.readouterr()
    assert end.value.code == 2 and len(captured.err.splitlines()) == 1 and captured.err.startswith(line), captured.err
    assert sorted(pathlib.Path().rglob("*")) == before


def test_output_to_a_full_disk(trained):
    with open("/dev/full", "w") as full:
        command = [sys.executable, str(ROOT / "evaluate.py"), str(trained), "--episodes", "1", "--no-cuda"]
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (result.returncode, result.stderr) == (1, "no output: [Errno 28] No space left on device\n")
