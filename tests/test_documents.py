"""The commands of every README run, and their options exist."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socketserver
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from conftest import MEASURE_HERE, _processes, made_up_pairs, write_lines

from mtrain.cli import app as cli
from mtrain.corpus import phrasebook

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "configs/*.md", "scripts/**/*.md", "mtrain/**/*.md", "tests/**/*.md")
    for path in ROOT.glob(pattern)
)
FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MAX_README_LINES = 160  # lines
# Quick to time in a dry run
SMALL_MODEL = "--set model.d_model=16 --set model.d_ff=16 --set model.num_heads=2"

# Sends a command line to the test, which runs it in a process that has torch loaded.
SHIM = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    text = sys.stdin.buffer.read().decode()
    request = {{"words": sys.argv[1:], "directory": os.getcwd(), "stdin": text}}
    server.sendall(json.dumps(request).encode() + b"\\n")
    answer = json.loads(server.makefile().read())
sys.stdout.write(answer["out"])
sys.stderr.write(answer["err"])
sys.exit(answer["code"])
"""


def blocks(document: str, language: str) -> Iterator[tuple[str, str]]:
    """Yield the reason not to run a block, or an empty text, and the block."""
    for found, reason, text in FENCE.findall((ROOT / document).read_text(encoding="utf-8")):
        if found == language:
            yield reason.strip(), text


class Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        request: dict[str, Any] = json.loads(self.rfile.readline())
        place, text, words = Path(request["directory"]), request["stdin"].encode(), request["words"]
        if words[0] == "check" and "--no-forecast" not in words:
            words.append("--no-timing")  # test_plan times steps
        if "--dry-run" in words:  # which times steps in any case
            words += shlex.split(SMALL_MODEL)
        done = _processes().mtrain(*words, stdin=text, directory=place, prelude=MEASURE_HERE)
        answer = {"code": done.code, "out": done.out.decode(), "err": done.err}
        self.wfile.write(json.dumps(answer).encode())


@pytest.fixture(scope="module")
def programs() -> Iterator[Path]:
    """A directory with an `mtrain` that starts quickly."""
    with tempfile.TemporaryDirectory() as name:  # the path of a socket must be short
        address = f"{name}/socket"
        shim = Path(name, "mtrain")
        shim.write_text(SHIM.format(python=sys.executable, address=address))
        shim.chmod(0o755)
        with socketserver.ThreadingUnixStreamServer(address, Handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            yield Path(name)
            server.shutdown()


@pytest.fixture
def place(tmp_path: Path, trained_run: Path) -> Path:
    """A directory with what the documents name: text, a run, translations."""
    pairs = made_up_pairs(12, seed=5)
    text = list(phrasebook.pairs("train", 5200))
    for stem, endings, some in (("train.", "en de", text), ("", "src.txt tgt.txt", pairs)):
        for ending, side in zip(endings.split(), zip(*some, strict=True), strict=True):
            write_lines(tmp_path / f"{stem}{ending}", side)
    (tmp_path / "crawl.tsv").write_text("".join(f"{src}\t{tgt}\n" for src, tgt in text[:20]))
    shutil.copy(tmp_path / "src.txt", tmp_path / "in.txt")
    for name in ("ref", "out", "old", "new"):
        shutil.copy(tmp_path / "tgt.txt", tmp_path / f"{name}.txt")
    words = [line.split()[0] for line in (tmp_path / "tgt.txt").read_text().splitlines()]
    (tmp_path / "prefixes.txt").write_text("\n".join(words) + "\n")
    shutil.copytree(trained_run, tmp_path / "runs/NAME")
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize(
    "document", [each for each in DOCUMENTS if any(not why for why, _ in blocks(each, "sh"))]
)
def test_the_commands_of_a_document_run(document: str, programs: Path, place: Path) -> None:
    texts = [text for reason, text in blocks(document, "sh") if not reason]
    if document != "README.md" and any("en-de.yaml" in text for text in texts):
        texts.insert(0, "mtrain init train.en train.de --hold-out 500")
    path = os.pathsep.join([str(programs), os.environ["PATH"]])
    for text in texts:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=place,
            env={**os.environ, "PATH": path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{text}\n{done.stderr}"


def commands(document: str) -> Iterator[list[str]]:
    """Yield the words of every `mtrain` command of a document."""
    for _, text in blocks(document, "sh"):
        for line in text.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if "mtrain" in words:
                yield words[words.index("mtrain") + 1 :]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_options_of_a_document_exist(document: str) -> None:
    for words in commands(document):
        command = typer.main.get_command(cli.app)
        for word in words:
            command = getattr(command, "commands", {}).get(word, command)
        known = {
            option
            for parameter in command.params
            for option in (*parameter.opts, *parameter.secondary_opts)
        }
        options = {word.split("=")[0] for word in words if word.startswith("-") and word != "-"}
        assert options - known == set(), words


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_links_of_a_document_lead_somewhere(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    for target, anchor in re.findall(r"\]\((?!\w+://)([^)#]+)#?([^)]*)\)", text):
        path = (ROOT / document).parent / target
        assert path.exists(), target
        assert not anchor or anchor in anchors(path), f"{target}#{anchor}"


def anchors(document: Path) -> set[str]:
    """The anchors of the titles of a document, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", document.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_readme_is_one_page() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= MAX_README_LINES


@pytest.mark.slow
def test_the_python_example_runs(place: Path) -> None:
    (text,) = (text for _, text in blocks("README.md", "python"))
    done = subprocess.run(
        [sys.executable, "-c", text], cwd=place, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
