"""The Isaac Gym adapter runs on a small stub. It has never run on the real Isaac Gym, which cannot be installed here.

The stub does what isaacgymenvs/tasks/base/vec_task.py and its tasks do with a reset: `reset_buf` is executed within the
next step, in dexterous tasks before the action and in others after it.
"""

import ast
import pathlib
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

import envs
import epo
from envs.adapters import isaacgym
from envs.check import check_env
from tests.conftest import the_run
from tests.scripts.conftest import checkpoint

ROOT = pathlib.Path(__file__).resolve().parents[2]


class VecTask:
    """A point on a line that the only action moves. It has fallen below -2, and succeeds above 1."""

    def __init__(self, num_envs, dexterous):
        self.dexterous = dexterous
        self.device = "cpu"
        self.num_obs = 2
        self.num_actions = 1
        self.max_episode_length = 8
        self.max_consecutive_successes = 0
        self.initial_tolerance = 0.075
        self.success_tolerance = 0.075
        self.x = torch.zeros(num_envs)
        self.successes = torch.zeros(num_envs)
        self.rew_buf = torch.zeros(num_envs)
        self.reset_buf = torch.ones(num_envs, dtype=torch.long)
        self.progress_buf = torch.zeros(num_envs, dtype=torch.long)
        self.extras = {}

    def reset_pending(self):
        pending = self.reset_buf == 1
        self.x[pending] = 0.5
        self.successes[pending] = 0.0
        self.progress_buf[pending] = 0
        self.reset_buf[pending] = 0

    def step(self, actions):
        if self.dexterous:
            self.reset_pending()
        self.x += 0.25 * actions[:, 0]
        self.progress_buf += 1
        if not self.dexterous:
            self.reset_pending()
        self.successes += self.x > 1.0
        self.rew_buf[:] = self.x
        late = self.progress_buf >= self.max_episode_length - 1
        self.reset_buf[(self.x < -2.0) | late] = 1
        self.extras["time_outs"] = late & (self.reset_buf == 1)
        self.extras["scalars"] = {"success_tolerance": self.success_tolerance}
        obs = torch.stack([self.x, self.progress_buf / 8.0], 1)
        return {"obs": obs}, self.rew_buf, self.reset_buf, self.extras


@pytest.fixture
def stub(monkeypatch):
    def make(task, num_envs, **options):
        return VecTask(num_envs, task.startswith(isaacgym.DEXTEROUS))

    monkeypatch.setitem(sys.modules, "isaacgymenvs", SimpleNamespace(make=make))
    monkeypatch.setattr(isaacgym, "SIMULATION", {})
    monkeypatch.setattr(isaacgym, "find_problem", lambda env_id: "")
    monkeypatch.setattr(isaacgym, "make_config", lambda env_id, num_envs: None)


@pytest.mark.parametrize("env_id", ["Ant", "AllegroKukaReorientation"])
def test_the_contract_a_run_and_its_resumption(env_id, stub):
    _, episodes = check_env(envs.make(env_id, 24, engine="isaacgym"), 40)
    assert episodes >= 24
    flags = f"--env-id {env_id} --engine isaacgym --no-cuda --num-envs 24 --num-steps 9 --num-agents 4 --latent-dim 5"
    sizes = "--hidden-sizes 16 --lstm-size 8 --num-minibatches 2"
    epo.main(f"{flags} {sizes} --total-timesteps 432".split())
    epo.main(f"{flags} {sizes} --total-timesteps 648 --resume {the_run()}".split())
    assert checkpoint(the_run())["iteration"] == 3


# ---------------------------------------------------------------- Isaac Gym must be imported before torch


FIRST = {"envs", "harness"}  # harness imports envs before anything else


@pytest.mark.parametrize("path", sorted(ROOT.glob("*.py")), ids=lambda path: path.name)
def test_envs_is_imported_before_torch(path):
    names = []
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            names += [name.name.split(".")[0] for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            names.append(node.module.split(".")[0])
    if "torch" in names:
        assert FIRST & set(names[: names.index("torch")])


def test_it_is_imported_before_torch(tmp_path):
    (tmp_path / "isaacgym").mkdir()
    (tmp_path / "isaacgym" / "gymapi.py").touch()
    code = (
        f"import runpy, sys; sys.path.insert(0, {str(tmp_path)!r}); sys.argv.append('--engine=isaacgym');"
        f"sys.version_info = (3, 8); found = runpy.run_path({str(ROOT / 'envs' / 'import_isaacgym_first.py')!r});"
        "print(repr(found['FAILURE']), 'isaacgym.gymapi' in sys.modules, 'torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "'' True False\n"
