"""What the repository promises about itself: scripts that differ by their lesson, no dead flag, true documents."""

import ast
import pathlib
import re
import shutil
import subprocess
import sys
from dataclasses import fields

import pytest
import torch.distributed.run as torchrun

import cpo
import envs
import epo
import evaluate
from envs.adapters import isaacgym
from harness import hyperparameters
from tests.conftest import documents

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPTS = ["ppo.py", "sapg.py", "cpo.py", "epo.py"]
PLACES = ("*.py", "harness/**/*.py", "envs/**/*.py", "benchmarks/**/*.py")
SOURCES = sorted(path for pattern in PLACES for path in ROOT.glob(pattern))
TESTS = sorted(ROOT.glob("tests/**/*.py"))
TEXTS = [*SOURCES, *TESTS, ROOT / "LICENSE", ROOT / ".ci" / "run", ROOT / ".gitignore"]
PROSE = ("*.md", "docs/**/*.md", "benchmarks/**/*.md", "*.txt", "*.toml")
TEXTS += [path for pattern in PROSE for path in ROOT.glob(pattern)]
DOCUMENTS = [path for pattern in PROSE[:3] for path in ROOT.glob(pattern)] + [ROOT / "policies" / "README.md"]
HARNESS = sorted(ROOT.glob("harness/**/*.py"))

every_script = pytest.mark.parametrize("script", SCRIPTS)
every_source = pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))


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
    """The fields of Args that are flags: name -> (annotation, default, docstring or None), in order."""
    (args,) = [node for node in parse(script).body if getattr(node, "name", "") == "Args"]
    found = {}
    for node, following in zip(args.body, [*args.body[1:], None]):
        if isinstance(node, ast.AnnAssign) and not ast.unparse(node.value).startswith("field(init=False"):
            documented = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
            docstring = following.value.value if documented else None
            found[node.target.id] = (ast.unparse(node.annotation), ast.unparse(node.value), docstring)
    return found


def imports(tree):
    """All modules that a file imports, as dotted names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{name.name}" for name in node.names)


# ---------------------------------------------------------------- form


@every_source
def test_python_3_8_syntax(path):
    ast.parse(path.read_text(), feature_version=(3, 8))


@pytest.mark.parametrize("path", [*SOURCES, *TESTS], ids=lambda path: str(path.relative_to(ROOT)))
def test_no_line_is_longer_than_120(path):
    assert not [i for i, line in enumerate(path.read_text().splitlines(), 1) if len(line) > 120]


def test_nothing_is_left_to_do_without_an_issue():
    marks = "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X"))
    for path in TEXTS:
        assert not re.search(rf"\b({marks})\b(?! ?\(?#\d)", path.read_text()), path


def test_no_text_names_what_is_not_part_of_the_repository():
    for path in TEXTS:
        assert not re.search("shared" + "/|/" + "work/", path.read_text()), path


# ---------------------------------------------------------------- scripts


@every_script
def test_a_script_imports_nothing_of_the_repository_but_envs_and_harness(script):
    own = {path.stem for path in ROOT.glob("*.py")} | {path.name for path in ROOT.iterdir() if path.is_dir()}
    imported = {name.split(".")[0] for name in imports(parse(script))}
    assert imported & own == {"envs", "harness"}


def reads_of_args(node, names):
    """Fields that are read of anything called by one of `names`, as in args.seed."""
    return {
        each.attr
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Load) and ast.unparse(each.value) in names
    }


@every_script
def test_every_flag_is_documented_and_read(script):
    """Refusing a flag's value is not reading it."""
    checks = ("Args", "check_args", "check_common_args", "check_resumable")
    read = set()
    for path in (ROOT / script, *HARNESS):
        for part in ast.parse(path.read_text()).body:
            if getattr(part, "name", "") not in checks:
                read |= reads_of_args(part, ("args", "self.args", "given"))
    for name, (_, _, docstring) in flags(script).items():
        assert docstring and docstring.strip(), f"{name} is not documented"
        assert name in read, f"{name} is never read"


SHARED = "MAX_STD MAX_LOG_RATIO RunningMeanStd layer_init make_mlp compute_gae n_step_returns adapt_learning_rate"
SHARED_BY_POPULATIONS = "LEADER Agent sample_offpolicy_columns offpolicy_batch"


