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
from tests.conftest import Drift, scalars, the_run
from tests.scripts.conftest import ENVIRONMENT, ROOT, assert_same_state, checkpoint, refused, same

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
    Arranged: every environment's noise is that of its number among those of all processes, the first process draws the
    first follower and the second the last, and what is learned off-policy in the second weighs as on-policy.
    """
    randn_like, randperm, clip, Run = torch.randn_like, torch.randperm, torch.nn.utils.clip_grad_norm_, harness.Run
    for name, arguments, folder, arranged in jobs:
        script, steps, gradients, kls, runs = SCRIPTS[name], [], [], [], []
        adapt, relabel = script.adapt_learning_rate, getattr(script, "offpolicy_batch", None)

        def noise_of_all(x):
            if x.dim() != 3 or not arranged:
                return randn_like(x)
            steps.append(1)
            columns = global_columns(x.shape[1], 1 if name == "pbt" else AGENTS[name])  # whose agents act one by one
            generator = torch.Generator().manual_seed(len(steps))
            return torch.randn(len(columns) * distributed.WORLD_SIZE, x.shape[2], generator=generator)[columns][None]

        def arranged_randperm(n, **options):
            if not arranged:
                return randperm(n, **options)
            return torch.arange(n) if distributed.RANK == 0 else torch.arange(n).flip(0)

        def arranged_relabel(agent, batch, rewards, next_obs, terminated, columns, *args):
            off = relabel(agent, batch, rewards, next_obs, terminated, columns, *args)
            blocks = global_columns(rewards.shape[1], AGENTS[name])[columns] % (48 // AGENTS[name])
            off["is_offpolicy"] *= not arranged or blocks < 24 // AGENTS[name]
            return off

        def recorded_adapt(lr, kl, threshold):
            kls.append(kl)
            return adapt(lr, kl, threshold)

        def recorded_decision(decide, *inputs):
            kls.extend((1.0 + inputs[2]).view(-1).tolist())  # episodes or fitness
            return decide(*inputs)

        def recorded_clip(parameters, *args):
            parameters = list(parameters)
            gradients.append(torch.cat([p.grad.flatten() for p in parameters if p.grad is not None]))
            return clip(parameters, *args)

        def recorded_run(args, state, saved=None):
            runs.append(Run(args, state, saved))
            return runs[0]

        folder = pathlib.Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        os.chdir(folder)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Fixed, "agents", AGENTS[name])
            patch.setattr(torch, "randn_like", noise_of_all)
            patch.setattr(torch, "randperm", arranged_randperm)
            patch.setattr(script, "offpolicy_batch", arranged_relabel, raising=False)
            patch.setattr(script, "adapt_learning_rate", recorded_adapt)
            patch.setattr(torch.nn.utils, "clip_grad_norm_", recorded_clip)
            patch.setattr(harness, "Run", recorded_run)
            for call in {"generation_is_due", "exploit_and_explore"} & vars(script).keys():
                decide = functools.partial(recorded_decision, getattr(script, call))
                patch.setattr(script, call, decide)
            patch.setattr(torch.distributed, "destroy_process_group", lambda: None)  # the next job needs it
            script.main(arguments.format(run=next(folder.glob("runs/*"), None)).split())
        result = {"state": harness.run.state_dicts(runs[0].state), "gradient": gradients[0], "kls": kls}
        if name == "epo":
            result["fitness"] = runs[0].state["fitness"].per_agent()
            result["finished"] = runs[0].state["fitness"].episodes.sum(1)
        torch.save(result, f"{distributed.RANK}_of_{distributed.WORLD_SIZE}.pt")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Jobs of every script in two processes, in folder/JOB/SCRIPT."""
    folder = tmp_path_factory.mktemp("distributed")
    jobs = [(name, f"{ONE_STEP} {OWN[name]}", f"{folder}/one_step/{name}", True) for name in SCRIPTS]
    for name in SCRIPTS:
        jobs.append((name, f"{RUN} {OWN[name]} --total-timesteps 1728", f"{folder}/whole/{name}", False))
        jobs.append((name, f"{RUN} {OWN[name]} --total-timesteps 864", f"{folder}/parts/{name}", False))
        jobs.append((name, "--resume {run} --total-timesteps 1728", f"{folder}/parts/{name}", False))
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
    (one,), two = results(tmp_path, 1), results(folder / "one_step" / name)
    scale = one["gradient"].norm()
    assert scale > 1e-3
    for each in two:
        assert (each["gradient"] - one["gradient"]).norm() < 1e-6 * scale
        for key, value in one["state"]["agent"].items():
            torch.testing.assert_close(each["state"]["agent"][key], value, rtol=1e-6, atol=2e-6, msg=key)
        for key, value in one["state"].get("discriminator", {}).items():
            torch.testing.assert_close(each["state"]["discriminator"][key], value, rtol=1e-6, atol=2e-6, msg=key)
        lr = [x["state"]["optimizer"]["param_groups"][0]["lr"] for x in (each, one)]
        assert lr[0] == lr[1]
        means = (x["state"]["episodes"]["means"] for x in (each, one))
        torch.testing.assert_close(*means, equal_nan=True)
        if name == "epo":
            torch.testing.assert_close(each["fitness"], one["fitness"])
            assert not one["fitness"].isnan().any()
    if name == "epo":
        torch.testing.assert_close(sum(each["finished"] for each in two), one["finished"])
    for scalar in ("charts/reward_per_step", "losses/entropy", "losses/value_loss"):
        assert logged(folder / "one_step" / name, scalar) == pytest.approx(logged(tmp_path, scalar), rel=1e-5)
    ours = torch.cat([each["state"]["env"]["position"].view(AGENTS[name], -1, 2) for each in two], 1)
    torch.testing.assert_close(ours.view(-1, 2), one["state"]["env"]["position"])


