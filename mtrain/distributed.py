"""The processes of a job: which one this is, as torchrun or SLURM said, and what they tell each
other.

Tensors are added up by NCCL on GPUs and by gloo on CPUs. All else goes as bytes through gloo,
whatever the device. A failure or a stop of one rank is told to all where they next meet, so that
all end alike; a rank that dies is noticed by the end of its connections, even by one that waits for
a GPU.
"""

import fcntl
import json
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from urllib.parse import urlsplit

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import Store
from torch.distributed.rendezvous import rendezvous

from mtrain.errors import EXIT_FAILED, RefusedError, StoppedError, UserError, first_line
from mtrain.log import logger, silence

# How long the ranks of a job wait for each other at its start; they may be days apart later, while
# the first one prepares text.
START, MEET = timedelta(minutes=5), timedelta(days=7)
EVER = timedelta(days=10_000)
# How long a GPU waits for the others' sums.
ADD = timedelta(minutes=5)
# How long a process may go on once its neighbour is gone: it ends by itself where it next meets the
# others, unless it waits for a GPU that waits for theirs. In seconds.
GRACE = 20.0

# Linux's request for an interface's address, of linux/sockios.h.
SIOCGIFADDR = 0x8915

Request = tuple[str, int]


@dataclass(frozen=True)
class Place:
    """Which of how many processes one is, the number among those of its machine, and where all
    meet, as a URL of `torch.distributed`.
    """

    rank: int
    size: int
    local_rank: int
    url: str


def find_place(environ: Mapping[str, str]) -> Place | None:
    """Read what torchrun or SLURM's srun said; None for a process by itself. Raises
    `RefusedError`.
    """
    try:
        if "RANK" in environ and "WORLD_SIZE" in environ:
            local_rank = int(environ.get("LOCAL_RANK", "0"))
            place = Place(int(environ["RANK"]), int(environ["WORLD_SIZE"]), local_rank, "env://")
        elif "SLURM_PROCID" in environ:
            place = _find_task(environ)
        else:
            return None
    except (KeyError, ValueError) as error:
        raise RefusedError(f"the launcher's variables are not to be read: {error}") from None
    return place if place.size > 1 else None


def _find_task(environ: Mapping[str, str]) -> Place:
    """Read SLURM's variables. A batch script has most of them, too, but is no task of a step."""
    rank = int(environ["SLURM_PROCID"])
    size = int(environ.get("SLURM_STEP_NUM_TASKS") or environ.get("SLURM_NTASKS") or 1)
    signs = ("SLURM_STEP_NUM_TASKS", "SLURM_STEP_ID", "SLURM_STEPID", "MASTER_ADDR")
    if size > 1 and rank == 0 and not any(sign in environ for sign in signs):
        logger.warning(
            "SLURM gave this job %d tasks, but srun did not start this process: it works by itself",
            size,
        )
        size = 1
    hosts = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST")
    address = environ.get("MASTER_ADDR") or first_host(hosts or environ.get("SLURM_NODELIST", ""))
    job = int(environ.get("SLURM_JOB_ID") or environ.get("SLURM_JOBID") or 0)
    step = int(environ.get("SLURM_STEP_ID") or environ.get("SLURM_STEPID") or 0)
    port = int(environ.get("MASTER_PORT") or 15000 + (job + 101 * step) % 15000)
    return Place(rank, size, int(environ.get("SLURM_LOCALID", "0")), f"tcp://{address}:{port}")


def first_host(hosts: str) -> str:
    """Name the first machine of SLURM's list, such as `gpu[003-005,9],login1`."""
    match = re.match(r"([^,\[\]]*)(?:\[(\w+)[^\]]*\]([^,\[\]]*))?", hosts)
    return "".join(part or "" for part in match.groups()) if match else hosts


