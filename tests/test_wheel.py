"""The wheel: what is installed is whole, and works away from the clone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from mtrain.config.loading import load_config

ROOT = Path(__file__).parents[1]
BUILD = "import setuptools.build_meta as build; build.build_wheel('wheel')"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The content of the wheel, built from a copy without the clone's other files."""
    pytest.importorskip("setuptools")
    place = tmp_path_factory.mktemp("wheel")
    for name in ("mtrain", "configs"):
        shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, place / name)
    subprocess.run([sys.executable, "-c", BUILD], cwd=place, check=True, capture_output=True)
    (wheel,) = (place / "wheel").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(place / "installed")
    return place / "installed"


def files(folder: Path) -> set[Path]:
    return {
        path.relative_to(folder)
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_holds_the_package_and_the_configs(installed: Path) -> None:
    documents = {path for path in files(ROOT / "mtrain") if path.suffix in (".md", ".png")}
    configs = {Path("configs", path) for path in files(ROOT / "configs")}
    assert files(installed / "mtrain") == (files(ROOT / "mtrain") - documents) | configs


def test_a_shipped_config_is_found_from_anywhere(installed: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mtrain", "config", "show", "configs/quickstart.yaml"],
        env={**os.environ, "PYTHONPATH": str(installed)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    shipped = installed / "mtrain/configs/quickstart.yaml"
    assert (
        done.stderr
        == f"configs/quickstart.yaml: no such file; using the one that mtrain ships: {shipped}\n"
    )
    (tmp_path / "shown.yaml").write_text(done.stdout)
    assert load_config(tmp_path / "shown.yaml") == load_config(ROOT / "configs/quickstart.yaml")
