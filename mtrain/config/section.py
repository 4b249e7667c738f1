"""Values and sections that settings are made of."""

from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo

from mtrain.runtime import files

MAX_WHOLE = 2**31  # libraries overflow beyond 32 bits

Fraction = Annotated[float, Field(ge=0, lt=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[int, Field(ge=1, lt=MAX_WHOLE)]
NotNegative = Annotated[int, Field(ge=0, lt=MAX_WHOLE)]
# Larger than any model: a forged config must not exhaust the machine before it is refused.
MAX_WIDTH = 1 << 17
Width = Annotated[int, Field(ge=1, le=MAX_WIDTH)]
Layers = Annotated[int, Field(ge=1, le=1000)]
PositiveNumber = Annotated[float, Field(gt=0)]
Word = Annotated[str, Field(min_length=1)]


def _expanded(expand: Callable[[str], str]) -> Callable[[str, ValidationInfo], str]:
    """Return a validator that expands a path, unless the config is a stored one."""
    return lambda text, info: text if info.context else expand(text)


PathText = Annotated[str, Field(min_length=1), AfterValidator(_expanded(files.expand_path))]
DatasetName = Annotated[str, Field(min_length=1), AfterValidator(_expanded(files.expand_dataset))]
FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]*$")]
DeviceName = Annotated[str, Field(pattern=r"^(auto|cpu|mps|cuda(:[0-9]+)?)$")]
TableName = Annotated[
    str,
    Field(pattern=r"^.+\.((tsv|jsonl|tmx)(\.(gz|zst))?|parquet)$"),
    AfterValidator(_expanded(files.expand_path)),
]
Weight = Annotated[
    float, Field(gt=0, le=1000, description="how often an epoch uses each pair, on average")
]
Auto = Literal["auto"]


class Section(BaseModel):
    """A group of settings: frozen, without unknown keys, without silent conversions.

    The text below a setting is its description, for error messages and the manual.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )
