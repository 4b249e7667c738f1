"""Conflicts between settings that are valid by themselves."""

import re
from collections import Counter
from collections.abc import Iterator

from mtrain.config.corpora import Corpus, FileCorpus, GeneratedCorpus, HubCorpus, TextCorpus
from mtrain.config.languages import language_error
from mtrain.config.schema import Config, DataConfig, TrainConfig
from mtrain.runtime.log import logger

SPECIAL = re.compile("<pad>|<unk>|</?s>|<0x[0-9A-F]{2}>")  # pieces of every vocabulary
SPACED = "{!r} contains white space, which a piece cannot contain; remove it"  # of a tag or symbol


def conflicts(config: Config) -> Iterator[tuple[str, str]]:
    """Yield key and message of each conflict between settings that are valid by themselves."""
    model, train, data = config.model, config.train, config.data
    if model.d_model % model.num_heads:
        text = f"{model.num_heads} does not divide d_model {model.d_model}; change one of the two"
        yield "model.num_heads", text
    if model.positions == "sinusoidal" and model.d_model % 2:
        text = f"{model.d_model} is odd, but sinusoidal positions need an even d_model; change it"
        yield "model.d_model", text
    for symbol, times in Counter(config.tokenizer.user_symbols).items():
        if SPECIAL.fullmatch(symbol):
            yield "tokenizer.user_symbols", f"{symbol} is a special piece already; remove it"
        elif times > 1:
            yield "tokenizer.user_symbols", f"{symbol} is listed twice; remove one"
    if train.max_tokens < data.max_length:
        yield (
            "train.max_tokens",
            f"{train.max_tokens} is below data.max_length {data.max_length}: "
            "the longest pair would not fit into a batch; raise train.max_tokens, or lower "
            "data.max_length",
        )
    if train.valid_every % train.save_every:
        text = f"{train.valid_every} is not a multiple of train.save_every {train.save_every}"
        yield "train.valid_every", f"{text}; change one of the two"
    if train.init_vocabulary == "own" and train.init_from is None:
        yield "train.init_vocabulary", "own needs a model to start from; set train.init_from"
    if (total := sum(train.augment.model_dump().values())) > 1 + 1e-9:
        yield "train.augment", f"fractions add up to {total:.4g}; their sum may be at most 1"
    yield from _corpus_conflicts(data)
    yield from _learning_rate_conflicts(train)


def _corpus_conflicts(data: DataConfig) -> Iterator[tuple[str, str]]:
    for key, corpus in data.corpora.items():
        if SPECIAL.fullmatch(corpus.tag or ""):
            yield f"{key}.tag", f"{corpus.tag} is a special piece already; use another tag"
        elif re.search(r"[\s\u2581]", corpus.tag or ""):
            yield f"{key}.tag", SPACED.format(corpus.tag)
        if corpus.weight != 1 and not key.startswith("data.train."):
            yield f"{key}.weight", "works in data.train only; scored sets keep every line"
        if corpus.model:
            yield from _synthesis_conflicts(key, corpus)
            if isinstance(corpus, FileCorpus) and corpus.kind == "tmx":
                continue  # has been refused
        if isinstance(corpus, FileCorpus) and (conflict := column_conflict(corpus)):
            yield f"{key}.{conflict[0]}", conflict[1]


def column_conflict(corpus: FileCorpus) -> tuple[str, str] | None:
    """Return a key of a table's entry, and why its columns do not fit the format."""
    numbers = [isinstance(column, int) for column in (corpus.src, corpus.tgt)]
    if any(numbers) and corpus.kind == "tmx":
        return "file", "languages of a .tmx file are codes such as en, not numbers"
    if corpus.kind == "tmx" and str(corpus.src).lower() == str(corpus.tgt).lower():
        return "tgt", f"{corpus.tgt} is the source's language as well"
    if any(numbers) and corpus.kind != "tsv":
        return "file", f"fields of a .{corpus.kind} file have names, not numbers"
    if numbers[0] != numbers[1]:
        return "file", "src and tgt must both be column numbers, or both names"
    return None


def _synthesis_conflicts(key: str, corpus: Corpus) -> Iterator[tuple[str, str]]:
    if not key.startswith("data.train.") or isinstance(corpus, GeneratedCorpus):
        yield f"{key}.model", "is for files and datasets of data.train only"
    elif isinstance(corpus, FileCorpus) and corpus.kind == "tmx":
        yield f"{key}.file", "a .tmx file has both sides; give a .tsv, .jsonl or .parquet file"
    elif corpus.src == corpus.tgt and corpus.keep is not None:
        yield f"{key}.keep", "compares hypotheses with a reference; give src and tgt"
    elif corpus.src != corpus.tgt and corpus.keep is None:
        yield f"{key}.model", "makes the other side, but src and tgt are given; set keep: best"
    elif corpus.sample and corpus.keep is not None:
        yield f"{key}.keep", "chooses among the hypotheses of a beam; remove sample"
    if corpus.top_k and not corpus.sample:
        yield f"{key}.top_k", "is for sampling; set sample: true"


