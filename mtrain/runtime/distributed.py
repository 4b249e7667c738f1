"""The ranks of a job, started by torchrun, and their communication.

Tensors are summed by NCCL on GPUs and by gloo on CPUs; everything else is bytes through gloo. A
failure or a stop of one rank reaches all at their next collective call, so that all end in the same
way. If a rank is killed, its connections break: the others fail at their next call, or torchrun
ends them.
"""

import json
import os
import shlex
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeVar, cast
from uuid import uuid4

import torch
import torch.distributed as dist
from pydantic import TypeAdapter
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from mtrain.runtime.device import pick_device
from mtrain.runtime.errors import RefusedError, StoppedError, UserError, as_user_error, first_line
from mtrain.runtime.log import logger

START_TIMEOUT = timedelta(minutes=5)
GLOO_TIMEOUT = timedelta(days=7)  # rank 0 may prepare text for days
NCCL_TIMEOUT = timedelta(minutes=5)  # of sums on GPUs

Request = tuple[str, int]  # reason and exit code of a stop
T = TypeVar("T")

BYTES = TypeAdapter(bytes)  # sent as they are; all else is sent as JSON
TEXT = TypeAdapter(str)
REQUEST: TypeAdapter[Request | None] = TypeAdapter(Request | None)


class DisconnectedError(UserError):
    """Another rank has died, or cannot be reached."""