@pytest.mark.parametrize("name", SHARED.split())
def test_blocks_shared_by_all(name):
    assert len({definitions(script)[name] for script in SCRIPTS}) == 1


@pytest.mark.parametrize("name", SHARED_BY_POPULATIONS.split())
def test_blocks_shared_by_populations(name):
    assert len({definitions(script)[name] for script in SCRIPTS[1:]}) == 1


@every_script
def test_whatever_scripts_have_in_common_is_tested_to_be_the_same(script):
    """A function or class in several scripts is one of the above, but for what each paper changes."""
    others = {name for other in SCRIPTS if other != script for name in definitions(other)}
    different = {"Args", "main", "check_args"} | ({"Agent"} if script == "ppo.py" else set())
    common = set(definitions(script)) & others - different
    assert common <= {*SHARED.split(), *SHARED_BY_POPULATIONS.split()} | ({"Agent"} - different)


def test_a_scripts_flags_are_those_before_it_and_its_own():
    ppo_flags, sapg_flags, cpo_flags, epo_flags = map(flags, SCRIPTS)
    assert list(sapg_flags.items())[: len(ppo_flags)] == list(ppo_flags.items())
    assert len(sapg_flags) - len(ppo_flags) <= 8
    for child, differs in ((cpo_flags, "aggregation"), (epo_flags, "num_agents")):
        assert list(child)[: len(sapg_flags)] == list(sapg_flags)
        assert {name for name in sapg_flags if child[name] != sapg_flags[name]} == {differs}
        assert len(child) - len(sapg_flags) <= 8


def test_scripts_have_the_same_order():
    ppo_names, sapg_names, *children = [list(definitions(script)) for script in SCRIPTS]
    for before, after in [(ppo_names, sapg_names), *((sapg_names, child) for child in children)]:
        assert [name for name in after if name in before] == before


@every_script
def test_tables_name_tasks_and_flags_that_exist(script):
    table = getattr(hyperparameters, script[:-3].upper())
    assert {task for task in table if ":" not in task} == {*envs.TASKS, *isaacgym.CONFIGURATIONS}
    assert {task.split(":")[0] for task in table if ":" in task} == {"envpool"}  # tests/envs/test_adapters.py
    assert all(set(row) <= set(flags(script)) for row in table.values())
    assert set(hyperparameters.CPU) <= set(table)
    assert all(set(row) <= set(flags(script)) for row in hyperparameters.CPU.values())


@pytest.mark.parametrize("script, most", [("ppo.py", 405), ("sapg.py", 515), ("cpo.py", 630), ("epo.py", 630)])
def test_scripts_are_short(script, most):
    assert len((ROOT / script).read_text().splitlines()) <= most


def test_the_harness_is_short():
    """800 lines; 120 for what keeps runs whole (checksums, locks, other people's checkpoints, memory estimates); 25 for
    the rows of EnvPool's tasks, which are data; 100 for several processes: one parses, writes and loads, each has
    environments and a share of the checkpoint. How they talk to each other is in distributed.py. 45 for the memory of
    the physics and the limits of control groups (20), environments made and checked in one place for evaluate.py too
    (15), and a damaged checkpoint that is set aside (10). 25 for a memory estimate that holds where it is measured (20)
    and for links and policies among other people's checkpoints (5). distributed.py has 150, and 5 for parting cleanly.
    """
    paths = [path for path in HARNESS if path.name != "distributed.py"]
    assert sum(len(path.read_text().splitlines()) for path in paths) <= 1_115
    assert len((ROOT / "harness" / "distributed.py").read_text().splitlines()) <= 155


def test_adapters_are_short():
    """Under 100 lines. Isaac Gym's may have twice as many: it composes the configurations of its tasks too, and
    gives them the objectives, metrics and curricula that IsaacGymEnvs does not report.
    """
    for path in (ROOT / "envs" / "adapters").glob("*.py"):
        assert len(path.read_text().splitlines()) < (200 if path.stem == "isaacgym" else 100), path.name


@pytest.mark.skipif(not shutil.which("diff"), reason="needs diff")
@pytest.mark.parametrize("old, new, added, removed", [
    ("ppo.py", "sapg.py", 135, 30), ("sapg.py", "cpo.py", 135, 20), ("sapg.py", "epo.py", 135, 15),
])  # fmt: skip
def test_the_diff_is_the_lesson(old, new, added, removed):
    lines = subprocess.run(["diff", old, new], cwd=ROOT, capture_output=True, text=True).stdout.splitlines()
    assert sum(line.startswith(">") for line in lines) <= added
    assert sum(line.startswith("<") for line in lines) <= removed


