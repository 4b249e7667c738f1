"""Several processes train as one: the same steps, the same stops, the same resumes, one voice."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import contents, differences, status, write_config

from mtrain import cli, distributed, layout, learner, loss, optim
from mtrain.distributed import Place, Ranks, find_place, first_host, joined
from mtrain.errors import (
    EXIT_FAILED,
    EXIT_REFUSED,
    EXIT_STOPPED,
    EXIT_TERMINATED,
    RefusedError,
    StoppedError,
    UserError,
)
from mtrain.loading import load_config
from mtrain.prepare import prepare
from mtrain.rundir import RunDirectory
from mtrain.stop import Stop
from mtrain.train import Trainer

# Dropout is on; records, checkpoints and epochs fall on different steps.
SETTINGS = {
    "pairs": 60,
    "train.max_steps": 12,
    "train.max_tokens": 64,
    "train.log_every": 1,
    "train.save_every": 4,
    "train.valid_every": 8,
    "train.keep_checkpoints": 2,
    "decode.max_len_b": 3,
}

Hook = Callable[[], None]


@dataclass
class Done:
    """How the processes of a job ended, in the order of ranks."""

    codes: list[int]
    told: list[str]
    seconds: float


def free_port() -> int:
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return int(place.getsockname()[1])


def as_torchrun(rank: int, size: int, port: int) -> dict[str, str]:
    """What torchrun tells a process."""
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_PORT": port}
    return {**{k: str(v) for k, v in names.items()}, "MASTER_ADDR": "127.0.0.1"}


def as_srun(rank: int, size: int, port: int) -> dict[str, str]:
    """What SLURM tells a task of a step, its port being that of the job."""
    names = {
        "SLURM_PROCID": rank,
        "SLURM_LOCALID": rank,
        "SLURM_NTASKS": size,
        "SLURM_STEP_NUM_TASKS": size,
        "SLURM_JOB_ID": 3_000_000 + port,
        "SLURM_STEP_ID": 0,
    }
    return {**{k: str(v) for k, v in names.items()}, "SLURM_STEP_NODELIST": "localhost"}


def work(environment: dict[str, str], output: Path, body: Hook) -> None:
    """Be one process of a job."""
    os.environ.clear()
    os.environ.update(environment)
    os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
    torch.set_num_threads(1)
    body()


def command(arguments: list[str], hook: Hook | None) -> None:
    """Do what `mtrain` does, after `hook`."""
    sys.argv = ["mtrain", *arguments]
    if hook is not None:
        hook()
    cli.main()


def start(
    directory: Path,
    bodies: list[Hook],
    launcher: Callable[[int, int, int], dict[str, str]] = as_torchrun,
) -> Done:
    """Run a job of several processes to its end; they are forked off one that has loaded torch."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["mtrain.cli", "mtrain.job", "conftest", "test_distributed"])
    port, begun = free_port(), time.monotonic()
    outputs = [directory / f"rank{rank}.txt" for rank in range(len(bodies))]
    crew = []
    for rank, body in enumerate(bodies):
        environment = {**os.environ, **launcher(rank, len(bodies), port)}
        process = context.Process(target=work, args=(environment, outputs[rank], body))
        process.start()
        crew.append(process)
    for process in crew:
        process.join(120)
    codes = [process.exitcode for process in crew]
    for process in crew:
        process.kill()
    assert None not in codes, [output.read_text() for output in outputs]
    texts = [output.read_text() for output in outputs]
    return Done([code or 0 for code in codes], texts, time.monotonic() - begun)


def train_by(
    size: int, config: Path, run: Path, *overrides: str, hooks: dict[int, Hook] | None = None
) -> Done:
    """Train by so many ranks; `hooks` are called in some of them first."""
    arguments = ["train", "-c", str(config)]
    for override in (f"run_dir={run}", *overrides):
        arguments += ["--set", override]
    bodies = [partial(command, arguments, (hooks or {}).get(rank)) for rank in range(size)]
    return start(run.parent, bodies)


def at_step(step: int, deed: Hook) -> None:
    """Have something done in the middle of a step."""
    learn = Trainer._learn_share

    def struck(self: Trainer, *arguments: Any) -> None:
        if self.position.step + 1 == step:
            deed()
        learn(self, *arguments)

    Trainer._learn_share = struck  # type: ignore[method-assign]


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_config(tmp_path_factory.mktemp("ranks"), **SETTINGS)


