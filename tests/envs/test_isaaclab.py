"""The Isaac Lab adapter on the stub of isaaclab_stub.py, where x moves by 0.25 times the first action and falls at -2.

With ISAACLAB_SOURCE, the folder in which the wheel of isaaclab 3.0.0 is unpacked, the stub is compared with the wheel.
"""

import ast
import os
import pathlib
import re
import sys

import pytest
import torch

import envs
from envs.check import check_env
from tests.envs import isaaclab_stub, test_adapters
from tests.envs import test_contract as contract

WHEEL = os.environ.get("ISAACLAB_SOURCE")
MANAGER, DIRECT = "isaaclab:Isaac-ManagerBasedRLEnv", "isaaclab:Isaac-DirectRLEnv"
SOURCES = """
isaaclab/envs/manager_based_env isaaclab_tasks/core/lift/adr_curriculum isaaclab_tasks/core/reorient/reorient_direct_env
isaaclab/managers/curriculum_manager isaaclab/managers/observation_manager isaaclab_tasks/core/lift/mdp/rewards
isaaclab/envs/manager_based_rl_env isaaclab/envs/mdp/curriculums isaaclab/managers/reward_manager
isaaclab/app/sim_launcher isaaclab/envs/direct_rl_env isaaclab_tasks/utils/hydra
""".split()


@pytest.fixture
def stub(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("packages")
    isaaclab_stub.write_packages(folder)
    monkeypatch.syspath_prepend(folder)
    yield
    for name in [name for name in sys.modules if re.match(r"(envs\.adapters\.)?isaaclab", name)]:
        del sys.modules[name]


@pytest.mark.parametrize("env_id", [MANAGER, DIRECT])
def test_contract_and_runs(env_id, stub, capsys):
    check_env(envs.make(env_id, 4), 60)
    contract.test_what_was_returned_does_not_change_later(env_id)
    test_adapters.test_training_resuming_and_evaluating(env_id, capsys)


def test_the_manager_based_workflow(stub):  # a history's final observation lacks the last step
    env = envs.make(MANAGER, 2)
    obs = env.reset()
    assert obs[0].tolist() == [obs[0, 0], 1.0, obs[0, 0], 1.0, 0.0, 0.0]
    for step in range(1, 13):
        before, (obs, _, terminated, truncated, info) = obs, env.step(torch.tensor([[0.5], [-2.0]]).repeat(1, 3))
        assert (terminated.tolist(), truncated.tolist()) == ([False, step == 9], [step == 12, False])
    assert obs[0].tolist() == [obs[0, 0], 2.0, obs[0, 0], 2.0, 0.0, 1.0]
    assert info["final_obs"].tolist() == [[*before[0, :4].tolist(), 12.0, 0.0], obs[1].tolist()]
    assert info["episode"]["objective"][0] == 1.0 and info["metrics"].keys() == {"Episode_Reward/success"}


def test_the_direct_workflow(stub):
    env = envs.make(DIRECT, 2)
    env.reset()
    history = [env.step(torch.tensor([[0.5], [0.0]]).repeat(1, 3)) for _ in range(11)]
    assert [step[3].tolist() for step in history] == [[False, False]] * 10 + [[True, True]]  # one step early
    goals = sum(step[4]["final_obs"][0, 0].item() >= 1.0 for step in history)
    assert envs.make(DIRECT, 2).env is env.env  # Isaac Lab holds one simulation per process
    assert goals > 1 and history[-1][4]["episode"]["objective"].tolist() == [goals, 0.0]


def test_clocks_are_staggered_and_the_curriculum_restored(stub):
    env = envs.make(MANAGER, 4, training=True)
    env.difficulty.fill_(0.7)
    env.control_steps.fill_(100)
    assert env.reset()[:, -1].tolist() == [7.0] * 4
    clock = env.episode_step.tolist()
    for step in range(1, 13):
        assert env.step(torch.zeros(4, 3))[3].tolist() == [first + step == 12 for first in clock]
    assert clock[0] == 0 and len(set(clock)) == 4 and env.env.common_step_counter == 112


def arguments(text):  # of all functions and methods, without annotations
    found, module = {}, ast.parse(re.sub("(?m)^from __future__.*", "", text))
    for owner in [module, *(node for node in module.body if isinstance(node, ast.ClassDef))]:
        for node in [node for node in owner.body if isinstance(node, ast.FunctionDef)]:
            for arg in [*node.args.args, *node.args.kwonlyargs]:
                arg.annotation = None
            found[f"{getattr(owner, 'name', '')}.{node.name}"] = ast.unparse(node.args)
    return found


@pytest.mark.skipif(not WHEEL, reason="ISAACLAB_SOURCE names no folder with isaaclab 3.0.0")
def test_the_wheel_has_the_stubs_signatures_and_what_the_adapter_reads():
    wheel = "\n".join(pathlib.Path(WHEEL, f"{name}.py").read_text() for name in SOURCES)
    theirs, ours = arguments(wheel), arguments(pathlib.Path(isaaclab_stub.__file__).read_text())
    theirs["ManagerBasedRLEnv.reset"] = theirs["ManagerBasedEnv.reset"]  # inherited
    differ = {name for name, args in ours.items() if theirs.get(name) != args and not name.startswith("StubEnv.")}
    assert differ == {".write_packages", ".make_config", "ManagerBasedRLEnv.observations"}
    adapter = (pathlib.Path(envs.__file__).parent / "adapters" / "isaaclab.py").read_text()
    read = re.findall(r'(?:self\.env|func|config)\.(\w+)|extras\.get\("(\w+)|, "(\w+)", None', adapter)
    assert [name for names in read for name in names if not re.search(rf"\b{name}\b", wheel)] == []
