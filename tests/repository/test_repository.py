"""What the repository promises about itself: scripts that differ by their lesson, no dead flag, true documents."""

import ast
import importlib
import pathlib
import re
import subprocess
import sys
import tomllib
from dataclasses import fields

import pytest
import torch.distributed.run as torchrun

import cpo
import envs
import epo
import evaluate
import export
import view
from envs.adapters import isaacgym
from harness import checkpoints, diagnostics, hyperparameters
from tests.conftest import documents

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPTS = ["ppo.py", "sapg.py", "cpo.py", "epo.py", "pbt.py"]


def files(*patterns):
    return sorted(path for pattern in patterns for path in ROOT.glob(pattern))


SOURCES = files("*.py", "harness/*.py", "envs/**/*.py", "benchmarks/**/*.py")
HARNESS = files("harness/*.py")
DOCUMENTS = files("*.md", "docs/*.md", "benchmarks/**/*.md", "policies/*.md")

every_script = pytest.mark.parametrize("script", SCRIPTS)


def parse(script):
    return ast.parse((ROOT / script).read_text())


def definitions(script):
    """Source of everything that stands at the top level of a script, name -> text."""
    text = (ROOT / script).read_text()
    found = {}
    for node in ast.parse(text).body:
        names = [node.name] if hasattr(node, "name") else []
        for target in getattr(node, "targets", []):
            names += [name.id for name in getattr(target, "elts", [target])]  # A, B = 1, 2
        found.update({name: ast.get_source_segment(text, node) for name in names})
    return found


def flags(script):
    """The flags of a script: name -> (type, default), in order."""
    args = importlib.import_module(script[:-3]).Args
    return {f.name: (str(f.type), f.default) for f in fields(args) if f.init}


def imports(path):
    """All modules that a file imports, as dotted names."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{name.name}" for name in node.names}
    return found


# ---------------------------------------------------------------- scripts


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_python_3_8_can_read_it(path):
    """Isaac Gym needs it."""
    ast.parse(path.read_text(), feature_version=(3, 8))


@pytest.mark.parametrize(
    "old, new",
    [
        ("ppo.py", "sapg.py"),
        ("sapg.py", "cpo.py"),
        ("sapg.py", "epo.py"),
        ("ppo.py", "pbt.py"),
    ],
)
def test_the_diff_is_the_lesson(old, new):
    """A script adds to the one before it and leaves nearly all else as it is: shared code is changed in both."""
    lines = subprocess.run(["diff", old, new], cwd=ROOT, capture_output=True, text=True).stdout.splitlines()
    added = sum(line.startswith(">") for line in lines)
    assert 0 < added < len((ROOT / new).read_text().splitlines()) / 2
    assert sum(line.startswith("<") for line in lines) <= 40


@every_script
def test_a_script_imports_nothing_of_the_repository_but_harness(script):
    own = {path.stem for path in ROOT.glob("*.py")} | {path.name for path in ROOT.iterdir() if path.is_dir()}
    assert {name.split(".")[0] for name in imports(ROOT / script)} & own == {"harness"}


@every_script
def test_every_flag_is_documented_and_read(script):
    """Refusing a flag's value is not reading it."""
    read = set()
    documented = re.findall(r'^    (\w+): .*\n    """.+"""$', (ROOT / script).read_text(), re.MULTILINE)
    for part in [part for path in (ROOT / script, *HARNESS) for part in ast.parse(path.read_text()).body]:
        if getattr(part, "name", "") not in ("Args", "check_args", "check_common_args", "check_resumable"):
            read |= set(re.findall(r"\b(?:args|given)\.(\w+)", ast.unparse(part)))
    assert set(flags(script)) <= read & set(documented)


SHARED = "MAX_STD MAX_LOG_RATIO RunningMeanStd make_mlp compute_gae n_step_returns adapt_learning_rate".split()
SHARED_BY_POPULATIONS = "LEADER Agent sample_offpolicy_columns offpolicy_advantages offpolicy_batch".split()


@pytest.mark.parametrize(
    "scripts, shared",
    [
        (SCRIPTS, SHARED),
        (SCRIPTS[1:4], SHARED_BY_POPULATIONS),
        (["ppo.py", "pbt.py"], ["minibatch_loss"]),
        (["sapg.py", "epo.py"], ["minibatch_loss"]),
    ],
)
def test_shared_blocks_are_the_same_to_the_letter(scripts, shared):
    found = [definitions(script) for script in scripts]
    for name in shared:
        assert len({each[name] for each in found}) == 1, name


def test_the_diagnostics_bound_ratios_as_the_scripts_do():
    assert diagnostics.MAX_LOG_RATIO == epo.MAX_LOG_RATIO


