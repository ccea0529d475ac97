"""evaluate.py plays what a run has learned: the same numbers as in memory, copies of scripts too, and films."""

import io
import itertools
import math
import pathlib
import re
import subprocess
import sys

import av
import numpy as np
import PIL.Image
import pytest
import torch

import cpo
import envs
import epo
import evaluate
import pbt
import ppo
import sapg
from envs.base import VectorEnv
from tests.conftest import DRIFT, the_run, written
from tests.scripts.conftest import ENVIRONMENT, ROOT, checkpoint, differences, refused

POPULATION = {ppo: "", **dict.fromkeys((sapg, cpo, epo, pbt), "--num-agents 4")}
FLAGS = "--no-cuda --num-envs 32 --num-steps 32 --num-minibatches 2 --hidden-sizes 16 --lstm-size 8"


@pytest.fixture
def evaluated(capsys):
    """evaluated(run, flags): what evaluate.py prints, standard output and standard error."""

    def call(run, flags):
        capsys.readouterr()
        evaluate.main([run, "--no-cuda", *flags.split()])
        return capsys.readouterr()

    return call


def train(script, flags="--env-id Cartpole --total-timesteps 4096"):
    script.main(f"{FLAGS} {POPULATION[script]} {flags}".split())
    return str(the_run())


@pytest.mark.parametrize(
    "script, network, new_process",
    [
        (ppo, "", False),
        (ppo, "--lstm", False),
        (ppo, "--separate-critic", False),
        (sapg, "--separate-critic", False),
        (cpo, "", False),
        (epo, "", False),
        (epo, "--lstm", True),
        (pbt, "--lstm", False),
    ],
)
def test_a_checkpoint_scores_as_the_agent_in_memory(script, network, new_process, monkeypatch, evaluated):
    make = script.Agent
    agents = []
    monkeypatch.setattr(script, "Agent", lambda *args: agents.append(make(*args)) or agents[-1])
    run = train(script, f"--env-id Cartpole --total-timesteps 4096 {network}")
    before = {key: value.clone() for key, value in agents[0].state_dict().items()}
    last = 0 if script is ppo else 3
    rows = []
    for k, deterministic in itertools.product((0, last), (False, True)):
        torch.manual_seed(8)  # beside the task, whose seed is 7
        player = evaluate.Player(agents[0], torch.full((6,), k), deterministic)
        returns, lengths, _ = evaluate.play(envs.make("Cartpole", 6, "cpu", 7), player).double()
        error = returns.std() / 6**0.5
        score = f"{returns.mean():.2f} ± {error:.2f}"  # the pole's objective is the return
        rows.append(f"{score} | {score} | {lengths.mean():.0f} |")
    assert differences(agents[0].state_dict(), before) == []  # nothing moved
    flags = "--episodes 6 --seed 7"
    flags += " --agents 0" if script is pbt else ""  # it has no leader
    if new_process:
        command = [sys.executable, str(ROOT / "evaluate.py"), run, "--no-cuda", *flags.split()]
        out = subprocess.run(command, capture_output=True, text=True, check=True, env=ENVIRONMENT).stdout
    else:
        out = evaluated(run, flags).out
    first, _, _, *table = out.splitlines()
    assert first == f"Cartpole, {script.__name__}.py, 4,096 steps, 6 episodes"
    assert [row.split(" | ", 2)[2] for row in table] == rows[:2]
    name = "agent" if script in (ppo, pbt) else "leader"
    assert [row.split(", ")[0] for row in table] == [f"| {name}"] * 2
    _, _, _, *table = evaluated(run, f"{flags} --agents {last}").out.splitlines()
    assert [row.split(" | ", 2)[2] for row in table] == rows[-2:]


