"""What the repository promises about itself: scripts that differ by their lesson, no dead flag, true documents."""

import ast
import importlib
import pathlib
import re
import subprocess
import sys
from dataclasses import fields

import pytest
import torch.distributed.run as torchrun

import cpo
import envs
import epo
import evaluate
import export
from envs.adapters import isaacgym
from harness import hyperparameters
from tests.conftest import documents

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPTS = ["ppo.py", "sapg.py", "cpo.py", "epo.py", "pbt.py"]


def files(*patterns):
    return sorted(path for pattern in patterns for path in ROOT.glob(pattern))


SOURCES = files("*.py", "harness/*.py", "envs/**/*.py", "benchmarks/**/*.py")
HARNESS = files("harness/*.py")
DOCUMENTS = files("*.md", "docs/*.md", "benchmarks/**/*.md", "policies/*.md")
TEXTS = [*SOURCES, *DOCUMENTS, *files("tests/**/*.py", "*.txt", "*.toml", ".ci/run", "LICENSE")]

every_script = pytest.mark.parametrize("script", SCRIPTS)


def parse(script):
    return ast.parse((ROOT / script).read_text())


def definitions(script):
    """Source of everything that stands at the top level of a script, name -> text."""
    text, found = (ROOT / script).read_text(), {}
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


# ---------------------------------------------------------------- form and size


def test_form():
    marks = "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X"))
    for path in TEXTS:
        text = path.read_text()
        assert not re.search(rf"\b({marks})\b(?! ?\(?#\d)", text), path  # without an issue
        assert not re.search("shared" + "/|/" + "work/", text), path  # what is not part of the repository
        assert path.suffix != ".py" or max(map(len, text.splitlines()), default=0) <= 120, path
    for path in SOURCES:
        ast.parse(path.read_text(), feature_version=(3, 8))


def lines_of(*patterns, but=()):
    return sum(len(path.read_text().splitlines()) for path in files(*patterns) if path.name not in but)


def words_of(paths):
    return sum(len(path.read_text().split()) for path in paths)


def test_budgets():
    scripts = {"ppo": 400, "sapg": 500, "cpo": 610, "epo": 615, "pbt": 530, "evaluate": 200, "export": 110}
    for script, most in scripts.items():
        assert lines_of(f"{script}.py") <= most, script
    assert lines_of("harness/*.py", but=["distributed.py"]) <= 700
    assert lines_of("harness/distributed.py") <= 130
    assert lines_of("envs/__init__.py", "envs/base.py", "envs/check.py") <= 420
    assert lines_of("benchmarks/scripts/*.py") <= 2_000
    assert lines_of("tests/**/*.py") <= 11_000
    assert words_of([ROOT / "README.md"]) <= 1_000 and words_of(DOCUMENTS) <= 15_000
    for path in ROOT.glob("envs/adapters/*.py"):
        assert lines_of(f"envs/adapters/{path.name}") <= (190 if path.stem == "isaacgym" else 100), path.name


@pytest.mark.parametrize("old, new, added, removed", [
    ("ppo.py", "sapg.py", 135, 30), ("sapg.py", "cpo.py", 135, 20), ("sapg.py", "epo.py", 135, 15),
    ("ppo.py", "pbt.py", 130, 30),
])  # fmt: skip
def test_the_diff_is_the_lesson(old, new, added, removed):
    lines = subprocess.run(["diff", old, new], cwd=ROOT, capture_output=True, text=True).stdout.splitlines()
    assert 0 < sum(line.startswith(">") for line in lines) <= added
    assert sum(line.startswith("<") for line in lines) <= removed


# ---------------------------------------------------------------- scripts


@every_script
def test_a_script_imports_nothing_of_the_repository_but_envs_and_harness(script):
    own = {path.stem for path in ROOT.glob("*.py")} | {path.name for path in ROOT.iterdir() if path.is_dir()}
    assert {name.split(".")[0] for name in imports(ROOT / script)} & own == {"envs", "harness"}


@every_script
def test_every_flag_is_documented_and_read(script):
    """Refusing a flag's value is not reading it."""
    read, documented = set(), re.findall(r'^    (\w+): .*\n    """.+"""$', (ROOT / script).read_text(), re.MULTILINE)
    for part in [part for path in (ROOT / script, *HARNESS) for part in ast.parse(path.read_text()).body]:
        if getattr(part, "name", "") not in ("Args", "check_args", "check_common_args", "check_resumable"):
            read |= set(re.findall(r"\b(?:args|given)\.(\w+)", ast.unparse(part)))
    assert set(flags(script)) <= read & set(documented)


SHARED = "MAX_STD RunningMeanStd make_mlp compute_gae n_step_returns adapt_learning_rate".split()
SHARED_BY_POPULATIONS = [*SHARED, "Agent", "sample_offpolicy_columns", "offpolicy_batch"]


