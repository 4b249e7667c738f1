"""Seeded mutations of bytes, lines, trees of YAML and JSON, formats, and of what a name leads to.

Every function draws from the `random.Random` that it is given alone, so that a case can be made
again from its seed.
"""

from __future__ import annotations

import copy
import functools
import gzip
import io
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pyarrow
import pyarrow.parquet
import yaml

Pairs = list[tuple[str, str]]

FORGED = "2026-01-01 00:00:00 ERROR forged"
# The last two are rare: they are long.
ODD_TEXTS = [
    *("", " ", "\t", "\n", "\r", "\r\n", "\0", "\x1c", "\x7f", "\x85", "\u2028", "\ufeff"),
    *("\x1b]0;owned\a\x1b[2K", "\x9b2J", "\u200b\u200d\u202e", "e" + "\u0301" * 300, "\ud800"),
    *("\U000e0001", f"a\n{FORGED}", "<script>alert(1)</script>", "%s%n{0}", '"', "'", "\\", "no"),
    *("1" + ",11" * 40_000, "x" * 200_000),
]
ODD_NUMBERS = [
    *(0, -1, 1, 2, 3, 7, 1 << 31, 1 << 63, -(1 << 63) - 1, 10**400, 0.1, -0.0, 5e-324, 1e308),
    *(float("inf"), float("nan"), True, False),
]
HOME_PATHS = ["~/new", "$HOME/new", "${NOPE}/new", "~nobody-of-this-name/new"]
ODD_PATHS = [
    *("", ".", "-", "--help", "data", "data/train.src", "data/../new", "n" * 300),
    *("../outside/folder", "../outside/link", "../outside/dangling", "../outside/victim.txt"),
    *("../outside/pipe", "../outside/null", "../home/.ssh/id", "run/config.yaml"),
    *("new\x1b]0;owned\a", f"new\n{FORGED}"),
]


def encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def odd_text(rng: Random) -> str:
    return rng.choice(ODD_TEXTS[-2:] if rng.random() < 0.03 else ODD_TEXTS[:-2])


def odd_path(rng: Random) -> str:
    return rng.choice(HOME_PATHS if rng.random() < 0.4 else ODD_PATHS)


def odd_value(rng: Random) -> Any:
    kind = rng.randrange(5)
    if kind == 0:
        return rng.choice(ODD_NUMBERS)
    if kind == 1:
        return odd_path(rng)
    if kind == 2:
        return rng.choice([None, [], {}, [[]], [None], {"a": {"b": 1}}, {"": 1}])
    if kind == 3:
        return str(rng.choice(ODD_NUMBERS))
    return odd_text(rng)


def mutate_bytes(rng: Random, data: bytes, suffix: str = "") -> bytes:
    """Flip bits, cut, insert, remove or repeat something. Positions are fractions of the length, so
    that a file whose numbers are some digits longer is hit in the same place.
    """
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        at, action = int(rng.random() * len(changed)), rng.randrange(6)
        end = at + rng.choice((1, 2, 4, 16, 300))
        if action <= 1 and changed:
            changed[at] ^= 1 << rng.randrange(8)
        elif action == 2:
            del changed[at:]
        elif action == 3:
            changed[at:at] = encoded(odd_text(rng))
        elif action == 4:
            del changed[at:end]
        else:
            changed[at:at] = changed[at:end]
    return bytes(changed)


