"""Several processes, one run: together they are one process with all environments, and end as one."""

import functools
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import pytest
import torch

import cpo
import epo
import harness
import pbt
import ppo
import sapg
from harness import distributed
from harness.checkpoints import state_of
from tests.conftest import Drift, scalars, the_run
from tests.scripts.conftest import ENVIRONMENT, ROOT, assert_same_state, checkpoint, differences, refused

SCRIPTS = {script.__name__: script for script in (ppo, sapg, cpo, epo, pbt)}
AGENTS = {"ppo": 1, "sapg": 4, "cpo": 4, "epo": 6, "pbt": 4}
POPULATION = "--num-agents 4 --latent-dim 5 --max-ent-coef 0.3"
OWN = {
    "ppo": "",
    "sapg": f"{POPULATION} --off-policy-coef 0.5 --off-policy-ratio 3",
    "cpo": f"{POPULATION} --off-policy-coef 0.5 --aggregation one-follower --awac-coef 0.1 --reverse-kl-coef 0.1"
    " --adversarial-coef 0.1 --discriminator-sizes 8",
    "epo": "--num-agents 6 --latent-dim 5 --max-ent-coef 0.3 --off-policy-coef 0.5 --off-policy-ratio 5"
    " --ga-interval 0.1 --ga-warmup 0.1",
    "pbt": "--num-agents 4 --pbt-start 1 --pbt-interval 1",
}
FIXED = f"--no-cuda --env-id {__name__}:Fixed --num-envs 48 --num-steps 9 --hidden-sizes 16"
ONE_STEP = f"{FIXED} --num-minibatches 1 --update-epochs 1 --total-timesteps 432"
RUN = f"{FIXED} --num-minibatches 2 --update-epochs 2 --learning-rate 0.02 --lstm --lstm-size 8"
CLOCKWORK = {  # 12 environments for each agent, 12 iterations
    name: f"--no-cuda --env-id {__name__}:Clockwork --num-envs {12 * AGENTS[name]} --num-steps 9 --num-minibatches 2"
    f" --hidden-sizes 8 --total-timesteps {12 * 12 * AGENTS[name] * 9} {OWN[name]}"
    for name in ("epo", "pbt")
}
LONG = "--no-cuda --env-id Moat --num-envs 64 --num-steps 16 --num-minibatches 2 --hidden-sizes 16 --no-lstm"
LONG += " --total-timesteps 100_000_000 --checkpoint-interval 1e-9"

every_script = pytest.mark.parametrize("name", SCRIPTS)


class Fixed(Drift):
    """Drift that starts where the number of its environment among those of all processes says."""

    curriculum = ("difficulty",)
    agents = 1  # set by play

    def __init__(self, num_envs, device, seed):
        super().__init__(num_envs, device, seed)
        self.difficulty = torch.tensor(1.0 + distributed.RANK)

    def reset(self):
        self.training = False  # over the environments of a process, others than over those of a single one
        return super().reset()

    def reset_where(self, mask):
        start = 0.5 * torch.sin(global_columns(self.num_envs, self.agents)[:, None] * torch.tensor([1.3, 2.1]))
        self.position = torch.where(mask[:, None], start, self.position)


class Clockwork(Fixed):
    """An episode's length depends only on its environment's place among the twelve of its agent.

    Its objective says where and when it ended. The last environment's does not end, so that one is never judged.
    """

    max_episode_steps = 1_000

    def __init__(self, num_envs, device, seed):
        super().__init__(num_envs, device, seed)
        self.place = global_columns(num_envs, self.agents) % 12
        self.limit = torch.tensor([3, 4, 5, 6, 14, 3, 4, 5, 6, 7, 8, 1_000])[self.place]
        self.now = 0

    def advance(self, action):
        reward, _, truncated = super().advance(action)
        self.now += 1
        return reward, self.episode_length >= self.limit, truncated

    def objective(self):
        return (100 * self.place + self.now).float()


def global_columns(num_envs, agents):
    """What the columns of this process are among those of a single one, which holds each agent's as one block."""
    columns = torch.arange(num_envs * distributed.WORLD_SIZE).view(agents, distributed.WORLD_SIZE, -1)
    return columns[:, distributed.RANK].flatten()


# ---------------------------------------------------------------- processes


