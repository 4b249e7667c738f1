"""Entries of the config that name corpora, and the base of all sections."""

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    SerializerFunctionWrapHandler,
    Tag,
    ValidationInfo,
    model_serializer,
    model_validator,
)

from mtrain.runtime import files
from mtrain.runtime.errors import is_utf8, printable

INT_LIMIT = 2**31  # libraries overflow beyond 32 bits

Fraction = Annotated[float, Field(ge=0, lt=1)]
PositiveInt = Annotated[int, Field(ge=1, lt=INT_LIMIT)]
NonNegativeInt = Annotated[int, Field(ge=0, lt=INT_LIMIT)]
NonEmptyStr = Annotated[str, Field(min_length=1)]
MAX_PIECE_LENGTH = 1000  # characters of a piece of a vocabulary
Piece = Annotated[str, Field(min_length=1, max_length=MAX_PIECE_LENGTH)]


def _expanded(expand: Callable[[str], str]) -> Callable[[str, ValidationInfo], str]:
    """Return a validator that expands a path, unless the config is a stored one."""

    def validate(text: str, info: ValidationInfo) -> str:
        path = text if info.context else expand(text)
        if not is_utf8(path):
            raise ValueError(f"expands to {printable(path)}, which is not UTF-8; use another path")
        return path

    return validate


PathText = Annotated[NonEmptyStr, AfterValidator(_expanded(files.expand_path))]
DatasetName = Annotated[NonEmptyStr, AfterValidator(_expanded(files.expand_dataset))]
TABLE = r"^.+\.((tsv|jsonl|tmx)(\.(gz|zst))?|parquet)$"
TableName = Annotated[str, Field(pattern=TABLE), AfterValidator(_expanded(files.expand_path))]


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


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


class Synthesis(Section):
    """How models translate an entry that names one side; unused without `model`."""

    model: Annotated[list[PathText], BeforeValidator(_as_list), Field(min_length=1)] = []
    """run or checkpoint directory that translates the given side; a list is an ensemble"""
    model_tag: NonEmptyStr | None = None
    """tag that chooses the direction, for a model of several directions"""
    sample: bool = False
    """sample translations at random instead of searching"""
    top_k: NonNegativeInt = 0
    """number of most likely tokens to sample from; 0: all"""
    beam_size: Annotated[int, Field(ge=1, le=1000)] | None = None
    """hypotheses kept per sentence; null: as in the model's run"""
    keep: Literal["best"] | None = None
    """best: replace tgt by the hypothesis that is most similar to it, by chrF"""
    drop_worst: Fraction = 0.0
    """fraction of pairs to leave out: the least probable, per token of the translation"""
    precision: Literal["fp32", "bf16"] = "fp32"
    """number format that the models compute in"""
    synthetic_side: Literal["src", "tgt"] = "tgt"
    """side that the models translate into: the one that the entry does not name"""


