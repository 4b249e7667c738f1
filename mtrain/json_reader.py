"""JSON files of a known form, checked before anything in them is used."""

from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

Content = TypeVar("Content")


def read_json(data: bytes, form: TypeAdapter[Content]) -> Content:
    """Parse JSON; raises `ValueError`, which says in one line what is not of that form."""
    try:
        return form.validate_json(data, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"{place}: {first['msg']}" if place else first["msg"]) from None
