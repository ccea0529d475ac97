"""The Isaac Gym adapter on the stand-in of fake_isaacgym.py: the contract, ends of episodes, errors, a run.

In the stand-in x moves by 0.25 times the first action and has fallen below -2; an observation begins with
episode / 512, progress / 512, x, goal; the reward is episode + x, and more at a goal. L: the episode length.
"""

import ast
import pathlib
import runpy
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import envs
import epo
import evaluate
import ppo
from envs.adapters import isaacgym
from tests.conftest import DRIFT, the_run
from tests.engines import fake_isaacgym
from tests.envs import test_contract as contract_tests

ROOT = pathlib.Path(__file__).resolve().parents[2]
TASKS = "AllegroHand AllegroKuka AllegroKukaTwoArms Ant Cartpole FrankaCubeStack Humanoid ShadowHand".split()
SHORT = {**{name: {"episodeLength": 8} for name in TASKS}, "Anymal": {"learn": {"episodeLength_s": 0.16}}}
ENV_IDS = sorted(set(isaacgym.CONFIGURATIONS) - {"FrankaCubePush"})  # which the stand-in has not
BEFORE_PHYSICS = [env_id for env_id in ENV_IDS if "Hand" in env_id or "Kuka" in env_id]
every_env = pytest.mark.parametrize("env_id", ENV_IDS)


@pytest.fixture
def install(monkeypatch):
    """install(env={}) puts the stand-in in place, as if everything that Isaac Gym needs were there."""

    def install(env=SHORT):
        monkeypatch.setattr(isaacgym, "simulation", {})
        monkeypatch.setattr(isaacgym, "find_problem", lambda env_id: "")
        monkeypatch.setattr(isaacgym, "config_folder", lambda: "cfg")
        return fake_isaacgym.install(monkeypatch, env)

    return install


def started(env_id, num_envs=4, seed=1):
    isaacgym.simulation.clear()  # as if in a new process
    env = envs.make(env_id, num_envs, "cpu", seed, "isaacgym")
    return env, env.reset()


def play(env, actions):
    """Steps with `actions` [one number per environment, ...] as the first action: what each step returned."""
    results = []
    for numbers in actions:
        action = torch.zeros(env.num_envs, env.num_actions)
        action[:, 0] = torch.tensor(numbers)
        results.append(env.step(action))
    return results


def seen(obs):
    """Of observations (..., D): [episode, progress, x]."""
    return (obs[..., :3] * torch.tensor([512.0, 512.0, 1.0])).tolist()


BLANK = [0.0, 0.0, 0.0]

# ---------------------------------------------------------------- the contract's own tests


@pytest.fixture
def contract(install, monkeypatch):
    """test_contract.py, with environments of the stand-in."""

    def episodes(env_id):
        env, obs = started(env_id)
        history = []
        for action in contract_tests.actions(env, 2 * env.max_episode_steps + 20):
            history.append((obs, env.step(action)))
            obs = history[-1][1][0]
        return history

    install()
    monkeypatch.setattr(contract_tests, "started", started)
    monkeypatch.setattr(contract_tests, "episodes", episodes)
    monkeypatch.setattr(contract_tests, "BEGINNINGS", dict.fromkeys(ENV_IDS, lambda obs: (obs == 0.0).all(-1)))
    return contract_tests


@every_env
@pytest.mark.parametrize("name", [
    "shapes_and_types", "metrics_are_scalars", "what_was_returned_does_not_change_later",
    "a_finished_environment_begins_its_next_episode_within_the_step",
])  # fmt: skip
def test_contract(name, env_id, contract):
    getattr(contract, f"test_{name}")(env_id)


@pytest.mark.parametrize("env_id", BEFORE_PHYSICS)
def test_episode_records_are_sums_and_counts(env_id, contract):  # where every step counts
    contract.test_episode_records_are_sums_and_counts(env_id)


@every_env
def test_everything_stays_finite(env_id, contract):
    contract.test_everything_stays_finite(env_id)