@dataclass
class Ranks:
    """The ranks of a job, seen from one of them."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1  # ranks on this machine
    _nccl: dist.ProcessGroup | None = field(default=None, repr=False)

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which writes and logs."""
        return self.rank == 0

    def share(self, find: Callable[[], T], form: TypeAdapter[T]) -> T:
        """Call `find` on rank 0 and broadcast its result; all ranks raise its exception."""
        if self.size == 1:
            return find()
        body, head = _attempt(lambda: _encode(find(), form)) if self.is_first else (None, b"")
        length = torch.tensor([len(head + (body or b""))])
        self.broadcast(length)
        message = _as_tensor(head + (body or b""), int(length))
        self.broadcast(message)
        return _decode(self._open(message, 0), form)

    def first(self, work: Callable[[], T]) -> T | None:
        """Call `work` on rank 0 while the others wait; return its result there and None elsewhere.
        All ranks raise its exception.
        """
        return self.together(lambda: work() if self.is_first else None)

    def gather(self, part: Callable[[], T], form: TypeAdapter[T]) -> list[T]:
        """Call `part` on each rank and return all results, by rank, on every rank; all ranks raise
        the exception of any.
        """
        if self.size == 1:
            return [part()]
        body, head = _attempt(lambda: _encode(part(), form))
        return [_decode(found, form) for found in self._gather(head + (body or b""))]

    def together(self, work: Callable[[], T]) -> T:
        """Call `work` on each rank and return its result there; all ranks raise an error of any."""
        if self.size == 1:
            return work()
        result, head = _attempt(work)
        self._gather(head)
        return cast(T, result)

    def agree(
        self, request: Request | None, failure: UserError | None = None, number: int = 0
    ) -> Request | None:
        """Return the request to stop of any rank, or None; all ranks raise the failure of any.
        Different values of `number` are a failure.
        """
        if self.size > 1:
            values = torch.tensor([int(bool(request or failure)), number, -number])
            with self._connected():
                dist.all_reduce(values, dist.ReduceOp.MAX)
            is_urgent, most, negated_least = values.tolist()
            if most != -negated_least:
                text = "the processes of the job planned different steps: this is a fault of mtrain"
                raise self.as_one(
                    UserError(f"{text}, or of a machine; the last checkpoint is good")
                )
            if not is_urgent:
                return None

        def part() -> Request | None:
            if failure is not None:
                raise failure
            return request

        return next(filter(None, self.gather(part, REQUEST)), None)

    def check_same(self, own: str, what: str) -> None:
        """Refuse ranks whose settings, or whatever `what` names, differ."""
        if len(set(self.gather(lambda: own, TEXT))) > 1:
            text = f"the processes of this job got different {what}; to run separate commands, "
            raise self.as_one(RefusedError(f"{text}start each without torchrun"))

    def as_one(self, error: UserError) -> UserError:
        """Mark an error that every rank raises at the same point: only rank 0 shows it."""
        error.is_shared, error.is_silent = True, not self.is_first
        return error

    def sum_(self, tensor: Tensor) -> None:
        """Replace the tensor on each rank by the sum over all ranks."""
        if self.size > 1:
            with self._connected():
                dist.all_reduce(tensor, group=self._group(tensor.device))

    def exchange(
        self, tensor: Tensor, receivers: list[int], received: Tensor, sender: int | None
    ) -> None:
        """Send a tensor to these ranks, and receive that of another rank, if there is a sender."""
        group = self._group(tensor.device)
        work = [dist.P2POp(dist.isend, tensor, rank, group) for rank in receivers]
        if sender is not None:
            work.append(dist.P2POp(dist.irecv, received, sender, group))
        with self._connected():
            for each in dist.batch_isend_irecv(work) if work else ():
                each.wait()

    def broadcast(self, *tensors: Tensor) -> None:
        """Replace the values of tensors on all ranks by those of rank 0."""
        for tensor in tensors if self.size > 1 else ():
            with self._connected():
                dist.broadcast(tensor, 0, group=self._group(tensor.device))

    def leave(self) -> None:
        """Wait for the other ranks and disconnect."""
        self.together(lambda: None)
        dist.destroy_process_group()

    def _group(self, device: torch.device) -> dist.ProcessGroup | None:
        if device.type != "cuda":
            return None
        if self._nccl is None:
            self._nccl = dist.new_group(backend="nccl", timeout=NCCL_TIMEOUT)
        return self._nccl

    def _gather(self, message: bytes) -> list[bytes]:
        """Return all ranks' messages without their heads; raises the first error of any."""
        lengths = self._gather_tensors(torch.tensor([len(message)]))
        tables = self._gather_tensors(_as_tensor(message, max(map(int, lengths))))
        pairs = zip(tables, lengths, strict=True)
        return [self._open(table[: int(n)], rank) for rank, (table, n) in enumerate(pairs)]

    def _gather_tensors(self, tensor: Tensor) -> list[Tensor]:
        tensors = [torch.empty_like(tensor) for _ in range(self.size)]
        with self._connected():
            dist.all_gather(tensors, tensor)
        return tensors

    @contextmanager
    def _connected(self) -> Iterator[None]:
        """Turn the end of a connection into a `UserError`."""
        try:
            yield
        except RuntimeError as error:
            raise DisconnectedError(
                f"rank {self.rank}: another process of the job has ended, and its own message says "
                f"why, or cannot be reached ({first_line(error)}); run the same command again"
            ) from None

    def _open(self, message: Tensor, rank: int) -> bytes:
        """Return a message of a rank without its head; raises the error that the rank raised."""
        head, _, body = message.numpy().tobytes().partition(b"\n")
        if failure := json.loads(head):
            text, code, host = failure
            if code not in (UserError.exit_code, RefusedError.exit_code):
                raise self.as_one(StoppedError(text, code))
            text = text if rank == 0 else f"rank {rank} on {host}: {text}"
            kind = RefusedError if code == RefusedError.exit_code else UserError
            raise self.as_one(kind(*text.split("\n")))
        return body


def _encode(value: T, form: TypeAdapter[T]) -> bytes:
    if isinstance(value, bytes):
        return value
    return json.dumps(form.dump_python(value), default=os.fspath).encode()


def _decode(data: bytes, form: TypeAdapter[T]) -> T:
    return form.validate_python(data if form is BYTES else json.loads(data))


def _as_tensor(message: bytes, length: int) -> Tensor:
    """Return a message as bytes in a tensor, with zeros up to a length."""
    return torch.frombuffer(bytearray(message.ljust(length, b"\0")), dtype=torch.uint8)


def _attempt(work: Callable[[], T]) -> tuple[T | None, bytes]:
    """Return the result of `work`, and the head of a message: null, or the error that it raised."""
    try:
        return work(), b"null\n"
    except (UserError, OSError, MemoryError) as failure:
        error = as_user_error(failure)
        return None, json.dumps((str(error), error.exit_code, socket.gethostname())).encode()


