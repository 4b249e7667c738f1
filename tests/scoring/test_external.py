"""The program of `--metric-command`: what it reads, how it fails, how it is ended."""

from __future__ import annotations

import os
import re
import shlex
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import pytest

from mtrain.runtime.errors import EXIT_FAILED, EXIT_REFUSED, RefusedError, StoppedError, UserError
from mtrain.scoring.external import ExternalMetric

ROWS = [("a\tb", "c\nd", "e\rf"), ("é 漢", "", "x")]


def program(code: str, *arguments: str) -> str:
    return shlex.join([sys.executable, "-c", code, *arguments])


def score(code: str, *arguments: str, timeout: float = 60) -> float:
    return ExternalMetric(program(code, *arguments), timeout).score(ROWS, lambda: None)


def test_it_reads_a_line_for_each_translation_and_prints_a_number(tmp_path: Path) -> None:
    code = "import sys; open(sys.argv[1], 'wb').write(sys.stdin.buffer.read()); print(' -0.5e1 ')"
    assert score(code, str(tmp_path / "a $HOME *")) == -5.0
    assert (tmp_path / "a $HOME *").read_text() == "a b\tc d\te f\né 漢\t\tx\n"


def test_much_text_and_many_messages_block_nobody() -> None:
    code = "import sys; sys.stderr.write('x' * 300_000); print(len(sys.stdin.read()))"
    rows = [("s" * 100, "h" * 100, "r" * 100)] * 10_000
    assert ExternalMetric(program(code), 60).score(rows, lambda: None) == 303 * 10_000
    assert score("print(7)") == 7  # without reading


def test_a_program_that_starts_slowly_gets_all_text() -> None:
    rows = [("a" * 100, "b" * 100, "c" * 100)] * 10_000  # far more than a pipe holds
    code = "import sys, time; time.sleep(1); print(len(sys.stdin.read()))"
    assert ExternalMetric(program(code), 20).score(rows, lambda: None) == 303 * 10_000


def test_a_process_that_is_left_behind_is_not_waited_for() -> None:
    child = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', '{}']); print(1.5)"
    assert score(child.format("import time; time.sleep(8)"), timeout=5) == 1.5


def test_a_program_that_the_system_cannot_start_is_named(tmp_path: Path) -> None:
    script = tmp_path / "metric"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    with pytest.raises(UserError, match="metric: cannot be started: No such file or directory; "):
        ExternalMetric(str(script), 60).score(ROWS, lambda: None)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_for_temporary_files_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "TemporaryFile", partial(open, "/dev/full", "r+b"))
    folder = re.escape(tempfile.gettempdir())
    with pytest.raises(UserError, match=f"^{folder}: cannot .* No space .* set TMPDIR to a folder"):
        score("print(1)")


def test_a_program_that_prints_without_end_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mtrain.scoring.external.MAX_PRINTED", 1 << 20)
    with pytest.raises(UserError, match="printed more than 1,048,576 bytes; "):
        score("while True: print('x' * 10_000)")


def test_variables_of_mtrain_s_own_processes_are_not_passed_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "PYTHONSAFEPATH", "OF_THE_USER"):
        monkeypatch.setenv(name, "1")
    code = "import os; print(len({'RANK', 'WORLD_SIZE', 'MASTER_ADDR', 'PYTHONSAFEPATH'} & "
    assert score(f"{code}{{*os.environ}}) + 10 * int(os.environ['OF_THE_USER']))") == 10


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("raise ValueError('no model')", "ended with exit code 1: ValueError: no model; "),
        ("raise SystemExit(3)", "ended with exit code 3: it printed no error; "),
        ("import os; os.kill(os.getpid(), 9)", "was killed by signal 9: it printed no error; "),
        ("pass", "printed '', not one number; "),
        ("print('score: 0.5')", "printed 'score: 0.5', not one number; "),
        ("print(1); print(2)", r"printed '1\\n2', not one number; "),
        ("print('nan')", "printed 'nan', not one number; "),
        ("print('inf')", "printed 'inf', not one number; "),
        ("import os; os.write(1, b'caf\\xe9')", "printed 'caf\ufffd', not one number; "),
    ],
)
def test_a_program_that_fails_ends_the_run(code: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        score(code)
    assert message in caught.value.args[0].replace("\\", "\\\\")
    assert caught.value.args[0].startswith("--metric-command ")
    assert "run the same command again" in str(caught.value)
    assert caught.value.exit_code == EXIT_FAILED


@pytest.mark.parametrize("code", ["print('x' * 9999)", "raise SystemExit('x' * 9999)"])
def test_long_output_of_a_program_that_fails_is_shown_in_short(code: str) -> None:
    with pytest.raises(UserError) as caught:
        score(code)
    assert str(caught.value).count("x" * 200) == 1


def alive(pid: int) -> bool:
    """Whether a process runs that is not waiting to be collected."""
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks at processes")
@pytest.mark.parametrize("cause", ["timeout", "stop"])
def test_a_program_that_does_not_end_is_killed_with_its_children(
    tmp_path: Path, cause: str
) -> None:
    code = (
        "import subprocess, sys, time, pathlib, os;"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)']);"
        "path = pathlib.Path(sys.argv[1]);"
        "path.with_suffix('.new').write_text(f'{os.getpid()} {child.pid}');"
        "path.with_suffix('.new').rename(path);"
        "time.sleep(300)"
    )
    pids = tmp_path / "pids"

    def check() -> None:
        if cause == "stop" and pids.exists():
            raise StoppedError("stopped", 75)

    metric = ExternalMetric(program(code, str(pids)), 5 if cause == "timeout" else 300)
    with pytest.raises(StoppedError if cause == "stop" else UserError, match=r"stop|longer than"):
        metric.score(ROWS, check)
    started = [int(pid) for pid in pids.read_text().split()]
    for _ in range(100):
        if not any(map(alive, started)):
            break
        time.sleep(0.05)
    assert not any(map(alive, started))


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("", "no such program"),
        ("comet-scorer-of-nobody -x", "no such program; install it, or give its path"),
        ("score 'a", "No closing quotation; quote it as for a shell"),
        ("/etc/passwd", "no such program"),
    ],
)
def test_what_is_no_program_is_refused_at_the_start(command: str, message: str) -> None:
    with pytest.raises(RefusedError, match=message) as caught:
        ExternalMetric(command, 600)
    assert caught.value.exit_code == EXIT_REFUSED


def test_no_shell_reads_the_command(tmp_path: Path) -> None:
    command = f"{program('print(1)')}; touch {tmp_path / 'made'}"
    assert ExternalMetric(command, 60).score(ROWS, lambda: None) == 1
    assert os.listdir(tmp_path) == []
