"""The ranks of a job, started by torchrun, and their communication.

NCCL sums tensors on GPUs and gloo on CPUs; gloo also sends everything else, as bytes. If a rank
fails or stops, all ranks raise the same error at their next collective call. If a rank is killed,
its connections break: the others fail at their next call, or torchrun ends them.
"""

import json
import os
import re
import shlex
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar, cast
from uuid import uuid4

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from mtrain.runtime.device import pick_device
from mtrain.runtime.errors import RefusedError, StoppedError, UserError, as_user_error, first_line
from mtrain.runtime.json_reader import adapter_of
from mtrain.runtime.log import logger
from mtrain.runtime.stop import Request

START_TIMEOUT = timedelta(minutes=5)
GLOO_TIMEOUT = timedelta(days=7)  # rank 0 may prepare text for days
NCCL_TIMEOUT = timedelta(minutes=5)  # of sums on GPUs

T = TypeVar("T")


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
    def is_rank_0(self) -> bool:
        """Whether this is rank 0, which writes and logs."""
        return self.rank == 0

    def from_rank_0(self, find: Callable[[], T], type_: Any) -> T:
        """Call `find` on rank 0 and broadcast its result, which has type `type_`; all ranks raise
        its exception. Bytes are sent unchanged, other values as JSON.
        """
        if self.size == 1:
            return find()
        message = _message(find, type_) if self.is_rank_0 else b""
        length = torch.tensor([len(message)])
        self.broadcast(length)
        tensor = _as_tensor(message, int(length))
        self.broadcast(tensor)
        return cast(T, _decode(self._open(tensor, 0), type_))

    def on_rank_0(self, work: Callable[[], T]) -> T | None:
        """Call `work` on rank 0 while the others wait; return its result there and None elsewhere.
        All ranks raise its exception.
        """
        return self.on_all_ranks(lambda: work() if self.is_rank_0 else None)

    def gather(self, part: Callable[[], T], type_: Any) -> list[T]:
        """Call `part` on each rank and return the results of all ranks, in order of rank; each has
        type `type_`. All ranks raise any rank's exception.
        """
        if self.size == 1:
            return [part()]
        return [_decode(body, type_) for body in self._gather(_message(part, type_))]

    def on_all_ranks(self, work: Callable[[], T]) -> T:
        """Call `work` on each rank and return its result there; all raise the error of any rank."""
        if self.size == 1:
            return work()
        result, head = _attempt(work)
        self._gather(head)
        return cast(T, result)

    def agree(
        self, request: Request | None, failure: UserError | None, number: int
    ) -> Request | None:
        """Return any rank's request to stop, or None; all ranks raise any rank's failure. It is
        an error if `number` differs between ranks.
        """
        if self.size > 1:
            values = torch.tensor([int(bool(request or failure)), number, -number])
            with self._connected():
                dist.all_reduce(values, dist.ReduceOp.MAX)
            is_urgent, maximum, negated_minimum = values.tolist()
            if maximum != -negated_minimum:
                text = "the processes of the job planned different steps: a bug in mtrain or a "
                text += "faulty machine; the last checkpoint is intact: run the same command again"
                raise self.mark_shared(UserError(text))
            if not is_urgent:
                return None

        def part() -> Request | None:
            if failure is not None:
                raise failure
            return request

        return next(filter(None, self.gather(part, Request | None)), None)

    def check_same(self, value: str, what: str) -> None:
        """Raise `RefusedError` if `value`, called `what` in the message, differs between ranks."""
        if len(set(self.gather(lambda: value, str))) > 1:
            text = f"the processes of this job got different {what}; to run separate commands, "
            raise self.mark_shared(RefusedError(f"{text}start each without torchrun"))

    def mark_shared(self, error: UserError) -> UserError:
        """Mark an error that every rank raises at the same point: only rank 0 shows it."""
        error.is_shared = True
        error.is_silent = not self.is_rank_0
        return error

    def sum_(self, tensor: Tensor) -> None:
        """Replace the tensor on each rank by the sum over all ranks."""
        if self.size > 1:
            with self._connected():
                dist.all_reduce(tensor, group=self._group(tensor.device))

    def exchange(
        self, tensor: Tensor, receivers: list[int], received: Tensor, sender: int | None
    ) -> None:
        """Send a tensor to `receivers`, and receive one from `sender`, if there is one."""
        group = self._group(tensor.device)
        work = [dist.P2POp(dist.isend, tensor, rank, group) for rank in receivers]
        if sender is not None:
            work.append(dist.P2POp(dist.irecv, received, sender, group))
        if not work:
            return
        with self._connected():
            for transfer in dist.batch_isend_irecv(work):
                transfer.wait()

    def broadcast(self, *tensors: Tensor) -> None:
        """Replace the values of tensors on all ranks by those of rank 0."""
        if self.size == 1:
            return
        for tensor in tensors:
            with self._connected():
                dist.broadcast(tensor, 0, group=self._group(tensor.device))

    def leave(self) -> None:
        """Wait for the other ranks and disconnect."""
        self.on_all_ranks(lambda: None)
        dist.destroy_process_group()

    def _group(self, device: torch.device) -> dist.ProcessGroup | None:
        if device.type != "cuda":
            return None
        if self._nccl is None:
            self._nccl = dist.new_group(backend="nccl", timeout=NCCL_TIMEOUT)
        return self._nccl

    def _gather(self, message: bytes) -> list[bytes]:
        """Return the bodies of all ranks' messages; raises the error of the lowest failed rank."""
        lengths = [int(length) for length in self._gather_tensors(torch.tensor([len(message)]))]
        padded = self._gather_tensors(_as_tensor(message, max(lengths)))
        messages = [row[:length] for row, length in zip(padded, lengths, strict=True)]
        return [self._open(message, rank) for rank, message in enumerate(messages)]

    def _gather_tensors(self, tensor: Tensor) -> list[Tensor]:
        tensors = [torch.empty_like(tensor) for _ in range(self.size)]
        with self._connected():
            dist.all_gather(tensors, tensor)
        return tensors

    @contextmanager
    def _connected(self) -> Iterator[None]:
        """Turn a broken connection into a `UserError`."""
        try:
            yield
        except RuntimeError as error:
            # leave out gloo's source line and advice
            reason = re.sub(r"^\[\S+\] ", "", first_line(error)).partition(". ")[0]
            raise DisconnectedError(
                f"rank {self.rank}: another process of the job has ended, or cannot be reached "
                f"({reason}); see its own message, which a killed process lacks, and run the same "
                "command again"
            ) from None

    def _open(self, message: Tensor, rank: int) -> bytes:
        """Return the body of a rank's message; raises the error that its head reports."""
        head, _, body = message.numpy().tobytes().partition(b"\n")
        if failure := json.loads(head):
            text, code, host = failure
            if code not in (UserError.exit_code, RefusedError.exit_code):
                raise self.mark_shared(StoppedError(text, code))
            text = text if rank == 0 else f"rank {rank} on {host}: {text}"
            kind = RefusedError if code == RefusedError.exit_code else UserError
            raise self.mark_shared(kind(*text.split("\n")))
        return body


