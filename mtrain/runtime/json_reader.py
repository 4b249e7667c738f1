"""Read JSON files of a known form, which is checked before anything is used."""

from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from mtrain.runtime import files

Content = TypeVar("Content")

MAX_JSON_BYTES = 64 << 20
MAX_VALUES = 500_000  # a value takes far more memory than its text


def read_json(data: bytes, form: TypeAdapter[Content]) -> Content:
    """Parse JSON; raises `ValueError` with the first violation of the form, in one line."""
    if sum(map(data.count, (b",", b"[", b"{"))) > MAX_VALUES:
        raise ValueError(f"more than {MAX_VALUES:,} values")
    try:
        return form.validate_json(data, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        raise ValueError(f"{key}: {first['msg']}" if key else first["msg"]) from None


def read_json_file(path: Path, form: TypeAdapter[Content]) -> Content:
    """Read a JSON file of a known form; raises `OSError`, and `ValueError` for another form."""
    return read_json(files.read_whole(path, MAX_JSON_BYTES), form)
