"""All settings: name, type, default, check and description.

`loading` reads a config from strict YAML (`yaml_reader`) and checks it.
"""

import re
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, Tag, ValidationError

from mtrain.config.corpora import (
    BY_TYPE,
    ONE,
    Corpus,
    CorpusEntry,
    CorpusList,
    Fraction,
    NonEmptyStr,
    NonNegativeInt,
    PathText,
    Piece,
    PositiveInt,
    Section,
)
from mtrain.config.languages import BleuTokenizer, known_script, tokenizer_for
from mtrain.config.yaml_reader import dump_document
from mtrain.runtime.errors import RefusedError

Auto = Literal["auto"]
# Larger than in any model: a forged config must not exhaust the machine before it is refused.
MAX_WIDTH = 1 << 17
UnitInterval = Annotated[float, Field(ge=0, le=1)]
Width = Annotated[int, Field(ge=1, le=MAX_WIDTH)]
Layers = Annotated[int, Field(ge=1, le=1000)]
MicroBatches = Annotated[int, Field(ge=1, le=1 << 16)]
PositiveFloat = Annotated[float, Field(gt=0)]
Metric = Literal["bleu", "chrf", "nll", "command"]
Script = Annotated[NonEmptyStr, AfterValidator(known_script)]
FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]{0,199}$")]


class DataConfig(Section):
    """The text that the model learns from, and the text that it is evaluated on."""

    root: PathText | None = None
    """directory that relative corpus paths start from; null: the working directory"""
    src_lang: NonEmptyStr
    """source language code"""
    tgt_lang: NonEmptyStr
    """target language code; BLEU is tokenized for it"""
    bleu_tokenize: BleuTokenizer | None = None
    """sacreBLEU's tokenizer for BLEU; null: that of the target language"""
    train: Annotated[list[Corpus], Field(min_length=1)]
    """corpora to learn from, concatenated"""
    temperature: Annotated[float, Field(ge=1, le=1000)] = 1.0
    """above 1: use small corpora more often, as if of size ** (1 / temperature)"""
    valid: Annotated[Annotated[Corpus, Tag(ONE)] | CorpusList, BY_TYPE]
    """corpus that is translated and scored during training, or a list: the mean score decides"""
    test: dict[FileName, Corpus] = {}
    """corpora scored at the end of training, by name: a letter or digit, then also _ . + -"""
    max_length: Annotated[int, Field(ge=2, le=1 << 16)] = 256
    """maximum length of a side in tokens, with eos; longer training pairs are dropped"""
    invalid_utf8: Literal["error", "drop"] = "error"
    """what to do with pairs that are not UTF-8: error or drop"""
    allow_swapped: bool = False
    """train even if the sides of a corpus or a scored set seem to be swapped"""
    allow_overlap: bool = False
    """train even if over nine in ten pairs of a scored set are in the training text"""
    workers: Auto | Annotated[int, Field(ge=1, le=1024)] = "auto"
    """processes that tokenize or check large corpora; auto: one per core; 1: no additional ones"""

    @property
    def available_train(self) -> list[Corpus]:
        """The corpora of `train`, except entries whose synthetic side does not exist yet."""
        return [corpus for corpus in self.train if not corpus.model]

    @property
    def valid_corpora(self) -> list[Corpus]:
        """The validation corpora as a list, even if there is only one."""
        return self.valid if isinstance(self.valid, list) else [self.valid]

    @property
    def valid_keys(self) -> list[str]:
        """The keys of the validation corpora in the config."""
        if isinstance(self.valid, list):
            return [f"data.valid.{number}" for number in range(len(self.valid))]
        return ["data.valid"]

    @property
    def corpora(self) -> dict[str, Corpus]:
        """Every corpus by its key in the config."""
        train = {f"data.train.{number}": corpus for number, corpus in enumerate(self.train)}
        return train | self.scored_corpora

    @property
    def scored_corpora(self) -> dict[str, Corpus]:
        """The validation and test corpora by their keys."""
        valid = dict(zip(self.valid_keys, self.valid_corpora, strict=True))
        return valid | {f"data.test.{name}": corpus for name, corpus in self.test.items()}

    def languages(self, corpus: CorpusEntry) -> tuple[str, str]:
        """Return source and target language of the direction that the model learns."""
        src, tgt = corpus.src_lang or self.src_lang, corpus.tgt_lang or self.tgt_lang
        return (tgt, src) if corpus.swap else (src, tgt)

    def as_forward(self, corpus: Corpus) -> Corpus:
        """Return a corpus with its sides exchanged if it is learned from target to source."""
        back = (self.tgt_lang, self.src_lang)
        is_backward = self.src_lang != self.tgt_lang and self.languages(corpus) == back
        return corpus.model_copy(update={"swap": not corpus.swap}) if is_backward else corpus

    def tokenizer_of(self, corpus: CorpusEntry) -> str:
        """Return sacreBLEU's tokenizer for translations of a scored corpus."""
        return self.bleu_tokenize or tokenizer_for(self.languages(corpus)[1])

    @property
    def tokenizers(self) -> list[str]:
        """Tokenizers of the scored corpora."""
        return list(dict.fromkeys(map(self.tokenizer_of, self.scored_corpora.values())))

    @property
    def directions(self) -> list[tuple[str, str]]:
        """Source and target language of each direction that the model learns."""
        return list(dict.fromkeys(map(self.languages, self.train)))