def test_what_scripts_define_stands_in_the_same_order():
    first, *others = [definitions(script) for script in SCRIPTS]
    for each in others:
        assert [name for name in each if name in first] == [name for name in first if name in each]


def test_a_network_of_pbt_is_ppos_agent():
    assert definitions("pbt.py")["Network"].replace("Network", "Agent") == definitions("ppo.py")["Agent"]


def test_a_scripts_flags_are_those_before_it_and_its_own():
    ppo_flags, sapg_flags, cpo_flags, epo_flags, pbt_flags = map(flags, SCRIPTS)
    for child in (sapg_flags, pbt_flags):
        assert list(child.items())[: len(ppo_flags)] == list(ppo_flags.items())
    for child, differs in ((cpo_flags, "aggregation"), (epo_flags, "num_agents")):
        assert list(child)[: len(sapg_flags)] == list(sapg_flags)
        assert {name for name in sapg_flags if child[name] != sapg_flags[name]} == {differs}


@every_script
def test_tables_name_tasks_and_flags_that_exist(script):
    rows = getattr(hyperparameters, script[:-3].upper())
    assert {task for task in rows if ":" not in task} == {*envs.TASKS, *isaacgym.CONFIGURATIONS}
    assert {task.split(":")[0] for task in rows if ":" in task} == {"envpool"}  # tests/envs/test_adapters.py
    assert set(hyperparameters.CPU) <= set(rows)
    assert all(set(row) <= set(flags(script)) for row in [*rows.values(), *hyperparameters.CPU.values()])


# ---------------------------------------------------------------- the harness is no framework


@every_script
def test_the_training_loop_stands_in_the_script(script):
    (main,) = [node for node in parse(script).body if getattr(node, "name", "") == "main"]
    loops = [ast.unparse(node) for node in main.body if isinstance(node, ast.For)]
    assert len(loops) == 1
    assert loops[0].startswith("for iteration in range(")
    for call in ("env.step(", "minibatch_loss(", "loss.backward()", "optimizer.step()", "run.log("):
        assert call in loops[0], call
    calls = ("env.step(", "optimizer.step(", ".backward(")
    assert all(call not in path.read_text() for path in HARNESS for call in calls)


@every_script
def test_a_script_subclasses_nothing_of_the_harness(script):
    bases = [ast.unparse(base) for node in ast.walk(parse(script)) for base in getattr(node, "bases", [])]
    assert not any("harness" in base for base in bases)


# ---------------------------------------------------------------- requirements


def requirements(name):
    lines = (ROOT / name).read_text().split("\n")
    return [line for line in lines if line and not line.startswith("#")]


def test_requirements_are_pinned_and_used_and_enough():
    names = {line.split("==")[0] for line in requirements("requirements.txt")}
    imported = {name for path in SOURCES for name in imports(path)}
    assert names <= {part for name in imported for part in name.split(".")}  # torch.utils.tensorboard
    own = {"envs", "harness", "benchmarks", *(path.stem for path in SOURCES)}
    others = {"matplotlib", "PIL"}  # benchmarks/ and --video say so where they draw
    others |= {"isaacgym", "isaacgymenvs", "isaaclab_tasks", "hydra"}  # docs/engines.md says how to install them
    others |= {"mujoco_warp", "warp"}  # in requirements-gpu.txt
    others |= {"onnx", "onnxruntime", "onnxscript", "wandb"}  # in requirements-onnx.txt; --track
    others |= {"mjviser", "trimesh", "viser"}  # in requirements-view.txt
    assert {name.split(".")[0] for name in imported} - set(sys.stdlib_module_names) - own - others <= names
    for name in envs.ADAPTERS:  # each says which package its prefix needs
        assert name in {line.split("==")[0] for line in requirements(f"requirements-{name}.txt")}
    assert "pillow" in {line.split("==")[0] for line in requirements("requirements-isaacgym.txt")}  # of diagnostics
    lines = [line for path in ROOT.glob("requirements*.txt") for line in requirements(path.name)]
    python = r"(; python_version (<|>=) \"3\.\d+\")?"
    for line in lines:
        assert re.fullmatch(rf"[\w-]+==[\w.]+{python}", line), line


def test_checkpoints_name_the_version_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert checkpoints.VERSION == project["version"]
    assert f"## {checkpoints.VERSION}" in (ROOT / "CHANGELOG.md").read_text()