def _learning_rate_conflicts(train: TrainConfig) -> Iterator[tuple[str, str]]:
    schedule, warmup_steps = train.schedule, train.warmup_steps
    if train.lr_factor is not None and train.peak_lr is not None:
        yield "train.peak_lr", "give either lr_factor or peak_lr, not both"
    elif schedule != "noam" and train.lr_factor is not None:
        yield "train.lr_factor", f"is for schedule noam; {schedule} takes peak_lr"
    elif schedule != "noam" and train.peak_lr is None:
        yield "train.schedule", f"{schedule} needs train.peak_lr, the peak learning rate"
    if schedule in ("noam", "inverse_sqrt") and warmup_steps < 1:
        yield "train.warmup_steps", f"schedule {schedule} needs at least 1 warm-up step"
    if schedule in ("linear", "cosine") and warmup_steps >= train.max_steps:
        text = f"{warmup_steps} is not below train.max_steps {train.max_steps}; lower it"
        yield "train.warmup_steps", f"{text}, or raise train.max_steps"


def new_conflicts(config: Config) -> Iterator[tuple[str, str]]:
    """Yield the conflicts that are refused in new configs only, as earlier versions allowed them
    and their runs must load; warn of settings that may be a mistake.
    """
    yield from _language_conflicts(config.data)
    if config.train.consistency is None and config.train.cutoff != TrainConfig().cutoff:
        text = "is for train.consistency, which is off; set that, too, or remove train.cutoff"
        yield "train.cutoff", text
    is_theirs = config.train.init_from and config.train.init_vocabulary == "theirs"
    is_new = config.tokenizer.path is None and not is_theirs
    if is_new and config.train.subword_sampling and config.tokenizer.model_type != "bpe":
        text = "drops merges, which only tokenizer.model_type: bpe has; set that, or remove it"
        yield "train.subword_sampling", text
    for key, corpus in config.data.corpora.items():
        if not isinstance(corpus, GeneratedCorpus) and not corpus.model:
            yield from _same_sides(key, corpus)
        if corpus.tag and corpus.tag.isalnum():
            text = "%s.tag: %s becomes a piece wherever text contains it; did you mean <%s>?"
            logger.warning(text, key, corpus.tag, corpus.tag)
    for name in config.data.test:
        if re.fullmatch(r"valid(\.[0-9]+)?", name):
            text = (
                "is the name of a validation set, as in `--on valid`; give the test set another one"
            )
            yield f"data.test.{name}", text
    for symbol in config.tokenizer.user_symbols:
        if re.search(r"\s", symbol):
            yield "tokenizer.user_symbols", SPACED.format(symbol)


def _same_sides(key: str, corpus: TextCorpus | FileCorpus | HubCorpus) -> Iterator[tuple[str, str]]:
    """Yield a conflict if both sides are the same column or file; warn of a file of training text,
    since copies of text can be meant to be learned from.
    """
    if corpus.src != corpus.tgt:
        return
    if not isinstance(corpus, TextCorpus):
        yield f"{key}.tgt", f"{corpus.tgt} is the source's column as well; give the translation's"
    elif not key.startswith("data.train."):
        yield f"{key}.tgt", f"{corpus.tgt} is the source's file as well; give the translation"
    else:
        text = "%s.tgt: %s is the source's file as well: the model learns to copy it; give the "
        logger.warning(text + "translation unless this is intended", key, corpus.tgt)


def _language_conflicts(data: DataConfig) -> Iterator[tuple[str, str]]:
    """Yield a conflict for each unknown target language, on which BLEU depends, unless
    `data.bleu_tokenize` is set; warn of unknown source languages.
    """
    if data.src_lang == data.tgt_lang and (data.src_lang, data.tgt_lang) in data.directions:
        logger.warning(
            "data.tgt_lang: %s is the source language, too; change one unless this is intended",
            data.tgt_lang,
        )
    targets = {data.tgt_lang, *(data.languages(each)[1] for each in data.scored_corpora.values())}
    for key, section in {"data": data, **data.corpora}.items():
        for side in ("src_lang", "tgt_lang"):
            code = getattr(section, side)
            if not code or (text := language_error(code)) is None:
                continue
            if code not in targets:
                logger.warning("%s.%s: %s", key, side, text)
            elif data.bleu_tokenize is None:
                advice = "(BLEU depends on it; to keep it, set data.bleu_tokenize: 13a)"
                yield f"{key}.{side}", f"{text} {advice}"
