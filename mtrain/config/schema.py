"""Every setting once: its name, type, default, documentation and check.

`mtrain.loading` reads a config from strict YAML (`mtrain.yaml_reader`) and checks it.
"""

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    ValidationInfo,
)

from mtrain.config.yaml_reader import dump_document
from mtrain.runtime import files
from mtrain.runtime.errors import RefusedError

MAX_WHOLE = 2**31  # libraries overflow beyond 32 bits

Fraction = Annotated[float, Field(ge=0, lt=1)]
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


def _matching(pattern: str, form: str) -> AfterValidator:
    """Return a validator of texts that match a pattern; `form` describes these in words."""

    def check(text: str) -> str:
        if re.fullmatch(pattern, text) is None:
            raise ValueError(f"should be {form}")
        return text

    return AfterValidator(check)


FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]*$")]
DeviceName = Annotated[
    str, _matching(r"auto|cpu|mps|cuda(:\d+)?", "auto, cpu, cuda, cuda:N or mps")
]
TableName = Annotated[
    str,
    _matching(
        r".+\.((tsv|jsonl|tmx)(\.(gz|zst))?|parquet)",
        "a name that ends in .tsv, .jsonl, .tmx (or these with .gz or .zst) or .parquet",
    ),
    AfterValidator(_expanded(files.expand_path)),
]
Weight = Annotated[
    float,
    Field(gt=0, le=1000, description="how often an epoch sees each pair, on average"),
]
Auto = Literal["auto"]