class CorpusEntry(Synthesis):
    """Settings of a corpus of any kind."""

    weight: Annotated[float, Field(gt=0, le=1000)] = 1.0
    """how often an epoch uses each pair, on average"""
    swap: bool = False
    """exchange source and target, to learn the other direction"""
    tag: Piece | None = None
    """token to put before each source, such as <bt>"""
    src_lang: NonEmptyStr | None = None
    """language code of src; null: data.src_lang"""
    tgt_lang: NonEmptyStr | None = None
    """language code of tgt; null: data.tgt_lang"""

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, value: Any) -> Any:
        """Use the given side for both sides until a model has made the other one."""
        given = sorted(Synthesis.model_fields.keys() & value) if isinstance(value, dict) else []
        if "synthetic_side" in given:
            raise ValueError("has no key synthetic_side; leave out the side that a model makes")
        if given and "model" not in given:
            raise ValueError(f"{given[0]} needs model, which makes the side that is left out")
        for side, other in (("src", "tgt"), ("tgt", "src")) if given else ():
            if value.get(side) is None and other in value:
                value = {**value, side: value[other], "synthetic_side": side}
        return value

    @model_serializer(mode="wrap")
    def _as_written(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Return the keys that the entry uses, as in a config file."""
        unused = {"synthetic_side"} if self.model else {*Synthesis.model_fields}
        if self.model and self.keep is None:
            unused.add(self.synthetic_side)
        values = {key: each for key, each in dump(self).items() if key not in unused}
        return {key: each for key, each in values.items() if each is not None and each is not False}


class TextCorpus(CorpusEntry):
    """Two files aligned by line, plain text, .gz or .zst."""

    src: PathText
    """file of source text, one sentence per line"""
    tgt: PathText
    """file of its translation, line by line"""


class GeneratedCorpus(CorpusEntry):
    """Pairs of a built-in generator; its splits never overlap."""

    generated: Literal["phrasebook"]
    """generator: phrasebook (English-German)"""
    split: Literal["train", "valid", "test"]
    """part of the generated corpus: train, valid or test; they do not overlap"""
    pairs: PositiveInt
    """number of pairs to generate"""


def table_kind(file: str) -> str:
    """Return the format that the name of a table ends in, such as tsv; empty for another file."""
    is_table = re.match(TABLE, file, re.DOTALL) is not None
    return file.removesuffix(".gz").removesuffix(".zst").rpartition(".")[2] if is_table else ""


class FileCorpus(CorpusEntry):
    """A table with a column for each side, or a translation memory: .tsv, .jsonl or .tmx, plain,
    .gz or .zst, or .parquet.
    """

    file: TableName
    """a .tsv, .jsonl or .tmx file, also with .gz or .zst, or a .parquet file"""
    src: NonNegativeInt | NonEmptyStr
    """column of the source text: a name, or a number from 0 in a .tsv; in a .tmx its language"""
    tgt: NonNegativeInt | NonEmptyStr
    """column of the target text: a name, or a number from 0 in a .tsv; in a .tmx its language"""

    @property
    def kind(self) -> str:
        """Format of the file: tsv, jsonl, tmx or parquet."""
        return table_kind(self.file)


class HubCorpus(CorpusEntry):
    """A dataset of the Hugging Face hub, or a local folder of Parquet, JSON, CSV or Arrow files."""

    dataset: DatasetName
    """name on the Hugging Face hub, or a local folder"""
    name: NonEmptyStr | None = None
    """configuration of the dataset, such as de-en"""
    split: NonEmptyStr
    """split of the dataset, such as train or train[:1%]"""
    src: NonEmptyStr
    """column of the dataset with the source text; a dot selects a nested field"""
    tgt: NonEmptyStr
    """column of the dataset with the target text; a dot selects a nested field"""
    streaming: bool = False
    """read the dataset over the network at each start, without a copy on disk"""


class SyntheticCorpus(FileCorpus):
    """Synthetic text of a run: models made its `synthetic_side`."""


KINDS: dict[str, type[Section]] = {
    "<text>": TextCorpus,
    "<generated>": GeneratedCorpus,
    "<file>": FileCorpus,
    "<dataset>": HubCorpus,
}


def corpus_kind(value: object) -> str | None:
    """Return the kind of a corpus entry, named after its characteristic key; angle brackets mark it
    in the paths of errors.
    """
    if isinstance(value, Section):
        return next((kind for kind, section in KINDS.items() if type(value) is section), None)
    if not isinstance(value, Mapping):
        return None
    return next((kind for kind in KINDS if kind[1:-1] in value), "<text>")


Corpus = Annotated[
    Annotated[TextCorpus, Tag("<text>")]
    | Annotated[GeneratedCorpus, Tag("<generated>")]
    | Annotated[FileCorpus, Tag("<file>")]
    | Annotated[HubCorpus, Tag("<dataset>")],
    Discriminator(corpus_kind),
]
ONE, LIST = "<one>", "<list>"  # branches of `data.valid`
BRANCHES = {*KINDS, ONE, LIST}  # in the paths of pydantic's errors
CorpusList = Annotated[list[Corpus], Field(min_length=1), Tag(LIST)]
BY_TYPE = Discriminator(lambda value: LIST if isinstance(value, list) else ONE)