@every_env
def test_sizes_are_those_of_our_own_task(env_id, install):
    install({})
    env, obs = started(env_id)
    two_arms = {"AllegroKukaTwoArmsRegrasping": (169, 46, 400), "AllegroKukaTwoArmsReorientation": (196, 46, 600)}
    task = envs.find_class(env_id)(1, "cpu", 1) if env_id in envs.TASKS else None
    sizes = (task.num_obs, task.num_actions, task.max_episode_steps) if task else two_arms[env_id]
    assert (env.num_obs, env.num_actions, env.max_episode_steps) == sizes
    if task:
        assert env.fitness_floor == task.fitness_floor and env.curriculum == task.curriculum
    assert env.engine_name == "isaacgym" and not obs.any()


def test_reset_begins_all_episodes_anew(install):
    install()
    for env_id in ("ShadowHand", "Ant"):
        env, _ = started(env_id, 1)
        play(env, [[1.0]] * 3)
        assert not env.reset().any() and env.episode_length.tolist() == [0] == env.episode_step.tolist()
        (obs, *_), (later, *_) = play(env, [[1.0], [1.0]])
        assert seen(obs[0]) == ([2.0, 1.0, 0.25] if env_id == "ShadowHand" else [2.0, 0.0, 0.0])
        assert seen(later[0]) == ([2.0, 2.0, 0.5] if env_id == "ShadowHand" else [2.0, 1.0, 0.25])


def test_actions_are_clamped_and_go_to_the_tasks_device(install):
    standin = install()
    env, _ = started("AllegroKukaReorientation", 2)  # a task that does not clamp
    env.step(torch.tensor([[3.0] * 23, [-0.5] * 23]))
    assert standin.tasks[-1].actions[:, 0].tolist() == [1.0, -0.5]


def test_seeds(install):
    install()
    draws = [play(started("Ant", 3, seed)[0], [[0.0] * 3])[0][0][:, 4] for seed in (1, 1, 2)]
    assert torch.equal(draws[0], draws[1]) and (draws[0] != draws[2]).all()


# ---------------------------------------------------------------- ends


def test_ends_of_a_task_that_resets_before_physics(install):
    install({"ShadowHand": {"episodeLength": 12}})
    env, obs = started("ShadowHand", 2)
    assert seen(obs) == [BLANK, BLANK]
    steps = play(env, [[0.0, -1.0]] * 12)
    for t, (obs, reward, terminated, truncated, info) in enumerate(steps[:8], 1):
        assert seen(obs) == [[1.0, t, 0.0], [1.0, t, -0.25 * t]] and torch.equal(obs, info["final_obs"])
        assert reward.tolist() == [1.0, 1.0 - 0.25 * t] and not (terminated | truncated).any()

    obs, reward, terminated, truncated, info = steps[8]  # -2.25: a fall
    assert (terminated.tolist(), truncated.tolist()) == ([False, True], [False, False])
    assert seen(info["final_obs"]) == [[1.0, 9.0, 0.0], [1.0, 9.0, -2.25]] and seen(obs) == [[1.0, 9.0, 0.0], BLANK]
    # 1 - 0.25 + 1 - 0.5 + ... + 1 - 2.25
    assert [info["episode"][key][1].item() for key in ("return", "length", "objective")] == [-2.25, 9.0, 0.0]

    obs, reward, terminated, truncated, info = steps[9]  # the action chosen blindly drives the new episode's first step
    assert seen(obs)[1] == [2.0, 1.0, -0.25] and reward[1] == 2.0 - 0.25 and not (terminated | truncated).any()

    obs, _, terminated, truncated, info = steps[10]  # the eleventh of L = 12
    assert (terminated.tolist(), truncated.tolist()) == ([False, False], [True, False])
    assert seen(info["final_obs"]) == [[1.0, 11.0, 0.0], [2.0, 2.0, -0.5]] and seen(obs)[0] == BLANK
    assert [info["episode"][key][0].item() for key in ("return", "length")] == [11.0, 11.0]
    assert seen(steps[11][0])[0] == [2.0, 1.0, 0.0]