class Section(BaseModel):
    """A group of settings: frozen, without unknown keys, without silent conversions."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class TextCorpus(Section):
    """Two files aligned by line, plain text, .gz or .zst."""

    src: PathText = Field(description="source side, one segment a line")
    tgt: PathText = Field(description="target side, line for line")
    weight: Weight = 1.0


class GeneratedCorpus(Section):
    """Pairs of a built-in generator; its splits never overlap."""

    generated: Literal["phrasebook"] = Field(
        description="the generator: phrasebook (English-German)"
    )
    split: Literal["train", "valid", "test"] = Field(description="train, valid or test")
    pairs: Positive = Field(description="how many pairs to generate")
    weight: Weight = 1.0


class FileCorpus(Section):
    """A table with a column for either side, or a translation memory: .tsv, .jsonl or .tmx, plain,
    .gz or .zst, or .parquet.
    """

    file: TableName = Field(description="a .tsv, .jsonl, .tmx or .parquet file")
    src: NotNegative | Word = Field(
        description="column or field of the source text, in a TMX its language; in a TSV without "
        "names its number, from 0"
    )
    tgt: NotNegative | Word = Field(description="the same of the target text")
    weight: Weight = 1.0

    @property
    def kind(self) -> str:
        """Format of the file: tsv, jsonl, tmx or parquet."""
        return self.file.removesuffix(".gz").removesuffix(".zst").rpartition(".")[2]


class HubCorpus(Section):
    """A dataset of the Hugging Face hub, or a local folder of Parquet, JSON lines or CSV files."""

    dataset: DatasetName = Field(description="name on the hub, or a local folder")
    name: Word | None = Field(None, description="configuration of the dataset, such as de-en")
    split: Word = Field(description="split to read, such as train or train[:1%]")
    src: Word = Field(description="column of the source text; dots reach into nested fields")
    tgt: Word = Field(description="column of the target text")
    streaming: bool = Field(False, description="read it as it comes, without a copy on this disk")
    weight: Weight = 1.0


KINDS: dict[str, type[Section]] = {
    "<text>": TextCorpus,
    "<generated>": GeneratedCorpus,
    "<file>": FileCorpus,
    "<hub>": HubCorpus,
}


def corpus_kind(value: object) -> str | None:
    """Return the kind of a corpus entry by its characteristic key; angle brackets mark it in error
    paths.
    """
    if isinstance(value, Section):
        return next(kind for kind, section in KINDS.items() if section is type(value))
    if not isinstance(value, Mapping):
        return None
    telling = {"generated": "<generated>", "dataset": "<hub>", "file": "<file>"}
    return next((kind for key, kind in telling.items() if key in value), "<text>")


Corpus = Annotated[
    Annotated[TextCorpus, Tag("<text>")]
    | Annotated[GeneratedCorpus, Tag("<generated>")]
    | Annotated[FileCorpus, Tag("<file>")]
    | Annotated[HubCorpus, Tag("<hub>")],
    Discriminator(corpus_kind),
]


class DataConfig(Section):
    """Which text is learned from, and which measures the model."""

    root: PathText | None = Field(
        None, description="relative corpus paths start here; else at the working directory"
    )
    src_lang: Word = Field(description="source language code")
    tgt_lang: Word = Field(description="target language code; BLEU is tokenized for it")
    train: Annotated[list[Corpus], Field(min_length=1)] = Field(description="corpora, concatenated")
    temperature: Annotated[float, Field(ge=1, le=1000)] = Field(
        1.0,
        description="above 1 small corpora are seen more often: as if of size ** (1 / temperature)",
    )
    valid: Corpus = Field(description="translated and scored during training")
    test: dict[FileName, Corpus] = Field(
        default_factory=dict, description="named sets scored at the end of training"
    )
    max_length: Annotated[int, Field(ge=2, le=1 << 16)] = Field(
        256, description="tokens a side with eos; longer training pairs are dropped and counted"
    )
    invalid_utf8: Literal["error", "drop"] = Field(
        "error", description="what to do with a pair that is not UTF-8"
    )
    workers: Auto | Annotated[int, Field(ge=1, le=1024)] = Field(
        "auto", description="processes that tokenize the corpora"
    )


class FilterConfig(Section):
    """Which training pairs are dropped and counted, in addition to those over `data.max_length`."""

    min_length: NotNegative = Field(0, description="least tokens a side with eos")
    max_ratio: Annotated[float, Field(ge=1)] | None = Field(
        None, description="most tokens of the longer side for one of the shorter"
    )
    identical: bool = Field(False, description="leave out pairs with the same text on both sides")
    duplicates: bool = Field(False, description="leave out all but the first of equal pairs")
    control: bool = Field(
        False, description="leave out pairs with control, private or invalid characters"
    )
    src_script: list[Word] = Field(
        default_factory=list, description="Unicode scripts of the source's letters, such as Latin"
    )
    tgt_script: list[Word] = Field(default_factory=list, description="the same of the target")
    script_share: Annotated[float, Field(gt=0, le=1)] = Field(
        0.5, description="least share of letters that are of these scripts"
    )


class TokenizerConfig(Section):
    """The subword vocabulary shared by both sides."""

    path: PathText | None = Field(None, description="existing SentencePiece model, used as it is")
    vocab_size: Positive = Field(8000, description="pieces, specials and bytes included")
    model_type: Literal["bpe", "unigram"] = Field("bpe", description="SentencePiece algorithm")
    normalization: Literal["identity", "nfkc", "nmt_nfkc"] = Field(
        "identity", description="identity keeps text as it is; the others change both sides"
    )
    character_coverage: Annotated[float, Field(gt=0, le=1)] = Field(
        0.9995, description="rarer characters go to bytes"
    )
    byte_fallback: bool = Field(True, description="spell unknown characters as bytes: none is lost")
    user_symbols: list[Word] = Field(
        default_factory=list, description="kept whole: tags, placeholders"
    )


class ModelConfig(Section):
    """The Transformer's shape."""

    d_model: Annotated[int, Field(ge=2, le=MAX_WIDTH)] = Field(
        512, description="width of every layer"
    )
    num_heads: Width = Field(8, description="attention heads; must divide d_model")
    d_ff: Width = Field(2048, description="inner width of the feed-forward layers")
    num_encoder_layers: Layers = Field(6, description="encoder layers")
    num_decoder_layers: Layers = Field(6, description="decoder layers")
    dropout: Fraction = Field(0.1, description="residual and embedding dropout, as in the paper")
    attention_dropout: Fraction = Field(0.0, description="dropout of attention weights")
    activation_dropout: Fraction = Field(0.0, description="dropout after the feed-forward ReLU")
    norm: Literal["post", "pre"] = Field(
        "post", description="layer norm after or before each block"
    )
    positions: Literal["sinusoidal", "learned"] = Field(
        "sinusoidal", description="position encoding"
    )
    tie_embeddings: Literal["all", "output", "none"] = Field(
        "all",
        description="all: source, target and output share one matrix; output: target and output",
    )