def test_the_extras_are_the_requirements_files():
    """But for those that need an installation of their own, with other versions."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert project["dynamic"]["dependencies"]["file"] == ["requirements.txt"]
    extras = project["dynamic"]["optional-dependencies"]
    alone = {"isaacgym", "isaaclab", "mjlab"}
    for path in ROOT.glob("requirements-*.txt"):
        name = path.stem.removeprefix("requirements-")
        assert (name in extras) == (name not in alone), name
        assert name in alone or path.name in extras[name]["file"]
    everything = {file for extra in extras.values() for file in extra["file"]}
    assert set(extras["dev"]["file"]) == everything
    scripts = {path.stem for path in ROOT.glob("*.py")}
    assert set(project["py-modules"]) == scripts


# ---------------------------------------------------------------- README and docs/


def table(first_cell):
    """The rows of the documents' tables whose heads begin with `first_cell`, as lists of cells."""
    rows = re.findall(rf"\n\| {first_cell} \|[^\n]*\n\|[-:| ]+\|\n((?:\|[^\n]*\n)+)", documents())
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in "".join(rows).splitlines()]


def test_the_documents_name_functions_and_comments_that_exist():
    """Wherever they say `file.py:function`; the table of equations says it for each."""
    named = 0
    for line in documents().splitlines():
        places = re.findall(r"`([\w/]+\.py):(\w+)`", line)
        for script, name in places:
            assert name in definitions(script), f"{script}:{name}"
        if places and line.startswith("|"):
            named += 1
            for comment in re.findall(r"`(# [^`]+)`", line):
                assert re.search(rf"{re.escape(comment)}\b", definitions(places[-1][0])[places[-1][1]]), comment
    assert named > 10


def test_every_equation_is_in_the_documents_table():
    """What a script's comment cites, a row with `file.py:function` cites too."""
    rows = "\n".join(line for line in documents().splitlines() if re.search(r"^\|.*`[\w/]+\.py:\w+`", line))
    for paper, numbers in (("SAPG", range(1, 10)), ("EPO", range(1, 11)), ("CPO", (2, 3, 5, 10, 11, 12, 25))):
        text = " ".join(re.findall(rf"{paper}[^|\n]*", rows))
        cited = set()
        for first, last in re.findall(r"\b(\d+)(?:\s*[-–]\s*(\d+))?", text):
            cited |= set(range(int(first), int(last or first) + 1))
        assert set(numbers) <= cited, paper


def test_the_readme_gives_the_rough_lengths_of_the_scripts():
    lengths = {row[1].strip("`"): int(row[2]) for row in table("algorithm") if row[1].endswith(".py`")}
    true_lengths = {script: len((ROOT / script).read_text().splitlines()) for script in SCRIPTS}
    assert lengths == {name: pytest.approx(length, rel=0.05) for name, length in true_lengths.items()}


def test_the_documents_list_every_task():
    rows = table("env id")
    assert {row[0].strip("`") for row in rows} == set(envs.TASKS)
    for env_id, num_obs, num_actions, steps, _, engine, *_ in rows:
        task = envs.make(env_id.strip("`"), 1)
        assert (int(num_obs), int(num_actions)) == (task.num_obs, task.num_actions)
        assert int(re.match(r"\d+", steps).group()) == task.max_episode_steps
        assert engine.lower().endswith(task.engine_name)


def headings(path):
    """The anchors that GitHub gives a document's headings."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path):
    for link in re.findall(r"\]\(\s*([^)\s]+)", path.read_text()):
        if not link.startswith("https://"):
            name, _, anchor = link.partition("#")
            target = path.parent / name if name else path
            assert target.exists(), link
            assert not anchor or headings(target).count(anchor) == 1, link


def test_the_documents_give_the_true_defaults():
    compared = 0
    for point, here, *_ in table("point"):
        for name, value in re.findall(r"`--([\w-]+)(?: ([\d.]+))?`", here):
            off = name.startswith("no-")
            field = re.sub("^no-", "", name).replace("-", "_")
            default = getattr(epo.Args() if hasattr(epo.Args(), field) else cpo.Args(), field)
            compared += 1
            if value or isinstance(default, bool):
                assert default == (float(value) if value else not off), point
    assert compared >= 11


def test_the_documents_know_what_the_flags_are_called():
    names = {f.name for f in fields(epo.Args)}
    translated = {row[1].strip("`") for row in table("rl_games")}
    assert translated
    assert translated <= names
    options = {"--" + name.replace("_", "-") for script in SCRIPTS for name in flags(script)}
    options |= {"--" + f.name.replace("_", "-") for script in (evaluate, export, view) for f in fields(script.Args)}
    options |= {option.replace("--", "--no-", 1) for option in options} | {"--help"}
    options |= {"--logdir", "--extra-index-url", "--torch-backend", "--no-sync"}  # of TensorBoard, pip and uv
    options |= {option for action in torchrun.get_args_parser()._actions for option in action.option_strings}
    assert set(re.findall(r"(?<![\w-])--[a-z][\w-]*", documents())) <= options