def test_a_copy_of_a_script_trains_resumes_and_plays(evaluated):
    """cp epo.py "2nd run.v2.py", another activation, a flag more and some less, train, --resume, evaluate.py."""
    text = (ROOT / "epo.py").read_text().replace("nn.ELU()", "nn.Tanh()")
    text = text.replace("    # EPO\n    num_elites", "    std_range: Tuple[float, float] = (0.1, 2.0)\n    num_elites")
    for flag, value in dict(reward_scale="1.0", separate_critic="False", lstm="False", critic_n_step="0").items():
        text = re.sub(rf"    {flag}: .*\n    \"\"\".*\"\"\"\n", "", text)
        text = re.sub(rf"\bargs\.{flag}\b", value, text)
    name = "2nd run.v2"  # which no import statement could name
    pathlib.Path(f"{name}.py").write_text(text)
    command = [sys.executable, f"{name}.py", "--no-cuda"]
    flags = [*FLAGS.split(), *POPULATION[epo].split(), "--env-id", "Cartpole", "--total-timesteps", "2048"]
    options = dict(check=True, env=ENVIRONMENT, stdout=subprocess.DEVNULL)
    subprocess.run([*command, *flags], **options)
    run = the_run()
    assert run.name.startswith(f"Cartpole__{name}__1__")
    subprocess.run([*command, "--resume", str(run), "--total-timesteps", "4096"], **options)
    saved, script = evaluate.load(str(run))
    assert the_run() == run
    assert saved["script"] == name
    assert saved["global_step"] == 4096
    assert saved["args"]["std_range"] == (0.1, 2.0)
    assert script.__file__ == str(pathlib.Path(f"{name}.py").resolve())
    assert any(isinstance(layer, torch.nn.Tanh) for layer in script.Agent(4, 1, script.Args()).mlp)
    pathlib.Path(f"{name}.py").write_text(text.replace("std_range:", "std_bounds:"))
    out = evaluated(str(run), "--episodes 2").out
    assert "| leader, 0 | mean |" in out
    assert "--std-range" in out  # which is ignored


def test_the_best_agent_wins_the_second_round_not_the_first(monkeypatch):
    first = torch.tensor([0.0, 5.0, 4.0, 6.0, 3.0, float("nan")])
    second = torch.tensor([9.0, 5.0, 4.0, float("nan"), 2.0, 9.0])  # of agents 1 to 4 alone; 3 never ends an episode
    saved = {"args": {"num_agents": 6}, "rollout": [{"episodes": {"means": torch.ones(3, 6)}}]}
    seeds = []

    def play_agents(saved, script, ids, actions, seed, engine, stop_after):
        assert actions == "mean"
        seeds.append(seed)
        assert stop_after == (2_000 if len(seeds) == 1 else 100_000)
        assert len(ids) == (16 * 6 if len(seeds) == 1 else 100)
        return (first if len(seeds) == 1 else second)[ids].expand(3, -1)

    monkeypatch.setattr(evaluate, "play_agents", play_agents)
    assert evaluate.find_best(saved, epo, 7, "auto", "cpu") == 1
    assert seeds == [8, 9, 9, 9, 9]  # a table of seed 7 shows other episodes than those that chose


@pytest.mark.parametrize(
    "script, flags, players",
    [
        (ppo, "", ["agent"]),
        (ppo, "--best", ["agent"]),
        (epo, "", ["leader"]),
        (epo, "--best", ["leader", "best"]),
        (pbt, "", ["best"]),
        (pbt, "--agents 2 --best", ["agent", "best"]),
    ],
)
def test_who_is_scored(script, flags, players, monkeypatch, evaluated):
    monkeypatch.setattr(evaluate, "TRIALS", 1)
    monkeypatch.setattr(evaluate, "FINAL_TRIALS", 2)
    out = evaluated(train(script), f"--episodes 2 {flags}").out
    rows = [line for line in out.splitlines() if " | mean | " in line]
    assert [row.split(", ")[0] for row in rows] == [f"| {name}" for name in players]


