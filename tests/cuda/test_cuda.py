"""Scripts and tasks on the CUDA device of conftest.py: nothing mixes devices, runs resume here and on a CPU.

Kernels, streams and speed need a GPU: `python -m benchmarks.scripts.gpu`.
"""

from collections import Counter

import pytest
import torch

import cpo
import envs
import epo
import evaluate
import export
import pbt
import ppo
import sapg
from benchmarks.scripts import gpu
from tests.conftest import DRIFT, every_script, the_run
from tests.cuda.conftest import CudaTensor, waits
from tests.scripts.conftest import assert_same_state, checkpoint

pytestmark = pytest.mark.usefixtures("cuda")
SIZES = "--num-envs 24 --num-steps 9 --num-minibatches 2 --update-epochs 2 --hidden-sizes 8 --lstm-size 4"
POPULATION = "--num-agents 4 --latent-dim 5 --max-ent-coef 0.1 --diagnostics-interval 1"
OWN = {
    ppo: "",
    sapg: POPULATION,
    cpo: f"{POPULATION} --adversarial-coef 0.1 --discriminator-sizes 8 --reverse-kl-coef 0.1 --awac-coef 0.1",
    pbt: "--num-agents 4 --pbt-start 1 --pbt-interval 200",
    epo: f"{POPULATION} --ga-interval 0.1 --ga-warmup 0.1",
}
every_network = pytest.mark.parametrize("network", ["--no-lstm", "--lstm"])


def train(script, flags, iterations=3, env_id=DRIFT):
    script.main(f"{SIZES} {OWN[script]} --env-id {env_id} --total-timesteps {iterations * 24 * 9} {flags}".split())
    return the_run()


# ---------------------------------------------------------------- the device


def test_what_cuda_refuses_is_refused():
    x = torch.ones(3, device="cuda")
    cpu = torch.ones(3)
    zero_dim = torch.tensor(2.0)
    refused = [
        lambda: x + cpu,
        lambda: cpu.mul_(x),
        lambda: torch.where(x > 0, x, cpu),
        lambda: torch.cat([x, cpu]),
        lambda: torch.stack([x[0], zero_dim]),
        lambda: zero_dim.add_(x[0]),
        lambda: cpu[x.long() - 1],
        x.numpy,
        lambda: x.index_select(0, torch.zeros(1, dtype=torch.long)),
        lambda: x.masked_fill(cpu > 0, 0.0),
        lambda: torch.nn.functional.linear(x, torch.ones(2, 3)),
        lambda: torch.rand(3, device="cuda", generator=torch.Generator()),
        lambda: torch.rand(3, generator=torch.Generator("cuda")),
        lambda: torch.Generator("cuda").set_state(torch.Generator().get_state()),
    ]
    for mistake in refused:
        with pytest.raises((RuntimeError, ValueError)):
            mistake()


def test_what_cuda_allows_is_allowed():
    x = torch.arange(3.0, device="cuda")
    cpu = torch.ones(3)
    row = torch.tensor([2])
    results = [x + torch.tensor(2.0), x[row], x[cpu > 0], x.masked_fill(x > 1, torch.tensor(7.0)), cpu.to("cuda")]
    for result in results:
        assert isinstance(result, CudaTensor)
        assert result.device == torch.device("cuda:0")
    assert results[0].tolist() == [2.0, 3.0, 4.0]
    assert results[3].tolist() == [0.0, 1.0, 7.0]
    x[row] = torch.tensor(5.0)
    cpu.copy_(x)
    assert cpu.tolist() == [0.0, 1.0, 5.0]
    assert x[2].item() == 5.0
    assert not isinstance(x.cpu(), CudaTensor)
    torch.manual_seed(3)
    drawn = torch.rand(2, device="cuda").tolist()
    torch.rand(2)  # of another generator
    assert drawn == torch.rand(2, generator=torch.Generator("cuda").manual_seed(3), device="cuda").tolist()


# ---------------------------------------------------------------- tasks


@pytest.mark.parametrize("env_id", envs.TASKS)
def test_a_task(env_id, monkeypatch):
    engine = "auto" if env_id in envs.PURE_TORCH else "mujoco"
    env = envs.make(env_id, 4, "cuda", 1, engine, training=True)

    def checking(method):
        def checked(*args):
            assert all(x.is_cuda for x in args if isinstance(x, torch.Tensor)), args
            return method(*args)

        return checked

    if env.engine:
        for name in ("step", "set_state", "set_mocap"):
            monkeypatch.setattr(env.engine, name, checking(getattr(env.engine, name)))
    env.reset()
    env.episode_step[1:3] = env.max_episode_steps - 1
    for _ in range(2):
        *results, info = env.step(torch.zeros(4, env.num_actions, device="cuda"))
        results += [info["final_obs"], *info["episode"].values(), *info["metrics"].values()]
    assert all(x.is_cuda for x in results + list(vars(env).values()) if isinstance(x, torch.Tensor))


