"""What --help prints: the flags of a script or program in the groups of its source, with their defaults."""

import ast
import inspect
import re
import sys
import textwrap
import types
from dataclasses import MISSING, fields
from typing import Any, Dict, Literal, Optional, Sequence, Union, get_args, get_origin

import envs  # before torch, which tyro may import: Isaac Gym must be imported first
from envs.terminal import say

import tyro

OPTIONAL = (Union, getattr(types, "UnionType", Union))  # Optional[int] and, since Python 3.10, int | None
WIDTH = 110
COLUMN = 38  # where the descriptions begin


def read_groups(Args: type) -> Dict[str, Dict[str, str]]:
    """The fields in the source of Args and its bases: group -> name -> docstring. A comment begins a group."""
    groups = {}
    for cls in reversed(Args.__mro__[:-1]):
        source = textwrap.dedent(inspect.getsource(cls))
        lines = source.splitlines()
        body = ast.parse(source).body[0].body
        group = "Flags"
        end = 1  # the last line of the field before
        for node, following in zip(body, [*body[1:], None]):
            if not isinstance(node, ast.AnnAssign):
                continue
            for line in lines[end : node.lineno - 1]:
                comment = re.fullmatch(r"    # (.+)", line)
                group = comment.group(1) if comment else group
            has_docstring = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
            groups.setdefault(group, {})[node.target.id] = following.value.value if has_docstring else ""
            end = node.end_lineno
    return groups


def spell_values(kind):
    """The values of a field's type, as help shows them."""
    if get_origin(kind) in OPTIONAL:
        return spell_values(get_args(kind)[0])
    if get_origin(kind) is Literal:
        return "{" + ",".join(map(str, get_args(kind))) + "}"
    if get_origin(kind) is tuple:
        return spell_values(get_args(kind)[0]) + " ..."
    return kind.__name__.upper()


def spell_default(value):
    if value is None:
        return "unset"
    if isinstance(value, tuple):
        return " ".join(map(str, value)) or "none"
    return str(value)


def describe(field, docstring, default):
    """A flag with its description and its default, as lines of text."""
    name = field.name.replace("_", "-")
    if field.type is bool:
        usage = f"  --{name}, --no-{name}"
        shown = f"--{name}" if default else f"--no-{name}"
    else:
        usage = f"  --{name} {spell_values(field.type)}"
        shown = spell_default(default)
    return in_columns(usage, f"{docstring} (default: {shown})")


def in_columns(usage, description):
    """How an argument is given, and beside it what it does, as lines of text."""
    indent = " " * COLUMN
    text = textwrap.fill(
        description,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=indent,
        break_on_hyphens=False,
        break_long_words=False,
    )
    if len(usage) < COLUMN - 1:
        return usage + text[len(usage) :]
    return f"{usage}\n{text}"


def print_help(Args: type, script: str, defaults: Dict[str, Any], source: str) -> None:
    """Print all flags of a script.

    defaults: name -> value, for flags whose default is not that of Args; source: what these defaults belong to.
    """
    tasks = textwrap.fill(f"Tasks: {', '.join(envs.TASKS)}; or your own.", WIDTH, subsequent_indent="  ")
    lines = [f"usage: python {script}.py [FLAGS]", "", tasks, "", f"The defaults below are those of {source}."]
    say("\n".join(lines + describe_all(Args, defaults)))  # `| head` may have read enough


def describe_all(Args, defaults):
    """All arguments in their groups, as lines of text. One without a default has no dashes: its place says what it is.

    defaults: name -> value, for flags whose default is not that of Args.
    """
    by_name = {field.name: field for field in fields(Args) if field.init}
    lines = []
    for group, docstrings in read_groups(Args).items():
        lines += ["", group]
        for name, docstring in docstrings.items():
            if name not in by_name:
                continue
            default = defaults.get(name, by_name[name].default)
            if default is MISSING:
                lines.append(in_columns(f"  {name.upper()}", docstring))
            else:
                lines.append(describe(by_name[name], docstring, default))
    return lines


def parse_program_args(Args: type, program: str, purpose: str, argv: Optional[Sequence[str]] = None) -> Any:
    """The arguments of a program that trains nothing, an Args. Its --help looks like that of the scripts.

    program: the name of its file; purpose: its docstring, of which the help shows the first sentence.
    """
    given = sys.argv[1:] if argv is None else argv
    if "--help" not in given and "-h" not in given:
        return tyro.cli(Args, args=argv)
    places = [field.name.upper() for field in fields(Args) if field.default is MISSING]
    lines = [f"usage: python {program}.py {' '.join(places)} [FLAGS]", "", purpose.strip().splitlines()[0]]
    say("\n".join(lines + describe_all(Args, {})))
    sys.exit(0)