# ---------------------------------------------------------------- the harness is no framework


every_harness_file = pytest.mark.parametrize("path", HARNESS, ids=lambda path: path.name)


@every_script
def test_the_training_loop_stands_in_the_script(script):
    (main,) = [node for node in parse(script).body if getattr(node, "name", "") == "main"]
    loops = [ast.unparse(node) for node in main.body if isinstance(node, ast.For)]
    assert len(loops) == 1 and loops[0].startswith("for iteration in range(")
    for call in ("env.step(", "total_loss.backward()", "optimizer.step()", "run.log("):
        assert call in loops[0]
    calls = ("env.step(", "optimizer.step(", ".backward(")
    assert all(call not in path.read_text() for path in HARNESS for call in calls)


@pytest.mark.parametrize("path", [path for path in SOURCES if path not in HARNESS], ids=lambda path: path.stem)
def test_nobody_subclasses_the_harness(path):
    nodes = [node for file in HARNESS for node in ast.walk(ast.parse(file.read_text()))]
    classes = {node.name for node in nodes if isinstance(node, ast.ClassDef)}
    for node in ast.walk(ast.parse(path.read_text())):
        for base in getattr(node, "bases", []):
            name = ast.unparse(base)
            assert not name.startswith("harness") and name not in classes, f"{node.name}({name})"


@every_harness_file
def test_the_harness_calls_nothing_that_it_is_given_but_check_args(path):
    """No function calls one of its own parameters.

    Args, a script's dataclass, is one that it makes, and `accept` is the harness's own check of a checkpoint.
    """
    for function in ast.walk(ast.parse(path.read_text())):
        if isinstance(function, (ast.FunctionDef, ast.Lambda)):
            given = {arg.arg for arg in ast.walk(function.args) if isinstance(arg, ast.arg)}
            given -= {"check_args", "Args", "accept"}
            called = {ast.unparse(node.func) for node in ast.walk(function) if isinstance(node, ast.Call)}
            assert not given & called


@every_script
def test_a_script_hands_the_harness_no_function_but_check_args(script):
    """Nor a lambda, a bound method, or a class but Args; objects with state_dict and load_state_dict it may."""
    tree = parse(script)
    nodes = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    top = {node.name for node in nodes if node in tree.body} - {"check_args", "Args"}
    methods = {node.name for node in nodes if node not in tree.body}
    from_harness = {"run", "episodes", "lineage_stats"}  # objects
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and ast.unparse(call.func).split(".")[0] in {"harness", *from_harness}:
            for value in [*call.args, *(keyword.value for keyword in call.keywords)]:
                assert not any(isinstance(node, ast.Lambda) for node in ast.walk(value)), ast.unparse(call)
                assert ast.unparse(value) not in top, ast.unparse(call)
                assert not (isinstance(value, ast.Attribute) and value.attr in methods), ast.unparse(call)


@every_harness_file
def test_no_registry_and_no_configuration_files(path):
    """No decorator but Python's and torch's, no container at module level to be filled, no parser of files."""
    tree = ast.parse(path.read_text())
    decorators = {ast.unparse(node) for each in ast.walk(tree) for node in getattr(each, "decorator_list", [])}
    assert decorators <= {"torch.no_grad()", "property", "staticmethod", "contextlib.contextmanager"}
    values = [ast.unparse(node.value) for node in tree.body if isinstance(node, ast.Assign)]
    assert not {"{}", "[]", "set()", "dict()", "list()"} & set(values)
    parsers = set("json yaml toml tomllib configparser pickle importlib pkgutil hydra omegaconf".split())
    assert not parsers & {name.split(".")[0] for name in imports(tree)}


def test_the_harness_is_python_alone():
    files = [path for path in ROOT.glob("harness/**/*") if path.is_file() and "__pycache__" not in path.parts]
    assert {path.suffix for path in files} == {".py"}


# ---------------------------------------------------------------- requirements


def requirements(name):
    lines = (ROOT / name).read_text().split("\n")
    return [line for line in lines if line and not line.startswith("#")]