def test_engines_are_compared_without_what_two_devices_draw_differently(monkeypatch):
    monkeypatch.setattr(gpu.throughput, "DEVICE", "cuda")
    assert gpu.compare_engines("AllegroKukaRegrasping", 8, 30, "mujoco") == [0.0] * 30


# ---------------------------------------------------------------- scripts


@every_network
@every_script
def test_a_run_and_its_resumption(script, network):
    """Diagnostics in every iteration; k iterations and the rest are the whole run, bit by bit."""
    whole = checkpoint(train(script, network, iterations=2))
    the_run().rename("whole")
    train(script, network, iterations=1)
    torch.manual_seed(99)
    script.main(f"--resume {the_run()} --total-timesteps {whole['global_step']}".split())
    assert_same_state(whole, checkpoint(the_run()))


def test_an_iteration_waits_for_the_gpu_five_times_at_most():
    """Where an episode was truncated, the KL of each of two epochs, the check for NaN, and the log."""
    places = {}
    for iterations in (3, 4):
        waits.clear()
        ppo.main(f"{SIZES} --env-id {DRIFT} --total-timesteps {iterations * 24 * 9} --exp-name of{iterations}".split())
        places[iterations] = Counter(waits)
    of_one = places[4] - places[3]
    assert 3 <= of_one.total() <= 5, of_one


@every_script
def test_a_run_goes_on_with_a_gpu_and_without(script, capsys):
    run = train(script, "--no-cuda", iterations=1)
    for iterations, flags, device in ((2, "", "cpu"), (3, "--cuda", "cuda:0"), (4, "--no-cuda", "cpu")):
        script.main(f"--resume {run} {flags} --total-timesteps {iterations * 24 * 9}".split())
        assert f" {device}, 24 environments" in capsys.readouterr().out
        assert checkpoint(run)["iteration"] == iterations


@pytest.mark.parametrize(
    "script, flags",
    [
        (ppo, "--lstm --separate-critic --no-clip-vloss --critic-n-step 3 --ent-coef 0.01 --kl-threshold 0"),
        (sapg, "--aggregation symmetric --off-policy-mu --off-policy-coef 0.5"),
        (sapg, "--aggregation one-follower --lstm --off-policy-ratio 0.5"),
        (sapg, "--off-policy-ratio 0 --separate-critic"),
        (cpo, "--awac-coef 0 --aggregation leader-follower --off-policy-mu"),
        (pbt, "--lstm"),
        (epo, "--crossover uniform --num-elites 2"),
        (epo, "--crossover fitness_weighted --ga-interval 0 --ga-threshold 0 --lstm"),
    ],
)
def test_options_of_the_losses(script, flags):
    saved = checkpoint(train(script, flags, iterations=6 if script is epo else 2))
    if script is epo:
        assert saved["learner"]["lineage_stats"]["completed"]  # a child had its fitness measured


@pytest.mark.parametrize(
    "script, env_id, network",
    [
        (ppo, "Moat", "--lstm"),
        (epo, "Grasp", "--no-lstm"),
        (ppo, "Cartpole", "--no-lstm"),
        (cpo, "Ant", "--no-lstm"),
        (sapg, "AllegroHand", "--no-lstm"),
        (epo, "AllegroKukaRegrasping", "--lstm"),
        (ppo, "Anymal", "--no-lstm"),
        (sapg, "AllegroKukaTwoArmsReorientation", "--lstm"),
        (cpo, "FrankaCubeStack", "--lstm"),
    ],
)
def test_a_task_of_each_family_trains(script, env_id, network):
    engine = "auto" if env_id in envs.PURE_TORCH else "mujoco"
    assert checkpoint(train(script, f"{network} --engine {engine}", 1, env_id))["iteration"] == 1


def test_evaluation_and_export(capsys):
    run = train(epo, "--lstm", iterations=2)
    export.main([str(run), "policy"])
    for played in (str(run), "policy"):
        capsys.readouterr()
        evaluate.main([played, "--episodes", "3"])
        assert "| leader, 0 | mean |" in capsys.readouterr().out