def launch(*argv, processes=2):
    """`python *argv` as each of several processes, which find what torchrun would set."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    started = []
    for rank in range(processes):
        names = dict(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=processes, LOCAL_WORLD_SIZE=processes, MASTER_PORT=port)
        environment = {**ENVIRONMENT, "MASTER_ADDR": "127.0.0.1", **{key: str(value) for key, value in names.items()}}
        started.append(subprocess.Popen([sys.executable, *map(str, argv)], env=environment, **options))
    return started


def ended(processes):
    """Exit statuses, and all that was written to stdout and to stderr."""
    texts = [process.communicate(timeout=600) for process in processes]
    return [process.returncode for process in processes], *map("".join, zip(*texts))


def play(jobs):
    """Run scripts in this process, one after the other: [(script's name, flags, folder, whether noise is arranged)].

    What each ends with goes to folder/RANK_of_WORLD_SIZE.pt. {run} in the flags is the run's folder in that folder.
    """
    for name, flags, folder, arranged in jobs:
        folder = pathlib.Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        os.chdir(folder)
        found = {"gradients": [], "kls": [], "fitness": []}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Fixed, "agents", AGENTS[name])
            patch.setattr(torch.distributed, "destroy_process_group", lambda: None)  # the next job needs it
            record(name, found, patch)
            if arranged:
                arrange(name, patch)
            SCRIPTS[name].main(flags.format(run=next(folder.glob("runs/*"), None)).split())
        run = found.pop("run")
        found["learner"] = state_of(run.learner)
        found["rollout"] = state_of(run.rollout)
        if name == "epo":
            found["episodes"] = run.rollout["tracker"].episodes.sum(1)
        torch.save(found, f"{distributed.RANK}_of_{distributed.WORLD_SIZE}.pt")


def record(name, found, patch):
    """Put into found: run, gradients before each step, kls of each update, fitness (A,) that decides about agents."""
    script = SCRIPTS[name]
    clip = torch.nn.utils.clip_grad_norm_
    adapt = script.adapt_learning_rate
    Run = harness.Run

    def recorded_clip(parameters, *args):
        parameters = list(parameters)
        found["gradients"].append(torch.cat([p.grad.flatten() for p in parameters if p.grad is not None]))
        return clip(parameters, *args)

    def recorded_adapt(lr, kl, threshold):
        found["kls"].append(kl)
        return adapt(lr, kl, threshold)

    def recorded_decision(decide, *inputs):
        found["fitness"].append(next(x for x in inputs if isinstance(x, torch.Tensor)).clone())
        return decide(*inputs)

    def recorded_run(*inputs):
        found["run"] = Run(*inputs)
        return found["run"]

    patch.setattr(torch.nn.utils, "clip_grad_norm_", recorded_clip)
    patch.setattr(script, "adapt_learning_rate", recorded_adapt)
    patch.setattr(harness, "Run", recorded_run)
    for call in {"fitness_spread", "exploit_and_explore"} & vars(script).keys():
        patch.setattr(script, call, functools.partial(recorded_decision, getattr(script, call)))


def arrange(name, patch):
    """Let two processes and one draw alike.

    Every environment's noise is that of its number among those of all processes. The first process draws the first
    follower and the second the last, and what is learned off-policy in the second weighs as on-policy.
    """
    script = SCRIPTS[name]
    randn_like = torch.randn_like
    steps = []

    def noise_of_all(x):
        if x.dim() != 3:
            return randn_like(x)
        steps.append(1)
        columns = global_columns(x.shape[1], 1 if name == "pbt" else AGENTS[name])  # whose agents act one by one
        generator = torch.Generator().manual_seed(len(steps))
        return torch.randn(len(columns) * distributed.WORLD_SIZE, x.shape[2], generator=generator)[columns][None]

    def arranged_randperm(n, **options):
        return torch.arange(n) if distributed.RANK == 0 else torch.arange(n).flip(0)

    patch.setattr(torch, "randn_like", noise_of_all)
    patch.setattr(torch, "randperm", arranged_randperm)
    if hasattr(script, "offpolicy_batch"):
        relabel = script.offpolicy_batch

        def arranged_relabel(agent, batch, rewards, next_obs, terminated, ends, columns, *args):
            off = relabel(agent, batch, rewards, next_obs, terminated, ends, columns, *args)
            blocks = global_columns(rewards.shape[1], AGENTS[name])[columns] % (48 // AGENTS[name])
            off["is_offpolicy"] *= blocks < 24 // AGENTS[name]
            return off

        patch.setattr(script, "offpolicy_batch", arranged_relabel)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Jobs of every script in two processes, in folder/JOB/SCRIPT; `grown` begins in one process."""
    folder = tmp_path_factory.mktemp("distributed")
    jobs = [(name, f"{ONE_STEP} {OWN[name]}", f"{folder}/one_step/{name}", True) for name in SCRIPTS]
    for name in SCRIPTS:
        jobs.append((name, f"{RUN} {OWN[name]} --total-timesteps 1728", f"{folder}/whole/{name}", False))
        jobs.append((name, f"{RUN} {OWN[name]} --total-timesteps 864", f"{folder}/parts/{name}", False))
        jobs.append((name, "--resume {run} --total-timesteps 1728", f"{folder}/parts/{name}", False))
    jobs += [(name, flags, f"{folder}/clockwork/{name}", False) for name, flags in CLOCKWORK.items()]
    before = os.getcwd()
    play([("sapg", f"{RUN} {OWN['sapg']} --total-timesteps 864", f"{folder}/grown/sapg", False)])
    os.chdir(before)
    jobs.append(("sapg", "--resume {run} --total-timesteps 1728", f"{folder}/grown/sapg", False))
    statuses, _, err = ended(launch(__file__, json.dumps(jobs)))
    assert statuses == [0, 0], err
    return folder


def results(folder, processes=2):
    return [torch.load(folder / f"{rank}_of_{processes}.pt") for rank in range(processes)]


def logged(folder, name):
    """The only value of a scalar in the log of the run."""
    (event,) = scalars(the_run(folder), name)
    return event.value


# ---------------------------------------------------------------- one run


@every_script
def test_two_processes_learn_what_one_learns(name, folder, tmp_path, monkeypatch):
    """The first gradient, the normalisers, and what comes of them, with the same environments and noise."""
    monkeypatch.chdir(tmp_path)
    play([(name, f"{ONE_STEP} {OWN[name]}", str(tmp_path), True)])
    (one,) = results(tmp_path, 1)
    two = results(folder / "one_step" / name)
    scale = one["gradients"][0].norm()
    assert scale > 1e-3
    for each in two:
        assert (each["gradients"][0] - one["gradients"][0]).norm() < 1e-6 * scale
        for part in {"agent", "discriminator"} & one["learner"].keys():
            for key, value in one["learner"][part].items():
                torch.testing.assert_close(each["learner"][part][key], value, rtol=1e-6, atol=2e-6, msg=key)
        lr = [x["learner"]["optimizer"]["param_groups"][0]["lr"] for x in (each, one)]
        assert lr[0] == lr[1]
        means = [x["rollout"]["episodes"]["means"] for x in (each, one)]
        torch.testing.assert_close(*means, equal_nan=True)
    for scalar in ("charts/reward_per_step", "losses/entropy", "losses/value_loss"):
        assert logged(folder / "one_step" / name, scalar) == pytest.approx(logged(tmp_path, scalar), rel=1e-5)
    positions = [each["rollout"]["env"]["position"].view(AGENTS[name], -1, 2) for each in two]
    torch.testing.assert_close(torch.cat(positions, 1).view(-1, 2), one["rollout"]["env"]["position"])
    if name == "epo":
        torch.testing.assert_close(sum(each["episodes"] for each in two), one["episodes"])


@pytest.mark.parametrize("name", CLOCKWORK)
def test_two_processes_judge_agents_as_one_does(name, folder, tmp_path, monkeypatch):
    """Also where one process has fewer judged environments, and as soon, by the same episodes."""
    monkeypatch.chdir(tmp_path)
    play([(name, CLOCKWORK[name], str(tmp_path), False)])
    (one,) = results(tmp_path, 1)
    judged = [fitness for fitness in one["fitness"] if fitness.isfinite().all()]
    assert len(judged) > 1
    for each in results(folder / "clockwork" / name):
        assert len(each["fitness"]) == len(one["fitness"])
        for fitness, expected in zip(each["fitness"], one["fitness"]):
            torch.testing.assert_close(fitness, expected, equal_nan=True)


@every_script
def test_all_processes_have_the_same_learner_and_their_own_environments(name, folder):
    a, b = results(folder / "whole" / name)
    assert differences(a["learner"], b["learner"]) == []
    assert differences(a["rollout"]["episodes"]["means"], b["rollout"]["episodes"]["means"]) == []
    assert differences(a["fitness"], b["fitness"]) == []
    assert a["kls"] == b["kls"]
    assert min(a["kls"]) > 0
    for result in (a, b):
        assert result["rollout"]["env"]["difficulty"] == 1.0  # rank 0's curriculum
    for key in ("obs", "lstm_state"):
        assert not torch.equal(a["rollout"][key], b["rollout"][key])
    assert not torch.equal(a["rollout"]["env"]["generator"], b["rollout"]["env"]["generator"])
    if name == "pbt":
        assert 0 < a["learner"]["copied_at"] < 1728
    if name == "epo":
        assert a["learner"]["lineage_stats"]["generation"] > 1


@every_script
def test_resumed_with_as_many_processes_is_uninterrupted(name, folder):
    whole, parts = (checkpoint(the_run(folder / job / name)) for job in ("whole", "parts"))
    assert len(whole["rollout"]) == 2
    assert_same_state(whole, parts)
    for a, b in zip(results(folder / "whole" / name), results(folder / "parts" / name)):
        assert differences(a["learner"], b["learner"]) == []
        assert differences(a["rollout"], b["rollout"]) == []


@every_script
def test_resumed_with_fewer_processes_begins_new_episodes(name, folder, monkeypatch, capsys):
    run = the_run(folder / "parts" / name)
    data = (run / "checkpoint.pt").read_bytes()
    before = checkpoint(run)
    harder = checkpoint(run)
    harder["rollout"][0]["env"]["difficulty"] = torch.tensor(3.0)
    torch.save(harder, run / "checkpoint.pt")
    monkeypatch.chdir(folder / "parts" / name)
    monkeypatch.setattr(Fixed, "agents", AGENTS[name])
    SCRIPTS[name].main(f"--resume {run} --total-timesteps 2160".split())
    saved = checkpoint(run)
    (run / "checkpoint.pt").write_bytes(data)  # other tests read it
    assert "begin anew" in capsys.readouterr().out
    assert saved["iteration"] == 5
    assert saved["global_step"] == 2160
    assert len(saved["random"]) == 1
    (rollout,) = saved["rollout"]
    assert rollout["obs"].shape == (48, 3)
    assert rollout["env"]["difficulty"] == 3.0
    key, agents = ("0.obs_rms.count", 4) if name == "pbt" else ("obs_rms.count", 1)
    assert saved["learner"]["agent"][key] - before["learner"]["agent"][key] == 48 * 9 / agents  # it went on
    steps = [state["learner"]["optimizer"]["state"][0]["step"] for state in (before, saved)]
    assert 5 * steps[0] == 4 * steps[1] > 0
    if name == "epo":
        assert saved["learner"]["lineage_stats"]["generation"] > 1


def test_resumed_with_more_processes_each_draws_its_own_numbers(folder):
    saved = checkpoint(the_run(folder / "grown" / "sapg"))
    assert saved["iteration"] == 4
    a, b = saved["random"]
    for generator in ("python", "numpy", "torch"):
        assert differences(a[generator], b[generator]) != []


# ---------------------------------------------------------------- refusals


def test_what_several_processes_cannot_share_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(distributed, "start", lambda: None)
    monkeypatch.setattr(distributed, "WORLD_SIZE", 2)
    line = refused(ppo, "--no-cuda --env-id Moat --num-envs 8 --num-minibatches 5", capsys)
    assert line.startswith("--num-minibatches 5: ")


def test_a_refusal_ends_all(tmp_path):
    statuses, out, err = ended(launch(ROOT / "ppo.py", "--no-cuda", "--env-id", "Moat", "--num-envs", "25"))
    assert statuses == [2, 2]
    assert out == ""
    for line in err.splitlines():
        assert line.startswith("--num-envs 25: ")
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------- ends


def test_a_signal_to_one_process_stops_all_after_the_same_iteration(tmp_path):
    processes = launch(ROOT / "sapg.py", *LONG.split(), *POPULATION.split())
    first, second = processes
    while " steps " not in first.stdout.readline():
        pass
    second.send_signal(signal.SIGTERM)
    statuses, out, err = ended(processes)
    assert statuses == [128 + signal.SIGTERM] * 2
    assert "Traceback" not in err
    *_, last, farewell = out.splitlines()
    assert farewell.endswith(f"--resume {the_run(tmp_path)}")
    saved = checkpoint(the_run(tmp_path))
    assert f"{saved['global_step']:,} steps" in last
    assert len(saved["rollout"]) == 2


@pytest.mark.parametrize("rank", [0, 1])
def test_when_one_is_killed_all_end_within_a_minute_and_the_run_can_go_on(rank, tmp_path):
    processes = launch(ROOT / "epo.py", *LONG.split(), *POPULATION.split())
    while " steps " not in processes[0].stdout.readline():
        pass
    processes[rank].kill()
    killed = time.monotonic()
    statuses, *_ = ended(processes)
    assert time.monotonic() - killed < 60
    assert 0 not in statuses
    saved = checkpoint(the_run(tmp_path))
    assert len(saved["rollout"]) == 2
    if rank == 0:  # whichever was killed, rank 0 wrote the checkpoint
        steps = saved["global_step"] + 2 * 64 * 16
        flags = ["--no-cuda", "--resume", the_run(tmp_path), "--total-timesteps", steps]
        statuses, out, err = ended(launch(ROOT / "epo.py", *flags))
        assert statuses == [0, 0], err
        assert "begin anew" not in out
        assert checkpoint(the_run(tmp_path))["iteration"] == saved["iteration"] + 2


if __name__ == "__main__":
    sys.modules["tests.scripts.test_distributed"] = sys.modules["__main__"]  # whose class Fixed is to be found
    play(json.loads(sys.argv[1]))
