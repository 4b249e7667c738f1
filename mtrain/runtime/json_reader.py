"""Read JSON files and check that their content has the expected type before anything is used."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from mtrain.runtime import files

Content = TypeVar("Content")
adapter_of: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)  # of a type; made once

MAX_JSON_BYTES = 64 << 20
MAX_VALUES = 500_000  # a value takes far more memory than its text


def read_json(data: bytes, type_: type[Content]) -> Content:
    """Parse JSON; raises `ValueError` with the first value that does not fit the type, in one
    line.
    """
    if sum(map(data.count, (b",", b"[", b"{"))) > MAX_VALUES:
        raise ValueError(f"more than {MAX_VALUES:,} values")
    try:
        content: Content = adapter_of(type_).validate_json(data, strict=True)
        return content
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        raise ValueError(f"{key}: {first['msg']}" if key else first["msg"]) from None


def read_json_file(path: Path, type_: type[Content]) -> Content:
    """Read a JSON file; raises `OSError`, and `ValueError` if its content has another type."""
    return read_json(files.read_whole(path, MAX_JSON_BYTES), type_)