@pytest.mark.parametrize("scripts, shared", [(SCRIPTS, SHARED), (SCRIPTS[1:4], SHARED_BY_POPULATIONS)])
def test_shared_blocks_are_the_same_to_the_letter_and_in_the_same_order(scripts, shared):
    found = [definitions(script) for script in scripts]
    for name in shared:
        assert len({each[name] for each in found}) == 1, name
    own = {"Args", "main", "check_args", *({"Agent"} - {*shared})}  # what each paper changes
    for each in found[1:]:
        assert set(each) & set(found[0]) - own == set(shared)
        assert [name for name in each if name in found[0]] == [name for name in found[0] if name in each]


def test_a_network_of_pbt_is_ppos_agent():
    assert definitions("pbt.py")["Network"].replace("Network", "Agent") == definitions("ppo.py")["Agent"]


def test_a_scripts_flags_are_those_before_it_and_its_own():
    ppo_flags, sapg_flags, cpo_flags, epo_flags, pbt_flags = map(flags, SCRIPTS)
    for child in (sapg_flags, pbt_flags):
        assert list(child.items())[: len(ppo_flags)] == list(ppo_flags.items())
        assert len(child) - len(ppo_flags) <= 8
    for child, differs in ((cpo_flags, "aggregation"), (epo_flags, "num_agents")):
        assert list(child)[: len(sapg_flags)] == list(sapg_flags)
        assert {name for name in sapg_flags if child[name] != sapg_flags[name]} == {differs}
        assert len(child) - len(sapg_flags) <= 8


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
    assert len(loops) == 1 and loops[0].startswith("for iteration in range(")
    assert all(call in loops[0] for call in ("env.step(", "total_loss.backward()", "optimizer.step()", "run.log("))
    calls = ("env.step(", "optimizer.step(", ".backward(")
    assert all(call not in path.read_text() for path in HARNESS for call in calls)


@pytest.mark.parametrize("path", HARNESS, ids=lambda path: path.name)
def test_no_callbacks_no_registry_and_no_configuration_files(path):
    """No function calls its parameters, but a script's Args and check_args and, within the harness, what to write."""
    tree = ast.parse(path.read_text())
    for function in ast.walk(tree):
        if isinstance(function, (ast.FunctionDef, ast.Lambda)):
            given = {arg.arg for arg in ast.walk(function.args) if isinstance(arg, ast.arg)}
            called = {ast.unparse(node.func) for node in ast.walk(function) if isinstance(node, ast.Call)}
            assert given & called <= {"check_args", "Args", "write", "value"}
    decorators = {ast.unparse(node) for each in ast.walk(tree) for node in getattr(each, "decorator_list", [])}
    assert decorators <= {"torch.no_grad()", "property"}
    assert not {"{}", "[]"} & {ast.unparse(node.value) for node in tree.body if isinstance(node, ast.Assign)}
    parsers = set("json yaml toml tomllib configparser pickle importlib pkgutil hydra omegaconf".split())
    assert not parsers & {name.split(".")[0] for name in imports(path)}


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
    assert {name.split(".")[0] for name in imported} - set(sys.stdlib_module_names) - own - others <= names
    for name in envs.ADAPTERS:  # each says which package its prefix needs
        assert name in {line.split("==")[0] for line in requirements(f"requirements-{name}.txt")}
    assert "pillow" in {line.split("==")[0] for line in requirements("requirements-isaacgym.txt")}  # of diagnostics
    lines = [line for path in ROOT.glob("requirements*.txt") for line in requirements(path.name)]
    python = r"(; python_version (<|>=) \"3\.\d+\")?"
    assert all(re.fullmatch(rf"[\w-]+==[\w.]+{python}|-r requirements[\w-]*\.txt", line) for line in lines)


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
            off, field = name.startswith("no-"), re.sub("^no-", "", name).replace("-", "_")
            default = getattr(epo.Args() if hasattr(epo.Args(), field) else cpo.Args(), field)
            compared += 1
            if value or isinstance(default, bool):
                assert default == (float(value) if value else not off), point
    assert compared >= 11


def test_the_documents_know_what_the_flags_are_called():
    names = {f.name for f in fields(epo.Args)}
    assert all(row[1].strip("`") in names for row in table("rl_games"))
    options = {"--" + name.replace("_", "-") for script in SCRIPTS for name in flags(script)}
    options |= {"--" + f.name.replace("_", "-") for script in (evaluate, export) for f in fields(script.Args)}
    options |= {option.replace("--", "--no-", 1) for option in options} | {"--help", "--logdir", "--extra-index-url"}
    options |= {option for action in torchrun.get_args_parser()._actions for option in action.option_strings}
    assert set(re.findall(r"(?<![\w-])--[a-z][\w-]*", documents())) <= options