class TrainConfig(Section):
    """How the model is trained, saved and judged."""

    device: DeviceName = Field("auto", description="auto, cpu, cuda, cuda:N or mps")
    threads: Auto | Annotated[int, Field(ge=1, le=4096)] = Field(
        "auto", description="CPU threads; auto: every core"
    )
    max_steps: Positive = Field(100000, description="optimizer updates")
    max_tokens: Positive = Field(
        4096, description="padded tokens a side in a micro-batch of a process: rows x max(S, T)"
    )
    accum_steps: Positive = Field(
        1, description="micro-batches a step of each process, from as many ranges of length"
    )
    optimizer: Literal["adam", "muon"] = Field(
        "adam", description="adam, or muon for the layers' matrices, which learns in fewer steps"
    )
    init_from: PathText | None = Field(
        None, description="a run or checkpoint directory whose weights and vocabulary to begin with"
    )
    subword_sampling: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None, description="BPE-dropout: the share of merges that are left out at random"
    )
    ema_decay: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None, description="the model is a moving average of the weights, of this decay a step"
    )
    schedule: Literal["noam", "inverse_sqrt", "linear", "cosine", "constant"] = Field(
        "noam", description="course of the learning rate after its linear warm-up"
    )
    warmup_steps: NotNegative = Field(4000, description="steps of linear warm-up")
    lr_factor: PositiveNumber | None = Field(
        None, description="noam: factor of the paper's rate; 1.0 if peak_lr is not given either"
    )
    peak_lr: PositiveNumber | None = Field(None, description="highest learning rate, absolute")
    label_smoothing: Fraction = Field(0.1, description="probability spread over the vocabulary")
    adam_betas: Annotated[list[Fraction], Field(min_length=2, max_length=2)] = Field(
        default_factory=lambda: [0.9, 0.98], description="decay of Adam's two moments"
    )
    adam_eps: PositiveNumber = Field(1e-9, description="Adam's epsilon")
    clip_norm: Annotated[float, Field(ge=0)] = Field(
        1.0, description="largest gradient norm; 0: no clipping, as in the paper"
    )
    precision: Literal["auto", "fp32", "bf16"] = Field(
        "auto", description="auto: bf16 where the hardware has it, else fp32"
    )
    compile: Auto | bool = Field("auto", description="torch.compile; auto: off")
    log_every: Positive = Field(50, description="steps between records in metrics.jsonl")
    tensorboard: bool = Field(False, description="write the records for TensorBoard, too")
    valid_every: Positive = Field(1000, description="steps; a multiple of save_every")
    save_every: Positive = Field(1000, description="steps between scheduled checkpoints")
    keep_checkpoints: Positive = Field(5, description="last scheduled ones, besides the best")
    patience: NotNegative = Field(10, description="validations without a better score; 0: off")
    metric: Literal["bleu", "chrf", "nll"] = Field("bleu", description="what 'best' means")
    average_last: NotNegative = Field(
        5, description="checkpoints averaged for the final model; 0: off"
    )

    def is_validated(self, step: int) -> bool:
        """Whether a validation is due at a step."""
        return step % self.valid_every == 0 or step == self.max_steps

    def is_scheduled(self, step: int) -> bool:
        """Whether the checkpoint of a step is a scheduled one."""
        return step % self.save_every == 0 or step == self.max_steps


