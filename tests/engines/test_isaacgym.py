"""The Isaac Gym adapter on the stub of isaacgym_stub.py: the contract, ends of episodes, a run.

In the stub x moves by 0.25 times the action and has fallen below -2; an observation is episode / 512, progress / 512,
x, goal; the reward is episode + x, and more at a goal.
"""

import ast
import pathlib
import subprocess
import sys

import pytest
import torch

import envs
import epo
from envs.adapters import isaacgym
from envs.check import check_env
from tests.conftest import the_run
from tests.engines import isaacgym_stub
from tests.envs import test_contract as contract_tests

pytestmark = pytest.mark.filterwarnings("ignore:\\s*version_base")  # hydra's 1.1, which IsaacGymEnvs asks for
ROOT = pathlib.Path(__file__).resolve().parents[2]
SHORT = {name: {"episodeLength": 8} for name in isaacgym_stub.TASKS}
ENV_IDS = sorted(set(isaacgym.CONFIGURATIONS) - {"FrankaCubePush"})  # in a fork only


@pytest.fixture
def install(tmp_path_factory, monkeypatch):
    """install(env={}) puts the stub in place, as if everything that Isaac Gym needs were there."""

    def install(env=SHORT):
        folder = tmp_path_factory.mktemp("packages")
        isaacgym_stub.write_packages(folder, env)
        monkeypatch.syspath_prepend(folder)
        monkeypatch.setattr(isaacgym, "simulation", {})
        monkeypatch.setattr(isaacgym, "find_problem", lambda env_id: "")

    yield install
    sys.modules.pop("isaacgymenvs", None)


def started(env_id, num_envs=4, seed=1, training=False):
    isaacgym.simulation.clear()  # as if in a new process
    env = envs.make(env_id, num_envs, "cpu", seed, "isaacgym", training)
    return env, env.reset()


def play(env, actions):
    """Steps with `actions` [one number per environment, ...]: what each step returned."""
    return [env.step(torch.tensor(numbers)[:, None]) for numbers in actions]


def seen(obs):
    """Of observations (..., D): [episode, progress, x]."""
    return (obs[..., :3] * torch.tensor([512.0, 512.0, 1.0])).tolist()


BLANK = [0.0, 0.0, 0.0]

# ---------------------------------------------------------------- the contract


@pytest.mark.parametrize("env_id", ["AllegroKukaThrow", "Anymal", "Ant", "ShadowHand"])
def test_contract(env_id, install, monkeypatch):
    install()
    env, _ = started(env_id)
    check_env(env, 2 * env.max_episode_steps + 20)
    monkeypatch.setattr(contract_tests, "started", lambda *args, **options: started(*args, **options)[0])
    monkeypatch.setattr(contract_tests, "episodes", contract_tests.episodes.__wrapped__)
    monkeypatch.setitem(contract_tests.BEGINNINGS, env_id, lambda obs: (obs == 0.0).all(-1))
    contract_tests.test_what_was_returned_does_not_change_later(env_id)
    if env_id in ("AllegroKukaThrow", "ShadowHand"):  # where every step counts
        contract_tests.test_records_of_episodes_and_where_the_next_ones_begin(env_id)


@pytest.mark.parametrize("env_id", ENV_IDS)
def test_isaac_gym_is_asked_for_the_task_that_is_ours(env_id, install):
    """Overrides as hydra reads them, on files that stand to each other as IsaacGymEnvs' do."""
    install({})
    env, obs = started(env_id, 6, seed=3)
    assert env.engine_name == "isaacgym" and not obs.any()
    call = isaacgym_stub.calls[-1]
    assert (call["seed"], call["headless"], call["force_render"]) == (3, True, False)
    assert (call["sim_device"], call["rl_device"]) == ("cuda:0", "cpu")
    task = call["cfg"].task
    assert task.env.numEnvs == 6 and task.name == call["task"].replace("LSTM", "")
    assert task.name + task.env.get("subtask", "").capitalize() == env_id
    ours = envs.find_class(env_id)
    for name in ("max_episode_steps", "fitness_floor", "curriculum"):
        assert getattr(env, name) == getattr(ours, name)