def test_requirements_are_pinned_and_used_and_enough():
    pinned = requirements("requirements.txt")
    assert all(re.fullmatch(r"[\w-]+==[\d.]+", line) for line in pinned)
    names = {line.split("==")[0] for line in pinned}
    imported = {name for path in SOURCES for name in imports(ast.parse(path.read_text()))}
    parts = {part for name in imported for part in name.split(".")}  # torch.utils.tensorboard needs tensorboard
    assert names <= parts
    own = {"envs", "harness", "benchmarks", *(path.stem for path in SOURCES)}
    others = {"matplotlib", "PIL"}  # benchmarks/ says so where it draws
    others |= {"isaacgym", "isaacgymenvs", "hydra"}  # README says how to install them
    others |= {"mujoco_warp", "warp"}  # in requirements-gpu.txt
    others |= {"onnx", "onnxruntime", "onnxscript"}  # in requirements-onnx.txt
    assert {name.split(".")[0] for name in imported} - set(sys.stdlib_module_names) - own - others <= names
    included = [line for line in requirements("requirements-dev.txt") if line.startswith("-r")]
    assert included == [f"-r requirements-{name}.txt" for name in ("envpool", "gpu", "gymnasium", "onnx")]
    for name in ("envpool", "gymnasium", "mjlab"):  # adapters: each says which package its prefix needs
        assert name in {line.split("==")[0] for line in requirements(f"requirements-{name}.txt")}
    lines = [line for path in ROOT.glob("requirements*.txt") for line in requirements(path.name)]
    assert all(re.fullmatch(r"[\w-]+==[\w.]+|-r requirements[\w-]*\.txt", line) for line in lines)


def test_isaac_gym_gets_versions_that_it_can_use():
    versions = dict(line.split("==") for line in requirements("requirements-isaacgym.txt"))
    numbers = {name: tuple(map(int, version.split("."))) for name, version in versions.items()}
    assert numbers.keys() == {"numpy", "pillow", "tensorboard", "torch", "tyro"}  # the diagnostics' image needs Pillow
    # the last of torch and Pillow with Python 3.8 are 2.4 and 10.4
    assert numbers["numpy"] < (1, 24) and numbers["torch"] < (2, 5) and numbers["pillow"] < (11,)


def test_ci_calls_the_documents_test_command():
    command = "python -m pytest"
    assert f"pip install -r requirements-dev.txt && {command}\n" in documents()
    ci = (ROOT / ".ci" / "run").read_text()
    assert "find ./*.py harness envs benchmarks " in ci  # compiled by Python 3.8
    assert ci.rstrip().splitlines()[-1] == command and "requirements-dev.txt" in ci and "set -euo pipefail" in ci


# ---------------------------------------------------------------- README and docs/


def table(first_cell):
    """The rows of the documents' table whose head begins with `first_cell`, as lists of cells."""
    _, after = documents().split(f"\n| {first_cell} |", 1)
    rows = re.match(r"[^\n]*\n\|[-:| ]+\|\n((?:\|[^\n]*\n)+)", after).group(1)
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows.splitlines()]


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
    rows, compared = table("point"), 0
    for point, here, *_ in rows:
        for name, value in re.findall(r"`--([\w-]+)(?: ([\d.]+))?`", here):
            off, field = name.startswith("no-"), re.sub("^no-", "", name).replace("-", "_")
            default = getattr(epo.Args() if hasattr(epo.Args(), field) else cpo.Args(), field)
            compared += 1
            if value or isinstance(default, bool):
                assert default == (float(value) if value else not off), point
    assert compared >= 8


def test_the_documents_translate_to_flags_that_exist():
    names = {f.name for f in fields(epo.Args)}
    assert all(row[1].strip("`") in names for row in table("rl_games"))


def test_the_documents_know_what_the_flags_are_called():
    options = {"--" + name.replace("_", "-") for script in SCRIPTS for name in flags(script)}
    options |= {"--" + f.name.replace("_", "-") for f in fields(evaluate.Args)}
    options |= {option.replace("--", "--no-", 1) for option in options} | {"--help", "--logdir"}
    options |= {option for action in torchrun.get_args_parser()._actions for option in action.option_strings}
    options |= {f"--{name}" for name in "nodes ntasks-per-node gpus-per-node cpus-per-task signal".split()}  # Slurm's
    assert set(re.findall(r"(?<![\w-])--[a-z][\w-]*", documents())) <= options