class DecodeConfig(Section):
    """How translations are searched for."""

    beam_size: Annotated[int, Field(ge=1, le=1000)] = Field(
        4, description="hypotheses kept a sentence; 1 is greedy search"
    )
    length_penalty: Annotated[float, Field(ge=0, le=10)] = Field(
        0.6, description="alpha; larger prefers longer translations"
    )
    length_norm: Literal["gnmt", "power"] = Field(
        "gnmt", description="gnmt: ((5 + length) / 6) ** alpha; power: length ** alpha"
    )
    sample: bool = Field(False, description="draw translations at random instead of searching")
    temperature: Annotated[float, Field(ge=0.01, le=100)] = Field(
        1.0, description="of sampling: lower keeps to the likelier tokens"
    )
    top_k: NotNegative = Field(0, description="sample from so many likeliest tokens; 0: from all")
    top_p: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0, description="sample from the fewest tokens that hold this probability"
    )
    no_repeat_ngram: NotNegative = Field(
        0, description="no row of so many tokens comes twice in a translation; 0: off"
    )
    max_len_a: Annotated[float, Field(ge=0, le=1000)] = Field(
        1.0, description="limit = a * source length + b tokens"
    )
    max_len_b: Annotated[int, Field(ge=0, le=1 << 16)] = Field(
        50, description="the limit's constant part"
    )
    max_source_length: Annotated[int, Field(ge=2, le=1 << 20)] = Field(
        1024, description="tokens with eos; longer lines are cut there and warned of"
    )
    batch_tokens: Positive = Field(4096, description="padded source tokens x beam_size in a batch")
    window: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        20000, description="lines read ahead and sorted by length"
    )


class Config(Section):
    """The settings of a training run."""

    run_dir: PathText = Field(description="where the run is kept")
    seed: NotNegative = Field(1, description="fixes every random choice")
    data: DataConfig
    filter: FilterConfig = FilterConfig()
    tokenizer: TokenizerConfig = TokenizerConfig()
    model: ModelConfig = ModelConfig()
    train: TrainConfig = TrainConfig()
    decode: DecodeConfig = DecodeConfig()


# Settings that may differ between the starts of one run; corpora are compared by content instead.
FREE_KEYS = (
    "run_dir",
    "data.root",
    "data.train",
    "data.valid",
    "data.test",
    "data.workers",
    "decode",
    "train.max_steps",
    "train.patience",
    "train.log_every",
    "train.tensorboard",
    "train.keep_checkpoints",
    "train.average_last",
)
# Compared by what they resolve to on a machine, not as written.
MACHINE_KEYS = ("train.device", "train.threads", "train.precision", "train.compile")
# Keys of earlier versions, with the value that changes nothing now that they are gone.
REMOVED_KEYS: dict[tuple[str, str], object] = {("train", "shard_optimizer"): False}


def override_decode(decode: DecodeConfig, **given: object) -> DecodeConfig:
    """Replace the search settings that are given (not None); raises `RefusedError`."""
    changes = {key: value for key, value in given.items() if value is not None}
    try:
        return DecodeConfig.model_validate({**decode.model_dump(), **changes})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = str(first["loc"][0])
        option = "--" + key.replace("_", "-")
        raise RefusedError(f"{option} {changes[key]}: {expectation(first['msg'])}") from None


def expectation(message: str) -> str:
    """Shorten pydantic's message to what a value should be."""
    return re.sub("^(Input|String|List|Value) ", "", message).replace(" after validation", "")


def dump_config(config: Config) -> str:
    """Return a config as YAML that `load_config` reads back to an equal one."""
    return dump_document(config.model_dump())


def flatten(config: Config) -> dict[str, object]:
    """Return every setting by its dotted key; lists and named test sets count as one setting."""
    flat: dict[str, object] = {}
    for name, value in config.model_dump().items():
        if isinstance(value, dict):
            flat.update({f"{name}.{key}": item for key, item in value.items()})
        else:
            flat[name] = value
    return flat


def changed_keys(old: Config, new: Config) -> list[tuple[str, object, object]]:
    """List the settings that differ, as (dotted key, old value, new value)."""
    before, after = flatten(old), flatten(new)
    return [(key, before[key], after[key]) for key in after if before[key] != after[key]]


def is_among(key: str, keys: tuple[str, ...]) -> bool:
    """Whether a dotted key is one of `keys` or below one."""
    return any(key == other or key.startswith(other + ".") for other in keys)
