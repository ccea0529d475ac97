"""Several processes, one run: together they are one process with all environments, and end as one."""

import json
import math
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch

import cpo
import epo
import harness
import pbt
import ppo
import sapg
from harness import distributed
from tests.algorithms.minibatches import loss_of_minibatch, make_minibatch
from tests.conftest import Drift, scalars, the_run, written
from tests.scripts.conftest import ENVIRONMENT, ROOT, assert_same_state, checkpoint, differences

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
ONE_STEP = {
    name: f"{FIXED} --num-minibatches 1 --update-epochs 1 --total-timesteps 432 {flags}" for name, flags in OWN.items()
}
ONE_STEP["cpo"] += " --aggregation leader-follower --off-policy-ratio 3"  # of all followers: nothing is drawn
TWO_EPOCHS = {name: f"{flags} --update-epochs 2" for name, flags in ONE_STEP.items()}
TWO_EPOCHS["pbt"] += " --num-agents 1"  # whose KL divergence is the one that is logged
RUN = f"{FIXED} --num-minibatches 2 --update-epochs 2 --learning-rate 0.02 --lstm --lstm-size 8"
CLOCKWORK = {  # 12 environments for each agent, 12 iterations
    name: f"--no-cuda --env-id {__name__}:Clockwork --num-envs {12 * AGENTS[name]} --num-steps 9 --num-minibatches 2"
    f" --hidden-sizes 8 --total-timesteps {12 * 12 * AGENTS[name] * 9} {OWN[name]}"
    for name in ("epo", "pbt")
}
OFF_POLICY = "--off-policy-coef 0.5 --off-policy-ratio 3"
LOSSES = {  # of those that are different functions
    "ppo": "",
    "sapg": OFF_POLICY,
    "cpo": f"{OFF_POLICY} --aggregation leader-follower --reverse-kl-coef 0.1 --awac-coef 0.5",
}
LONG = "--no-cuda --env-id Moat --num-envs 64 --num-steps 16 --num-minibatches 2 --hidden-sizes 16 --no-lstm"
LONG += " --total-timesteps 100_000_000 --checkpoint-interval 1e-9"

every_script = pytest.mark.parametrize("name", SCRIPTS)