class Counting(VectorEnv):
    """The return says how many steps an episode had."""

    num_obs = 1
    num_actions = 1
    max_episode_steps = 5
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


class Uneven(Counting):
    """First episodes of 2, 4 and 6 steps, others of one; 0.5 per step, objectives of 0, 10 and 20."""

    max_episode_steps = 100

    def __init__(self, num_envs, device, seed):
        super().__init__(num_envs, device, seed)
        self.number = torch.arange(num_envs)
        self.begun = torch.zeros(num_envs)

    def reset_where(self, mask):
        self.begun += mask

    def advance(self, action):
        ends = self.episode_step >= torch.where(self.begun == 1, 2 * self.number + 2, 1)
        return torch.full((self.num_envs,), 0.5), ends, torch.zeros_like(ends)

    def objective(self):
        return 10.0 * self.number


def test_scores_are_those_of_first_episodes(evaluated):
    run = train(ppo, f"--env-id {__name__}:Uneven --total-timesteps 1024")
    _, _, _, *table = evaluated(run, "--episodes 3").out.splitlines()  # returns 1, 2, 3
    row = "| 2.00 ± 0.58 | 10.00 ± 5.77 | 4 |"
    assert table == [f"| agent, 0 | {how} {row}" for how in ("sampled", "mean")]


class OneNeverEnds(Uneven):
    """Of three environments the first two end their episodes, after 2 and 4 steps."""

    max_episode_steps = sys.maxsize

    def advance(self, action):
        reward, terminated, truncated = super().advance(action)
        return reward, terminated & (self.number < 2), truncated


def test_a_trial_takes_objectives_as_they_stand():
    """The third environment's episode goes on: its objective counts, but not its return and its length."""
    env = OneNeverEnds(3, "cpu", 1)
    agent = ppo.Agent(1, 1, ppo.Args())
    player = evaluate.Player(agent, torch.zeros(3, dtype=torch.long), deterministic=True)
    returns, lengths, objectives = evaluate.play(env, player, 10, as_it_stands=True)
    assert objectives.tolist() == [0.0, 10.0, 20.0]
    assert returns[:2].tolist() == [1.0, 2.0]
    assert returns[2].isnan()
    assert lengths[2].isnan()


def test_episodes_that_never_end_are_left_out_and_named(monkeypatch, evaluated):
    monkeypatch.setattr(evaluate, "MAX_STEPS", 50)
    run = train(ppo, f"--env-id {__name__}:OneNeverEnds --total-timesteps 1024")
    captured = evaluated(run, "--episodes 3")
    assert captured.out.splitlines()[3] == "| agent, 0 | sampled | 1.50 ± 0.50 | 5.00 ± 5.00 | 3 |"
    waiting, left_out = captured.err.splitlines()[:2]
    assert "1 of 3" in waiting
    assert "of 3 episodes 1 " in left_out


@pytest.mark.parametrize("lengths, steps", [([20.0, math.nan], 100_000), ([20.0, 30_000.0], 300_000)])
def test_an_evaluation_waits_ten_times_trainings_longest_episodes(lengths, steps):
    means = torch.tensor([[0.0, 0.0], lengths, [0.0, 0.0]])
    assert evaluate.step_limit({"rollout": [{"episodes": {"means": means}}]}) == steps


@pytest.mark.parametrize("encoding, sign", [("ascii", "+-"), ("utf-8", "±")])
def test_scores_are_printed_whatever_the_terminal_can_show(encoding, sign, monkeypatch):
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", file)
    assert evaluate.mean_and_error(torch.tensor([1.0, 3.0])) == f"2.00 {sign} 1.00"
    assert evaluate.mean_and_error(torch.tensor([1.0])) == f"1.00 {sign} nan"