# ---------------------------------------------------------------- ends


def assert_ends(step, terminated, truncated, final, obs):
    """What a step says of its ends; last observations and next ones of both environments, as `seen` gives them."""
    assert (step[2].tolist(), step[3].tolist()) == (terminated, truncated)
    assert seen(step[4]["final_obs"]) == final and seen(step[0]) == obs


def test_ends_of_a_task_that_resets_before_physics(install):
    install({"ShadowHand": {"episodeLength": 12}})
    env, obs = started("ShadowHand", 2)
    assert seen(obs) == [BLANK, BLANK]
    steps = play(env, [[0.0, -1.0]] * 12)
    for t, step in enumerate(steps[:8], 1):
        now = [[1.0, t, 0.0], [1.0, t, -0.25 * t]]
        assert_ends(step, [False, False], [False, False], now, now)
        assert step[1].tolist() == [1.0, 1.0 - 0.25 * t]
    # -2.25: a fall
    assert_ends(steps[8], [False, True], [False, False], [[1, 9, 0], [1, 9, -2.25]], [[1, 9, 0], BLANK])
    episode = steps[8][4]["episode"]  # 1 - 0.25 + 1 - 0.5 + ... + 1 - 2.25
    assert [episode[key][1].item() for key in ("return", "length", "objective")] == [-2.25, 9.0, 0.0]
    # the action chosen blindly drives the new episode's first step
    assert_ends(steps[9], [False] * 2, [False] * 2, [[1, 10, 0], [2, 1, -0.25]], [[1, 10, 0], [2, 1, -0.25]])
    assert steps[9][1][1] == 2.0 - 0.25
    # the eleventh of 12
    assert_ends(steps[10], [False] * 2, [True, False], [[1, 11, 0], [2, 2, -0.5]], [BLANK, [2, 2, -0.5]])
    assert [steps[10][4]["episode"][key][0].item() for key in ("return", "length")] == [11.0, 11.0]
    assert seen(steps[11][0])[0] == [2.0, 1.0, 0.0]


def test_ends_of_a_task_that_resets_after_physics(install):
    install({"Ant": {"episodeLength": 12}})
    env, obs = started("Ant", 2)
    steps = play(env, [[0.0, -1.0]] * 13)
    # executes the first reset: no part of the episode
    assert_ends(steps[0], [False] * 2, [False] * 2, [[1, 0, 0], [1, 0, 0]], [[1, 0, 0], [1, 0, 0]])
    assert steps[0][1].tolist() == [0.0, 0.0]
    # the ninth: a fall
    assert_ends(steps[9], [False, True], [False, False], [[1, 9, 0], [1, 9, -2.25]], [[1, 9, 0], BLANK])
    episode = steps[9][4]["episode"]  # 1 - 0.25 + ... + 1 - 2.25; the return is Ant's objective
    assert [episode[key][1].item() for key in ("return", "length", "objective")] == [-2.25, 9.0, -2.25]
    # thrown away
    assert_ends(steps[10], [False] * 2, [False] * 2, [[1, 10, 0], [2, 0, 0]], [[1, 10, 0], [2, 0, 0]])
    assert steps[10][1][1] == 0.0
    # the eleventh of 12
    assert_ends(steps[11], [False] * 2, [True, False], [[1, 11, 0], [2, 1, -0.25]], [BLANK, [2, 1, -0.25]])
    assert [steps[11][4]["episode"][key][0].item() for key in ("return", "length")] == [11.0, 11.0]
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