@dataclass
class Ranks:
    """All processes of a job, seen from one of them; by itself it has nobody to tell."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    neighbours: int = 1  # ranks that share this one's cores, itself included
    before_leaving: Callable[[str], None] = field(default=lambda text: None, repr=False)
    _nccl: dist.ProcessGroup | None = field(default=None, repr=False)

    @property
    def is_first(self) -> bool:
        """Tell whether this is the one that writes and speaks."""
        return self.rank == 0

    def share(self, find: Callable[[], bytes]) -> bytes:
        """Have the first rank find something and give it to all; what it raises, all raise."""
        if self.size == 1:
            return find()
        message = _attempt(find) if self.is_first else b""
        length = self._from_first(torch.tensor([len(message)]))
        table = torch.empty(int(length), dtype=torch.uint8)
        if self.is_first:
            table = torch.frombuffer(bytearray(message), dtype=torch.uint8)
        return self._read(self._from_first(table), 0)

    def first(self, work: Callable[[], object]) -> None:
        """Have the first rank do something while the others wait."""
        self.share(_without_result(work))

    def gather(self, part: Callable[[], bytes]) -> list[bytes]:
        """Have each rank do its part and give the parts of all, in their order, to all; what one
        raises, all raise.
        """
        if self.size == 1:
            return [part()]
        message = torch.frombuffer(bytearray(_attempt(part)), dtype=torch.uint8)
        lengths = self._of_all(torch.tensor([len(message)]))
        longest = int(torch.cat(lengths).max())
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: len(message)] = message
        tables = self._of_all(padded)
        return [
            self._read(table[: int(length)], rank)
            for rank, (table, length) in enumerate(zip(tables, lengths, strict=True))
        ]

    def together(self, work: Callable[[], object]) -> None:
        """Have each rank do something; what one raises, all raise."""
        self.gather(_without_result(work))

    def agree(
        self, request: Request | None, failure: UserError | None = None, number: int = 0
    ) -> Request | None:
        """Return the request to stop that some rank has, or none; what one raises, all raise, and
        all fail unless the `number` is the same on all.
        """
        if self.size > 1:
            concerned = torch.tensor([int(bool(request or failure)), number, -number])
            with self.meeting():
                dist.all_reduce(concerned, dist.ReduceOp.MAX)
            is_asked, most, least = concerned.tolist()
            if most != -least:
                raise self.as_one(
                    UserError(
                        "the processes of the job planned different steps: this is a fault of "
                        "mtrain, or of a machine; the last checkpoint is good"
                    )
                )
            if not is_asked:
                return None

        def part() -> bytes:
            if failure is not None:
                raise failure
            return json.dumps(request).encode()

        found = [json.loads(message) for message in self.gather(part)]
        return next(((reason, code) for reason, code in filter(None, found)), None)

    def check_same(self, own: str, what: str) -> None:
        """Refuse ranks that were given different settings, or whatever `what` names."""
        if len(set(self.gather(own.encode))) > 1:
            raise self.as_one(
                RefusedError(
                    f"the processes of this job were given different {what}; to have each do work "
                    "of its own, start each as a job (under srun: --exact and --ntasks=1)"
                )
            )

    def as_one(self, error: UserError) -> UserError:
        """Mark an error that all ranks raise at the same place: the first one tells it for all."""
        error.is_shared, error.is_told = True, not self.is_first
        return error

    def sum_(self, tensor: Tensor) -> None:
        """Put the sum of all ranks' tensors in place of each."""
        if self.size > 1:
            with self.meeting():
                dist.all_reduce(tensor, group=self._group(tensor.device))

    def spread(self, tensors: list[Tensor]) -> None:
        """Put the first rank's values in place of the others'."""
        if self.size > 1:
            with self.meeting():
                works = [
                    dist.broadcast(tensor, 0, group=self._group(tensor.device), async_op=True)
                    for tensor in tensors
                ]
                for work in works:
                    work.wait()

    def _group(self, device: torch.device) -> dist.ProcessGroup | None:
        if device.type != "cuda":
            return None
        if self._nccl is None:
            self._nccl = dist.new_group(backend="nccl", timeout=ADD)
        return self._nccl

    def _from_first(self, tensor: Tensor) -> Tensor:
        with self.meeting():
            dist.broadcast(tensor, 0)
        return tensor

    def _of_all(self, tensor: Tensor) -> list[Tensor]:
        tensors = [torch.empty_like(tensor) for _ in range(self.size)]
        with self.meeting():
            dist.all_gather(tensors, tensor)
        return tensors

    @contextmanager
    def meeting(self) -> Iterator[None]:
        """Turn the end of a connection into an error for people."""
        try:
            yield
        except RuntimeError as error:
            raise UserError(self.left_alone(first_line(error))) from None

    def left_alone(self, sign: str) -> str:
        """Say that another rank has gone, and what showed it."""
        return (
            f"rank {self.rank}: another process of the job has ended, and its own message says why,"
            f" or cannot be reached ({sign}); run the same command again"
        )

    def _read(self, message: Tensor, rank: int) -> bytes:
        """Take a message apart; raises what its sender raised."""
        head, _, body = message.numpy().tobytes().partition(b"\n")
        if told := json.loads(head):
            text, code, host = told
            if code in (UserError.exit_code, RefusedError.exit_code):
                text = text if rank == 0 else f"rank {rank} on {host}: {text}"
                kind = RefusedError if code == RefusedError.exit_code else UserError
                raise self.as_one(kind(*text.split("\n")))
            raise self.as_one(StoppedError(text, code))
        return body