def test_ends_of_a_task_that_resets_after_physics(install):
    install({"Ant": {"episodeLength": 12}})
    env, obs = started("Ant", 2)
    steps = play(env, [[0.0, -1.0]] * 13)
    obs, reward, terminated, truncated, info = steps[0]  # executes the first reset: no part of the episode
    assert seen(obs) == [[1.0, 0.0, 0.0]] * 2 and reward.tolist() == [0.0, 0.0] and not (terminated | truncated).any()

    obs, reward, terminated, truncated, info = steps[9]  # the ninth: a fall
    assert (terminated.tolist(), truncated.tolist()) == ([False, True], [False, False])
    assert seen(info["final_obs"])[1] == [1.0, 9.0, -2.25] and seen(obs)[1] == BLANK
    # 1 - 0.25 + ... + 1 - 2, then -2 for the fall; the return is Ant's objective
    assert [info["episode"][key][1].item() for key in ("return", "length", "objective")] == [-3.0, 9.0, -3.0]

    obs, reward, terminated, truncated, info = steps[10]
    assert seen(obs)[1] == [2.0, 0.0, 0.0] and reward[1] == 0.0 and not terminated[1] and not truncated[1]
    assert torch.equal(obs[1], info["final_obs"][1])

    obs, _, terminated, truncated, info = steps[11]  # the eleventh of L = 12
    assert (terminated.tolist(), truncated.tolist()) == ([False, False], [True, False])
    assert seen(info["final_obs"]) == [[1.0, 11.0, 0.0], [2.0, 1.0, -0.25]] and seen(obs)[0] == BLANK
    assert [info["episode"][key][0].item() for key in ("return", "length")] == [11.0, 11.0]
    assert steps[12][1].tolist() == [0.0, 2.0 - 0.5]


def test_anymals_second_flag_is_no_episode(install):
    install({})
    env, _ = started("Anymal", 1)
    steps = play(env, [[-1.0]] * 13)
    assert [step[2].item() for step in steps] == [False] * 9 + [True] + [False] * 3
    assert not any(step[3].item() for step in steps)
    assert [seen(step[0])[0] for step in steps[9:]] == [BLANK, BLANK, [3.0, 0.0, 0.0], [3.0, 1.0, -0.25]]
    assert [step[1].item() for step in steps[9:]] == [1.0 - 2.25, 0.0, 0.0, 3.0 - 0.25]
    assert torch.equal(steps[10][0], steps[10][4]["final_obs"])
    assert env.episode_length.item() == 1


def test_a_success_goes_on(install):
    install({"AllegroKuka": {"episodeLength": 8}})
    env, _ = started("AllegroKukaReorientation", 1)
    steps = play(env, [[1.0]] * 4 + [[0.0]] * 7)  # x = 1 is the first goal, -1 the second
    obs, reward, terminated, truncated, info = steps[3]
    assert reward.item() == 1.0 + 1.0 + 1000.0 and not terminated and not truncated
    assert torch.equal(obs, info["final_obs"]) and seen(obs)[0] == [1.0, 4.0, 1.0]
    assert [step[3].item() for step in steps] == [False] * 10 + [True]  # 7 steps after the success
    assert steps[10][4]["episode"]["length"].item() == 11.0 and steps[10][4]["episode"]["objective"].item() == 1.0
    assert not steps[10][0].any() and steps[10][4]["metrics"]["success_tolerance"] == pytest.approx(0.075)
    play(env, [[0.0]])
    assert env.objective().item() == 0.0  # counted per episode


def test_all_successes_truncate(install):
    install({"AllegroKuka": {"maxConsecutiveSuccesses": 1}})
    env, _ = started("AllegroKukaReorientation", 2)
    _, _, terminated, truncated, info = play(env, [[1.0, 0.0]] * 4)[-1]  # Isaac Gym's time_outs is not set
    assert truncated.tolist() == [True, False] and not terminated.any()
    assert info["episode"]["objective"].tolist() == [1.0, 0.0]


def test_a_fall_in_the_last_step_counts_as_a_time_out(install):
    install({"ShadowHand": {"episodeLength": 10}})
    _, _, terminated, truncated, _ = play(started("ShadowHand", 1)[0], [[-1.0]] * 9)[-1]
    assert truncated.item() and not terminated.item()


def test_a_stacked_cube_is_a_success(install):
    install({"FrankaCubeStack": {"episodeLength": 80}})
    env, _ = started("FrankaCubeStack", 2)
    info = play(env, [[1.0, 0.0]] * 80)[-1][4]  # last rewards 1 + 0.25 * 79 and 1
    assert info["episode"]["done"].all() and info["episode"]["objective"].tolist() == [1.0, 0.0]


@pytest.mark.parametrize("env_id, episode_length, num_steps, expected", [
    # observations: blank, 1, 2 steps old, blank, ...; rewards 1, 1, 1, 2, 2, 2, 3; truncated at 3 steps, worth 3
    # deltas 1 + 0.5 * 1 - 5, 1 + 0.5 * 2 - 1, 1 + 0.5 * 3 - 2, 2 + 0.5 - 5, 2 + 1 - 1, 2 + 1.5 - 2, 3 + 0.5 - 5
    ("ShadowHand", 4, 7, [-3.21875, 1.125, 0.5, -1.90625, 2.375, 1.5, -1.5]),
    # blank, 0, 1 step old, blank, 0; rewards 0, 1, 1, 0, 2; truncated at 2 steps, worth 2
    # deltas 0 + 0 - 5, 1 + 0.5 - 0, 1 + 0.5 * 2 - 1, 0 + 0 - 5, 2 + 0.5 - 0
    ("Ant", 3, 5, [-4.5625, 1.75, 1.0, -4.375, 2.5]),
])  # fmt: skip
def test_advantages_by_hand(env_id, episode_length, num_steps, expected, install):
    install({env_id: {"episodeLength": episode_length}})
    env, obs = started(env_id, 1)

    def worth(obs):  # 5 of the blank observation, else the progress
        return torch.where(obs[:, 0] == 0.0, torch.full((1,), 5.0), 512.0 * obs[:, 1])

    rewards, values, next_values, dones = [], [], [], []
    for next_obs, reward, terminated, truncated, info in play(env, [[0.0]] * num_steps):
        values.append(worth(obs))
        next_values.append(torch.where(truncated, worth(info["final_obs"]), worth(next_obs)) * ~terminated)
        rewards.append(reward)
        dones.append(terminated | truncated)
        obs = next_obs
    rows = (torch.stack(x) for x in (rewards, values, next_values, dones))
    assert ppo.compute_gae(*rows, 0.5, 0.5).flatten().tolist() == expected


# ---------------------------------------------------------------- state


def test_the_curriculum_is_saved_and_all_else_begins_anew(install, capsys):
    install({})
    env, _ = started("AllegroKukaRegrasping", 2)
    env.task.success_tolerance = 0.05
    env.tolerance.copy_(torch.tensor(0.05))
    play(env, [[1.0, 1.0]] * 3)
    state = env.state_dict()
    assert state.keys() == {"tolerance"} and state["tolerance"] == pytest.approx(0.05)
    other, _ = started("AllegroKukaRegrasping", 2)
    play(other, [[1.0, 1.0]])
    other.load_state_dict(state)
    assert "all episodes begin anew" in capsys.readouterr().err and not other.observe().any()
    ((obs, *_),) = play(other, [[1.0, 1.0]])
    assert other.task.success_tolerance == pytest.approx(0.05) and seen(obs)[0] == [2.0, 1.0, 0.25]
    assert started("Ant")[0].state_dict() == {}


def test_the_curriculum_begins_anew_in_the_same_simulation(install):
    install()
    started("AllegroKukaThrow")[0].task.success_tolerance = 0.02
    again = envs.make("AllegroKukaThrow", 4, "cpu", 1, "isaacgym")
    play(again, [[0.0] * 4])
    assert again.tolerance == again.task.success_tolerance == 0.075


def test_one_simulation_per_process(install):
    standin = install()
    env, _ = started("Ant", 4)
    play(env, [[1.0] * 4] * 2)
    again = envs.make("Ant", 4, "cpu", 1, "isaacgym")
    assert again.task is env.task and len(standin.calls) == 1
    again.reset()
    ((obs, *_),) = play(again, [[1.0] * 4])
    assert seen(obs)[0] == [2.0, 0.0, 0.0]
    with pytest.raises(ValueError, match="one simulation per process, and there is one: 4 environments of Ant$"):
        envs.make("Ant", 5, "cpu", 1, "isaacgym")
    with pytest.raises(NotImplementedError, match="on another engine"):
        again.render(0)


# ---------------------------------------------------------------- what Isaac Gym is asked for