class FilterConfig(Section):
    """Which training pairs are dropped and counted, in addition to those over `data.max_length`."""

    min_length: NonNegativeInt = 0
    """drop pairs with fewer tokens on either side, with eos"""
    max_ratio: Annotated[float, Field(ge=1)] | None = None
    """drop pairs with a side over this many times as long as the other, in tokens; null: off"""
    identical: bool = False
    """drop pairs with the same text on both sides"""
    duplicates: bool = False
    """drop all but the first of equal pairs"""
    control: bool = False
    """drop pairs with control or private-use characters, line separators or U+FFFD"""
    src_script: list[Script] = []
    """drop pairs whose source is not in these Unicode scripts, such as [Latin]; []: off"""
    tgt_script: list[Script] = []
    """drop pairs whose target is not in these Unicode scripts, such as [Latin]; []: off"""
    script_share: Annotated[float, Field(gt=0, le=1)] = 0.5
    """smallest fraction of letters that must be in these scripts"""


class TokenizerConfig(Section):
    """The subword vocabulary shared by both sides."""

    path: PathText | None = None
    """existing SentencePiece model to use as it is; null: train one"""
    vocab_size: PositiveInt = 8000
    """number of pieces, including special pieces and bytes"""
    model_type: Literal["bpe", "unigram"] = "bpe"
    """SentencePiece algorithm: bpe or unigram"""
    normalization: Literal["identity", "nfkc", "nmt_nfkc"] = "identity"
    """identity keeps text as it is; nfkc and nmt_nfkc change both sides, the output too"""
    character_coverage: Annotated[float, Field(ge=0.98, le=1)] = 0.9995  # SentencePiece's range
    """fraction of all characters that get a piece; rarer ones are spelled as bytes"""
    byte_fallback: bool = True
    """spell unknown characters as bytes, so that none is lost"""
    split_digits: bool = False
    """make every digit a piece of its own, as SentencePiece's option does"""
    user_symbols: list[Piece] = []
    """texts that always stay one piece, such as tags and placeholders"""


class ModelConfig(Section):
    """The shape of the Transformer."""

    d_model: Annotated[int, Field(ge=2, le=MAX_WIDTH)] = 512
    """width of every layer"""
    num_heads: Width = 8
    """attention heads; must divide d_model"""
    d_ff: Width = 2048
    """inner width of the feed-forward layers"""
    num_encoder_layers: Layers = 6
    """encoder layers"""
    num_decoder_layers: Layers = 6
    """decoder layers"""
    dropout: Fraction = 0.1
    """residual and embedding dropout, as in the paper"""
    attention_dropout: Fraction = 0.0
    """dropout of attention weights"""
    activation_dropout: Fraction = 0.0
    """dropout after the ReLU of the feed-forward layers"""
    norm: Literal["post", "pre"] = "post"
    """layer norm after (post) or before (pre) each block"""
    positions: Literal["sinusoidal", "learned"] = "sinusoidal"
    """position encoding: sinusoidal, or learned, for up to data.max_length tokens"""
    tie_embeddings: Literal["all", "output", "none"] = "all"
    """embeddings that share a matrix: all, output (target and output layer) or none"""


class AugmentConfig(Section):
    """Fractions of the training pairs that are changed in each epoch, each pair in one way."""

    upper: UnitInterval = 0.0
    """put both sides in capitals"""
    title: UnitInterval = 0.0
    """begin each word of both sides with a capital"""
    no_final: UnitInterval = 0.0
    """remove the final punctuation of the source"""
    typos: UnitInterval = 0.0
    """make typing errors in the source"""
    numbers: UnitInterval = 0.0
    """replace numbers that both sides have, except 0 and 1, by the same other numbers"""