class Fixed(Drift):
    """Drift that starts where the number of its environment among those of all processes says."""

    curriculum = ("difficulty",)
    agents = 1  # play sets it

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

    Its objective says when it ended, and whose it is: by the first six environments of each agent alone, which are the
    first process's, the last agent is the best, and by all twelve it is the worst. The last environment's episode does
    not end, so that one is never judged.
    """

    max_episode_steps = 1_000

    def __init__(self, num_envs, device, seed):
        super().__init__(num_envs, device, seed)
        columns = global_columns(num_envs, self.agents)
        place = columns % 12
        agent = columns // 12
        self.limit = torch.tensor([3, 4, 5, 6, 14, 3, 4, 5, 6, 7, 8, 1_000])[place]
        self.quality = torch.where(place < 6, agent, -3 * agent)
        self.now = 0

    def advance(self, action):
        reward, _, truncated = super().advance(action)
        self.now += 1
        return reward, self.episode_length >= self.limit, truncated

    def objective(self):
        return (self.now * self.quality).float()


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
    """Run scripts in this process, one after the other: [(script's name, flags, folder, whether noise is that of all)].

    {run} in the flags is the run's folder in that folder.
    """
    for name, flags, folder, is_noise_of_all in jobs:
        folder = pathlib.Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        os.chdir(folder)
        Fixed.agents = 1 if "--num-agents 1" in flags else AGENTS[name]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.distributed, "destroy_process_group", lambda: None)  # the next job needs it
            if is_noise_of_all:
                agents = 1 if name == "pbt" else Fixed.agents  # PBT's act one by one
                patch.setattr(torch, "randn_like", NoiseOfAll(agents))
            SCRIPTS[name].main(flags.format(run=next(folder.glob("runs/*"), None)).split())


class NoiseOfAll:
    """torch.randn_like for actions (1, N, U), which gives an environment the same noise in any process."""

    def __init__(self, agents):
        self.agents = agents
        self.steps = 0

    def __call__(self, actions):
        self.steps += 1
        columns = global_columns(actions.shape[1], self.agents)
        generator = torch.Generator().manual_seed(self.steps)
        noise = torch.randn(len(columns) * distributed.WORLD_SIZE, actions.shape[2], generator=generator)
        return noise[columns][None]


def gradient_of_own_columns(name):
    """The gradient of a minibatch's loss, of which this process has one block of columns.

    The blocks are equal, but what is learned off-policy stands in the last columns, and AWAC's rows are not shared out
    evenly.
    """
    made = make_minibatch(SCRIPTS[name], LOSSES[name])
    made.mb = {key: value.chunk(distributed.WORLD_SIZE, 1)[distributed.RANK] for key, value in made.mb.items()}
    if distributed.WORLD_SIZE > 1:
        own = slice(3) if distributed.RANK == 0 else slice(3, None)
        made.awac_mb = {key: value[:, own] for key, value in made.awac_mb.items()}
    loss_of_minibatch(made)[0].backward()
    distributed.average_gradients(made.agent)
    return torch.cat([parameter.grad.flatten() for parameter in made.agent.parameters() if parameter.grad is not None])


def followers_drawn():
    """Which follower's columns the leader learns from, in 20 draws of CPO, as this process sees it."""
    torch.manual_seed(distributed.RANK)
    agent_ids = torch.arange(4).repeat_interleave(5)
    draws = [cpo.sample_offpolicy_columns(agent_ids, 4, 1.0, "one-follower")[0] for _ in range(20)]
    return [agent_ids[columns].tolist() for columns in draws]


def call_functions(folder):
    """Calls what needs several processes; the results go to folder/RANK.pt."""
    found = {name: gradient_of_own_columns(name) for name in LOSSES}
    found["followers"] = followers_drawn()
    torch.save(found, f"{folder}/{distributed.RANK}.pt")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Jobs of every script in two processes, in folder/JOB/SCRIPT; `grown` begins in one process."""
    folder = tmp_path_factory.mktemp("distributed")
    jobs = [(name, ONE_STEP[name], f"{folder}/one_step/{name}", True) for name in SCRIPTS]
    for name in SCRIPTS:
        jobs.append((name, f"{RUN} {OWN[name]} --total-timesteps 1728", f"{folder}/whole/{name}", False))
        jobs.append((name, f"{RUN} {OWN[name]} --total-timesteps 864", f"{folder}/parts/{name}", False))
        jobs.append((name, "--resume {run} --total-timesteps 1728", f"{folder}/parts/{name}", False))
    jobs += [(name, flags, f"{folder}/clockwork/{name}", False) for name, flags in CLOCKWORK.items()]
    before = os.getcwd()
    play([("sapg", f"{RUN} {OWN['sapg']} --total-timesteps 864", f"{folder}/grown/sapg", False)])
    play([(name, f"{flags} --kl-threshold 0", f"{folder}/alone/{name}", True) for name, flags in TWO_EPOCHS.items()])
    os.chdir(before)
    for name, flags in TWO_EPOCHS.items():
        (kl,) = logged(folder / "alone" / name, "losses/approx_kl").values()
        jobs.append((name, f"{flags} --kl-threshold {0.501 * kl}", f"{folder}/two_epochs/{name}", True))
    jobs.append(("sapg", "--resume {run} --total-timesteps 1728", f"{folder}/grown/sapg", False))
    statuses, _, err = ended(launch(__file__, folder, json.dumps(jobs)))
    assert statuses == [0, 0], err
    return folder


def of_each_process(folder):
    """What call_functions found in each of two processes."""
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


def logged(folder, key):
    """What the log of the run has under a key: {step: number}."""
    return {event.step: event.value for event in scalars(the_run(folder), key)}


def logged_texts(folder, key):
    """What the log of the run has under a key: {step: text}."""
    events = written(the_run(folder)).Tensors(f"{key}/text_summary")
    return {event.step: event.tensor_proto.string_val[0].decode() for event in events}


def gradients(learner):
    """Of all parameters, from the first moments of Adam after its first step."""
    optimizers = [state for name, state in learner.items() if name.endswith("optimizer")]
    return torch.cat([x["exp_avg"].flatten() for state in optimizers for x in state["state"].values()])


# ---------------------------------------------------------------- one run


@every_script
def test_two_processes_learn_what_one_learns(name, folder, tmp_path):
    """The first gradient, the normalisers, and what comes of them, with the same environments and noise."""
    play([(name, ONE_STEP[name], tmp_path, True)])
    one = checkpoint(the_run(tmp_path))
    two = checkpoint(the_run(folder / "one_step" / name))
    expected = gradients(one["learner"])
    assert expected.norm() > 1e-4
    assert (gradients(two["learner"]) - expected).norm() < 1e-6 * expected.norm()
    for part in {"agent", "discriminator"} & one["learner"].keys():
        for key, value in one["learner"][part].items():
            torch.testing.assert_close(two["learner"][part][key], value, rtol=1e-6, atol=2e-6, msg=key)
    rates = [[group["lr"] for group in x["learner"]["optimizer"]["param_groups"]] for x in (one, two)]
    assert rates[0] == rates[1]
    for key in ("charts/reward_per_step", "losses/entropy", "losses/value_loss"):
        assert logged(folder / "one_step" / name, key) == pytest.approx(logged(tmp_path, key), rel=1e-5)
    (whole,) = one["rollout"]
    for rollout in two["rollout"]:
        torch.testing.assert_close(rollout["episodes"]["means"], whole["episodes"]["means"], equal_nan=True)
    positions = [rollout["env"]["position"].view(AGENTS[name], -1, 2) for rollout in two["rollout"]]
    torch.testing.assert_close(torch.cat(positions, 1).view(-1, 2), whole["env"]["position"])
    if name == "epo":
        episodes = [rollout["tracker"]["episodes"] for rollout in two["rollout"]]
        torch.testing.assert_close(torch.cat(episodes, 1), whole["tracker"]["episodes"])


@every_script
def test_the_learning_rate_follows_the_kl_divergence_of_all_processes(name, folder):
    """It is just below twice the threshold, above which one of the two processes is by itself: the rate stays."""
    two = folder / "two_epochs" / name
    (rate,) = logged(two, "charts/learning_rate").values()
    assert rate == pytest.approx(checkpoint(the_run(two))["args"]["learning_rate"])


@pytest.mark.parametrize("name", LOSSES)
def test_the_loss_of_a_minibatch_in_two_processes_is_that_of_the_whole(name, folder):
    expected = gradient_of_own_columns(name)
    for found in of_each_process(folder):
        torch.testing.assert_close(found[name], expected, rtol=1e-4, atol=1e-6)


def test_a_number_of_the_log_is_the_mean_over_the_processes_that_have_one(monkeypatch):
    others = torch.tensor([[math.nan, 2.0, math.nan]], dtype=torch.float64)
    monkeypatch.setattr(distributed, "of_each", lambda own: torch.cat([own[None], others]))
    lines = []
    run = SimpleNamespace(
        args=SimpleNamespace(device="cpu"), logger=SimpleNamespace(write=lambda *line: lines.append(line) or True)
    )
    harness.Run.log(run, 1, 10, {"level_flat": 3.0, "level_step": torch.tensor([3.0, 5.0]), "level_gap": math.nan})
    ((step, means, others),) = lines
    assert step == 10
    assert means == pytest.approx({"level_flat": 3.0, "level_step": 3.0, "level_gap": math.nan}, nan_ok=True)
    assert others == {}


def test_all_processes_learn_from_the_same_follower(folder):
    a, b = (found["followers"] for found in of_each_process(folder))
    assert a == b
    assert {owner for owners in a for owner in owners} == {1, 2, 3}


@pytest.mark.parametrize(
    "name, numbers, texts",
    [
        ("epo", ["evolution/fitness_gap", "evolution/judged_share", "evolution/judged_share_min"], "evolution/lineage"),
        ("pbt", ["pbt/judged_share", "pbt/judged_share_min"], "pbt/copies"),
    ],
)
def test_two_processes_judge_agents_as_one_does(name, numbers, texts, folder, tmp_path):
    """Also where one process has fewer judged environments, and as soon, by the same episodes."""
    play([(name, CLOCKWORK[name], tmp_path, False)])
    two = folder / "clockwork" / name
    for key in numbers:
        assert logged(two, key) == pytest.approx(logged(tmp_path, key))
    decisions = logged_texts(tmp_path, texts)
    same = logged_texts(two, texts)
    if name == "epo":  # the parents are drawn after the actions' noise, of which each process draws its own
        decisions = {step: text.split("; fitness ")[1] for step, text in decisions.items()}
        same = {step: text.split("; fitness ")[1] for step, text in same.items()}
    assert len(decisions) > 1
    assert same == decisions


@every_script
def test_processes_have_their_own_environments_but_one_curriculum(name, folder):
    saved = checkpoint(the_run(folder / "whole" / name))
    a, b = saved["rollout"]
    assert differences(a["episodes"]["means"], b["episodes"]["means"]) == []
    for rollout in (a, b):
        assert rollout["env"]["difficulty"] == 1.0  # rank 0's
    for key in ("obs", "lstm_state"):
        assert not torch.equal(a[key], b[key])
    assert not torch.equal(a["env"]["generator"], b["env"]["generator"])
    if name == "pbt":
        assert 0 < saved["learner"]["copied_at"] < 1728
    if name == "epo":
        assert saved["learner"]["lineage_stats"]["generation"] > 1


@every_script
def test_resumed_with_as_many_processes_is_uninterrupted(name, folder):
    """A resumed process has rank 0's learner. So each had it before, or its environments would now differ."""
    whole, parts = (checkpoint(the_run(folder / job / name)) for job in ("whole", "parts"))
    assert len(whole["rollout"]) == 2
    assert_same_state(whole, parts)


@every_script
def test_resumed_with_fewer_processes_begins_new_episodes(name, folder, tmp_path, capsys):
    run = pathlib.Path(shutil.copytree(the_run(folder / "parts" / name), tmp_path / "runs" / "copy"))
    before = checkpoint(run)
    harder = checkpoint(run)
    harder["rollout"][0]["env"]["difficulty"] = torch.tensor(3.0)
    torch.save(harder, run / "checkpoint.pt")
    play([(name, "--resume {run} --total-timesteps 2160", tmp_path, False)])
    saved = checkpoint(run)
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


@pytest.mark.parametrize("flags", ["--num-envs 25", "--num-minibatches 13 --num-envs 24"])
def test_what_processes_cannot_share_is_refused_and_ends_all(flags, tmp_path):
    statuses, out, err = ended(launch(ROOT / "ppo.py", *f"--no-cuda --env-id Moat {flags}".split()))
    assert statuses == [2, 2]
    assert out == ""
    name, value, *_ = flags.split()
    for line in err.splitlines():
        assert line.startswith(f"{name} {value}: ")
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
    play(json.loads(sys.argv[2]))
    call_functions(sys.argv[1])
    distributed.finish()
