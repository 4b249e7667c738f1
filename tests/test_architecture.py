"""The shape of the code: imports go down, nothing runs what a file brings, functions stay short."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

import mtrain
from mtrain.config.loading import load_config

PACKAGE = Path(mtrain.__file__).parent
ROOT = PACKAGE.parent
CONFIGS = ROOT / "configs"


class Row(NamedTuple):
    """What a package may import of mtrain, and which of its modules may load torch."""

    packages: str = ""
    torch: str = ""


ALL = "*"
# The packages from the command line down; each may import only rows below its own.
PACKAGES = {
    "cli": Row("check report export training translation scoring data runs corpus config runtime"),
    "report": Row(
        "check translation data scoring runs corpus config runtime", "page attention_maps"
    ),
    "export": Row("translation data scoring model runs corpus config runtime", ALL),
    "check": Row("training data scoring runs corpus config runtime", "diagnosis"),
    "training": Row("translation data scoring model runs corpus config runtime", ALL),
    "translation": Row("data scoring model runs corpus config runtime", ALL),
    "data": Row("scoring runs corpus config runtime", "batches"),
    "scoring": Row("corpus config runtime"),
    "runs": Row("corpus config runtime", "checkpoint"),
    "model": Row("config runtime", ALL),
    "corpus": Row("config runtime"),
    "config": Row("runtime"),
    "runtime": Row("", "device distributed"),
}
# Whatever a file or a message holds, no part of it is run.
FORBIDDEN_MODULES = {"pickle", "marshal", "shelve", "dill", "joblib", "cloudpickle", "imp"}
FORBIDDEN_MODULES |= {"subprocess", "pty"}
FORBIDDEN_CALLS = {
    *("eval", "exec", "compile", "__import__", "os.system", "os.popen", "numpy.load"),
    *("torch.load", "torch.save", "torch.jit.load", "torch.hub.load"),
    *("yaml.load", "yaml.load_all", "yaml.full_load", "yaml.unsafe_load"),
}
# Runs the program of `--metric-command`, which no file can name.
PROGRAMS_OF_THE_COMMAND_LINE = {"scoring.external": {"subprocess"}}
MAX_MODULE_LINES, MAX_FUNCTION_LINES = 450, 60  # lines
MAX_METHODS, MAX_MODULES = 20, 12  # of a class, of a folder


@cache
def modules() -> dict[str, ast.Module]:
    """Every file of the package as a syntax tree, by its dotted name below `mtrain`."""
    found = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        parts = file.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts)] = ast.parse(file.read_text(encoding="utf-8"), str(file))
    return found


def is_for_types_alone(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def statements(node: ast.AST, *, inside_functions: bool) -> Iterator[ast.AST]:
    """Walk a tree without what only type checkers see."""
    for child in ast.iter_child_nodes(node):
        if is_for_types_alone(child):
            continue
        yield child
        if inside_functions or not isinstance(child, ast.FunctionDef | ast.Lambda):
            yield from statements(child, inside_functions=inside_functions)


def imported(tree: ast.Module, *, inside_functions: bool = True) -> set[str]:
    """Dotted names that a module imports; `from a import b` gives `a` and `a.b`."""
    names: set[str] = set()
    for node in statements(tree, inside_functions=inside_functions):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import"
            assert node.module is not None
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def own_imports(tree: ast.Module, *, inside_functions: bool = True) -> set[str]:
    """The modules of this package that a module imports."""
    names = imported(tree, inside_functions=inside_functions)
    known = {name.removesuffix(".__init__") for name in modules()}
    return {name.removeprefix("mtrain.") for name in names if name.startswith("mtrain.")} & known


def package_of(name: str) -> str:
    return name.partition(".")[0]


def may_load_torch(name: str) -> bool:
    package, _, module = name.partition(".")
    listed = PACKAGES[package].torch if package in PACKAGES else ""
    return listed == ALL or module in listed.split()


def test_the_packages_are_those_of_the_table() -> None:
    files = {"__init__", "__main__"}
    assert {package_of(name) for name in modules()} - files == set(PACKAGES)
    order = list(PACKAGES)
    for name, row in PACKAGES.items():
        below = order[order.index(name) + 1 :]
        assert [other for other in row.packages.split() if other not in below] == []


@pytest.mark.parametrize("name", modules())
def test_imports_go_down(name: str) -> None:
    if name in ("__init__", "__main__"):  # the Python interface, and `python -m mtrain`
        return
    others = {package_of(other) for other in own_imports(modules()[name])} - {package_of(name)}
    assert others - set(PACKAGES[package_of(name)].packages.split()) == set()


@pytest.mark.parametrize("package", PACKAGES)
def test_the_table_grants_no_more_than_is_used(package: str) -> None:
    used = {
        package_of(other)
        for name, tree in modules().items()
        if package_of(name) == package
        for other in own_imports(tree)
    }
    assert set(PACKAGES[package].packages.split()) == used - {package}


@pytest.mark.parametrize("package", PACKAGES)
def test_the_docstring_of_a_package_introduces_each_of_its_modules(package: str) -> None:
    face = ast.get_docstring(modules()[f"{package}.__init__"]) or ""
    named = re.findall(r"`(\w+)(?:\.(\w+))?`", face)
    own = {name.split(".")[1] for name in modules() if package_of(name) == package}
    assert {module for module, _ in named} == own - {"__init__"}
    for module, name in named:
        tree = modules().get(f"{package}.{module}", ast.Module([], []))
        defined = {getattr(node, "name", "") for node in tree.body}
        assert name in ("", *defined), f"{module} does not define {name}"


def test_every_package_is_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    folders = {file.parent.relative_to(ROOT) for file in PACKAGE.rglob("*.py")}
    templates = Path("mtrain/report/templates")
    listed = {Path(*name.split(".")) for name in project["tool"]["setuptools"]["packages"]}
    assert listed == folders | {templates, Path("mtrain/configs")}


def test_no_modules_import_each_other() -> None:
    graph = {name: own_imports(tree) for name, tree in modules().items()}
    assert set(TopologicalSorter(graph).static_order()) >= set(graph)  # raises CycleError


@pytest.mark.parametrize("name", modules())
def test_torch_is_imported_where_tensors_are(name: str) -> None:
    """Also by way of other modules: loading one that is not listed must not load torch."""
    tree = modules()[name]
    direct = {item.split(".")[0] for item in imported(tree, inside_functions=False)}
    if not may_load_torch(name):
        assert direct & {"torch", "safetensors", "datasets", "sacrebleu"} == set()
        own = own_imports(tree, inside_functions=False)
        assert [other for other in own if may_load_torch(other)] == []
    assert "datasets" not in direct
    assert "sacrebleu" not in direct


@pytest.mark.parametrize("name", modules())
def test_nothing_runs_what_a_file_brings(name: str) -> None:
    tree = modules()[name]
    modules_ = {item.split(".")[0] for item in imported(tree)} & FORBIDDEN_MODULES
    assert modules_ <= PROGRAMS_OF_THE_COMMAND_LINE.get(name, set())
    assert set(imported(tree)) & FORBIDDEN_CALLS == set()  # from torch import load
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        call = ast.unparse(node.func).replace("np.", "numpy.")
        options = {option.arg: ast.unparse(option.value) for option in node.keywords}
        if call == "numpy.load":
            assert options.get("allow_pickle") == "False", f"line {node.lineno}"
            continue
        assert call not in FORBIDDEN_CALLS, f"line {node.lineno}: {call}"
        assert "shell" not in options, f"line {node.lineno}: a shell"
        assert call != "yaml.compose" or "BaseLoader" in options["Loader"]


@pytest.mark.parametrize("name", modules())
def test_modules_and_functions_stay_short(name: str) -> None:
    tree = modules()[name]
    file = PACKAGE / (name.replace(".", "/") + ".py")
    assert len(file.read_text(encoding="utf-8").splitlines()) <= MAX_MODULE_LINES
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            length = node.end_lineno - node.lineno + 1
            assert length <= MAX_FUNCTION_LINES, f"{node.name} has {length} lines"
        if isinstance(node, ast.ClassDef):
            methods = [part for part in node.body if isinstance(part, ast.FunctionDef)]
            assert len(methods) <= MAX_METHODS, f"{node.name} has {len(methods)} methods"


def test_folders_stay_small() -> None:
    for folder in {file.parent for file in PACKAGE.rglob("*.py")}:
        files = [file for file in folder.glob("*.py") if not file.name.startswith("__")]
        assert len(files) <= MAX_MODULES, folder


@pytest.mark.parametrize("name", modules())
def test_errors_are_named_and_libraries_do_not_exit(name: str) -> None:
    for node in ast.walk(modules()[name]):
        if isinstance(node, ast.ExceptHandler):
            caught = "all" if node.type is None else ast.unparse(node.type)
            assert caught not in ("all", "Exception", "BaseException"), f"line {node.lineno}"
        if isinstance(node, ast.Call) and name not in ("cli.app", "runtime.console"):
            assert ast.unparse(node.func) not in ("sys.exit", "exit", "quit", "print")


@pytest.mark.parametrize(
    "path", sorted(CONFIGS.rglob("*.yaml")), ids=lambda path: str(path.relative_to(CONFIGS))
)
def test_shipped_configs_load(path: Path) -> None:
    config = load_config(path)
    assert config.run_dir.startswith(f"runs/{path.relative_to(CONFIGS).with_suffix('')}")
    files = [file for file in CONFIGS.rglob("*") if file.is_file()]
    assert {file.suffix for file in files} == {".yaml", ".md", ".sh"}
