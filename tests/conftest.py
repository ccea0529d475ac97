"""A small task, what runs of it leave, and `pytest --engine warp`."""

import os
import pathlib

import pytest

os.environ["OMP_NUM_THREADS"] = "1"  # tests run in one process per core; before torch

import torch

import cpo
import envs
import envs.engines
import epo
import harness
import ppo
import sapg
from envs.base import VectorEnv
from harness import hyperparameters


def pytest_addoption(parser):
    parser.addoption("--engine", default="mujoco", help="the engine of every environment that a test makes itself")


def pytest_configure(config):
    """Replaces make_engine, if --engine asks for it, before tasks import it."""
    config.addinivalue_line("markers", "mujoco_cpu: of MuJoCo on CPU threads alone; other engines skip it")
    engine = config.getoption("engine")
    make_engine = envs.engines.make_engine
    if engine != "mujoco":
        envs.engines.make_engine = lambda name, *args, **kwargs: make_engine(engine, *args, **kwargs)


def pytest_collection_modifyitems(config, items):
    if config.getoption("engine") != "mujoco":
        for item in items:
            if item.get_closest_marker("mujoco_cpu"):
                item.add_marker(pytest.mark.skip(reason="of MuJoCo on CPU threads alone"))


class Drift(VectorEnv):
    """A point pushed about: it leaves the square (terminated) or stays for 7 steps (truncated)."""

    num_obs = 3
    num_actions = 2
    max_episode_steps = 7
    fitness_floor = 0.01

    def __init__(self, num_envs, device, seed):
        super().__init__(num_envs, device, seed)
        self.position = self.zeros(2)

    def reset_where(self, mask):
        self.position = torch.where(mask[:, None], self.uniform(-0.5, 0.5, 2), self.position)

    def advance(self, action):
        self.position = self.position + 0.4 * action
        reward = self.position[:, 0] - action[:, 1] - 0.2 * self.position.square().sum(1)
        return reward, (self.position.abs() > 1.2).any(1), self.zeros(dtype=torch.bool)

    def observe(self):
        return torch.cat([self.position, self.episode_step[:, None] / 7.0], 1)

    def objective(self):
        return 1.0 + self.position[:, 0]


DRIFT = f"{__name__}:Drift"
TINY = (
    f"--no-cuda --env-id {DRIFT} --num-envs 24 --num-steps 9 --total-timesteps 648 --hidden-sizes 16 16"
    " --lstm-size 8 --num-minibatches 2 --update-epochs 2 --learning-rate 0.05 --clip-coef 0.05"  # 3 iterations
)
TINY_POPULATION = f"{TINY} --num-agents 4 --latent-dim 5 --max-ent-coef 0.3"
FLAGS = {ppo: TINY, sapg: TINY_POPULATION, cpo: TINY_POPULATION, epo: TINY_POPULATION}
every_script = pytest.mark.parametrize("script", FLAGS, ids=lambda script: script.__name__)
every_population = pytest.mark.parametrize("script", [sapg, cpo, epo], ids=lambda script: script.__name__)


def documents():
    """README.md and docs/*.md, one after the other."""
    root = pathlib.Path(__file__).resolve().parents[1]
    return "\n".join(path.read_text() for path in [root / "README.md", *sorted(root.glob("docs/*.md"))])


def tuned(script):
    """The script's table of hyperparameters: task -> flags."""
    return getattr(hyperparameters, script.__name__.upper())


def parse(script, flags):
    """The arguments of `python script.py flags`, as main() gets them."""
    check_args = getattr(script, "check_args", lambda args: None)
    return harness.parse_args(script.Args, tuned(script), check_args, flags.split())[0]


def the_run(folder="."):
    """The only run under `folder`."""
    (run,) = (pathlib.Path(folder) / "runs").iterdir()
    return run


def written(run):
    """The run's whole TensorBoard log."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # slow, not for every process

    log = EventAccumulator(str(run), size_guidance=dict.fromkeys(("scalars", "tensors", "images", "histograms"), 0))
    log.Reload()
    return log


def scalars(run, key):
    """What the run's TensorBoard log has under `key`: events with step and value."""
    return written(run).Scalars(key)


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    """Where runs are written, and MuJoCo's MUJOCO_LOG.TXT."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def float64(monkeypatch):
    """Everything in double precision, `.float()` included, so that little can hide behind rounding."""
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
