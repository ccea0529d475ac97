"""A small task, runs of a script that write down what happened, and `pytest --engine warp`."""

import copy
import os
import pathlib
from types import SimpleNamespace

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
    engine, make_engine = config.getoption("engine"), envs.engines.make_engine
    if engine != "mujoco":
        envs.engines.make_engine = lambda name, *args, **kwargs: make_engine(engine, *args, **kwargs)


def pytest_collection_modifyitems(config, items):
    if config.getoption("engine") != "mujoco":
        for item in items:
            if item.get_closest_marker("mujoco_cpu"):
                item.add_marker(pytest.mark.skip(reason="of MuJoCo on CPU threads alone"))


class Drift(VectorEnv):
    """A point pushed about: it leaves the square (terminated) or stays for 7 steps (truncated)."""

    num_obs, num_actions, max_episode_steps = 3, 2, 7
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


@pytest.fixture
def train(monkeypatch):
    """train(script, flags) runs script.main(flags) and returns what happened:

    agent, optimizer     the script's own, at the end of the run; args: the run's
    steps[t]             obs, action, logprob, reward, terminated, truncated, final_obs, next_obs, objective and
                         counts (N, ...): whether a whole episode ended
    minibatches[i]       just before the step: params, buffers, lr, grads (unclipped); obs, action, agent_ids, logprob;
                         awac: the same four of the rows that cpo's followers imitate, or None; rollout_buffers: those
                         that acted in this iteration
    sampled[iteration]   (columns, learners) of the off-policy data
    logged[iteration]    name -> number, as the script logs it
    kls[i]               the divergence that the i-th adaptation of the learning rate was given
    generations[i]       iteration, fitness, lineage, latents, parameter of the i-th genetic algorithm step
    discriminators[i]    cpo's in iteration i, before its step
    """

    def train(script, flags):
        lists = "steps", "minibatches", "sampled", "logged", "kls", "generations", "discriminators"
        run = SimpleNamespace(optimizer=None, **{name: [] for name in lists})
        with monkeypatch.context() as patch:
            record(script, run, patch)
            script.main(flags.split())
        return run

    return train


def record(script, run, patch):
    """Put recorders around what main() calls by name."""
    make = envs.make
    agent_class = script.Agent
    adam = torch.optim.Adam
    adapt = script.adapt_learning_rate
    minibatch_loss = script.minibatch_loss
    log = harness.Run.log
    current = SimpleNamespace(obs=None, acted=None)

    def recorded_make(*args, **kwargs):
        env = make(*args, **kwargs)
        reset, step = env.reset, env.step

        def recorded_reset():
            current.obs = reset()
            return current.obs.clone()

        def recorded_step(action):
            current.buffers = {key: value.clone() for key, value in run.agent.named_buffers()}
            next_obs, reward, terminated, truncated, info = step(action)
            seen = dict(obs=current.obs, reward=reward, terminated=terminated, truncated=truncated, next_obs=next_obs)
            seen.update(final_obs=info["final_obs"], objective=info["episode"]["objective"], **current.acted)
            seen.update(counts=info["episode"]["done"])
            run.steps.append(SimpleNamespace(**{key: value.clone() for key, value in seen.items()}))
            current.obs = next_obs.clone()
            return next_obs, reward, terminated, truncated, info

        env.reset, env.step = recorded_reset, recorded_step
        return env

    def recorded_agent(*args):
        run.agent = agent_class(*args)
        run.args = args[-1]
        run.agent.actor.weight.data *= 4.0  # some action means leave +-1.1 from the start
        forward = run.agent.get_action_and_value

        def recorded_forward(obs, *inputs):
            action, logprob, *rest = outputs = forward(obs, *inputs)
            if not torch.is_grad_enabled() and len(obs) == 1:  # a step of the rollout
                current.acted = dict(action=action[0], logprob=logprob[0])
            return outputs

        run.agent.get_action_and_value = recorded_forward
        return run.agent

    def recorded_adam(*args, **kwargs):
        made = adam(*args, **kwargs)
        run.optimizer = run.optimizer or made  # cpo's discriminator has one too
        return made

    def as_seen(mb):
        """A minibatch's observations, actions and learners (PPO: 0), and the actions' log-probability now."""
        ids = [mb["agent_ids"]] if "agent_ids" in mb else []
        with torch.no_grad():
            logprob = run.agent.get_action_and_value(mb["obs"], *ids, mb["dones"], mb["lstm_state"], mb["actions"])[1]
        no_ids = torch.zeros(1, mb["obs"].shape[1], dtype=torch.long)
        return dict(obs=mb["obs"], action=mb["actions"], agent_ids=mb.get("agent_ids", no_ids), logprob=logprob)

    def recorded_loss(agent, mb, *inputs):
        loss, *rest = minibatch_loss(agent, mb, *inputs)
        params = dict(agent.named_parameters())
        grads = torch.autograd.grad(loss, list(params.values()), retain_graph=True)
        imitated = inputs[0] if script is cpo and inputs[0]["obs"].shape[1] else None
        run.minibatches.append(
            SimpleNamespace(
                params={key: value.detach().clone() for key, value in params.items()},
                grads=dict(zip(params, grads)),
                buffers={key: value.clone() for key, value in agent.named_buffers()},
                lr=run.optimizer.param_groups[0]["lr"],
                awac=SimpleNamespace(**as_seen(imitated)) if imitated else None,
                rollout_buffers=current.buffers,
                **as_seen(mb),
            )
        )
        return loss, *rest

    def recorded_adapt(lr, kl, threshold):
        run.kls.append(kl)
        return adapt(lr, kl, threshold)

    def recorded_log(self, iteration, global_step, values):
        numbers = {k: torch.as_tensor(v, dtype=torch.float64) for k, v in values.items() if not isinstance(v, str)}
        run.logged.append({key: value.mean().item() for key, value in numbers.items() if value.dim() < 2})
        log(self, iteration, global_step, values)

    patch.setattr(envs, "make", recorded_make)
    patch.setattr(harness.Run, "log", recorded_log)
    patch.setattr(script, "Agent", recorded_agent)
    patch.setattr(torch.optim, "Adam", recorded_adam)
    patch.setattr(script, "minibatch_loss", recorded_loss)
    patch.setattr(script, "adapt_learning_rate", recorded_adapt)

    if hasattr(script, "sample_offpolicy_columns"):
        sample = script.sample_offpolicy_columns

        def recorded_sample(*args):
            run.sampled.append(sample(*args))
            return run.sampled[-1]

        patch.setattr(script, "sample_offpolicy_columns", recorded_sample)

    if hasattr(script, "discriminator_step"):
        step = script.discriminator_step

        def recorded_discriminator_step(discriminator, *args):
            run.discriminators.append(copy.deepcopy(discriminator))
            return step(discriminator, *args)

        patch.setattr(script, "discriminator_step", recorded_discriminator_step)

    if hasattr(script, "genetic_algorithm_step"):
        evolve = script.genetic_algorithm_step

        def recorded_evolve(latents, fitness, *args):
            lineage = evolve(latents, fitness, *args)
            run.generations.append(
                SimpleNamespace(
                    iteration=len(run.sampled),
                    fitness=fitness.clone(),
                    lineage=lineage,
                    latents=latents.detach().clone(),
                    parameter=latents,
                )
            )
            return lineage

        patch.setattr(script, "genetic_algorithm_step", recorded_evolve)
