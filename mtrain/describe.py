"""What a setting takes, in words: said from its type and bounds."""

import types
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

# Whole numbers end where 32 bits do: libraries overflow beyond.
MAX_WHOLE = 2**31
DEVICES = r"^(auto|cpu|mps|cuda(:\d+)?)$"
TABLES = r"\.((tsv|jsonl|tmx)(\.(gz|zst))?|parquet)$"
# How patterns are told to people.
FORMS = {
    DEVICES: ": auto, cpu, cuda, cuda:N or mps",
    TABLES: " that ends in .tsv, .jsonl, .tmx (or these with .gz or .zst) or .parquet",
}


def describe(field: FieldInfo) -> str:
    """Say in words what a field takes, from its type and bounds."""
    return _describe_type(field.annotation, list(field.metadata))


def _describe_type(annotation: Any, metadata: list[Any]) -> str:
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, *extra = get_args(annotation)
        return _describe_type(inner, [*extra, *metadata])
    if origin is Literal:
        words = [str(word) for word in get_args(annotation)]
        return words[0] if len(words) == 1 else f"one of {', '.join(words)}"
    if origin in (Union, types.UnionType):
        parts = [_describe_type(part, []) for part in get_args(annotation)]
        return " or ".join(dict.fromkeys(parts))
    if origin is list:
        return "a list"
    if origin is dict or (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        return "a mapping"
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    return names.get(annotation, "nothing") + _describe_bounds(metadata)


def describe_item(annotation: Any) -> str | None:
    """Say in words what the items of a list are."""
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    return _describe_type(get_args(annotation)[0], []) if get_origin(annotation) is list else None


def _describe_bounds(metadata: list[Any]) -> str:
    """Say the bounds of a number, or the form of a text."""
    bounds: list[str] = []
    for item in _flat_metadata(metadata):
        for name, text in (
            ("ge", "from {}"),
            ("gt", "above {}"),
            ("le", "up to {}"),
            ("lt", "below {}"),
        ):
            if getattr(item, name, None) is not None:
                bounds.append(text.format(getattr(item, name)))
        if getattr(item, "pattern", None):
            return FORMS[item.pattern]
    return " " + " and ".join(bounds) if bounds else ""


def _flat_metadata(metadata: list[Any]) -> list[Any]:
    return [
        part
        for item in metadata
        for part in (item.metadata if isinstance(item, FieldInfo) else [item])
    ]