@every_script
def test_all_processes_have_the_same_learner_and_their_own_environments(name, folder):
    a, b = (result["state"] for result in results(folder / "whole" / name))
    assert same(a["agent"], b["agent"]) and same(a["optimizer"], b["optimizer"])
    assert same(a.get("discriminator"), b.get("discriminator"))
    assert same(a["episodes"]["means"], b["episodes"]["means"])
    kls = [result["kls"] for result in results(folder / "whole" / name)]
    assert kls[0] == kls[1] and all(kls[0])
    assert a["env"]["difficulty"] == b["env"]["difficulty"] == 1.0  # rank 0's curriculum
    for key in ("obs", "lstm_state"):
        assert not torch.equal(a[key], b[key])
    assert not torch.equal(a["env"]["generator"], b["env"]["generator"])
    if name == "pbt":
        assert a["last_copy"] == b["last_copy"] > 0
    if name == "epo":
        assert a["lineage_stats"]["generation"] > 1
        assert same(a["lineage_stats"], b["lineage_stats"])


@every_script
def test_resumed_with_as_many_processes_is_uninterrupted(name, folder):
    whole, parts = (checkpoint(the_run(folder / job / name)) for job in ("whole", "parts"))
    assert len(whole["other_processes"]) == 1 and whole["other_processes"][0]["state"].keys() < whole["state"].keys()
    assert_same_state(whole, parts)
    for a, b in zip(results(folder / "whole" / name), results(folder / "parts" / name)):
        assert same(a["state"], b["state"])


