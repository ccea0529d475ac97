"""policies/: small files that run no code, and that play; evaluate.py --save-policy, which makes them."""

import importlib.util
import pathlib
import re

import pytest
import torch

import envs
import epo
import evaluate
from tests.conftest import the_run

ROOT = pathlib.Path(__file__).resolve().parents[2]
POLICIES = sorted(ROOT.glob("policies/*/policy.pt"))
FLAGS = "--no-cuda --num-envs 32 --num-steps 32 --num-minibatches 2 --hidden-sizes 16 --total-timesteps 4096"
every_policy = pytest.mark.parametrize("path", POLICIES, ids=lambda path: path.parent.name)


@every_policy
def test_a_policy_is_small_and_holds_nothing_but_the_agents(path):
    assert path.stat().st_size < 1_000_000
    saved = torch.load(path, weights_only=True)
    assert saved["state"].keys() == {"agent", "episodes", "env"} and saved["random"] == {}
    assert saved["script"] in ("ppo", "sapg", "cpo", "epo") and saved["args"]["resume"] is None
    prefix = saved["args"]["env_id"].partition(":")[0]
    assert prefix in envs.TASKS or prefix in envs.ADAPTERS


@every_policy
def test_a_policy_plays(path):
    saved, script = evaluate.load(str(path.parent))
    assert script.__file__ == str(ROOT / f"{saved['script']}.py")
    prefix = saved["args"]["env_id"].partition(":")[0]
    if prefix in envs.ADAPTERS and not importlib.util.find_spec(prefix):
        pytest.skip(f"needs {prefix}")
    env = evaluate.make_env(saved, 2, evaluate.Args(run=""), "cpu")
    agent = evaluate.make_agent(saved, script, env, "cpu")
    player, obs = evaluate.Player(agent, torch.zeros(2, dtype=torch.long), deterministic=True), env.reset()
    for _ in range(3):
        action = player.act(obs)
        obs, reward, terminated, truncated, _ = env.step(action)
        player.dones = (terminated | truncated)[None]
        assert action.shape == (2, env.num_actions) and action.isfinite().all() and reward.isfinite().all()


def test_the_table_lists_every_policy_and_how_it_was_trained():
    text = (ROOT / "policies" / "README.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \|.*`python (\w+)\.py ([^`]+)`", text, re.MULTILINE)
    assert [name for name, *_ in rows] == [path.parent.name for path in POLICIES] and rows
    for name, script, flags in rows:
        saved = torch.load(ROOT / "policies" / name / "policy.pt", weights_only=True)
        words = flags.split()
        assert script == saved["script"] and len(words) > 0
        for flag, value in zip(words, words[1:]):
            if flag.startswith("--") and not value.startswith("--") and flag != "--hidden-sizes":
                assert str(saved["args"][flag[2:].replace("-", "_")]) == value.replace("_", ""), f"{name}: {flag}"


# ---------------------------------------------------------------- evaluate.py --save-policy


@pytest.fixture
def run(tmp_path, monkeypatch):
    """The folder of a short run of epo.py."""
    monkeypatch.chdir(tmp_path)
    epo.main(f"{FLAGS} --env-id Grasp --num-agents 4".split())
    return str(the_run())


def test_a_saved_policy_scores_as_its_run(run, capsys):
    capsys.readouterr()
    evaluate.main([run, "--save-policy", "policies/Mine", "--no-cuda"])
    size = pathlib.Path("policies/Mine/policy.pt").stat().st_size
    assert capsys.readouterr().out == f"policies/Mine/policy.pt: Grasp, 4,096 steps, {size:,} bytes\n"
    assert size < 0.5 * (pathlib.Path(run) / "checkpoint.pt").stat().st_size
    tables = []
    for folder in (run, "policies/Mine", "policies/Mine/policy.pt"):
        evaluate.main([folder, "--episodes", "3", "--no-cuda"])
        tables.append(capsys.readouterr().out)
    assert tables[0] == tables[1] == tables[2] and "| leader, 0 | sampled |" in tables[0]


def test_the_curriculum_is_part_of_a_policy(run, monkeypatch):
    saved, _ = evaluate.load(run)
    saved["state"]["env"]["level"] = torch.tensor(3.5)
    env = envs.make("Grasp", 1)
    env.curriculum = ("level",)
    evaluate.save_policy("Mine", saved, env)
    assert evaluate.load("Mine")[0]["state"]["env"] == {"level": 3.5}


def test_a_policy_is_not_resumed(run, capsys):
    evaluate.main([run, "--save-policy", "Mine", "--no-cuda"])
    capsys.readouterr()
    for path in ("Mine", "Mine/policy.pt"):
        with pytest.raises(SystemExit) as end:
            epo.main(["--resume", path, "--total-timesteps", "8192"])
        captured = capsys.readouterr()
        assert end.value.code == 2 and len(captured.err.splitlines()) == 1 and f"--resume {path}: " in captured.err
    assert [path.name for path in pathlib.Path("Mine").iterdir()] == ["policy.pt"]


@pytest.mark.parametrize("files", [["checkpoint.pt"], ["checkpoint_previous.pt"], []])
def test_a_policy_is_not_saved_in_a_runs_folder(run, files, capsys):
    """Where evaluate.py would play it instead of what the run learns later; nor in a folder without name."""
    if files == ["checkpoint_previous.pt"]:
        (pathlib.Path(run) / "checkpoint.pt").rename(pathlib.Path(run) / "checkpoint_previous.pt")
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        evaluate.main([run, "--save-policy", run if files else "", "--no-cuda"])
    (line,) = capsys.readouterr().err.splitlines()
    assert end.value.code == 2 and line.startswith("--save-policy '")
    assert not list(pathlib.Path().rglob("policy.pt"))


def test_a_policy_runs_no_code_that_comes_with_it(run, capsys):
    saved, _ = evaluate.load(run)
    pathlib.Path("Mine").mkdir()
    pathlib.Path("Mine/payload.py").write_text("raise AssertionError('run')\n")
    for change in ({"script": "Mine/payload"}, {"args": {**saved["args"], "env_id": "Mine.payload:Env"}}):
        torch.save({**saved, **change}, "Mine/policy.pt")
        with pytest.raises(SystemExit) as end:
            evaluate.main(["Mine", "--no-cuda"])
        assert end.value.code == 2 and capsys.readouterr().err.startswith("run Mine")


def test_a_folder_that_cannot_be_written(run, capsys):
    pathlib.Path("file").write_text("")
    with pytest.raises(SystemExit) as end:
        evaluate.main([run, "--save-policy", "file/Mine", "--no-cuda"])
    assert end.value.code == 2 and capsys.readouterr().err.startswith("--save-policy file/Mine: ")