def _nodes(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every place in a tree as a container and a key or position in it."""
    for key in list(tree) if isinstance(tree, dict) else range(len(tree)):
        yield tree, key
        if isinstance(tree[key], dict | list):
            yield from _nodes(tree[key])


def mutate_tree(rng: Random, tree: Any) -> Any:
    """Return a copy in which something is replaced, dropped, renamed, doubled or moved."""
    tree = copy.deepcopy(tree)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        nodes = list(_nodes(tree)) if isinstance(tree, dict | list) else []
        if not nodes or rng.random() < 0.02:
            return odd_value(rng)
        holder, key = rng.choice(nodes)
        action = rng.randrange(8)
        if action == 0:
            del holder[key]
        elif action == 1 and isinstance(holder, dict):
            holder[rng.choice((odd_text(rng), str(key) + "x", "k" * 5000))] = holder.pop(key)
        elif action == 1:
            holder.insert(key, copy.deepcopy(holder[key]))
        elif action == 2:
            other, name = rng.choice(nodes)
            holder[key] = copy.deepcopy(other[name])
        elif action == 3 and isinstance(holder[key], str):
            holder[key] += odd_text(rng)
        elif action == 3 and isinstance(holder[key], int | float):
            with suppress(OverflowError):  # an odd integer may be too large for a float
                holder[key] = rng.choice((-1, 1000, 0.5)) * holder[key]
        else:
            holder[key] = odd_value(rng)
    return tree


def yaml_of(tree: Any) -> bytes:
    return yaml.safe_dump(tree, sort_keys=False).encode()


def mutate_yaml(rng: Random, tree: Any) -> bytes:
    """Write a tree as YAML, mutated as a tree or as bytes."""
    if rng.random() < 0.6:
        return yaml_of(mutate_tree(rng, tree))
    return mutate_bytes(rng, yaml_of(tree))


def mutate_json(rng: Random, data: bytes) -> bytes:
    """Mutate one value of a file of JSON, or of one line of JSON lines."""
    lines = data.split(b"\n") if data.startswith(b'{"') else [data]
    at = rng.randrange(max(1, len(lines) - 1))
    try:
        lines[at] = json.dumps(mutate_tree(rng, json.loads(lines[at]))).encode()
    except ValueError:
        return mutate_bytes(rng, data)
    return b"\n".join(lines)


def mutate_values(rng: Random, data: bytes, suffix: str) -> bytes:
    """Mutate what a file of a run says, so that it can still be read as its kind of file."""
    if suffix == ".yaml":
        return mutate_yaml(rng, yaml.safe_load(data))
    if suffix in (".model", ".safetensors"):
        return mutate_bytes(rng, data)
    return mutate_json(rng, data)


# Corpora ------------------------------------------------------------------------------------------


def zstd(data: bytes) -> bytes:
    packed: bytes = pyarrow.compress(data, "zstd", asbytes=True)
    return packed


def corpus(form: str, pairs: Pairs, doubled: bool = False) -> dict[str, bytes]:
    """Return the files of a corpus in a format by their suffixes; `doubled` gives a name twice."""
    sides = [encoded("".join(pair[side] + "\n" for pair in pairs)) for side in (0, 1)]
    if form in ("plain", "gz", "zst"):
        pack = {"plain": bytes, "gz": functools.partial(gzip.compress, mtime=0), "zst": zstd}[form]
        end = "" if form == "plain" else f".{form}"
        return {f"src{end}": pack(sides[0]), f"tgt{end}": pack(sides[1])}
    if form == "tsv":
        rows = [("src", "tgt"), *pairs]
        return {form: encoded("".join("\t".join((s, t, s)[: 2 + doubled]) + "\n" for s, t in rows))}
    if form == "jsonl":
        more = ', "src": "other"' if doubled else ""
        rows = (f'{{"src": {json.dumps(s)}, "tgt": {json.dumps(t)}{more}}}\n' for s, t in pairs)
        return {form: encoded("".join(rows))}
    if form == "tmx":
        variant = '<tuv xml:lang="{}"><seg>{}</seg></tuv>'
        units = (variant.format("src", s) + variant.format("tgt", t) for s, t in pairs)
        head = '<?xml version="1.0"?>\n<tmx version="1.4"><header/><body>\n'
        text = "".join(f"<tu>{unit}</tu>\n" for unit in units)
        return {form: encoded(f"{head}{text}</body></tmx>\n")}
    columns = {"src": [s for s, _ in pairs], "tgt": [t for _, t in pairs]}
    out = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), out)
    return {form: out.getvalue()}


def mutate_pairs(rng: Random, pairs: Pairs, form: str) -> Pairs:
    """Put something odd into some texts, or one long line (parquet holds no surrogates)."""
    pairs = list(pairs)
    for _ in range(rng.choice((1, 2, 5))):
        at, side = rng.randrange(len(pairs)), rng.randrange(2)
        odd = odd_text(rng)
        if rng.random() < 0.04:
            odd = rng.choice(("bavo ", "x", "\u0301", "9,11")) * rng.choice((100_000, 2_000_000))
        if form == "parquet":
            odd = odd.replace("\ud800", "?")
        texts = list(pairs[at])
        cut = rng.randrange(len(texts[side]) + 1)
        texts[side] = texts[side][:cut] + odd + texts[side][cut:]
        pairs[at] = (texts[0], texts[1])
    return pairs


def mutate_corpus(rng: Random, form: str, pairs: Pairs) -> tuple[str, dict[str, bytes]]:
    """Return what was done and the files."""
    actions = ("texts", "texts", "bytes", "bytes", "a line lost", "packed", "renamed", "doubled")
    action = rng.choice(actions)
    if action == "doubled":
        return f"{form}: a name twice", corpus(form, pairs, doubled=True)
    if action == "texts":
        return f"{form}: odd texts", corpus(form, mutate_pairs(rng, pairs, form))
    files = corpus(form, pairs)
    name = rng.choice(list(files))
    data = files[name]
    if action == "bytes":
        files[name] = mutate_bytes(rng, data)
    elif action == "renamed":
        files[name] = data.replace(b"tgt", encoded(odd_text(rng)), 1)
    elif action == "a line lost":
        lines = data.split(b"\n")
        del lines[rng.randrange(len(lines))]
        files[name] = b"\n".join(lines)
    else:
        files[name] = rng.choice((gzip.compress(data, mtime=0), zstd(data), data[::-1]))
    return f"{form}: {action} in {name}", files


# Names --------------------------------------------------------------------------------------------

LINKS = {"link": "victim.txt", "dangling": "nothing-there", "link to a folder": "folder"}
LEADS = (*LINKS, "folder", "pipe", "empty", "removed", "hard link")


def lead(path: Path, to: str, outside: Path) -> None:
    """Replace whatever is at `path` by something else; links lead to `outside`."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    if to in LINKS:
        path.symlink_to(os.path.relpath(outside / LINKS[to], path.parent))
    elif to == "folder":
        path.mkdir()
        (path / "inner.txt").write_text("inner\n")
    elif to == "pipe":
        os.mkfifo(path)
    elif to == "empty":
        path.touch()
    elif to == "hard link":
        os.link(outside / "victim.txt", path)