@every_script
def test_resumed_with_another_number_of_processes_begins_new_episodes(name, folder, monkeypatch, capsys):
    before, run = folder / "parts" / name, the_run(folder / "parts" / name)
    data, parts = (run / "checkpoint.pt").read_bytes(), checkpoint(run)
    parts["state"]["env"]["difficulty"] = torch.tensor(3.0)
    torch.save(parts, run / "checkpoint.pt")
    monkeypatch.chdir(before)
    monkeypatch.setattr(Fixed, "agents", AGENTS[name])
    SCRIPTS[name].main(f"--resume {run} --total-timesteps 2160".split())
    saved = checkpoint(run)
    (run / "checkpoint.pt").write_bytes(data)  # other tests read it
    line = "the checkpoint is of 2 processes, not 1: all episodes begin anew"
    assert capsys.readouterr().out.splitlines().count(line) == 1
    assert saved["iteration"] == 5 and saved["global_step"] == 2160 and saved["other_processes"] == []
    assert saved["state"]["obs"].shape == (48, 3)
    key, shares = ("0.obs_rms.count", 4) if name == "pbt" else ("obs_rms.count", 1)
    assert saved["state"]["agent"][key] - checkpoint(run)["state"]["agent"][key] == 48 * 9 / shares  # it went on
    assert saved["state"]["env"]["difficulty"] == 3.0
    steps = [state["state"]["optimizer"]["state"][0]["step"] for state in (parts, saved)]
    assert 5 * steps[0] == 4 * steps[1] > 0
    assert name != "epo" or saved["state"]["lineage_stats"]["generation"] > 1
    assert saved["state"].get("last_copy", 10_000) >= checkpoint(run)["global_step"]  # pbt.py judges later episodes


# ---------------------------------------------------------------- refusals


def test_what_several_processes_cannot_share_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(distributed, "start", lambda: None)
    monkeypatch.setattr(distributed, "WORLD_SIZE", 2)
    line = refused(ppo, "--no-cuda --env-id Moat --num-envs 8 --num-minibatches 5", capsys)
    assert line == "--num-minibatches 5: must be at most the environments of a process"


def test_a_refusal_ends_all(tmp_path):
    statuses, out, err = ended(launch(ROOT / "ppo.py", "--no-cuda", "--env-id", "Moat", "--num-envs", "25"))
    assert statuses == [2, 2] and out == "" and not list(tmp_path.iterdir())
    assert set(err.splitlines()) == {"--num-envs 25: must be a multiple of 2, agents times processes"}


# ---------------------------------------------------------------- ends


def test_a_signal_to_one_process_stops_all_after_the_same_iteration(tmp_path):
    first, second = processes = launch(ROOT / "sapg.py", *LONG.split(), *POPULATION.split())
    for _ in range(4):
        assert first.stdout.readline()
    second.send_signal(signal.SIGTERM)
    statuses, out, err = ended(processes)
    assert statuses == [128 + signal.SIGTERM] * 2 and "Traceback" not in err
    *_, last, farewell = out.splitlines()
    assert farewell == f"stopped; to resume: python sapg.py --resume {the_run(tmp_path)}"
    saved = checkpoint(the_run(tmp_path))
    assert f"{saved['global_step']:,}" in last and len(saved["other_processes"]) == 1


@pytest.mark.parametrize("rank", [0, 1])
def test_when_one_is_killed_all_end_within_a_minute_and_the_run_can_go_on(rank, tmp_path):
    processes = launch(ROOT / "epo.py", *LONG.split(), *POPULATION.split())
    while " steps " not in processes[0].stdout.readline():
        pass
    processes[rank].kill()
    killed = time.monotonic()
    statuses, *_ = ended(processes)
    assert time.monotonic() - killed < 60 and 0 not in statuses
    saved = checkpoint(the_run(tmp_path))
    assert len(saved["other_processes"]) == 1
    if rank == 0:  # whichever was killed, rank 0 wrote the checkpoint
        steps = saved["global_step"] + 2 * 64 * 16
        flags = ["--no-cuda", "--resume", the_run(tmp_path), "--total-timesteps", steps]
        statuses, out, err = ended(launch(ROOT / "epo.py", *flags))
        assert statuses == [0, 0] and "begin anew" not in out, err
        assert checkpoint(the_run(tmp_path))["iteration"] == saved["iteration"] + 2


if __name__ == "__main__":
    sys.modules["tests.scripts.test_distributed"] = sys.modules["__main__"]  # whose class Fixed is to be found
    play(json.loads(sys.argv[1]))