@pytest.fixture(scope="module")
def undisturbed(config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run by two ranks that was left alone."""
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    done = train_by(2, config, run)
    assert done.codes == [0, 0], done.told
    return run


# --- the same steps -----------------------------------------------------------------------------


def losses(run: Path) -> list[float]:
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [record["train/loss"] for record in records if "train/loss" in record]


def test_two_ranks_train_like_one_with_twice_the_accumulation(config: Path, tmp_path: Path) -> None:
    steps = ["train.max_steps=50", "train.warmup_steps=40", "model.dropout=0.2"]
    for size, accum_steps in ((2, 2), (1, 4)):
        run = tmp_path / str(size)
        done = train_by(size, config, run, *steps, f"train.accum_steps={accum_steps}")
        assert done.codes == [0] * size, done.told
    assert len(losses(tmp_path / "1")) == 50
    assert losses(tmp_path / "2") == pytest.approx(losses(tmp_path / "1"), rel=1e-4)


def record_in_float64(config_file: Path, output: Path, accum_steps: int) -> None:
    """Take steps in float64 throughout and write their losses down."""
    overrides = [f"train.accum_steps={accum_steps}", "model.dropout=0.2"]
    config = load_config(config_file, overrides)
    learner.set_compute_dtype = lambda model, dtype: model.double()  # type: ignore[attr-defined]
    with joined() as ranks:
        run = RunDirectory(output.parent / "run")
        trainer = Trainer(config, prepare(config, run.tokenizer, Stop()), run, Stop(), ranks)
        assert trainer.optimizer.buffer.dtype == torch.float64
        stream, found = trainer.micro_batches(), []
        for _ in range(50):
            before = trainer.sums[0].item()
            trainer.take_step(stream)
            found.append(trainer.sums[0].item() - before)
        if ranks.is_first:
            output.write_text(json.dumps(found))


def test_in_float64_they_agree_to_the_ninth_digit(config: Path, tmp_path: Path) -> None:
    found = []
    for size, accum_steps in ((2, 2), (1, 4)):
        output = tmp_path / f"{size}.json"
        done = start(tmp_path, [partial(record_in_float64, config, output, accum_steps)] * size)
        assert done.codes == [0] * size, done.told
        found.append(json.loads(output.read_text()))
    assert len(found[0]) == 50
    assert found[0] == pytest.approx(found[1], rel=1e-9)
    assert found[0] != pytest.approx(found[1][::-1], rel=1e-3)


@pytest.mark.parametrize(
    ("pairs", "max_tokens"),
    [(3, 64), (50, 32), *(pytest.param(n, 32, marks=pytest.mark.slow) for n in (7, 12))],
)
def test_corpora_of_few_batches_end(tmp_path: Path, pairs: int, max_tokens: int) -> None:
    """Of 1, 2, 3 and 13 batches, which three ranks share as they come."""
    config = write_config(
        tmp_path, pairs=pairs, **{"train.max_tokens": max_tokens, "train.max_steps": 5}
    )
    done = train_by(3, config, tmp_path / "run")
    assert done.codes == [0, 0, 0], done.told
    assert status(tmp_path / "run")["state"] == "complete"


# --- stopped, killed, resumed -------------------------------------------------------------------


def test_only_the_first_rank_writes_and_speaks(config: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = train_by(2, config, run)
    assert done.codes == [0, 0]
    assert "2 x cpu" in done.told[0]
    assert done.told[1] == ""
    text = (run / "train.log").read_text()
    assert text.count("step 12/12") == 1
    again = train_by(2, config, run)
    assert again.codes == [0, 0]
    assert "complete" in again.told[0]


@pytest.mark.parametrize("rank", [0, 1])
def test_killed_and_resumed_is_undisturbed(
    config: Path, tmp_path: Path, undisturbed: Path, rank: int
) -> None:
    run, other = tmp_path / "run", 1 - rank
    done = train_by(
        2, config, run, hooks={rank: partial(at_step, 7, partial(send, signal.SIGKILL))}
    )
    assert done.codes[rank] == -signal.SIGKILL
    assert done.codes[other] == EXIT_FAILED
    assert "another process of the job has ended" in done.told[other]
    assert "Traceback" not in done.told[other]
    assert [path.name for path in layout.steps(run / "checkpoints")] == ["step-00000004"]
    assert train_by(2, config, run).codes == [0, 0]
    assert differences(run, undisturbed) == []


@pytest.mark.parametrize(
    ("rank", "number", "code"),
    [(0, signal.SIGTERM, EXIT_TERMINATED), (1, signal.SIGUSR1, EXIT_STOPPED)],
)
def test_a_signal_to_one_stops_and_saves_all(
    config: Path, tmp_path: Path, undisturbed: Path, rank: int, number: signal.Signals, code: int
) -> None:
    run = tmp_path / "run"
    done = train_by(2, config, run, hooks={rank: partial(at_step, 7, partial(send, number))})
    assert done.codes == [code, code], done.told
    assert f"stopped by {number.name}" in done.told[0]
    assert done.told[1] == ""
    assert (status(run)["state"], status(run)["exit_code"], status(run)["step"]) == (
        "stopped",
        code,
        7,
    )
    assert train_by(2, config, run).codes == [0, 0]
    assert differences(run, undisturbed) == []


def stop_in_validation() -> None:
    from mtrain.validation import Validation

    evaluate = Validation._evaluate

    def stopped(self: Validation, *arguments: Any) -> Any:
        self.stop.received = signal.SIGTERM
        return evaluate(self, *arguments)

    Validation._evaluate = stopped  # type: ignore[method-assign]


def test_a_signal_during_validation_stops_all(
    config: Path, tmp_path: Path, undisturbed: Path
) -> None:
    run = tmp_path / "run"
    done = train_by(2, config, run, hooks={1: stop_in_validation})
    assert done.codes == [EXIT_TERMINATED] * 2, done.told
    assert status(run)["step"] == 8
    assert train_by(2, config, run).codes == [0, 0]
    assert differences(run, undisturbed) == []


def fail_for_memory() -> None:
    raise UserError("step 7: out of memory")


def test_a_failure_of_one_is_told_by_the_first(config: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = train_by(2, config, run, hooks={1: partial(at_step, 7, fail_for_memory)})
    assert done.codes == [EXIT_FAILED] * 2
    assert f"rank 1 on {socket.gethostname()}: step 7: out of memory" in done.told[0]
    assert done.told[1] == ""
    assert status(run)["state"] == "failed"


def spoil_gradient() -> None:
    accumulate = optim.Optimizer.accumulate

    def spoilt(self: optim.Optimizer) -> None:
        accumulate(self)
        self.grads[0].view(-1)[0] = float("nan")

    optim.Optimizer.accumulate = spoilt  # type: ignore[method-assign]


def test_a_gradient_that_is_not_finite_ends_all(config: Path, tmp_path: Path) -> None:
    done = train_by(2, config, tmp_path / "run", hooks={1: spoil_gradient})
    assert done.codes == [EXIT_FAILED] * 2
    assert "not finite" in done.told[0]
    assert done.told[1] == ""


def test_text_that_is_not_there_is_told_once(config: Path, tmp_path: Path) -> None:
    done = train_by(2, config, tmp_path / "run", f"data.valid={{src: {tmp_path}/gone, tgt: gone}}")
    assert done.codes == [EXIT_FAILED] * 2, done.told
    assert str(tmp_path / "gone") in done.told[0]
    assert done.told[1] == ""


def test_processes_with_other_settings_are_refused(config: Path, tmp_path: Path) -> None:
    """Runs of their own that srun started as one job, say."""
    arguments = ["train", "-c", str(config), "--set"]
    runs = [tmp_path / name for name in "ab"]
    done = start(tmp_path, [partial(command, [*arguments, f"run_dir={r}"], None) for r in runs])
    assert done.codes == [EXIT_REFUSED] * 2
    assert "different settings" in done.told[0]
    assert done.told[1] == ""
    assert not any(run.exists() for run in runs)


# --- resumed by another number of ranks ---------------------------------------------------------


def test_another_number_of_ranks_goes_on_with_the_same_steps(
    config: Path, tmp_path: Path, undisturbed: Path
) -> None:
    run = tmp_path / "run"
    done = train_by(2, config, run, hooks={0: partial(at_step, 7, partial(send, signal.SIGTERM))})
    assert done.codes == [EXIT_TERMINATED] * 2
    refused = train_by(1, config, run)
    assert refused.codes == [EXIT_REFUSED]
    assert "set train.accum_steps: 2" in refused.told[0]
    refused = train_by(3, config, run)
    assert refused.codes == [EXIT_REFUSED] * 3
    assert "another number of processes" in refused.told[0]
    assert refused.told[1:] == ["", ""]
    alone = train_by(1, config, run, "train.accum_steps=2")
    assert alone.codes == [0], alone.told
    assert "1 processes train, not 2" in alone.told[0]
    assert losses(run) == pytest.approx(losses(undisturbed), rel=1e-4)
    assert contents(run)["status"] == contents(undisturbed)["status"]


# --- what launchers say -------------------------------------------------------------------------


def test_alone_without_a_launcher() -> None:
    assert find_place({}) is None
    assert find_place({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}) is None


def test_torchrun_and_srun_are_understood() -> None:
    torchrun = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}
    assert find_place(torchrun) == Place(5, 8, 1, "env://")
    srun = {
        "SLURM_PROCID": "5",
        "SLURM_LOCALID": "1",
        "SLURM_STEP_NUM_TASKS": "8",
        "SLURM_NTASKS": "9",
        "SLURM_STEP_NODELIST": "gpu[07-08]",
        "SLURM_JOB_ID": "123456",
        "SLURM_STEP_ID": "2",
    }
    port = 15000 + (123456 + 202) % 15000
    assert find_place(srun) == Place(5, 8, 1, f"tcp://gpu07:{port}")
    named = find_place({**srun, "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"})
    assert named == Place(5, 8, 1, "tcp://10.0.0.1:29500")
    assert find_place({**torchrun, **srun}) == Place(5, 8, 1, "env://")


def test_a_batch_script_is_no_task(caplog: pytest.LogCaptureFixture) -> None:
    script = {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "7", "SLURM_LOCALID": "0"}
    distributed.logger.propagate = True
    assert find_place(script) is None
    assert "srun did not start this process" in caplog.text


@pytest.mark.parametrize("environ", [{"RANK": "x", "WORLD_SIZE": "2"}, {"SLURM_PROCID": ""}])
def test_variables_that_are_no_numbers_are_refused(environ: dict[str, str]) -> None:
    with pytest.raises(RefusedError, match="launcher"):
        find_place(environ)


@pytest.mark.parametrize(
    ("hosts", "first"),
    [
        ("node1", "node1"),
        ("node1,node2", "node1"),
        ("gpu[003-005,9],login1", "gpu003"),
        ("gpu[12,14]", "gpu12"),
        ("rack-a[1-2]-ib,other", "rack-a1-ib"),
        ("n1.example.org,n2.example.org", "n1.example.org"),
        ("", ""),
    ],
)
def test_first_host(hosts: str, first: str) -> None:
    assert first_host(hosts) == first


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_the_network_of_an_address_is_found() -> None:
    assert distributed._address_towards("127.0.0.1") == "127.0.0.1"
    assert distributed._interface_of("127.0.0.1") == "lo"
    assert distributed._interface_of("192.0.2.1") is None
    assert distributed._address_towards("no.such.host.invalid") == ""


def meet_by_slurm(output: Path) -> None:
    with joined() as ranks:
        assert ranks.neighbours == 2
        found = ranks.gather(lambda: f"{ranks.rank} of {ranks.size}".encode())
        (output / f"{ranks.rank}.out").write_bytes(b", ".join(found))


def test_tasks_of_slurm_meet(tmp_path: Path) -> None:
    done = start(tmp_path, [partial(meet_by_slurm, tmp_path)] * 2, as_srun)
    assert done.codes == [0, 0], done.told
    for rank in range(2):
        assert (tmp_path / f"{rank}.out").read_text() == "0 of 2, 1 of 2"


def wait_in_vain(output: Path) -> None:
    distributed.START = timedelta(seconds=2)
    with pytest.raises(UserError) as caught, joined():
        pass
    output.write_text(str(caught.value))


def nothing() -> None:
    """End before anybody is met."""


def test_processes_that_never_meet_are_told(tmp_path: Path) -> None:
    output = tmp_path / "told"
    done = start(tmp_path, [partial(wait_in_vain, output), nothing])
    assert done.codes == [0, 0], done.told
    assert output.read_text().startswith("rank 0 of 2: the processes of the job did not meet: ")


# --- what ranks tell each other -----------------------------------------------------------------


def raise_all_kinds(output: Path) -> None:
    """Have each kind of failure come from each rank, and write down what arrives."""
    found: list[object] = []

    def failing(error: Exception) -> bytes:
        raise error

    with joined() as ranks:
        errors = (
            UserError("no"),
            RefusedError("never"),
            StoppedError("later", EXIT_STOPPED),
            OSError(28, "No space left on device", "file"),
            MemoryError(),
        )
        for error in errors:
            for origin in (0, 1):
                for meet in (ranks.gather, ranks.share):
                    is_mine = ranks.rank == origin or meet == ranks.share
                    try:
                        meet(partial(failing, error) if is_mine else bytes)
                    except UserError as caught:
                        kind, told = type(caught).__name__, not caught.is_told
                        found.append([kind, str(caught), caught.exit_code, told])
        found.append(ranks.agree(None))
        found.append(ranks.agree(("SIGTERM", 143) if ranks.rank else None))
        found.append(ranks.share(lambda: b"a\nb" * 100_000).count(b"\n"))
        found.append([len(part) for part in ranks.gather(lambda: b"x" * ranks.rank)])
        total = torch.arange(3.0) + ranks.rank
        ranks.sum_(total)
        found.append(total.tolist())
        ranks.agree(None, number=5)
        with pytest.raises(UserError, match="different steps"):
            ranks.agree(None, number=ranks.rank)
        ranks.spread([total.add_(ranks.rank)])
        found.append(total.tolist())
    (output / f"{ranks.rank}.json").write_text(json.dumps(found))


def test_what_one_raises_all_raise_and_one_tells(tmp_path: Path) -> None:
    done = start(tmp_path, [partial(raise_all_kinds, tmp_path)] * 2)
    assert done.codes == [0, 0], done.told
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    host = socket.gethostname()
    assert first[:4] == [
        ["UserError", "no", EXIT_FAILED, True],
        ["UserError", "no", EXIT_FAILED, True],
        ["UserError", f"rank 1 on {host}: no", EXIT_FAILED, True],
        ["UserError", "no", EXIT_FAILED, True],
    ]
    assert ["StoppedError", "later", EXIT_STOPPED, True] in first
    assert ["UserError", "file: No space left on device", EXIT_FAILED, True] in first
    assert ["UserError", f"rank 1 on {host}: out of memory", EXIT_FAILED, True] in first
    assert [f[:3] for f in first[:20]] == [s[:3] for s in second[:20]]
    assert not any(item[3] for item in second[:20])
    rest = [None, ["SIGTERM", 143], 100_000, [0, 1], [1.0, 3.0, 5.0], [1.0, 3.0, 5.0]]
    assert first[20:] == second[20:] == rest


def wait_for_a_gpu(directory: Path, dying: int) -> None:
    distributed.GRACE = 0.2
    with joined() as ranks:
        ranks.before_leaving = (directory / f"{ranks.rank}.told").write_text
        ranks.together(lambda: None)
        if ranks.rank == dying:
            time.sleep(1)  # the others may still be at the end of the meeting
            send(signal.SIGKILL)
        threading.Event().wait()  # as one does whose GPU waits for the others'


@pytest.mark.parametrize("dying", [0, 1, 2])
def test_ranks_that_cannot_meet_end_with_one_that_died(tmp_path: Path, dying: int) -> None:
    done = start(tmp_path, [partial(wait_for_a_gpu, tmp_path, dying)] * 3)
    assert done.codes.count(EXIT_FAILED) == 2
    assert done.codes[dying] == -signal.SIGKILL
    assert done.seconds < 60
    for rank in {0, 1, 2} - {dying}:
        assert f"rank {rank}: another process of the job has ended" in done.told[rank]
        assert (tmp_path / f"{rank}.told").read_text() in done.told[rank]


def test_by_itself_a_rank_asks_nobody() -> None:
    ranks = Ranks()
    assert ranks.share(lambda: b"a") == b"a"
    assert ranks.gather(lambda: b"a") == [b"a"]
    assert ranks.agree(("SIGTERM", 143)) == ("SIGTERM", 143)
    assert ranks.agree(None) is None
    with pytest.raises(UserError, match="no"):
        ranks.agree(None, UserError("no"))


def test_a_loss_in_float64_is_summed_in_float64() -> None:
    hidden, matrix = torch.randn(5, 4).double(), torch.randn(7, 4).double()
    found = loss.projected_cross_entropy(hidden, matrix, torch.arange(5), 0.1)
    expected = torch.nn.functional.cross_entropy(
        hidden @ matrix.t(), torch.arange(5), label_smoothing=0.1, reduction="sum"
    )
    torch.testing.assert_close(found.loss_sum, expected, rtol=1e-12, atol=0)
