"""The stand-in of Isaac Gym behaves as its docstring says: which step executes a reset, and what each step returns."""

import importlib.util
import inspect
import subprocess
import sys

import pytest
import torch

from tests.engines import fake_isaacgym

GROUP_ONE = ["AllegroHand", "AllegroKuka", "BallBalance", "ShadowHand"]
GROUP_TWO = ["Ant", "Anymal", "Cartpole", "FrankaCubeStack", "Humanoid"]
SUBTASKS = {"Regrasping": "regrasping", "Throw": "throw", "Reorientation": "reorientation"}
L = 6  # episode length where nothing else is said
SHORT = {name: {"episodeLength": L, "maxEpisodeLength": L} for name in GROUP_ONE + GROUP_TWO}
SHORT["Anymal"] = {"learn": {"episodeLength_s": L * 0.02}}


def make(task, num_envs=2, subtask=None, **keywords):
    import isaacgymenvs

    keywords = {"seed": 1, "sim_device": "cuda:0", "rl_device": "cuda:0", "headless": True, **keywords}
    if subtask:
        from hydra import compose, initialize

        with initialize(config_path="cfg"):
            cfg = compose("config", overrides=[f"task={task}", f"task/env={subtask}", f"num_envs={num_envs}"])
        return isaacgymenvs.make(task=task, num_envs=num_envs, cfg=cfg, **keywords)
    return isaacgymenvs.make(task=task, num_envs=num_envs, **keywords)


def step(task, *pushes):
    """One step with the first action of each environment; the rest of the action is 0.7, which must not matter."""
    action = torch.full((task.num_envs, task.num_actions), 0.7)
    action[:, 0] = torch.tensor(pushes)
    obs, reward, done, extras = task.step(action)
    return obs["obs"], reward.clone(), done.clone(), {**extras}


def run(task, pushes):
    """Environment 0's (episode, progress, x), reward, flag and time-out of every step; environment 1 stands still."""
    rows = []
    for push in pushes:
        obs, reward, done, extras = step(task, push, 0.0)
        episode, progress, x = obs[0, 0] * 512, obs[0, 1] * 512, obs[0, 2]
        rows.append((episode.item(), progress.item(), x.item(), reward[0].item(), done[0].item()))
        rows[-1] += (extras["time_outs"][0].item(),)
    return rows


