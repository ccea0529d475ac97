"""The Isaac Lab adapter runs on the small stub of isaaclab_stub.py. It has never run on the real Isaac Lab."""

import re
import sys

import pytest

import envs
from envs.check import check_env
from tests.envs import test_adapters

MODULES = ["isaaclab/__init__.py", "isaaclab/app.py", "isaaclab_tasks/__init__.py", "isaaclab_tasks/utils.py"]


@pytest.fixture
def stub(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("packages")
    for module in MODULES:
        (folder / module).parent.mkdir(exist_ok=True)
        (folder / module).write_text("from tests.envs.isaaclab_stub import *\n")
    monkeypatch.syspath_prepend(folder)
    yield
    for name in [name for name in sys.modules if re.match(r"(envs\.adapters\.)?isaaclab", name)]:
        del sys.modules[name]


def test_the_contract_a_run_and_its_resumption(stub, capsys):
    _, episodes = check_env(envs.make("isaaclab:Isaac-Stub", 4), 60)
    assert episodes >= 16
    with pytest.raises(envs.UnsupportedError, match="one simulation per process, and there is one: 4 environments"):
        envs.make("isaaclab:Isaac-Stub", 8)
    simulation = sys.modules["envs.adapters.isaaclab"].SIMULATION
    test_adapters.test_training_resuming_and_evaluating("isaaclab:Isaac-Stub", capsys, simulation.clear)


def test_images_are_refused(stub):
    with pytest.raises(envs.UnsupportedError, match=r"Box\(8, 8, 3\)"):
        envs.make("isaaclab:Isaac-Camera", 4)