class Watch:
    """Listens to the rank before this one, in a ring, and ends this process some time after the
    other has gone without a farewell: a GPU that waits for it cannot be interrupted. What a rank
    wants done `before_leaving` gets the message.
    """

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        with ranks.meeting():
            self.group = dist.new_group(backend="gloo", timeout=EVER)
        self.thread = threading.Thread(target=self._listen, daemon=True)
        self.thread.start()

    def _listen(self) -> None:
        try:
            dist.recv(torch.empty(1), (self.ranks.rank - 1) % self.ranks.size, self.group)
        except RuntimeError as error:
            time.sleep(GRACE)
            told = self.ranks.left_alone(first_line(error))
            logger.error("%s", told)
            with suppress(OSError):
                self.ranks.before_leaving(told)
            os._exit(EXIT_FAILED)

    def end(self) -> None:
        """Say farewell to the next rank, and wait for that of the one before."""
        dist.send(torch.empty(1), (self.ranks.rank + 1) % self.ranks.size, self.group)
        self.thread.join()


def _attempt(part: Callable[[], bytes]) -> bytes:
    """Return a message with a part, or with the error that it raised."""
    try:
        return b"null\n" + part()
    except MemoryError:
        error = UserError("out of memory")
    except OSError as failure:
        error = UserError(f"{failure.filename or 'mtrain'}: {failure.strerror or failure}")
    except UserError as failure:
        error = failure
    return json.dumps((str(error), error.exit_code, socket.gethostname())).encode()


def _without_result(work: Callable[[], object]) -> Callable[[], bytes]:
    def part() -> bytes:
        work()
        return b""

    return part


@contextmanager
def joined() -> Iterator[Ranks]:
    """Meet the other processes of the job, if it has any, and part from them at the end: none goes
    before all have done their work. Raises `UserError`.
    """
    place = find_place(os.environ)
    if place is None:
        yield Ranks()
        return
    if place.rank:
        silence()
    _meet(place)
    ranks = Ranks(place.rank, place.size, place.local_rank)
    ranks.neighbours = _count_neighbours(ranks)
    watch = Watch(ranks)
    try:
        yield ranks
    except UserError as error:
        if error.is_shared:
            _part(ranks, watch)
        raise
    _part(ranks, watch)


def _meet(place: Place) -> None:
    """Wait until all processes are there."""
    try:
        store, *_ = next(rendezvous(place.url, place.rank, place.size, timeout=START))
        _choose_network(store, place)
        dist.init_process_group(
            "gloo", store=store, rank=place.rank, world_size=place.size, timeout=MEET
        )
    except (RuntimeError, ValueError) as error:
        raise UserError(
            f"rank {place.rank} of {place.size}: the processes of the job did not meet: "
            f"{first_line(error)}; all of them must be started, and reach the first one's machine "
            "(see README)"
        ) from None


def _choose_network(store: Store, place: Place) -> None:
    """Have gloo use the network by which the first rank is reached. By itself it takes the one that
    the machine's name stands for, which on many is the machine alone.
    """
    if os.environ.get("GLOO_SOCKET_IFNAME"):
        return
    url = urlsplit(place.url)
    own = _address_towards(url.hostname or os.environ.get("MASTER_ADDR", ""))
    store.set(f"address of {place.rank}", own)
    addresses = [store.get(f"address of {rank}").decode() for rank in range(place.size)]
    outside = [address for address in addresses if address and not address.startswith("127.")]
    if outside and own.startswith("127."):  # the first rank's own name may be its loopback's
        own = _address_towards(outside[0])
    if name := _interface_of(own):
        os.environ["GLOO_SOCKET_IFNAME"] = name


def _address_towards(host: str) -> str:
    """Tell by which address this machine would speak to another; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as place, suppress(OSError):
        place.connect((host, 9))
        return str(place.getsockname()[0])
    return ""


def _interface_of(address: str) -> str | None:
    """Name the network interface that has an IPv4 address; only Linux tells."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as place:
        for _, name in socket.if_nameindex() if sys.platform == "linux" else ():
            with suppress(OSError):  # without an address
                answer = fcntl.ioctl(place, SIOCGIFADDR, name.encode().ljust(256, b"\0"))
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    return None


def _count_neighbours(ranks: Ranks) -> int:
    """Count the ranks that the same cores of the same machine are for."""
    affinity = getattr(os, "sched_getaffinity", None)
    own = json.dumps((socket.gethostname(), sorted(affinity(0)) if affinity else None)).encode()
    return ranks.gather(lambda: own).count(own)


def _part(ranks: Ranks, watch: Watch) -> None:
    ranks.together(lambda: None)
    watch.end()
    dist.destroy_process_group()
