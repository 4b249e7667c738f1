"""The decoder on CUDA, whose steps are recorded once for each size of batch and then replayed.

The host needs 10 ms to launch the kernels of a step one by one, whatever the batch, and the GPU
much less to run them. A recorded step reads and writes the same memory at each replay, so the
caches have a fixed size: sentences, source lengths and target lengths are rounded up. Positions and
sentences beyond those in use cost some arithmetic, but change no result.

Shapes: as in `model.decoder`, but `B`, `S` and `T` are rounded, and `T` is one more than the number
of positions that fit.
"""

import math
from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from mtrain.model.decoder import Decoder, StepBuffers, keep_sentences, log_probs_of, split_layers
from mtrain.model.encoder import VECTOR
from mtrain.model.transformer import Transformer
from mtrain.runtime.device import record_graph

MIN_SENTENCES = 16  # a step for fewer takes the GPU as long
MAX_GRAPHS = 512  # in memory; each uses up to a megabyte of GPU memory


class Size(NamedTuple):
    """What a recorded step depends on."""

    B: int
    W: int
    S: int
    T: int


class Memory(NamedTuple):
    """What a step of one size reads and writes: the newest `tokens` (B, W), their `position`
    (1, D), keys and values of the `source` (layers, 2, B, H, S, K) with `src_bias` (B, H, 1, S),
    those of target positions, `past` (layers, 2, B, H, T, W, K), with `lineage` (B, W, T, W), both
    biases as in `StepBuffers` and `DecoderState`, and `logits` (B, W, V). The first of the T
    positions is always the newest: a recorded step writes to the same address each time.
    """

    tokens: Tensor
    position: Tensor
    source: Tensor
    src_bias: Tensor
    past: Tensor
    lineage: Tensor
    logits: Tensor


def rounded(length: int, least: int = 1) -> int:
    """Return the smallest power of two, or three quarters of one, that is at least both values."""
    least = max(length, least)
    power = 1 << (least - 1).bit_length()
    smaller = power * 3 // 4
    return smaller if power >= 4 and smaller >= least else power


class RecordedState:
    """The cache of `count` sentences after `time` positions. A decoder has one such state at a
    time.
    """

    def __init__(self, decoder: "RecordedDecoder", size: Size, count: int) -> None:
        self.decoder, self.size, self.count = decoder, size, count
        self.time = 0
        self.memory = decoder.memory(size)

    def select(self, rows: Tensor, sentences: Tensor | None = None) -> "RecordedState":
        """Select hypotheses and sentences, as `DecoderState.select` does."""
        memory, used, slots = self.memory, self.time + 1, self.size.W
        lineage = memory.lineage[: self.count, :, :used].flatten(0, 1)[rows]
        if sentences is not None:
            self.count = len(sentences)
            keep_sentences(sentences, memory.past, memory.source)
            memory.src_bias[: self.count] = memory.src_bias[sentences]
        B, W = self.size.B, len(rows) // self.count
        if max(MIN_SENTENCES, self.count) <= B // 4:
            B //= 4
        if (self.size.B, slots) != (B, W):
            del memory  # so that `resize` frees it first
            self.resize(self.size._replace(B=B, W=W))
        lineage = lineage.view(self.count, W, used, slots)
        self.memory.lineage[: self.count, :, 1:used, :slots] = lineage[:, :, 1:]
        return self

    def resize(self, size: Size) -> None:
        """Move the state to the memory of another size, which shares storage with the present
        memory.
        """
        old = self.memory
        B = size.B
        slots = self.size.W
        used = self.time + 1
        source = old.source[:, :, :B].clone()
        src_bias = old.src_bias[:B].clone()
        past = old.past[:, :, :B, :, :used].clone()
        lineage = old.lineage[:B, :, :used].clone()
        del self.memory, old  # free the old memory first
        self.memory = self.decoder.memory(size)
        self.size = size
        self.fill(source, src_bias)
        self.memory.past[:, :, :, :, :used, :slots] = past
        self.memory.lineage[:, :slots, 1:used, :slots] = lineage[:, :, 1:]

    def fill(self, source: Tensor, src_bias: Tensor) -> None:
        """Set the source and clear all target positions. Unused positions must be finite, because
        an attention weight of 0 does not hide NaN.
        """
        self.memory.source.copy_(source)
        self.memory.src_bias.copy_(src_bias)
        self.memory.tokens.zero_()
        self.memory.past.zero_()
        self.memory.lineage.fill_(float("-inf"))
        self.memory.lineage[:, :, 0].diagonal(dim1=1, dim2=2).zero_()

    def advance(self, tokens: Tensor, position: Tensor) -> Tensor:
        """Return the logits (N, V) that follow tokens (N,) at a position (1, D)."""
        memory = self.memory
        memory.tokens[: self.count] = tokens.reshape(self.count, -1)
        memory.position.copy_(position)
        self.decoder.replay(self.size, memory)
        self.time += 1
        memory.past[..., self.time, :, :] = memory.past[..., 0, :, :]
        memory.lineage[:, :, self.time] = memory.lineage[:, :, 0]
        return memory.logits[: self.count].flatten(0, 1)