def test_a_folder_whose_name_the_terminal_lacks_does_not_end_a_run(tmp_path):
    folder = tmp_path / "é"
    folder.mkdir()
    flags = "--no-cuda --env-id Moat --num-envs 16 --num-steps 8 --hidden-sizes 8 --total-timesteps 256 --exp-name ü"
    environment = {**ENVIRONMENT, "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, ROOT / "ppo.py", *flags.split()]
    output = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, check=True).stdout
    assert "finished" in output.decode("ascii")


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
    saved = {"args": {"env_id": f"{__name__}:Counting"}, "rollout": [{"env": {"level": torch.tensor(3.5)}}]}
    env = evaluate.make_env(saved, 2, 1, "auto", "cpu")
    env.reset()
    assert env.level == 3.5
    assert env.episode_step.tolist() == [0, 0]
    assert not env.shortened.any()


def test_an_evaluations_noise_does_not_repeat_what_its_task_draws(monkeypatch):
    run = train(ppo, "--env-id Moat --total-timesteps 1024")
    made = []
    make_env = evaluate.make_env
    monkeypatch.setattr(evaluate, "make_env", lambda *args: made.append(make_env(*args)) or made[0])
    saved, script = evaluate.load(run)
    evaluate.play_agents(saved, script, torch.zeros(2, dtype=torch.long), "sampled", 7, "auto")
    assert made[0].generator.initial_seed() == 7
    assert torch.initial_seed() != 7


def test_an_evaluation_at_another_tolerance(monkeypatch, evaluated):
    run = train(ppo, "--env-id AllegroKukaRegrasping --total-timesteps 1024")
    monkeypatch.setattr(envs.find_class("AllegroKukaRegrasping"), "max_episode_steps", 5)
    played = []
    monkeypatch.setattr(evaluate, "play", lambda env, *args, play=evaluate.play: played.append(env) or play(env, *args))
    evaluated(run, "--episodes 2 --tolerance 0.03")
    assert [env.tolerance.item() for env in played] == pytest.approx([0.03, 0.03])  # sampled and mean actions


# ---------------------------------------------------------------- films


@pytest.mark.parametrize(
    "script, env_id, flags, filmed, shape",
    [
        (sapg, "Cartpole", "", [0], (1, 1)),
        (pbt, "Cartpole", "", [2], (1, 1)),
        (sapg, "Moat", "--agents 0 1 3", [0, 1, 3], (2, 2)),
    ],
)
def test_videos(script, env_id, flags, filmed, shape, monkeypatch, evaluated):
    monkeypatch.setattr(envs.find_class(env_id), "max_episode_steps", 20)  # without a GPU a picture takes 0.3 s
    run = train(script, f"--env-id {env_id} --total-timesteps 4096")
    monkeypatch.setattr(evaluate, "find_best", lambda *args: 2)
    make = evaluate.Player
    players = []
    monkeypatch.setattr(evaluate, "Player", lambda *args, **kw: players.append(make(*args, **kw)) or players[-1])
    out = evaluated(run, f"--video film.mp4 {flags}").out
    assert f"agent {', '.join(map(str, filmed))} " in out
    assert "|" not in out  # no scores
    (player,) = players
    assert player.ids[0].tolist() == [filmed]
    assert player.deterministic
    with av.open("film.mp4") as film:
        frames = [frame.to_ndarray(format="rgb24") for frame in film.decode(video=0)]
        rate = film.streams.video[0].average_rate
    assert 2 < len(frames) <= 20
    assert frames[0].shape == (480 * shape[0], 640 * shape[1], 3)
    assert (frames[0] != frames[-1]).any()
    assert rate <= evaluate.FILM_RATE


def test_a_film_keeps_the_last_picture_of_an_episode_and_its_speed():
    env = Counting(2, "cpu", 1)
    env.training = True  # the second episode is shortened
    env.frame_rate = 1 / 0.02
    env.render = lambda index: np.full((1, 1, 3), env.episode_length[index], np.uint8)
    agent = ppo.Agent(env.num_obs, env.num_actions, ppo.Args(hidden_sizes=(4,)))
    frames, rate = evaluate.record_video(env, evaluate.Player(agent, torch.zeros(2, dtype=torch.long), True))
    assert [frame[0, :, 0].tolist() for frame in frames] == [[0, 0], [3, 0]]
    assert 3 * rate == 50