@pytest.mark.parametrize("training, factor", [(True, 0.9), (False, 1.0)])
def test_a_success_goes_on_and_in_training_tightens_the_tolerance(training, factor, install):
    install({"AllegroKuka": {"episodeLength": 8}})
    env, _ = started("AllegroKukaReorientation", 1, training=training)
    steps = play(env, [[1.0]] * 4 + [[0.0]] * 7)  # x = 1 is the first goal, -1 the second
    obs, reward, terminated, truncated, info = steps[3]
    assert reward.item() == 1.0 + 1.0 + 250.0 and not terminated and not truncated
    assert torch.equal(obs, info["final_obs"]) and seen(obs)[0] == [1.0, 4.0, 1.0]
    assert [step[3].item() for step in steps] == [False] * 10 + [True]  # 7 steps after the success
    assert steps[10][4]["episode"]["length"].item() == 11.0 and steps[10][4]["episode"]["objective"].item() == 1.0
    assert not steps[10][0].any() and env.tolerance == factor * 0.075
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
    info = play(started("FrankaCubeStack", 2)[0], [[1.0, 0.0]] * 80)[-1][4]  # last rewards 1 + 0.25 * 79 and 1
    assert info["episode"]["done"].all() and info["episode"]["objective"].tolist() == [1.0, 0.0]


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


def test_one_simulation_per_process(install):
    install()
    env, _ = started("Ant", 4)
    made = len(isaacgym_stub.calls)
    play(env, [[1.0] * 4] * 2)
    again = envs.make("Ant", 4, "cpu", 1, "isaacgym")
    assert again.task is env.task and len(isaacgym_stub.calls) == made
    again.reset()
    ((obs, *_),) = play(again, [[1.0] * 4])
    assert seen(obs)[0] == [2.0, 0.0, 0.0]
    with pytest.raises(ValueError, match="one simulation per process, and there is one: 4 environments of Ant$"):
        envs.make("Ant", 5, "cpu", 1, "isaacgym")
    with pytest.raises(NotImplementedError, match="on another engine"):
        again.render(0)


# ---------------------------------------------------------------- runs

FLAGS = "--no-cuda --engine isaacgym --num-envs 24 --num-steps 9 --hidden-sizes 16 --lstm-size 8 --num-minibatches 2"


def test_a_run_and_its_resumption(install, train, capsys):
    install()
    flags = f"{FLAGS} --env-id AllegroKukaTwoArmsReorientation --num-agents 4 --latent-dim 5"
    run = train(epo, f"{flags} --total-timesteps 648")
    assert "AllegroKukaTwoArmsReorientation: engine isaacgym, cpu, " in capsys.readouterr().out
    assert len(run.steps) == 27 and sum(step.truncated.sum() for step in run.steps) >= 24
    isaacgym.simulation.clear()
    folder = the_run()
    resumed = train(epo, f"{flags} --total-timesteps 864 --resume {folder}")
    captured = capsys.readouterr()
    assert captured.err == "isaacgym cannot restore its environments: all episodes begin anew\n"
    assert len(resumed.steps) == 9 and not resumed.steps[0].obs.any()


# ---------------------------------------------------------------- imports


@pytest.mark.parametrize("path", ["ppo.py", "sapg.py", "cpo.py", "epo.py", "evaluate.py"])
def test_scripts_import_envs_import_isaacgym_first(path):
    body = ast.parse((ROOT / path).read_text()).body
    names = [name.name for node in body if isinstance(node, ast.Import) for name in node.names]
    assert names.index("envs") < min(names.index(name) for name in ("numpy", "torch") if name in names)


def test_isaac_gym_is_imported_before_torch(tmp_path):
    isaacgym_stub.write_packages(tmp_path, {})
    code = (
        f"import runpy, sys; sys.path.insert(0, {str(tmp_path)!r}); sys.argv.append('--engine=isaacgym');"
        f"sys.version_info = (3, 8); found = runpy.run_path({str(ROOT / 'envs' / 'import_isaacgym_first.py')!r});"
        "print(repr(found['FAILURE']), 'isaacgym.gymapi' in sys.modules, 'torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "'' True False\n"