class RecordedDecoder:
    """A `Decoder` whose steps are recorded. One search at a time may use it: hold `lock`."""

    def __init__(self, model: Transformer) -> None:
        self.decoder = Decoder(model)
        self.shape = model.shape
        self.lock = Lock()
        self.storage: dict[str, Tensor] = {}  # of `Memory`, for the largest size so far
        self.replays: dict[Size, Callable[[], None]] = {}
        self.pool = torch.cuda.graph_pool_handle()

    def begin(self, src: Tensor) -> RecordedState:
        """Encode sources: (B, S) -> state of B empty hypotheses."""
        count, S = src.shape
        shape = self.shape
        width = rounded(S, VECTOR)
        if shape.positions == "learned":
            width = min(width, shape.max_positions)
        size = Size(rounded(count), 1, max(width, VECTOR), rounded(width * 3 // 2))
        src = F.pad(src, (0, width - S), value=shape.pad_id)
        src = torch.cat((src, src[:1].expand(size.B - count, -1)))
        state = RecordedState(self, size, count)
        state.fill(*self.decoder.encode_keys(src))
        return state

    def step(self, tokens: Tensor, state: RecordedState) -> tuple[Tensor, RecordedState]:
        """Do the same as `Decoder.step`. The next step overwrites the result."""
        logits, state = self.logits(tokens, state)
        return log_probs_of(logits), state

    def logits(self, tokens: Tensor, state: RecordedState) -> tuple[Tensor, RecordedState]:
        """Do the same as `Decoder.logits`. The next step overwrites the result."""
        if state.time + 1 == state.size.T:
            state.resize(state.size._replace(T=2 * state.size.T))
        return state.advance(tokens, self.decoder.position(state.time)), state

    def memory(self, size: Size) -> Memory:
        """Return the memory of this size, at the same address each time."""
        B, W, S, T = size
        shape = self.shape
        model = self.decoder.model
        L, H, D = shape.num_decoder_layers, shape.num_heads, shape.d_model
        shapes = {
            "tokens": ((B, W), torch.int64),
            "position": ((1, D), torch.float32),
            "source": ((L, 2, B, H, S, D // H), model.attention_dtype),
            "src_bias": ((B, H, 1, S), model.attention_dtype),
            "past": ((L, 2, B, H, T, W, D // H), model.attention_dtype),
            "lineage": ((B, W, T, W), model.attention_dtype),
            "logits": ((B, W, shape.vocab_size), model.dtype),
        }
        return Memory(*(self._stored(name, *kind) for name, kind in shapes.items()))

    def _stored(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return a view of the first values of a tensor of `storage`. A tensor that is too small is
        replaced, and all steps are recorded again.
        """
        count = math.prod(shape)
        if name not in self.storage or self.storage[name].numel() < count:
            self.forget()
            self.storage.pop(name, None)  # freed before more is allocated
            self.storage[name] = self.decoder.embedding.new_empty(count * 3 // 2, dtype=dtype)
        return self.storage[name][:count].view(shape)

    def replay(self, size: Size, memory: Memory) -> None:
        """Compute the logits of the tokens, and the keys and values of the newest position."""
        if size not in self.replays:
            if len(self.replays) == MAX_GRAPHS:
                self.forget()
            work = partial(self._compute, memory)
            self.replays[size] = record_graph(work, memory.logits.device, self.pool)
        self.replays[size]()

    def forget(self) -> None:
        """Remove all recorded steps; their memory pool is freed with the last graph."""
        self.replays.clear()
        self.pool = torch.cuda.graph_pool_handle()

    def _compute(self, memory: Memory) -> None:
        H, W = memory.past.shape[3], memory.past.shape[5]
        buffers = StepBuffers(memory.source, memory.src_bias, W, memory.logits.dtype)
        bias = memory.lineage.flatten(2)[:, None].expand(-1, H, -1, -1).flatten(0, 1)
        past = split_layers(memory.past.flatten(4, 5), bias)
        newest = memory.past[:, :, :, :, 0].unbind(0)
        by_layer = zip(newest, past, buffers.sources, strict=True)
        tokens, logits = memory.tokens.flatten(), memory.logits.flatten(0, 1)
        self.decoder.compute(tokens, memory.position, buffers, by_layer, logits)


def decoder_of(model: Transformer) -> Decoder | RecordedDecoder:
    """Return the decoder that is fastest on the model's device."""
    is_cuda = model.output.weight.device.type == "cuda"
    return RecordedDecoder(model) if is_cuda else Decoder(model)
