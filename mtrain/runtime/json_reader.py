"""JSON files of a known form, checked before anything in them is used."""

from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from mtrain.runtime import files

Content = TypeVar("Content")

LARGEST = 64 << 20  # bytes


def read_json(data: bytes, form: TypeAdapter[Content]) -> Content:
    """Parse JSON; raises `ValueError`, which says in one line what is not of that form."""
    try:
        return form.validate_json(data, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"{place}: {first['msg']}" if place else first["msg"]) from None


def read_json_file(path: Path, form: TypeAdapter[Content]) -> Content:
    """Read a file of that form; raises `FileNotFoundError` where there is none, `ValueError` where
    it cannot be read, is of another form, a link, or no regular file.
    """
    try:
        data = files.read_whole(path, LARGEST)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ValueError(error.strerror or str(error)) from None
    return read_json(data, form)