def _message(work: Callable[[], T], type_: Any) -> bytes:
    """Return the message that reports the result of `work`, or the error that it raised."""
    body, head = _attempt(lambda: _encode(work(), type_))
    return head + (body or b"")


def _encode(value: T, type_: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    return json.dumps(adapter_of(type_).dump_python(value), default=os.fspath).encode()


def _decode(data: bytes, type_: Any) -> Any:
    value = data if type_ is bytes else json.loads(data)
    return adapter_of(type_).validate_python(value)


def _as_tensor(message: bytes, length: int) -> Tensor:
    """Return a message as a tensor of bytes, padded with zeros to `length`."""
    return torch.frombuffer(bytearray(message.ljust(length, b"\0")), dtype=torch.uint8)


def _attempt(work: Callable[[], T]) -> tuple[T | None, bytes]:
    """Return the result of `work` and the head of a message: null, or the error that it raised."""
    try:
        return work(), b"null\n"
    except (UserError, OSError, MemoryError) as failure:
        error = as_user_error(failure)
        return None, json.dumps((str(error), error.exit_code, socket.gethostname())).encode()


@contextmanager
def connected_ranks() -> Iterator[Ranks]:
    """Connect to the other processes of the job, if it has any; at the end, wait for them and
    disconnect. Raises `UserError`.
    """
    ranks = find_ranks(os.environ)
    if ranks.size == 1:
        yield ranks
        return
    if not ranks.is_rank_0:
        logger.setLevel("ERROR")  # rank 0 alone logs warnings and information
    _connect(ranks)
    try:
        yield ranks
    except UserError as error:
        if error.is_shared:
            ranks.leave()
        raise
    ranks.leave()


def find_ranks(environ: Mapping[str, str]) -> Ranks:
    """Read torchrun's environment variables; without them the job has one process. Raises
    `RefusedError`, also if srun started several tasks without torchrun.
    """
    if "RANK" not in environ or "WORLD_SIZE" not in environ:
        _refuse_tasks(environ)
        return Ranks()
    try:
        rank, size = int(environ["RANK"]), int(environ["WORLD_SIZE"])
        if not 0 <= rank < size:
            raise ValueError(f"RANK is {rank}, but WORLD_SIZE {size}")
        local_rank = int(environ.get("LOCAL_RANK", "0"))
        return Ranks(rank, size, local_rank, int(environ.get("LOCAL_WORLD_SIZE", "1")))
    except ValueError as error:
        raise RefusedError(
            f"cannot parse torchrun's environment variables: {error}; use torchrun"
        ) from None


def _refuse_tasks(environ: Mapping[str, str]) -> None:
    """Refuse to run as one of several tasks of a SLURM step. `SLURM_NTASKS` and `SLURM_PROCID`
    cannot show this, because a batch script has them, too.
    """
    counts = [environ.get(f"SLURM_STEP_NUM_{name}", "") for name in ("TASKS", "NODES")]
    tasks, nodes = (max(1, int(count)) if count.isdecimal() else 1 for count in counts)
    if tasks < 2 or "SLURM_PROCID" not in environ:
        return
    error = RefusedError(
        f"srun started this command {tasks} times; have it start torchrun once on each machine: "
        f"srun --ntasks-per-node=1 torchrun --nnodes={nodes} --nproc-per-node={tasks // nodes} "
        f"--rdzv-backend=c10d --rdzv-endpoint=HOST:29500 -m mtrain {shlex.join(sys.argv[1:])}",
        "where HOST is one of the machines (see scripts/slurm/README.md); start a single process "
        "with srun --ntasks=1",
    )
    error.is_silent = environ["SLURM_PROCID"] != "0"
    raise error


def _connect(ranks: Ranks) -> None:
    """Create gloo's process group, which waits for all ranks."""
    try:
        store, rank, size = next(rendezvous("env://", timeout=START_TIMEOUT))
        # hides the addresses of an earlier start: torchrun restarts processes with the same store
        store = PrefixStore(_agree_on_prefix(store, rank, size), store)
        dist.init_process_group(
            "gloo", store=store, rank=rank, world_size=size, timeout=GLOO_TIMEOUT
        )
    except (RuntimeError, ValueError) as error:
        raise DisconnectedError(
            f"rank {ranks.rank} of {ranks.size}: cannot connect to the other processes of the job: "
            f"{first_line(error)}; start them by torchrun, and check that each machine can reach "
            "the others (see scripts/slurm/README.md)"
        ) from None


def _agree_on_prefix(store: Store, rank: int, size: int) -> str:
    """Agree on a prefix of keys for this start alone, so that no rank reads addresses of an earlier
    start: rank 0 proposes a prefix, each other rank answers with a random name, and rank 0 lists
    the names that it received. A rank whose name is not listed has read an old prefix, and retries.
    """
    name = uuid4().hex
    if rank == 0:
        store.set("mtrain/round", name)
        names = [store.get(f"mtrain/{name}/{other}").decode() for other in range(1, size)]
        store.set(f"mtrain/{name}", " ".join(names))
        return name
    end = time.monotonic() + START_TIMEOUT.total_seconds()
    while time.monotonic() < end:
        prefix = store.get("mtrain/round").decode()
        store.set(f"mtrain/{prefix}/{rank}", name)
        if store.check([f"mtrain/{prefix}"]) and name in store.get(f"mtrain/{prefix}").decode():
            return prefix
        time.sleep(0.02)
    raise RuntimeError("timed out")


def device_of(name: str, ranks: Ranks) -> torch.device:
    """Return the device of this process; each rank on a machine has its own GPU."""
    device = pick_device(name)
    if ranks.size == 1 or device.type == "cpu":
        return device
    if device.type == "mps" or ":" in name:
        raise RefusedError(
            f"device {device}: one device, but this job has {ranks.size} processes; "
            "set cuda, or cpu"
        )
    return pick_device(f"cuda:{ranks.local_rank}")