@every_env
def test_configuration(env_id, install):
    standin = install({})
    started(env_id, 6, seed=3)
    call = standin.calls[-1]
    assert (call["seed"], call["headless"], call["force_render"], call["sim_device"]) == (3, True, False, "cuda:0")
    env = call["cfg"].task.env
    assert env.numEnvs == 6 and call["cfg"].task.name == call["task"].replace("LSTM", "")
    if "Kuka" in env_id:
        assert env_id.endswith(env.subtask.capitalize()) and env_id.startswith(call["cfg"].task.name)
        assert env.get("numArms", 1) == 1 + ("TwoArms" in env_id)


@pytest.fixture
def hydra():
    """The real one, gone again after the test."""
    yield
    for name in [name for name in sys.modules if name.split(".")[0] in ("hydra", "omegaconf")]:
        del sys.modules[name]


@pytest.mark.filterwarnings("ignore")  # about compatibility with what IsaacGymEnvs was written for
def test_configuration_with_hydra(hydra, tmp_path, monkeypatch):
    """Overrides as hydra reads them, on files that stand to each other as IsaacGymEnvs' do."""
    (tmp_path / "task" / "env").mkdir(parents=True)
    (tmp_path / "config.yaml").write_text("num_envs: ''\ndefaults: [{task: Ant}, _self_]\n")
    (tmp_path / "task" / "AllegroKuka.yaml").write_text(
        "defaults: [_self_, {env: reorientation}]\nname: AllegroKuka\n"
        "env: {subtask: '', numEnvs: '${...num_envs}', episodeLength: 600}\n"
    )
    (tmp_path / "task" / "AllegroKukaLSTM.yaml").write_text("defaults: [AllegroKuka, _self_]\n")
    two_arms = "defaults: [AllegroKukaLSTM, _self_]\nname: AllegroKukaTwoArms\nenv: {numArms: 2}\n"
    (tmp_path / "task" / "AllegroKukaTwoArmsLSTM.yaml").write_text(two_arms)
    for subtask, length in (("regrasping", 300), ("throw", 300), ("reorientation", 600)):
        (tmp_path / "task" / "env" / f"{subtask}.yaml").write_text(f"subtask: {subtask}\nepisodeLength: {length}\n")
    monkeypatch.setattr(isaacgym, "config_folder", lambda: str(tmp_path))
    for env_id in filter(lambda env_id: "Kuka" in env_id, ENV_IDS):
        config = isaacgym.make_config(env_id, 6)
        task, subtask = config.task, config.task.env.subtask
        assert task.name + subtask.capitalize() == env_id and task.env.numEnvs == 6
        assert task.env.episodeLength == {"regrasping": 400, "throw": 300, "reorientation": 600}[subtask]


# ---------------------------------------------------------------- runs

FLAGS = "--no-cuda --engine isaacgym --num-envs 24 --num-steps 9 --hidden-sizes 16 --lstm-size 8 --num-minibatches 2"


@pytest.mark.parametrize("script, env_id, flags", [
    (ppo, "Ant", ""), (epo, "AllegroKukaTwoArmsReorientation", "--num-agents 4 --latent-dim 5")
])  # fmt: skip
def test_a_run_and_its_resumption(script, env_id, flags, install, train, capsys):
    install()
    flags = f"{FLAGS} --env-id {env_id} {flags}"
    run = train(script, f"{flags} --total-timesteps 648")
    assert f"{env_id}: engine isaacgym, cpu, " in capsys.readouterr().out
    assert len(run.steps) == 27 and sum(step.truncated.sum() for step in run.steps) >= 24
    for step, later in zip(run.steps, run.steps[1:]):
        done = step.terminated | step.truncated
        assert not step.next_obs[done].any() and step.final_obs[done].any(1).all()
        assert torch.equal(step.next_obs[~done], step.final_obs[~done]) and torch.equal(step.next_obs, later.obs)
    isaacgym.simulation.clear()
    folder = the_run()
    resumed = train(script, f"{flags} --total-timesteps 864 --resume {folder}")
    captured = capsys.readouterr()
    assert captured.err == "isaacgym cannot restore its environments: all episodes begin anew\n"
    assert len(resumed.steps) == 9 and not resumed.steps[0].obs.any()