@pytest.fixture(autouse=True)
def no_cuda(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def standin(monkeypatch):
    return fake_isaacgym.install(monkeypatch)


@pytest.fixture
def short(monkeypatch):
    return fake_isaacgym.install(monkeypatch, env=SHORT)


# ---------------------------------------------------------------- names, sizes, types


def test_the_modules_are_there_for_the_length_of_a_test():
    def present():
        return {name for name in sys.modules if name.split(".")[0] in fake_isaacgym.PACKAGES}

    before = present()  # hydra's own plugin for pytest, if any
    with pytest.MonkeyPatch.context() as monkeypatch:
        fake_isaacgym.install(monkeypatch)
        assert importlib.util.find_spec("isaacgym") and importlib.util.find_spec("isaacgymenvs")
        import isaacgym.torch_utils  # noqa: F401
        from isaacgym import gymapi, gymtorch  # noqa: F401
        from isaacgymenvs.tasks import isaacgym_task_map
        from isaacgymenvs.utils.reformat import omegaconf_to_dict  # noqa: F401

        assert isaacgym_task_map["Ant"] is fake_isaacgym.Ant
        with pytest.raises(ModuleNotFoundError):
            import isaacgymenvs.learning  # noqa: F401
    assert present() == before
    assert not isinstance(sys.meta_path[0], fake_isaacgym.Finder)


def test_make_has_the_real_signature(standin):
    import isaacgymenvs

    assert str(inspect.signature(isaacgymenvs.make)) == (
        "(seed, task, num_envs, sim_device, rl_device, graphics_device_id=-1, headless=False, multi_gpu=False,"
        " virtual_screen_capture=False, force_render=True, cfg=None)"
    )


SIZES = {
    "AllegroHand": (88, 16, 600, 5, 1), "AllegroKuka": (117, 23, 600, float("inf"), float("inf")),
    "Ant": (60, 8, 1000, float("inf"), 1), "Anymal": (48, 12, 2500, 5, 1), "BallBalance": (24, 3, 500, 5, 1),
    "Cartpole": (4, 1, 500, 5, 1), "FrankaCubeStack": (19, 7, 300, 5, 1),
    "Humanoid": (108, 21, 1000, float("inf"), 1), "ShadowHand": (211, 20, 600, 5, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", SIZES)
def test_sizes(standin, name):
    task = make(name, num_envs=3)
    num_obs, num_actions, length, clip_obs, clip_actions = SIZES[name]
    assert (task.num_envs, task.num_obs, task.num_actions, task.num_acts) == (3, num_obs, num_actions, num_actions)
    assert (task.max_episode_length, task.clip_obs, task.clip_actions) == (length, clip_obs, clip_actions)
    assert task.observation_space.shape == (num_obs,) and task.action_space.shape == (num_actions,)
    assert task.action_space.low.min() == -1 and task.action_space.high.max() == 1
    assert task.control_freq_inv == (2 if name == "AllegroHand" else 1)
    obs = task.reset()["obs"]
    assert obs.shape == (3, num_obs) and obs.dtype == torch.float32 and not obs.any()
    obs, reward, done, extras = task.step(task.zero_actions())
    assert obs["obs"].shape == (3, num_obs) and reward.shape == done.shape == extras["time_outs"].shape == (3,)
    assert (obs["obs"].dtype, reward.dtype) == (torch.float32, torch.float32)
    assert (done.dtype, extras["time_outs"].dtype) == (torch.int64, torch.bool)
    assert ("states" in obs) == ("Kuka" in name)


@pytest.mark.parametrize("file, num_actions", [("AllegroKuka", 23), ("AllegroKukaTwoArmsLSTM", 46)])
@pytest.mark.parametrize("subtask, length, steps", [("regrasping", 300, 30), ("reorientation", 600, 1)])
def test_subtasks(standin, file, num_actions, subtask, length, steps):
    task = make(file, subtask=subtask, num_envs=5)
    num_obs = {23: {1: 117, 30: 99}, 46: {1: 196, 30: 169}}[num_actions][steps]
    assert (task.num_envs, task.num_obs, task.num_actions) == (5, num_obs, num_actions)
    assert (task.max_episode_length, task.success_steps) == (length, steps)
    assert task.obs_dict == {} and task.reset()["states"].shape == (5, num_obs)


def test_throw(standin):
    task = make("AllegroKuka", subtask="throw")
    assert (task.num_obs, task.max_episode_length, task.success_steps, task.target_tolerance) == (99, 300, 5, 0.075)
    with pytest.raises(ValueError, match="throw"):
        make("AllegroKukaTwoArmsLSTM", subtask="throw")


def test_a_configuration_wins_over_task_and_num_envs(standin):
    from hydra import compose, initialize

    with initialize(config_path="cfg"):
        cfg = compose("config", ["task=Ant", "num_envs=7", "task.env.episodeLength=9"])
        with pytest.raises(ValueError, match="already initialized"):
            make("Ant")
    task = make("Humanoid", num_envs=3, cfg=cfg)
    assert (task.num_obs, task.num_envs, task.max_episode_length) == (60, 7, 9)


@pytest.mark.parametrize("name", ["AllegroKukaRegrasping", "AllegroKukaTwoArms", "FrankaCubePush", "ant"])
def test_an_unknown_task_is_hydras_error(standin, name):
    from hydra.errors import MissingConfigException

    with pytest.raises(MissingConfigException, match=name):
        make(name)
    make("Ant")  # and hydra can be used again


def test_calls_and_devices(standin, monkeypatch):
    task = make("Ant", sim_device="cuda:1", graphics_device_id=0)
    asked = standin.calls[0]
    assert (asked["sim_device"], asked["headless"], asked["graphics_device_id"]) == ("cuda:1", True, 0)
    assert standin.tasks == [task]
    assert (task.device, task.rl_device, task.obs_buf.device.type) == ("cpu", "cpu", "cpu")
    make("AllegroKuka", sim_device="cpu", rl_device="cpu")
    with pytest.raises(IndexError):
        make("AllegroKuka", sim_device="cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert fake_isaacgym.usable("cuda:1") == "cuda:1"


def test_torch_before_isaacgym_is_recorded_or_refused(monkeypatch):
    standin = fake_isaacgym.install(monkeypatch)
    assert standin.torch_first is None
    make("Ant")
    assert standin.torch_first is True
    fake_isaacgym.install(monkeypatch, refuse_torch=True)
    with pytest.raises(ImportError, match="PyTorch was imported before isaacgym"):
        import isaacgym  # noqa: F401


@pytest.mark.parametrize("order, status", [("import isaacgym, torch", 0), ("import torch, isaacgym", 1)])
def test_the_order_of_imports_in_a_process_of_its_own(order, status):
    code = f"import fake_isaacgym; fake_isaacgym.install(refuse_torch=True); {order}; import isaacgymenvs;"
    code += "print(isaacgymenvs.make(1, 'Ant', 2, 'cuda:0', 'cuda:0').reset()['obs'].shape)"
    folder = fake_isaacgym.__file__.rsplit("/", 1)[0]
    process = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
    assert process.returncode == status
    assert ("PyTorch was imported before" in process.stderr) == bool(status)


# ---------------------------------------------------------------- what a step does


@pytest.mark.parametrize("name", GROUP_ONE[:2] + GROUP_ONE[3:])
def test_group_one_resets_before_the_action(short, name):
    rows = run(make(name), [0.25] * 11)
    assert [row[:3] for row in rows[:5]] == [(1, k, 0.0625 * k) for k in (1, 2, 3, 4, 5)]  # L - 1 steps
    assert [row[3] for row in rows] == [row[0] + row[2] for row in rows]
    assert rows[5][:3] == (2, 1, 0.0625)  # the step after the flag: already the new episode, the action applied
    assert [row[4] for row in rows] == [0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0]
    assert [row[5] for row in rows] == [bool(row[4]) for row in rows]


def test_ball_balance_discards_the_action_of_a_resetting_step(short):
    rows = run(make("BallBalance"), [1.0] * 7)
    assert [row[:3] for row in rows] == [(1, k, 0.25 * (k - 1)) for k in (1, 2, 3, 4, 5)] + [(2, 1, 0), (2, 2, 0.25)]
    assert [row[4] for row in rows] == [0, 0, 0, 0, 1, 0, 0]


@pytest.mark.parametrize("name", GROUP_TWO)
def test_group_two_resets_after_physics(short, name):
    rows = run(make(name), [1.0] * 13)
    assert [row[:3] for row in rows[:6]] == [(1, k, 0.25 * k) for k in (0, 1, 2, 3, 4, 5)]  # L - 1 and the reset
    assert rows[6][:3] == (2, 0, 0) and rows[7][:3] == (2, 1, 0.25)  # that action went to the finished state
    assert [row[3] for row in rows] == [row[0] + row[2] for row in rows]
    assert [row[4] for row in rows] == [0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0]
    assert [row[5] for row in rows] == [bool(row[4]) for row in rows]


@pytest.mark.parametrize("name", GROUP_ONE + GROUP_TWO)
def test_only_the_flagged_environment_is_reset(standin, name):
    task = make(name)
    first = 1 if name in GROUP_ONE else 0
    before = 9 if name in ("AllegroHand", "AllegroKuka", "ShadowHand") else 10  # steps until x = -2.25
    for _ in range(before):
        assert not task.control_steps or not done.any()
        obs, reward, done, extras = step(task, -1.0, 0.0)
    assert obs[0, 2] == -2.25 and done.tolist() == [1, 0] and not extras["time_outs"].any()  # a fall is no time-out
    death = {"Ant": -2, "Humanoid": -1, "Cartpole": -2}.get(name, 1 - 2.25)
    assert reward.tolist() == [death, 1]
    obs, reward, done, _ = step(task, 1.0, 0.0)
    x = 0.25 if name in ("AllegroHand", "AllegroKuka", "ShadowHand") else 0.0
    assert obs[0, :3].tolist() == [2 / 512, first / 512, x]
    assert obs[1, :3].tolist() == [1 / 512, (before + first) / 512, 0] and reward.tolist() == [2 + x, 1]
    assert not done[1]


def test_anymal_resets_twice_after_a_fall(standin):
    task = make("Anymal")
    rows = run(task, [-1.0] * 13)  # step 1 resets, steps 2..10 fall to -2.25, step 11 resets and still sees the fall
    assert [row[4] for row in rows] == [0] * 9 + [1, 1, 0, 0]
    assert [row[:3] for row in rows[9:]] == [(1, 9, -2.25), (2, 0, 0), (3, 0, 0), (3, 1, -0.25)]
    assert not any(row[5] for row in rows)
    task = make("Anymal")
    rows = run(task, [-1.0] * 10 + [1.0, 0.0])  # the last action lifts the fallen state to -2: no second flag
    assert [row[4] for row in rows] == [0] * 9 + [1, 0, 0] and rows[-1][:3] == (2, 1, 0)


def test_a_fall_in_the_last_step_is_also_a_time_out(monkeypatch):
    fake_isaacgym.install(monkeypatch, env={"AllegroHand": {"episodeLength": 10}, "Ant": {"episodeLength": 10}})
    for name, steps in (("AllegroHand", 9), ("Ant", 10)):
        assert run(make(name), [-1.0] * steps)[-1][:3] == (1, 9, -2.25)
        assert run(make(name), [-1.0] * steps)[-1][4:] == (1, True)


def test_actions_and_observations_are_clamped(standin):
    tasks = (("AllegroHand", 5, 1), ("Anymal", 5, 1), ("Ant", 1e9, 1), ("AllegroKuka", 10, 1e9))
    for name, clip_obs, clip_actions in tasks:
        task, x = make(name), 0.0
        for k in range(50):
            obs, *_ = step(task, 3.0, 0.0)
            x += 0.25 * min(3.0, clip_actions) if k or name in GROUP_ONE else 0.0
            assert obs[0, 2] == min(x, clip_obs)
        assert x > 10
        assert task.obs_buf[0, 2] == (10 if name == "AllegroKuka" else x)  # clamped in place, or in the copy alone


def test_what_is_returned_is_partly_the_task_s_own(standin):
    task = make("AllegroKuka")
    obs_dict, reward, done, extras = task.step(task.zero_actions())
    obs, progress = obs_dict["obs"], task.progress_buf
    assert reward is task.rew_buf and done is task.reset_buf
    again = task.step(task.zero_actions() + 1)
    assert again[0] is obs_dict and again[3] is extras and again[1] is reward
    assert reward.tolist() == [1.25, 1.25] and obs[0, 2] == 0 and task.progress_buf is not progress
    task = make("Ant")
    progress = task.progress_buf
    task.step(task.zero_actions())
    assert task.progress_buf is progress


def test_reset_resets_nothing(standin):
    task = make("Ant")
    assert not task.reset()["obs"].any()
    run(task, [1.0] * 4)
    assert task.reset()["obs"][0, :3].tolist() == [1 / 512, 3 / 512, 0.75]
    assert step(task, 1.0, 0.0)[0][0, 2] == 1.0


def test_reset_done_resets_at_once_and_keeps_the_observation(short):
    task = make("Ant")
    run(task, [1.0] * 6)
    obs, ids = task.reset_done()
    assert ids.tolist() == [0, 1] and obs["obs"][0, :3].tolist() == [1 / 512, 5 / 512, 1.25]
    assert not task.reset_buf.any() and not task.progress_buf.any()
    assert step(task, 1.0, 0.0)[0][0, :3].tolist() == [2 / 512, 1 / 512, 0.25]
    with pytest.raises(TypeError):
        make("AllegroHand").reset_done()


def test_the_seed_given_to_make_is_not_used(standin):
    def draws(seed):
        task = make("AllegroKuka", num_envs=4, seed=seed)
        return step(task, 0.0, 0.0, 0.0, 0.0)[0][:, 4]

    assert not draws(1).equal(draws(1)) and draws(1).unique().numel() == 4
    torch.manual_seed(5)
    first = draws(1)
    torch.manual_seed(5)
    assert first.equal(draws(2))  # torch's generator is what decides
    from isaacgymenvs.utils.utils import set_seed

    assert set_seed(5) == 5 and first.equal(draws(3))


# ---------------------------------------------------------------- goals and successes


def test_hand_successes(standin):
    task = make("AllegroHand")
    for _ in range(4):
        obs, reward, done, extras = step(task, 0.5, -1.0)
        assert extras["consecutive_successes"] == 0 and extras["consecutive_successes"].dim() == 0
    for _ in range(4):
        assert obs[:, 3].tolist() == [1, 1] and not task.successes.any()
        obs, reward, done, extras = step(task, 0.5, -1.0)
    assert obs[0, 2] == 1 and reward[0] == 1 + 1 + 250 and task.successes.tolist() == [1, 0] and not done.any()
    assert obs[0, 5] == 0 and obs[0, 1] == 8 / 512  # the observation's count is the one before; no clock is restarted
    obs, reward, done, extras = step(task, 0.0, -1.0)
    assert obs[0, 2:4].tolist() == [1, -1] and obs[0, 5] == 1 / 512 and reward[0] == 2  # new goal, nothing moved
    assert done.tolist() == [0, 1] and extras["consecutive_successes"] == 0 and task.successes.tolist() == [1, 0]
    for _ in range(13):
        obs, reward, done, extras = step(task, -1.0, 0.0)  # through -1 after 8 steps: second success; falls at the last
    assert obs[0, 2] == -2.25 and task.successes.tolist() == [2, 0] and done.tolist() == [1, 0]
    assert extras["consecutive_successes"] == pytest.approx(0.2) and "successes" not in extras
    obs, *_ = step(task, 0.0, 0.0)
    assert task.successes.tolist() == [0, 0] and obs[:, 3].tolist() == [1, 1] and obs[0, 0] == 2 / 512


def kuka(subtask, num_envs=2):
    return make("AllegroKuka", subtask=SUBTASKS[subtask], num_envs=num_envs)


@pytest.mark.parametrize("subtask", SUBTASKS)
def test_kuka_success(monkeypatch, subtask):
    fake_isaacgym.install(monkeypatch, env={"AllegroKuka": {"successSteps": 3}})
    task = kuka(subtask)
    for _ in range(4):
        obs, reward, done, extras = step(task, 1.0, 0.0)
    assert obs[0, 2:4].tolist() == [1, 1] and reward[0].item() == pytest.approx(2 + 1000 / 3)
    assert obs[0, -1].item() == pytest.approx(min(10, 0.01 * reward[0].item()))
    step(task, 1.0, 0.0)  # away from the goal: the count of near steps stands still, and goes on
    step(task, -1.0, 0.0)
    assert task.near_goal_steps.tolist() == [2, 0] and not task.successes.any() and task.progress_buf[0] == 6
    obs, reward, done, extras = step(task, 0.0, 0.0)
    assert task.successes.tolist() == [1, 0] and not done.any() and task.reset_goal_buf.tolist() == [1, 0]
    assert obs[0, 1] == 7 / 512 and task.progress_buf.tolist() == [0, 7] and obs[0, 5] == 0  # seen, then cleared
    obs, reward, done, extras = step(task, 1.0, 0.0)
    x = 1.25 if subtask == "Reorientation" else 0.25  # the others put the object back before the action
    assert obs[0, :4].tolist() == [1 / 512, 1 / 512, x, -1] and obs[0, 5] == 1 / 512 and reward[0] == 1 + x
    assert task.near_goal_steps.tolist() == [0, 0] and extras["successes"] == 0


def test_kuka_success_in_the_last_step_is_no_time_out(monkeypatch):
    fake_isaacgym.install(monkeypatch, env={"AllegroKuka": {"episodeLength": 5}})
    task = kuka("Reorientation")
    rows = run(task, [1.0] * 4 + [0.0] * 5)
    assert rows[3][1:3] == (4, 1) and rows[3][4:] == (0, False)  # the clock is back to 0 before the check
    assert rows[4][:2] == (1, 1) and rows[7][1] == 4 and rows[7][4:] == (1, True) and rows[8][:2] == (2, 1)
    assert task.prev_episode_successes.tolist() == [1, 0] and task.extras["successes"] == 0.5


def test_kuka_ends_at_fifty_successes(standin):
    task = kuka("Reorientation")
    pushes = [1.0] * 4 + ([-1.0] * 8 + [1.0] * 8) * 24 + [-1.0] * 8  # 4 steps to the first goal, 8 to each other
    rows = run(task, pushes)
    assert not any(row[4] for row in rows[:-1]) and rows[-1][4:] == (1, False) and rows[-1][0] == 1
    assert task.successes.tolist() == [50, 0] and task.prev_episode_successes.tolist() == [0, 0]
    obs, _, _, extras = step(task, 1.0, 0.0)
    assert obs[0, :4].tolist() == [2 / 512, 1 / 512, 0.25, 1] and obs[0, 5] == 0  # object and goal are new too
    assert task.successes.tolist() == [0, 0] and task.prev_episode_successes.tolist() == [50, 0]
    assert extras["successes"] == 25 and extras["successes"].dim() == 0


def test_kuka_true_objective_and_curriculum(monkeypatch):
    settings = {"toleranceCurriculumInterval": 10, "episodeLength": 30, "maxConsecutiveSuccesses": 3}
    fake_isaacgym.install(monkeypatch, env={"AllegroKuka": settings})
    task = kuka("Reorientation", num_envs=1)
    pushes = [1.0] * 4 + [-1.0] * 8 + [1.0] * 8
    for push in pushes:
        _, _, done, extras = step(task, push)
    assert done.tolist() == [1] and extras["true_objective"].tolist() == pytest.approx([0.03])
    assert task.get_env_state() == {"success_tolerance": 0.075}
    _, _, _, extras = step(task, 0.0)  # the reset comes first: 3 successes on average, and 10 steps are over
    assert task.success_tolerance == pytest.approx(0.0675)
    assert extras["scalars"]["success_tolerance"] == 0.075  # as it was at the reset
    assert extras["true_objective"].tolist() == pytest.approx([0.0075 / 0.065])
    assert extras["true_objective_mean"] == extras["true_objective_min"] == extras["true_objective_max"]
    for _ in range(10):
        step(task, 0.0)
    assert task.success_tolerance == pytest.approx(0.06075)
    task.set_env_state({"success_tolerance": 0.01})
    _, _, _, extras = step(task, 0.0)
    assert extras["true_objective"].tolist() == [1] and kuka("Throw").success_tolerance == 0.075


def test_throw_has_no_curriculum(standin):
    task = kuka("Throw")
    for _ in range(4 + 4):
        _, _, _, extras = step(task, 1.0 if task.position[0] < 1 else 0.0, 0.0)
    assert extras["true_objective"].tolist() == [2, 1]  # 1 + successes


def test_ant_tells_its_velocity(standin):
    task = make("Ant")
    assert step(task, 1.0, 0.5)[3]["true_objective"].tolist() == [0, 0]  # the first step resets
    assert step(task, 1.0, 0.5)[3]["true_objective"].tolist() == [0.25, 0.125]
    task = make("Ant", num_envs=1)
    assert step(task, 1.0)[3]["true_objective"].dim() == 0
