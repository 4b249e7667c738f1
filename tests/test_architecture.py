"""The shape of the code: imports go down, nothing runs what a file brings, functions stay short."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import mtrain
from mtrain.config import flatten
from mtrain.loading import load_config
from mtrain.yaml_reader import read_document

PACKAGE = Path(mtrain.__file__).parent
ROOT = PACKAGE.parent

# A module may import those of the rows above its own, and nothing else of mtrain; the parts of a
# package have its row, and import each other in one direction.
LAYERS = (
    "errors files",
    "yaml_reader json_reader phrasebook stop scripts marks",
    "lock log workers manifest tokenizer metrics device sides attention muon text",
    "config explain layout tmx",
    "tables terminal model search records subwords loading",
    "corpus cache distributed decoder sampling parallel history kept outputs",
    "filters repeats loss optim checkpoint machine compare verify tensorboard",
    "store",
    "data rundir",
    "graphs translate prepare",
    "alignments several learner",
    "forecast",
    "check",
    "lines validation",
    "evaluate train export",
    "job report",
    "options",
    "cli_look",
    "cli",
    "__main__",
)
# Modules that load torch, by themselves or through others; all others stay quick to load.
TORCH = {
    "alignments",
    "attention",
    "checkpoint",
    "export.ctranslate2_format",
    "data",
    "decoder",
    "device",
    "check.diagnosis",
    "distributed",
    "check.doctor",
    "export.handover",
    "forecast",
    "learner",
    "lines",
    "loss",
    "machine",
    "report.maps",
    "export.marian_format",
    "model",
    "muon",
    "optim",
    "prepare",
    "export.proof",
    "report.page",
    "graphs",
    "job",
    "sampling",
    "search",
    "several",
    "train",
    "translate",
    "validation",
}
# Whatever a file or a message holds, no part of it is run.
FORBIDDEN_MODULES = {"pickle", "marshal", "shelve", "dill", "joblib", "cloudpickle", "imp"}
FORBIDDEN_CALLS = {
    "eval",
    "exec",
    "compile",
    "__import__",
    "torch.load",
    "torch.save",
    "torch.jit.load",
    "torch.hub.load",
    "os.system",
    "os.popen",
    "yaml.load",
    "yaml.load_all",
    "yaml.full_load",
    "yaml.unsafe_load",
    "numpy.load",
}
MOST_LINES, MOST_LINES_OF_A_FUNCTION = 600, 60


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


def level_of(name: str) -> int:
    """Return the layer of a module, which is its package's if it is a part of one."""
    own = name.split(".")[0]
    return next(i for i, layer in enumerate(LAYERS) if own in layer.split())


def test_every_module_has_its_layer() -> None:
    listed = [name for layer in LAYERS for name in layer.split()]
    assert len(listed) == len(set(listed))
    assert set(listed) == {name.split(".")[0] for name in modules()} - {"__init__"}


@pytest.mark.parametrize("name", modules())
def test_imports_go_down(name: str) -> None:
    if name == "__init__":
        assert own_imports(modules()[name]) == set()
        return
    package = name.split(".")[0]
    upward = {
        other
        for other in own_imports(modules()[name])
        if other.split(".")[0] != package and level_of(other) >= level_of(name)
    }
    assert upward == set()


def test_every_package_is_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    folders = {file.parent.relative_to(ROOT) for file in PACKAGE.rglob("*.py")}
    templates = Path("mtrain/report/templates")
    listed = {Path(*name.split(".")) for name in project["tool"]["setuptools"]["packages"]}
    assert listed == folders | {templates}


def test_no_modules_import_each_other() -> None:
    graph = {name: own_imports(tree) for name, tree in modules().items()}
    assert set(TopologicalSorter(graph).static_order()) >= set(graph)  # raises CycleError


@pytest.mark.parametrize(
    ("name", "hidden"),
    [
        ("config", {"torch", "corpus"}),
        ("corpus", {"torch", "tokenizer"}),
        ("tokenizer", {"torch", "config"}),
        ("data", {"model", "loss", "device"}),
        ("model", {"tokenizer", "loss", "optim", "search", "config", "corpus"}),
        ("loss", {"config"}),
        ("checkpoint", {"model", "config"}),
        ("search", {"model", "tokenizer", "config"}),
        ("translate", {"train", "optim", "loss"}),
        ("train", {"typer", "cli"}),
        ("metrics", {"torch"}),
        ("cli", {"torch", "model", "data", "optim"}),
    ],
)
def test_what_a_module_must_not_know(name: str, hidden: set[str]) -> None:
    imports = imported(modules()[name], inside_functions=name not in ("cli", "cli_look", "options"))
    plain = {item.removeprefix("mtrain.") for item in imports}
    assert {item for item in hidden if item in plain} == set()


@pytest.mark.parametrize("name", modules())
def test_torch_is_imported_where_tensors_are(name: str) -> None:
    """Also by way of other modules: loading one that is not listed must not load torch."""
    tree = modules()[name]
    direct = {item.split(".")[0] for item in imported(tree, inside_functions=False)}
    if name not in TORCH:
        assert direct & {"torch", "safetensors", "datasets", "sacrebleu"} == set()
        assert own_imports(tree, inside_functions=False) & TORCH == set()
    assert "datasets" not in direct
    assert "sacrebleu" not in direct


def test_loading_the_command_line_loads_nothing_heavy() -> None:
    code = "import sys, mtrain.cli; print(*(m for m in sys.argv[1:] if m in sys.modules))"
    heavy = ["torch", "numpy", "sacrebleu", "datasets", "sentencepiece", "safetensors", "pydantic"]
    done = subprocess.run(
        [sys.executable, "-c", code, *heavy], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []


@pytest.mark.parametrize("name", modules())
def test_nothing_runs_what_a_file_brings(name: str) -> None:
    tree = modules()[name]
    assert {item.split(".")[0] for item in imported(tree)} & FORBIDDEN_MODULES == set()
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
    assert len(file.read_text(encoding="utf-8").splitlines()) <= MOST_LINES
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            length = node.end_lineno - node.lineno + 1
            assert length <= MOST_LINES_OF_A_FUNCTION, f"{node.name} has {length} lines"


@pytest.mark.parametrize("name", modules())
def test_errors_are_named_and_libraries_do_not_exit(name: str) -> None:
    for node in ast.walk(modules()[name]):
        if isinstance(node, ast.ExceptHandler):
            caught = "all" if node.type is None else ast.unparse(node.type)
            assert caught not in ("all", "Exception", "BaseException"), f"line {node.lineno}"
        if isinstance(node, ast.Call) and name not in ("cli", "terminal"):
            assert ast.unparse(node.func) not in ("sys.exit", "exit", "quit", "print")


@pytest.mark.parametrize(
    "path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.stem
)
def test_shipped_configs_load(path: Path) -> None:
    config = load_config(path)
    assert config.run_dir == f"runs/{path.stem}"
    assert list((ROOT / "configs").glob("*")) == list((ROOT / "configs").glob("*.yaml"))


def test_the_manual_shows_every_setting() -> None:
    path = ROOT / "configs" / "multi30k-en-de.yaml"
    shown = read_document(path).lines
    missing = [key for key in flatten(load_config(path)) if tuple(key.split(".")) not in shown]
    assert missing == []