@contextmanager
def joined() -> Iterator[Ranks]:
    """Connect to the other processes of the job, if it has any, and disconnect at the end, once all
    have done their work. Raises `UserError`.
    """
    ranks = find_ranks(os.environ)
    if ranks.size == 1:
        yield ranks
        return
    if not ranks.is_first:
        logger.setLevel("ERROR")  # rank 0 logs the rest
    _meet(ranks)
    try:
        yield ranks
    except UserError as error:
        if error.is_shared:
            ranks.leave()
        raise
    ranks.leave()


def find_ranks(environ: Mapping[str, str]) -> Ranks:
    """Read torchrun's environment variables; without them this process is alone. Raises
    `RefusedError`, also for one of several tasks of srun.
    """
    if "RANK" not in environ or "WORLD_SIZE" not in environ:
        _refuse_tasks(environ)
        return Ranks()
    try:
        rank, size = int(environ["RANK"]), int(environ["WORLD_SIZE"])
        local_rank = int(environ.get("LOCAL_RANK", "0"))
        return Ranks(rank, size, local_rank, int(environ.get("LOCAL_WORLD_SIZE", "1")))
    except ValueError as error:
        raise RefusedError(f"cannot parse torchrun's environment variables: {error}") from None


def _refuse_tasks(environ: Mapping[str, str]) -> None:
    """Refuse to be one of several tasks of a SLURM step. `SLURM_NTASKS` and `SLURM_PROCID` do not
    suffice to detect that: a batch script has them, too.
    """
    counts = [environ.get(f"SLURM_STEP_NUM_{name}", "") for name in ("TASKS", "NODES")]
    tasks, nodes = (max(1, int(count)) if count.isdecimal() else 1 for count in counts)
    if tasks < 2 or "SLURM_PROCID" not in environ:
        return
    error = RefusedError(
        f"srun started this command {tasks} times; have it start torchrun once on each machine: "
        f"srun --ntasks-per-node=1 torchrun --nnodes={nodes} --nproc-per-node={tasks // nodes} "
        f"--rdzv-backend=c10d --rdzv-endpoint=HOST:29500 -m mtrain {shlex.join(sys.argv[1:])}",
        "where HOST is one of the machines (see scripts/slurm); start a single process "
        "with srun --ntasks=1",
    )
    error.is_silent = environ["SLURM_PROCID"] != "0"
    raise error


def _meet(ranks: Ranks) -> None:
    """Create gloo's process group, which waits for all ranks."""
    try:
        store, rank, size = next(rendezvous("env://", timeout=START_TIMEOUT))
        # hides addresses of an earlier start: torchrun restarts processes with the same store
        store = PrefixStore(_round(store, rank, size), store)
        dist.init_process_group(
            "gloo", store=store, rank=rank, world_size=size, timeout=GLOO_TIMEOUT
        )
    except (RuntimeError, ValueError) as error:
        raise DisconnectedError(
            f"rank {ranks.rank} of {ranks.size}: the processes of the job did not meet: "
            f"{first_line(error)}; start them by torchrun, and see that each machine can reach the "
            "others (see scripts/README.md)"
        ) from None


def _round(store: Store, rank: int, size: int) -> str:
    """Agree on a prefix of keys for this start alone, so that no rank reads addresses of an earlier
    one: rank 0 proposes a name, the others answer with their own, and rank 0 confirms these.
    """
    own = uuid4().hex
    if rank == 0:
        store.set("mtrain/round", own)
        names = [own, *(store.get(f"mtrain/{own}/{other}").decode() for other in range(1, size))]
        store.set(f"mtrain/{own}", " ".join(names))
        return own
    end = time.monotonic() + START_TIMEOUT.total_seconds()
    while time.monotonic() < end:
        found = store.get("mtrain/round").decode()
        store.set(f"mtrain/{found}/{rank}", own)
        if store.check([f"mtrain/{found}"]) and own in store.get(f"mtrain/{found}").decode():
            return found
        time.sleep(0.02)
    raise RuntimeError("timed out")


def device_of(name: str, ranks: Ranks) -> torch.device:
    """Return the device of this process; each rank of a machine has its own GPU."""
    device = pick_device(name)
    if ranks.size == 1 or device.type == "cpu":
        return device
    if device.type == "mps" or ":" in name:
        raise RefusedError(
            f"device {device}: one device, but this job has {ranks.size} processes; "
            "set cuda, or cpu"
        )
    return pick_device(f"cuda:{ranks.local_rank}")