@pytest.mark.parametrize("name", ["film.gif", "film.webp"])
def test_films_for_a_page(name):
    frames = [np.full((32, 48, 3), value, np.uint8) for value in (0, 100, 200)]
    evaluate.write_video(name, frames, 20)
    with PIL.Image.open(name) as film:
        assert film.n_frames == 3
        assert film.size == (48, 32)


CONTRACT = "num_envs num_obs num_actions max_episode_steps device reset step state_dict load_state_dict".split()


class Wrapped:
    """A custom class that keeps the contract without being a VectorEnv, and has nothing beside it."""

    def __init__(self, num_envs, device, seed):
        self.env = Counting(num_envs, device, seed)

    def __getattr__(self, name):
        if name not in CONTRACT:
            raise AttributeError(name)
        return getattr(self.env, name)

    def render(self, index):
        return np.full((32, 32, 3), 7, np.uint8)


def test_a_class_that_is_no_vector_env_trains_scores_and_is_filmed(evaluated):
    run = train(ppo, f"--env-id {__name__}:Wrapped --total-timesteps 1024 --capture-video")
    assert "charts/leader" in written(pathlib.Path(run)).Tags()["images"]
    assert "| agent, 0 | mean | 5.00 ± 0.00 |" in evaluated(run, "--episodes 2 --video film.mp4").out
    assert pathlib.Path("film.mp4").stat().st_size > 0


# ---------------------------------------------------------------- refusals


def test_a_film_of_a_task_that_cannot_be_drawn(capsys):
    run = train(ppo, f"--env-id {DRIFT} --total-timesteps 1024")
    assert refused(evaluate, f"{run} --no-cuda --video film.gif", capsys).startswith("--video film.gif: ")
    assert not pathlib.Path("film.gif").exists()


def test_a_film_where_drawing_fails_is_refused_before_the_scores(monkeypatch, capsys):
    run = train(ppo, "--env-id Cartpole --total-timesteps 1024")

    def render(self, index):
        raise RuntimeError("no OpenGL")

    monkeypatch.setattr(envs.find_class("Cartpole"), "render", render)
    line = refused(evaluate, f"{run} --no-cuda --episodes 2 --video film.gif", capsys)
    assert line == "--video film.gif: no OpenGL"


@pytest.mark.parametrize(
    "flags, start",
    [
        ("nowhere", "run nowhere: "),
        ("RUN --agents 0 4", "--agents 4: "),
        ("orphan.pt", "run orphan.pt: "),
        ("RUN --episodes 0", "--episodes 0: "),
        ("RUN --engine isaacgym", "task Cartpole on engine isaacgym: "),
        ("RUN --tolerance 0.01", "--tolerance 0.01: Cartpole "),
        ("hand.pt --tolerance 0", "--tolerance 0.0: must be above 0"),
        ("RUN --video film.avi", "--video film.avi: "),
        ("RUN --video nowhere/film.gif", "--video nowhere/film.gif: "),
    ],
)
def test_bad_input(flags, start, capsys):
    run = train(sapg, "--env-id Cartpole --total-timesteps 1024")
    torch.save({**checkpoint(pathlib.Path(run)), "script": "lost"}, "orphan.pt")  # there is no lost.py
    saved = checkpoint(pathlib.Path(run))
    saved["rollout"][0]["env"]["tolerance"] = torch.tensor(0.075)
    torch.save(saved, "hand.pt")
    before = sorted(pathlib.Path().rglob("*"))
    assert refused(evaluate, f"{flags.replace('RUN', run)} --no-cuda", capsys).startswith(start)
    assert sorted(pathlib.Path().rglob("*")) == before