class TrainConfig(Section):
    """How the model is trained, saved and evaluated."""

    device: Annotated[str, Field(pattern=r"^(auto|cpu|mps|cuda(:[0-9]+)?)$")] = "auto"
    """cpu, cuda, cuda:N, mps or auto: cuda if there is one, else mps, else cpu"""
    threads: Auto | Annotated[int, Field(ge=1, le=4096)] = "auto"
    """CPU threads; auto: one per core"""
    max_steps: PositiveInt = 100000
    """optimizer updates; a larger number continues a complete run"""
    max_tokens: PositiveInt = 4096
    """largest micro-batch on each process, in padded tokens per side: rows x longest side"""
    accum_steps: MicroBatches = 1
    """micro-batches per step on each process, if step_batches is not given"""
    step_batches: MicroBatches | None = None
    """micro-batches per step over all processes, mixing lengths; cannot change in a run"""
    optimizer: Literal["adam", "muon"] = "adam"
    """adam, or muon for the matrices of the layers, which learns in fewer steps"""
    init_from: PathText | None = None
    """run or checkpoint directory whose weights and vocabulary training starts from"""
    init_vocabulary: Literal["theirs", "own"] = "theirs"
    """vocabulary with init_from: theirs, or own, whose new pieces start as means of old ones"""
    subword_sampling: Annotated[float, Field(gt=0, lt=1)] | None = None
    """BPE-dropout: fraction of merges to skip at random, such as 0.05; null: off"""
    augment: AugmentConfig = AugmentConfig()
    """fractions of pairs to change in each epoch, so that such text is learned, too"""
    ema_decay: Annotated[float, Field(gt=0, lt=1)] | None = None
    """validate and save a moving average of the weights, with this decay per step; null: off"""
    schedule: Literal["noam", "inverse_sqrt", "linear", "cosine", "constant"] = "noam"
    """learning rate after the warm-up: noam, inverse_sqrt, linear, cosine or constant"""
    warmup_steps: NonNegativeInt = 4000
    """steps of linear warm-up"""
    lr_factor: PositiveFloat | None = None
    """noam: factor of the paper's learning rate; 1.0 if peak_lr is not given either"""
    peak_lr: PositiveFloat | None = None
    """peak learning rate, instead of lr_factor"""
    label_smoothing: Fraction = 0.1
    """probability mass that is spread evenly over the vocabulary"""
    consistency: PositiveFloat | None = None
    """SimCut: weight of the divergence from a view with zeroed embeddings, such as 1; null: off"""
    cutoff: Annotated[float, Field(gt=0, lt=1)] = 0.05
    """fraction of token embeddings that the second view of consistency sets to zero"""
    adam_betas: Annotated[list[Fraction], Field(min_length=2, max_length=2)] = [0.9, 0.98]
    """decay rates of Adam's two moments"""
    adam_eps: PositiveFloat = 1e-9
    """Adam's epsilon"""
    clip_norm: Annotated[float, Field(ge=0)] = 1.0
    """maximum gradient norm; 0: no clipping, as in the paper"""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """fp32, bf16 or auto: bf16 where the hardware has it, else fp32"""
    compile: Auto | bool = "auto"
    """use torch.compile; auto: on CUDA with packing and a d_model of 512 or more"""
    packing: Auto | bool = "auto"
    """pack pairs into rows of 128 tokens per side; auto: on CUDA"""
    log_every: PositiveInt = 50
    """steps between records in metrics.jsonl"""
    tensorboard: bool = False
    """also write the records to RUN_DIR/tensorboard; needs mtrain[tensorboard]"""
    valid_every: PositiveInt = 1000
    """steps between validations; a multiple of save_every"""
    save_every: PositiveInt = 1000
    """steps between scheduled checkpoints"""
    keep_checkpoints: PositiveInt = 5
    """number of newest checkpoints to keep, in addition to the best; at least average_last"""
    patience: NonNegativeInt = 10
    """stop after this many validations without a better score; 0: off"""
    metric: Metric = "bleu"
    """score that chooses the best model: bleu, chrf, nll or command (train --metric-command)"""
    average_last: NonNegativeInt = 5
    """number of newest checkpoints that are averaged at the end; 0 or 1: none"""

    def micro_batches(self, ranks: int) -> int:
        """Return the micro-batches per step of a run that starts with a number of ranks."""
        return self.step_batches or self.accum_steps * ranks

    def is_validated(self, step: int) -> bool:
        """Whether a validation is due at a step."""
        return step % self.valid_every == 0 or step >= self.max_steps

    def is_scheduled(self, step: int) -> bool:
        """Whether the checkpoint of a step is a scheduled one."""
        return step % self.save_every == 0 or step >= self.max_steps


