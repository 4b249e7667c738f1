"""`mtrain` commands in processes of their own, without the two seconds that loading torch takes."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock


@dataclass(frozen=True)
class Done:
    """How a process ended; `code` is negative for a signal. Most memory in MiB."""

    code: int
    out: bytes
    err: str
    seconds: float
    memory: int

    def fails(self, code: int = 0, *words: str) -> str:
        """Return what is wrong about the end: another exit code, a traceback, output, or words that
        are missing on stderr.
        """
        missing = [word for word in words if word not in self.err]
        is_tidy = not re.search("Traceback|Logging error", self.err) and not self.out
        if self.code == code and is_tidy and not missing:
            return ""
        return f"exit code {self.code}, expected {code} and {missing}\n{self.out!r}\n{self.err}"

    def refuses(self, code: int, *words: str, lines: int = 3) -> str:
        """Return what is missing of a clear refusal in at most `lines` lines of stderr."""
        if self.err.count("\n") > lines:
            return f"more than {lines} lines\n{self.err}"
        return self.fails(code, *words)


def keep_in_memory() -> None:
    """Let `os.fsync` return at once for files and directories: the tests have no power failure that
    would show the difference.
    """
    fsync = os.fsync

    def checked(descriptor: int) -> None:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            fsync(descriptor)

    os.fsync = checked


# Loads what `mtrain` loads, then forks a process for every command that it is sent: each is as
# separate as any, without the two seconds that loading takes. A prelude of Python code says where
# in the command a fault strikes. What runs longer than its limit is killed, with its children.
SERVER = """
import json, os, signal, sys, traceback
sys.path.append(sys.argv[1])
from processes import keep_in_memory
from mtrain.cli import app as cli
from mtrain.scoring import metrics, notes
from mtrain.training import job
from mtrain.translation import streams

keep_in_memory()

def end(child):
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:
        pass

while request := sys.stdin.readline():
    request = json.loads(request)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setsid()
            for number, name in enumerate(("stdin", "stdout", "stderr")):
                flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
                os.dup2(os.open(request[name], flags | os.O_NOCTTY), number)
            sys.stdin, sys.stdout = open(0), open(1, "w")
            sys.stderr = open(2, "w", errors="backslashreplace")
            if request["directory"]:
                os.chdir(request["directory"])
            os.environ.clear()
            os.environ.update(request["environment"])
            sys.argv = ["mtrain", *request["arguments"]]
            exec(request["prelude"], {})
            cli.main()
            code = 0
        except SystemExit as exit:
            code = exit.code if isinstance(exit.code, int) else 0 if exit.code is None else 1
        except BaseException:
            traceback.print_exc()
        finally:
            for stream in (sys.stdout, sys.stderr):
                try:
                    stream.flush()
                except OSError:
                    pass
            os._exit(code)
    signal.signal(signal.SIGALRM, lambda *_: end(child))
    signal.setitimer(signal.ITIMER_REAL, request["limit"])
    _, status, usage = os.wait4(child, 0)
    signal.setitimer(signal.ITIMER_REAL, 0)
    end(child)
    print(os.waitstatus_to_exitcode(status), usage.ru_maxrss >> 10, flush=True)
"""


@dataclass
class Processes:
    """Runs `mtrain` commands in processes forked from ones that have loaded torch."""

    directory: Path
    within: list[str] = field(default_factory=list)  # a command that starts the servers
    idle: list[subprocess.Popen[str]] = field(default_factory=list)
    number: int = 0
    lock: Lock = field(default_factory=Lock)

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *error: object) -> None:
        for server in self.idle:
            assert server.stdin is not None
            server.stdin.close()
            server.wait()

    def _take(self) -> subprocess.Popen[str]:
        with self.lock:
            if self.idle:
                return self.idle.pop()
        command = [*self.within, sys.executable, "-c", SERVER, str(Path(__file__).parent)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # as many at a time as there are cores
        return subprocess.Popen(command, stdin=-1, stdout=-1, text=True, env=environment)

    def mtrain(
        self,
        *arguments: str | Path,
        stdin: bytes = b"",
        prelude: str = "",
        limit: float = 600,
        directory: Path | None = None,
        only: dict[str, str] | None = None,
        streams: dict[str, str] | None = None,
        **environment: str,
    ) -> Done:
        """Run one command to its end, or kill it after `limit` seconds; in this environment alone
        if `only` is given, else in the tests' own with additions. `streams` names other files for
        its standard streams, such as a terminal.
        """
        with self.lock:
            self.number += 1
            stem = self.directory / str(self.number)
        files = {name: f"{stem}.{name}" for name in ("stdin", "stdout", "stderr")}
        Path(files["stdin"]).write_bytes(stdin)
        request = {
            **files,
            **(streams or {}),
            "arguments": [str(argument) for argument in arguments],
            "environment": {**(os.environ if only is None else only), **environment},
            "directory": str(directory or Path.cwd()),
            "prelude": prelude,
            "limit": limit,
        }
        server, started = self._take(), time.monotonic()
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        code, memory = map(int, server.stdout.readline().split())
        seconds = time.monotonic() - started
        with self.lock:
            self.idle.append(server)
        for file in map(Path, files.values()):
            file.touch()  # where another stands for it
        out = Path(files["stdout"]).read_bytes()
        err = Path(files["stderr"]).read_bytes().decode(errors="backslashreplace")
        for file in files.values():
            Path(file).unlink()
        return Done(code, out, err, seconds, memory)