def test_evaluation(install, train, capsys):
    install()
    train(ppo, f"{FLAGS} --env-id AllegroKukaThrow --total-timesteps 648")
    run = str(the_run())
    isaacgym.simulation.clear()
    evaluate.main([run, "--engine", "isaacgym", "--episodes", "5", "--no-cuda"])
    assert "| agent, 0 | mean |" in capsys.readouterr().out
    evaluate.main([run, "--engine", "mujoco", "--episodes", "1", "--no-cuda"])  # the same policy on another engine
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        evaluate.main([run, "--engine", "isaacgym", "--episodes", "4", "--no-cuda"])
    (line,) = capsys.readouterr().err.splitlines()
    assert end.value.code == 2 and line.startswith("--engine isaacgym: Isaac Gym holds one simulation")


# ---------------------------------------------------------------- errors, imports


def test_one_line_where_isaac_gym_cannot_be(tmp_path):
    command = [sys.executable, str(ROOT / "epo.py"), "--env-id", "AllegroKukaTwoArmsRegrasping", "--engine=isaacgym"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 2 and result.stdout == ""
    version = ".".join(map(str, sys.version_info[:2]))
    assert result.stderr == f"--engine isaacgym: needs Python 3.8, this is {version}\n"


@pytest.fixture
def all_there(monkeypatch, tmp_path):
    """Everything that Isaac Gym needs, as find_problem looks for it."""
    monkeypatch.setattr(isaacgym, "sys", SimpleNamespace(version_info=(3, 8, 18), modules={"isaacgym": None}))
    monkeypatch.setattr(isaacgym, "np", SimpleNamespace(__version__="1.23.5"))
    monkeypatch.setattr(isaacgym.importlib.util, "find_spec", lambda name: SimpleNamespace())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(isaacgym, "config_folder", lambda: str(tmp_path))
    (tmp_path / "task").mkdir()
    for name in ("Ant", "AllegroKuka", "AllegroKukaTwoArmsLSTM"):
        (tmp_path / "task" / f"{name}.yaml").touch()


def test_no_problem(all_there):
    assert [isaacgym.find_problem(x) for x in ("Ant", "AllegroKukaThrow", "AllegroKukaTwoArmsRegrasping")] == [""] * 3


@pytest.mark.parametrize("env_id, change, problem", [
    ("Moat", {}, "Isaac Gym has no such task"),
    ("reach:Reach", {}, "Isaac Gym has no such task"),
    ("FrankaCubePush", {}, "the installed isaacgymenvs has no task FrankaCubePush, SAPG's fork of it has"),
    ("Humanoid", {}, "the installed isaacgymenvs has no task Humanoid"),
    ("Ant", {"sys.version_info": (3, 9, 1)}, "needs Python 3.8, this is 3.9"),
    ("Ant", {"np.__version__": "1.24.0"}, "needs numpy below 1.24, this is 1.24.0"),
    ("Ant", {"np.__version__": "2.0.1"}, "needs numpy below 1.24, this is 2.0.1"),
    ("Ant", {"importlib.util.find_spec": lambda name: None}, "needs the package isaacgym, not installed"),
    ("Ant", {"importlib.util.find_spec": lambda name: name == "isaacgym"}, "needs the package isaacgymenvs, not inst"),
    ("Ant", {"torch.cuda.is_available": lambda: False}, "needs a CUDA GPU, torch finds none"),
    ("Ant", {"import_isaacgym_first.FAILURE": "no libpython3.8.so\n..."}, "cannot be imported: no libpython3.8.so"),
    ("Ant", {"sys.modules": {}}, "must be imported before torch: name it on the command line, --engine isaacgym"),
])  # fmt: skip
def test_problems(env_id, change, problem, all_there, monkeypatch):
    for name, value in change.items():
        monkeypatch.setattr(f"envs.adapters.isaacgym.{name}", value)
    assert isaacgym.find_problem(env_id).startswith(problem) and "\n" not in isaacgym.find_problem(env_id)


@pytest.mark.parametrize("env_id, engine, line", [
    ("AllegroKukaTwoArmsRegrasp", "isaacgym", "did you mean AllegroKukaTwoArmsRegrasping"),
    ("Moat", "mujoco", "must be auto, this task steps itself"),
    (DRIFT, "mujoco", "must be auto, this task steps itself"),
    ("Moat", "isaacgym", "Isaac Gym has no such task"),
    ("Ant", "physx", "not available; valid here: auto, mujoco"),
])  # fmt: skip
def test_engines_and_tasks_that_do_not_fit(env_id, engine, line):
    with pytest.raises(ValueError, match=line):
        envs.make(env_id, 1, engine=engine)


def test_without_mujoco_moat_and_own_tasks_run_and_isaac_gym_is_never_automatic(install, monkeypatch):
    install()
    assert envs.find_engine("isaacgym", "Ant") == "isaacgym"
    assert envs.find_engine("auto", "Ant") == "mujoco"
    monkeypatch.setattr(envs.importlib.util, "find_spec", lambda name: None)
    assert envs.make("Moat", 1).engine_name == envs.make(DRIFT, 1).engine_name == "torch"
    with pytest.raises(ValueError, match="needs one of the packages mujoco"):
        envs.make("Ant", 1)


@pytest.mark.parametrize("path", ["ppo.py", "sapg.py", "cpo.py", "epo.py", "evaluate.py"])
def test_scripts_import_envs_import_isaacgym_first(path):
    body = ast.parse((ROOT / path).read_text()).body
    names = [name.name for node in body if isinstance(node, ast.Import) for name in node.names]
    assert names.index("envs") < min(names.index(name) for name in ("numpy", "torch") if name in names)


def test_envs_imports_isaac_gym_first():
    body = ast.parse((ROOT / "envs" / "__init__.py").read_text()).body
    first, *others = [node for node in body if isinstance(node, ast.ImportFrom)]
    assert (first.module, first.names[0].name) == ("envs", "import_isaacgym_first") and others
    modules = {name.name for node in body if isinstance(node, ast.Import) for name in node.names}
    assert all(name.split(".")[0] in sys.stdlib_module_names for name in modules)


@pytest.mark.parametrize("argv, asked", [
    (["ppo.py", "--engine", "isaacgym", "--env-id", "Ant"], True), (["ppo.py", "--engine=isaacgym"], True),
    (["ppo.py", "--engine", "mujoco"], False), (["ppo.py", "--env-id", "isaacgym"], False), (["ppo.py"], False),
])  # fmt: skip
@pytest.mark.parametrize("refuse_torch", [False, True])
def test_isaac_gym_is_imported_where_it_is_asked_for(argv, asked, refuse_torch, monkeypatch):
    standin = fake_isaacgym.install(monkeypatch, refuse_torch=refuse_torch)
    monkeypatch.setattr(sys, "argv", argv)
    monkeypatch.setattr(sys, "version_info", (3, 8, 18, "final", 0))
    failure = runpy.run_path(str(ROOT / "envs" / "import_isaacgym_first.py"))["FAILURE"]
    assert (standin.torch_first is not None) == asked
    assert failure.startswith("PyTorch was imported before isaacgym") == (asked and refuse_torch)


def test_an_isaac_gym_without_python_38_is_told(monkeypatch):
    def refuse(self):
        raise RuntimeError("No gym module found for the active version of Python (3.8)")

    monkeypatch.setattr(fake_isaacgym.FakeIsaacGym, "on_import_of_isaacgym", refuse)
    fake_isaacgym.install(monkeypatch)
    monkeypatch.setattr(sys, "argv", ["ppo.py", "--engine", "isaacgym"])
    monkeypatch.setattr(sys, "version_info", (3, 8, 18, "final", 0))
    assert "No gym module found" in runpy.run_path(str(ROOT / "envs" / "import_isaacgym_first.py"))["FAILURE"]


def test_an_unpacked_archive_is_not_installed(monkeypatch, tmp_path):
    (tmp_path / "isaacgym" / "python").mkdir(parents=True)  # a folder without __init__.py can be imported
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "argv", ["ppo.py", "--engine", "isaacgym"])
    monkeypatch.setattr(sys, "version_info", (3, 8, 18, "final", 0))
    failure = runpy.run_path(str(ROOT / "envs" / "import_isaacgym_first.py"))["FAILURE"]
    sys.modules.pop("isaacgym")
    assert failure == "No module named 'isaacgym.gymapi'"


def test_types():
    """The adapter against the published stubs of Isaac Gym and ours of IsaacGymEnvs."""
    command = [sys.executable, "-m", "mypy", "envs/adapters/isaacgym.py", "envs/import_isaacgym_first.py"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0, result.stdout + result.stderr