class DecodeConfig(Section):
    """How the model searches for translations, or samples them."""

    beam_size: Annotated[int, Field(ge=1, le=1000)] = 4
    """hypotheses kept per sentence; 1 is greedy search"""
    length_penalty: Annotated[float, Field(ge=0, le=10)] = 0.6
    """alpha; larger values prefer longer translations"""
    length_norm: Literal["gnmt", "power"] = "gnmt"
    """divide scores by ((5 + length) / 6) ** alpha (gnmt) or length ** alpha (power)"""
    sample: bool = False
    """sample translations at random instead of searching"""
    temperature: Annotated[float, Field(ge=0.01, le=100)] = 1.0
    """sampling temperature; below 1 prefers likely tokens"""
    top_k: NonNegativeInt = 0
    """number of most likely tokens to sample from; 0: all"""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """sample from the most likely tokens that together have this probability"""
    no_repeat_ngram: NonNegativeInt = 0
    """never repeat an n-gram of this length; 0: off"""
    max_len_a: Annotated[float, Field(ge=0, le=1000)] = 1.0
    """longest translation: max_len_a * source length + max_len_b tokens"""
    max_len_b: Annotated[int, Field(ge=0, le=1 << 16)] = 50
    """constant part of the longest translation, in tokens"""
    max_source_length: Annotated[int, Field(ge=2, le=1 << 20)] = 1024
    """longest source in tokens, with eos; longer lines are cut, with a warning"""
    batch_tokens: PositiveInt = 4096
    """largest batch, in padded source tokens x beam_size; a longer line is a batch of its own"""
    window: Annotated[int, Field(ge=1, le=1_000_000)] = 20000
    """lines read ahead and sorted by length"""

    def target_limit(self, source_length: int) -> int:
        """Return the length in tokens, with eos, of the longest translation of a source of this
        length without eos.
        """
        return int(self.max_len_a * source_length + self.max_len_b) + 1


class Config(Section):
    """The settings of a training run."""

    run_dir: PathText
    """directory of the run"""
    seed: NonNegativeInt = 1
    """seed of every random choice"""
    data: DataConfig
    filter: FilterConfig = FilterConfig()
    tokenizer: TokenizerConfig = TokenizerConfig()
    model: ModelConfig = ModelConfig()
    train: TrainConfig = TrainConfig()
    decode: DecodeConfig = DecodeConfig()

    @property
    def tags(self) -> list[str]:
        """Tags of all corpora, in the order of their first use."""
        return list(dict.fromkeys(each.tag for each in self.data.corpora.values() if each.tag))

    @property
    def user_symbols(self) -> list[str]:
        """Texts that the vocabulary keeps whole: `tokenizer.user_symbols` and the tags."""
        return list(dict.fromkeys([*self.tokenizer.user_symbols, *self.tags]))


SECTIONS: dict[str, type[Section]] = {
    name: field.annotation
    for name, field in Config.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, Section)
}


def override_decode(
    decode: DecodeConfig, display_name: Callable[[str], str] = str, **given: object
) -> DecodeConfig:
    """Replace the search settings that are given (not None). Raises `RefusedError`, whose message
    shows a setting as `display_name` returns it.
    """
    changes = {key: value for key, value in given.items() if value is not None}
    try:
        return DecodeConfig.model_validate({**decode.model_dump(), **changes})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = str(first["loc"][0])
        raise RefusedError(f"{display_name(key)} {changes[key]!r}: {expectation(first)}") from None


def expectation(error: Any) -> str:
    """Return what a value should be, from an error of pydantic."""
    if error["type"] in ("model_type", "dict_type", "union_tag_not_found"):
        return "should be a mapping of settings"
    if error["type"] == "list_type":
        return "should be a list"
    if error["type"] == "string_pattern_mismatch":
        return "should have the described form"
    if error["type"] == "string_unicode":  # in the name of a file
        return "should be UTF-8"
    message = str(error["ctx"]["error"]) if error["type"] == "value_error" else error["msg"]
    return re.sub("^(Input|String|List|Value) ", "", message).replace(" after validation", "")


def dump_config(config: Config) -> str:
    """Return a config as YAML that `load_config` reads back to an equal one."""
    return dump_document(config.model_dump())
