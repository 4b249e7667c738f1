"""Reading JSON files of a known form; nothing in them is used before it is checked."""

from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from mtrain.runtime import files

Content = TypeVar("Content")

MAX_JSON_BYTES = 64 << 20  # bytes
MAX_VALUES = 500_000  # values: each takes far more memory than its text


def read_json(data: bytes, form: TypeAdapter[Content]) -> Content:
    """Parse JSON; raises `ValueError` with the first violation of the form in one line."""
    if sum(map(data.count, (b",", b"[", b"{"))) > MAX_VALUES:
        raise ValueError(f"more than {MAX_VALUES:,} values")
    try:
        return form.validate_json(data, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"{place}: {first['msg']}" if place else first["msg"]) from None


def read_json_file(path: Path, form: TypeAdapter[Content]) -> Content:
    """Read a JSON file of a known form; raises `FileNotFoundError` if it is missing, `ValueError`
    if it cannot be read, has another form, is a link, or is not a regular file.
    """
    try:
        return read_json(files.read_whole(path, MAX_JSON_BYTES), form)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ValueError(error.strerror or str(error)) from None
