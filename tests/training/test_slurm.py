"""The job script of `scripts/slurm`, under programs that stand for SLURM's."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from conftest import differences, status
from ranks import free_port
from test_distributed import (  # noqa: F401
    config,
    long_run,
    undisturbed_long,
    wait_for_step,
)

SCRIPT = Path(__file__).parents[2] / "scripts/slurm/train.sh"
SCONTROL = '[ "$1" = show ] && echo localhost || echo "$@"'
# A task of a step becomes the program that it is told to run.
SRUN = 'while [ "$1" != torchrun ]; do shift; done; echo $$ > "$PLACE/pid"; exec "$@"'
TORCHRUN = f'exec {sys.executable} -m torch.distributed.run "$@"'
# Instead of training, a status is left where one is given.
STATUS = 'test -e "$PLACE/left" && cp "$PLACE/left" "$PLACE/run/status.json"; exit 1'


def job(place: Path, torchrun: str, *arguments: str, gpus: str = "2") -> subprocess.Popen[str]:
    """Start the script as a job of one machine with two GPUs, or another number."""
    programs = {"scontrol": SCONTROL, "srun": SRUN, "torchrun": torchrun}
    for name, text in programs.items():
        (place / name).write_text(f"#!/bin/bash\n{text}\n")
        (place / name).chmod(0o755)
    job_id = 10_000 + free_port() % 10_000
    names = {"JOB_ID": job_id, "JOB_NODELIST": "a", "JOB_NUM_NODES": 1, "GPUS_ON_NODE": gpus}
    names["CPUS_PER_TASK"] = 2
    environment = {f"SLURM_{name}": str(value) for name, value in names.items()}
    path = os.pathsep.join([str(place), str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {**os.environ, **environment, "PLACE": str(place), "PATH": path}
    command, pipe = [SCRIPT, place / "run", *arguments], subprocess.PIPE
    return subprocess.Popen(command, env=env, stdout=pipe, stderr=pipe, text=True)


def test_the_script_is_well_formed() -> None:
    assert os.access(SCRIPT, os.X_OK)
    subprocess.run(["bash", "-n", SCRIPT], check=True)
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", SCRIPT], check=True)


STOPPED, REFUSED = {"exit_code": 75, "pid": 1}, {"exit_code": 2, "time": "now"}


@pytest.mark.parametrize(
    ("before", "left", "code"),
    [
        ({}, {}, 1),
        ({}, {"exit_code": 75}, 75),
        (STOPPED, {"exit_code": 75, "pid": 2}, 75),
        (STOPPED, {}, 1),  # this start came to nothing
        (STOPPED, {**STOPPED, "last_start": REFUSED}, 2),
        ({"exit_code": 1}, {"exit_code": 1, "last_start": STOPPED}, 75),  # before it began
        (STOPPED, {"exit_code": 143}, 143),
        (STOPPED, "damaged", 1),
    ],
)
def test_a_job_goes_back_to_the_queue_if_this_start_was_stopped(
    tmp_path: Path, before: object, left: object, code: int
) -> None:
    (tmp_path / "run").mkdir()
    for name, content in (("run/status.json", before), ("left", left)):
        if content:
            (tmp_path / name).write_text("{" if content == "damaged" else json.dumps(content))
    with job(tmp_path, STATUS, "-c", "config.yaml") as process:
        out, _ = process.communicate()
    assert out.startswith("requeue ") == (code == 75)
    assert process.returncode == (0 if code == 75 else code)


def test_the_name_of_a_run_is_not_read_as_yaml(tmp_path: Path) -> None:
    (place := tmp_path / "a #1").mkdir()
    with job(place, 'printf %s "${!#}" > "$PLACE/last"', "-c", "config.yaml") as process:
        process.communicate()
    key, _, value = (place / "last").read_text().partition("=")
    assert (key, yaml.safe_load(value)) == ("run_dir", str(place / "run"))


@pytest.mark.parametrize(("gpus", "number"), [("4", "4"), ("", "1")])
def test_each_gpu_or_else_each_machine_has_a_process(
    tmp_path: Path, gpus: str, number: str
) -> None:
    with job(tmp_path, 'echo "$@"', gpus=gpus) as process:
        out, _ = process.communicate()
    assert f"--nproc-per-node={number}" in out.split()


@pytest.mark.slow
def test_a_job_stops_by_sigusr1_and_goes_on(
    config: Path,  # noqa: F811
    undisturbed_long: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    arguments = long_run(config, run)[1:]
    with job(tmp_path, TORCHRUN, *arguments) as process:
        wait_for_step(run, 50)
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGUSR1)
        out, told = process.communicate(timeout=120)
    assert (process.returncode, out.split()[:1]) == (0, ["requeue"]), told
    assert "stopped by SIGUSR1" in told
    assert (status(run)["state"], status(run)["exit_code"]) == ("stopped", 75)
    with job(tmp_path, TORCHRUN, *arguments) as process:
        out, told = process.communicate(timeout=120)
    assert (process.returncode, out) == (0, ""), told
    assert differences(run, undisturbed_long) == []
