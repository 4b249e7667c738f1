"""Settings: every default, every refusal with its place, and YAML without surprises."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from mtrain.config.changes import changed_keys, fixed_changes
from mtrain.config.corpora import KINDS, HubCorpus, TextCorpus
from mtrain.config.loading import load_config, load_stored_config
from mtrain.config.schema import (
    SECTIONS,
    Config,
    DataConfig,
    TokenizerConfig,
    TrainConfig,
    dump_config,
)
from mtrain.runtime.errors import EXIT_REFUSED, RefusedError, printable
from mtrain.runtime.files import VARIABLE

# The contract's settings with their defaults; `required` for those without one.
DEFAULTS = """
data: {root: null, src_lang: required, tgt_lang: required, bleu_tokenize: null, train: required,
  temperature: 1.0, valid: required, test: {}, max_length: 256, invalid_utf8: error,
  allow_swapped: false, allow_overlap: false, workers: auto}
filter: {min_length: 0, max_ratio: null, identical: false, duplicates: false, control: false,
  src_script: [], tgt_script: [], script_share: 0.5}
tokenizer: {path: null, vocab_size: 8000, model_type: bpe, normalization: identity,
  character_coverage: 0.9995, byte_fallback: true, split_digits: false,
  user_symbols: []}
model: {d_model: 512, num_heads: 8, d_ff: 2048, num_encoder_layers: 6, num_decoder_layers: 6,
  dropout: 0.1, attention_dropout: 0.0, activation_dropout: 0.0, norm: post,
  positions: sinusoidal, tie_embeddings: all}
train: {device: auto, threads: auto, max_steps: 100000, max_tokens: 4096, accum_steps: 1,
  step_batches: null,
  optimizer: adam, init_from: null, init_vocabulary: theirs, subword_sampling: null,
  augment: {upper: 0.0, title: 0.0, no_final: 0.0, typos: 0.0, numbers: 0.0},
  ema_decay: null, schedule: noam, warmup_steps: 4000, lr_factor: null, peak_lr: null,
  label_smoothing: 0.1, consistency: null, cutoff: 0.05,
  adam_betas: [0.9, 0.98], adam_eps: 1.0e-9, clip_norm: 1.0, precision: auto, compile: auto,
  packing: auto, log_every: 50, tensorboard: false, valid_every: 1000, save_every: 1000,
  keep_checkpoints: 5, patience: 10, metric: bleu, average_last: 5}
decode: {beam_size: 4, length_penalty: 0.6, length_norm: gnmt, sample: false, temperature: 1.0,
  top_k: 0, top_p: 1.0, no_repeat_ngram: 0, max_len_a: 1.0, max_len_b: 50,
  max_source_length: 1024, batch_tokens: 4096, window: 20000}
"""
MANUAL = Path(__file__).parents[2] / "configs" / "multi30k-en-de.yaml"

DATA = """\
run_dir: runs/x
data:
  src_lang: en
  tgt_lang: de
  train: [{src: a.en, tgt: a.de}]
  valid: {src: v.en, tgt: v.de}
"""


def load(directory: Path, text: str, *overrides: str) -> Config:
    path = directory / "c.yaml"
    path.write_text(text, encoding="utf-8")
    return load_config(path, list(overrides))


def refusal(directory: Path, text: str | bytes, *overrides: str) -> str:
    """Return what a config is refused with; nothing may be written."""
    path = directory / "c.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(RefusedError) as caught:
        load_config(path, list(overrides))
    assert caught.value.exit_code == EXIT_REFUSED
    assert [item.name for item in directory.iterdir()] == ["c.yaml"]
    return str(caught.value)


def test_violations_are_listed_from_the_first_line_to_the_last(tmp_path: Path) -> None:
    text = DATA + "model: {d_model: x}\ntrain:\n" + "\n" * 90 + "  max_steps: y\n  seed: 1\n"
    message = refusal(tmp_path, f"sed: 1\n{text}", "train.warmup_steps=z")
    keys = [line.split(": ")[1] for line in message.splitlines()]
    assert keys == ["sed", "model.d_model", "train.max_steps", "train.seed", "train.warmup_steps"]


# --- defaults ---------------------------------------------------------------------------------


def test_defaults_are_the_contract_s(tmp_path: Path) -> None:
    config = load(tmp_path, DATA).model_dump()
    assert config.pop("run_dir") == "runs/x"
    assert config.pop("seed") == 1
    expected = yaml.safe_load(DEFAULTS)
    assert config.keys() == expected.keys()
    for name, defaults in expected.items():
        assert list(config[name]) == list(defaults), f"keys of {name}"
        for key, default in defaults.items():
            assert default in ("required", config[name][key]), f"{name}.{key}"


def comments(text: str) -> dict[str, str]:
    """Return the comment of each setting of the manual, which may take several lines."""
    found: dict[str, str] = {}
    section = key = ""
    for line in text.splitlines():
        if match := re.match(r"( *)(\w+):.*?(?: # (.*))?$", line):
            indent, name, comment = match.groups()
            section, key = (section, f"{section}.{name}") if indent else (name, name)
            found.setdefault(key, comment or "")
        elif match := re.match(r" {20,}# (.*)", line):
            found[key] += f" {match[1]}"
    return found


def test_the_manual_describes_every_setting_as_the_schema_does() -> None:
    """With the default in brackets where the manual sets another value."""
    shown, config = comments(MANUAL.read_text()), load_config(MANUAL)
    for section, kind in [("", Config), *SECTIONS.items()]:
        for name, field in kind.model_fields.items():
            if name in SECTIONS:
                continue
            key = f"{section}.{name}".strip(".")
            match = re.match(r"(?:\[([^]]+)\] )?(.*)", shown[key])
            assert match is not None
            assert match[2].startswith(str(field.description)), key
            if not field.is_required() and key != "data.test":
                value = getattr(getattr(config, section, config), name)
                assert field.default == (value if match[1] is None else yaml.safe_load(match[1]))


@pytest.mark.parametrize("section", [*SECTIONS.values(), *KINDS.values()])
def test_each_setting_has_a_description(section: type[BaseModel]) -> None:
    assert all(field.description for field in section.model_fields.values())


def test_a_tag_that_is_a_word_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    load(tmp_path, DATA, "data.train=[{src: a, tgt: b, tag: de}, {src: a, tgt: b, tag: <2de>}]")
    text = "data.train.0.tag: de becomes a piece wherever text contains it; did you mean <de>?"
    assert caplog.messages == [text]


def test_corpora_have_keys_directions_and_tags(tmp_path: Path) -> None:
    entries = "{src: a, tgt: b, tag: <x>}", "{src: a, tgt: b, tag: <y>, swap: true, tgt_lang: fr}"
    several = f"[{', '.join(entries)}]"
    changes = [f"data.{key}={several}" for key in ("train", "valid")]
    changes += ["data.test={t: {src: a, tgt: b, tag: <z>}}", "tokenizer.user_symbols=[<y>, <u>]"]
    config = load(tmp_path, DATA, *changes)
    names = ["train.0", "train.1", "valid.0", "valid.1", "test.t"]
    assert list(config.data.corpora) == [f"data.{name}" for name in names]
    assert config.data.directions == [("en", "de"), ("fr", "en")]
    assert (config.tags, config.user_symbols) == (
        ["<x>", "<y>", "<z>"],
        ["<y>", "<u>", "<x>", "<z>"],
    )
    assert load(tmp_path, dump_config(config)) == config


@pytest.mark.parametrize(
    "text", ["1e-4", "5E-4", "0.0005", ".0005", "1", "1.0e-3", "+2e-3", "5e+1"]
)
def test_numbers_are_numbers(tmp_path: Path, text: str) -> None:
    assert load(tmp_path, DATA, f"train.peak_lr={text}").train.peak_lr == float(text)


def test_a_sum_of_fractions_may_be_rounded_up(tmp_path: Path) -> None:
    parts = {"upper": 0.05, "title": 0.55, "no_final": 0.3, "typos": 0.1}
    assert 0.05 + 0.55 + 0.3 + 0.1 > 1
    load(tmp_path, DATA, *(f"train.augment.{key}={part}" for key, part in parts.items()))


@pytest.mark.parametrize(
    "override",
    [
        "train={max_tokens: 256}",  # as data.max_length
        "train={lr_factor: 2}",
        "train={schedule: linear, peak_lr: 1, warmup_steps: 0}",
        "train={schedule: cosine, peak_lr: 1, warmup_steps: 8, max_steps: 9}",
        "train={schedule: constant, peak_lr: 1, warmup_steps: 9, max_steps: 9}",
        "train={warmup_steps: 1}",
        "train={consistency: 1, cutoff: 0.2}",
        "train={init_vocabulary: own, init_from: x}",
        "train={subword_sampling: 0.1}",
        "tokenizer={model_type: unigram}",
        "model={d_model: 7, num_heads: 1, positions: learned}",
    ],
)
def test_settings_that_are_not_quite_in_conflict_are_taken(tmp_path: Path, override: str) -> None:
    load(tmp_path, DATA, override)


def test_merges_may_be_dropped_from_a_vocabulary_that_exists(tmp_path: Path) -> None:
    """Its own type counts, not that of the config."""
    settings = ["train.subword_sampling=0.1", "tokenizer.model_type=unigram"]
    for existing in ("tokenizer.path=x", "train.init_from=x"):
        load(tmp_path, DATA, *settings, existing)
    for none_exists in ([], ["train.init_from=x", "train.init_vocabulary=own"]):
        assert "drops merges" in refusal(tmp_path, DATA, *settings, *none_exists)


def test_a_byte_order_mark_and_carriage_returns_are_read_over(tmp_path: Path) -> None:
    text = "\ufeff" + DATA.replace("\n", "\r\n")
    assert load(tmp_path, text) == load(tmp_path, DATA)


def test_quoted_words_stay_words(tmp_path: Path) -> None:
    text = DATA.replace("src_lang: en", 'src_lang: "no"') + "tokenizer: {user_symbols: ['1', 'on']}"
    config = load(tmp_path, text)
    assert config.data.src_lang == "no"
    assert config.tokenizer.user_symbols == ["1", "on"]


# --- refusals ---------------------------------------------------------------------------------

TRAIN = "{src: a.en, tgt: a.de}"
# What replaces the training corpus in line 5, and the message without `data.train.0.`.
CORPORA_REFUSED = [
    ("{file: a.csv, src: 0, tgt: 1}", "file: described form, got 'a.csv' a .tsv, .jsonl or .tmx"),
    ("{file: a.csv, src: 0, tgt: 1}", "file: for a table, {{dataset: FOLDER, split: train"),
    ("{src: a.parquet}", "tgt: required, but missing {{file: a.parquet, src: en, tgt: de}}"),
    ("{src: 'a, b.tsv'}", 'tgt: {{file: "a, b.tsv", src: 0, tgt: 1}}'),
    ("{tgt: a.tsv.gz}", "src: required, but missing {{file: a.tsv.gz, src: 0, tgt: 1}}"),
    ("{file: a.tsv, src: 0, tgt: de}", "file: both be column numbers"),
    ("{file: a.jsonl, src: 0, tgt: 1}", "file: names, not numbers"),
    ("{file: a.jsonl, src: 0, tgt: de}", "file: names, not numbers"),
    ("{file: a.jsonl, src: 0, model: m}", "file: names, not numbers"),
    ("{file: a.tmx, src: en, model: m}", "file: a .tmx file has both sides"),
    ("{file: a.tmx.gz, src: 0, tgt: de}", "file: codes such as en"),
    ("{file: a.tmx, src: en-us, tgt: en-US}", "tgt: en-US is the source's language"),
    ("{file: a.tsv, src: 0, tgt: 0}", "tgt: 0 is the source's column as well; give"),
    ("{file: a.parquet, src: a, tgt: a}", "tgt: a is the source's column as well"),
    ("{dataset: ./x, split: s, src: a, tgt: a}", "tgt: a is the source's column as well"),
    ("{file: a.tsv, src: -1, tgt: 1}", "src: greater than or equal to 0 or a valid string"),
    ("{file: a.tsv, src: true, tgt: 1}", "src: integer or a valid string"),
    ("{file: a.tsv, src: 0}", "tgt: required, but missing (column of the target text"),
    ("{src: a.en}", "tgt: required, but missing (file of its translation"),
    ("{src: a.en, tgd: a.de}", "tgd: unknown key; did you mean data.train.0.tgt?"),
    ("{src: a.en, tgt: a.de, tag: <a b>}", "tag: '<a b>' contains white space"),
    ("{src: a.en, tgt: a.de, tag: \u2581x}", "tag: '\u2581x' contains white space"),
    ("{src: a.en, tgt: a.de, split: x}", "split: unknown key; it is for entries with generated or"),
    ("{generatd: phrasebook}", "generatd: unknown key; did you mean data.train.0.generated?"),
    ("{src: 5, tgt: a.de}", "src: should be a valid string, got 5"),
    ("{src: '', tgt: a.de}", "src: should have at least 1 character, got ''"),
    ("{generated: phrase, split: train, pairs: 9}", "generated: 'phrasebook', got 'phrase'"),
    ("{generated: phrasebook, split: x, pairs: 9}", "split: 'valid' or 'test', got 'x'"),
]
# What is replaced, by what, and the message.
CHANGED = [
    *((TRAIN, entry, f"5: data.train.0.{message}") for entry, message in CORPORA_REFUSED),
    ("run_dir: runs/x\n", "", "1: run_dir: required, but missing"),
    ("runs/x", "$NO_X/x", "1: run_dir: $NO_X is not set; set it or write the path out"),
    ("runs/x", "~", "1: run_dir: YAML reads ~ as null; write ~/ for the home directory"),
    ("src_lang: en", "root: ~\n  src_lang: en", "3: data.root: YAML reads ~ as null; write ~/"),
    ("  valid: {src: v.en, tgt: v.de}\n", "", "2: data.valid: required, but missing"),
    ("  src_lang: en\n", "", "2: data.src_lang: required, but missing (source language code"),
    (f"[{TRAIN}]", "[]", "5: data.train: at least 1 list of 0"),
    (f"[{TRAIN}]", "a.en", "5: data.train: should be a list, got 'a.en'"),
    (f"[{TRAIN}]", "a.tsv", "5: data.train: got 'a.tsv' {{file: a.tsv, src: 0, tgt: 1}}"),
    (f"[{TRAIN}]", TRAIN, "5: data.train: should be a list, got a mapping; write it as an item"),
    ("{src: v.en, tgt: v.de}", "v.en", "6: data.valid: should be a mapping got 'v.en'"),
    ("tgt: v.de}", "tgt: v.de, weight: 2}", "6: data.valid.weight: works in data.train only"),
    ("{src: v.en, tgt: v.de}", "[]", "6: data.valid: at least 1 item got a list of 0"),
    ("{src: v.en, tgt: v.de}", "[{src: a, tgt: b}, {tgt: c}]", "6: data.valid.1.src: required"),
    ("tgt: v.de}", "tgt: v.en}", "6: data.valid.tgt: v.en is the source's file as well; give the"),
    ("tgt: v.de}", "tgt: v.de, tag: <s>}", "6: data.valid.tag: <s> is a special piece"),
    ("tgt: v.de}", "tgt: v.de, tag: <0x41>}", "6: data.valid.tag: <0x41> is a special piece"),
    ("src_lang: en", "src_lang: no", '3: data.src_lang: write "no" in quotes'),
    ("tgt_lang: de", "tgt_lang: Yes", '4: data.tgt_lang: write "Yes" in quotes'),
    ("src_lang: en", "src_lang: True", '3: data.src_lang: write "True" in quotes'),
    ("tgt_lang: de", "tgt_lang: jp", "4: data.tgt_lang: jp: (ISO 639); did you mean ja? 13a"),
    ("v.de}", "v.de, tgt_lang: Chinese}", "6: data.valid.tgt_lang: Chinese: did you mean zh?"),
    ("v.de}", "v.de}\n  test: {src: a, tgt: b}", "7: data.test.src: 'a'; each set needs a name"),
    ("v.de}", "v.de}\n  test: {-x: {src: a, tgt: b}}", "7: data.test.-x: a letter or digit, then"),
    ("v.de}", "v.de}\n  test: {valid: {src: a, tgt: b}}", "7: data.test.valid: is the name of"),
    ("v.de}", "v.de}\n  test:\n    valid.10: {src: a, tgt: b}", "8: data.test.valid.10: is the"),
    ("v.de}", "v.de}\n  test: {augment: {scr: a}}", "7: data.test.augment.scr: did you mean data."),
    (
        "v.de}",
        "v.de}\n  test: [{src: a, tgt: b}]",
        "7: data.test: a mapping of settings, got a list of 1; each",
    ),
    ("v.de}", "v.de, swap: true, src_lang: cz}", "6: data.valid.src_lang: cz: did you mean cs?"),
    ("tgt_lang: de", "tgt_lang: de\n  bleu_tokenize: moses", "5: data.bleu_tokenize: '13a'"),
]
# What is added from line 7 on, and the message.
ADDED = [
    ("seeds: 3", "7: seeds: unknown key; did you mean seed?"),
    ("train:\n  max_step: 3", "8: train.max_step: unknown key; did you mean train.max_steps?"),
    ("max_steps: 3", "7: max_steps: unknown key; did you mean train.max_steps?"),
    ("device: cpu", "7: device: unknown key; did you mean train.device?"),
    ("d_model: 8", "7: d_model: unknown key; did you mean model.d_model?"),
    ("train.max_steps: 3", "7: train.max_steps: unknown key; dotted write max_steps below train:"),
    ("train: {beam_size: 3}", "7: train.beam_size: did you mean decode.beam_size?"),
    ("train: {lr: 3}", "7: train.lr: did you mean train.lr_factor or train.peak_lr?"),
    ("train: {seed: 3}", "7: train.seed: did you mean seed?"),
    ("decode: {max: 3}", "7: decode.max: did you mean decode.max_len_a or decode.max_len_b?"),
    ("lr: 3", "7: lr: unknown key; did you mean train.lr_factor or train.peak_lr?"),
    ("steps: 3", "7: steps: did you mean train.max_steps or train.accum_steps?"),
    ("train: {batch_size: 3}", "7: train.batch_size: did you mean train.max_tokens?"),
    ("model: {save_dir: x}", "7: model.save_dir: did you mean run_dir?"),
    ("decode: {alpha: 1}", "7: decode.alpha: did you mean decode.length_penalty?"),
    ("train: {weight_decay: 0.1}", "7: train.weight_decay: mtrain has no such setting; remove it"),
    ("quux: 3", "7: quux: unknown key; known here: run_dir, seed, data"),
    ("seed: 1\nseed: 2", "8: seed: duplicate key, first given at {}:7"),
    ("train:\n  patience: 1\n\n  patience: 2", "10: train.patience: duplicate key, {}:8"),
    ("seed: one", "7: seed: should be a valid integer, got 'one' (seed of"),
    (f"seed: {'x' * 999}", "7: seed: a valid integer, got 'xxx"),
    (f"seed: {'9' * 5000}", "7: seed: a valid integer, got '999"),
    ("seed: 1.5", "7: seed: a valid integer, got 1.5"),
    ("seed: '1'", "7: seed: a valid integer, got '1'"),
    ("seed: true", "7: seed: a valid integer, got true"),
    ("seed:", "7: seed: a valid integer, got nothing"),
    ("seed: 010", "7: seed: a valid integer, got 010"),
    ("seed: 1:30", "7: seed: a valid integer, got 1:30"),
    ("seed: [1]", "7: seed: a valid integer, got a list of 1"),
    ("seed: -1", "7: seed: should be greater than or equal to 0, got -1"),
    ("train: {max_steps: 1e5}", "7: train.max_steps: a valid integer, got 1e5"),
    ("train: {max_steps: 1_000_000_000_000}", "7: train.max_steps: should be less than 214748"),
    ("model: {dropout: 1.0}", "7: model.dropout: should be less than 1, got 1.0"),
    ("model: {dropout: .nan}", "7: model.dropout: a valid number, got .nan"),
    ("train: {peak_lr: 1e999}", "7: train.peak_lr: a finite number, got 1e999"),
    ("train: {adam_betas: [0.9]}", "7: train.adam_betas: at least 2 list of 1"),
    ("train: {adam_betas: [0.9, 2]}", "7: train.adam_betas less than 1, got 2"),
    ("model: {norm: Pre}", "7: model.norm: should be 'post' or 'pre', got 'Pre'"),
    ("train: {device: gpu}", "7: train.device: described form, got 'gpu' cuda:N"),
    ("model: {tie_embeddings: true}", "7: model.tie_embeddings: 'output' or 'none', got true (emb"),
    ("train: {compile: 1}", "7: train.compile: 'auto' or a valid boolean, got 1"),
    ('tokenizer: {path: "\\ud800"}', "7: tokenizer.path: should be UTF-8, got"),
    ("tokenizer: {path: ~}", "7: tokenizer.path: YAML reads ~ as null"),
    ("train: {init_from: ~}", "7: train.init_from: YAML reads ~ as null"),
    ("tokenizer: {character_coverage: 0.9}", "7: tokenizer.character_coverage: 0.98, got 0.9"),
    ("tokenizer: {user_symbols: [on]}", '7: tokenizer.user_symbols write "on" in quotes'),
    ("tokenizer: {user_symbols: [a, a]}", "7: tokenizer.user_symbols: a is listed twice"),
    ("tokenizer: {user_symbols: [a b]}", "7: tokenizer.user_symbols: 'a b' contains white space"),
    ("tokenizer: {user_symbols: [' x']}", "7: tokenizer.user_symbols: ' x' contains white space"),
    ("tokenizer: {user_symbols: [<s>]}", "7: tokenizer.user_symbols: <s> is a special"),
    ("model: none", "7: model: should be a mapping of settings, got 'none'"),
    ("train: []", "7: train: should be a mapping of settings, got a list of 0"),
    ("model: {num_heads: 7}", "7: model.num_heads: 7 does not divide d_model 512; change"),
    ("model: {d_model: 7, num_heads: 1}", "7: model.d_model: need an even d_model"),
    ("train:\n  max_tokens: 255", "8: train.max_tokens: 255 is below data.max_length 256 raise"),
    ("train: {augment: {typo: 0.1}}", "7: train.augment.typo: did you mean train.augment.typos?"),
    ("train: {augment: {upper: 1.5}}", "7: train.augment.upper: less than or equal to 1 capitals"),
    ("train: {augment: 0.1}", "7: train.augment: should be a mapping of settings"),
    ("train: {augment: {upper: 0.6, title: 0.5}}", "7: train.augment: add up to 1.1"),
    ("train: {init_vocabulary: own}", "7: train.init_vocabulary: set train.init_from"),
    ("train: {valid_every: 1500}", "7: train.valid_every: multiple of train.save_every change"),
    ("train:\n  lr_factor: 1.0\n  peak_lr: 1e-3", "9: train.peak_lr: give either"),
    ("train: {schedule: cosine}", "7: train.schedule: cosine needs train.peak_lr"),
    ("train: {schedule: linear, lr_factor: 2}", "7: train.lr_factor: linear takes peak_lr"),
    ("filter: {tgt_script: [Lattin]}", "7: filter.tgt_script.0: Lattin: did you mean Latin?"),
    ("filter:\n  src_script: [Han, Elvish]", "8: filter.src_script.1: Elvish: not Latin, Cyrillic"),
    ("filter: {src_script: [lattin]}", "7: filter.src_script.0: lattin: did you mean Latin?"),
    ("filter: {src_script: [' ']}", "7: filter.src_script.0: not a Unicode script"),
    ("filter: {src_script: ['Latin}']}", "7: filter.src_script.0: Latin}}: did you mean Latin?"),
    ("train: {warmup_steps: 0}", "7: train.warmup_steps: at least 1 warm-up step"),
    ("train: {schedule: inverse_sqrt, peak_lr: 1, warmup_steps: 0}", "7: train.warmup_steps: 1 w"),
    ("train: {schedule: cosine, peak_lr: 1, max_steps: 4000}", "7: train.warmup_steps: not below"),
    ("train: {schedule: linear, peak_lr: 1, max_steps: 9}", "7: train.warmup_steps: max_steps 9"),
    ("seed: !!python/object/apply:os.getcwd []", "7: seed: the tag not allowed"),
    ("seed: &s 1\nmodel: *s", "8: model: should be a mapping"),
    ("seed: *unknown", "7: invalid YAML: undefined alias"),
    ("model: &m {d_ff: *m}", "7: deeply nested"),
    ("<<: {seed: 3}", "7: <<: merge keys are not supported; write"),
    ("? [a, b]\n: 3", "7: a key must be a word"),
    ("seed: [1\n", "9: invalid YAML: flow sequence that begins in line 7 check brackets"),
    ('seed: "1\n', "9: invalid YAML: quoted scalar that begins in line 7 check quotes"),
    ("seed: 1\n\tmodel: 2", "8: invalid YAML: check indentation (no tabs)"),
    ("---\nseed: 3", "7: invalid YAML: expected a single document"),
    ("seed: \0", "7: invalid YAML"),
    ('seed: "r\\0"', "7: seed: contains a NUL character"),
    ('seed: "\\U00110000"', "1: invalid YAML"),
    ("seed: " + "[" * 10_000, "1: invalid YAML: nested too deeply"),
]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *((DATA.replace(old, new), message) for old, new, message in CHANGED),
        *((f"{DATA}{added}\n", message) for added, message in ADDED),
    ],
    ids=[new or old for old, new, _ in CHANGED] + [added[:40] for added, _ in ADDED],
)
def test_what_is_wrong_is_refused_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    """A line of the message begins with the place, and has all words in this order."""
    refused = refusal(tmp_path, text)
    file = tmp_path / "c.yaml"
    words = map(re.escape, f"{file}:{message.format(file)}".split())
    assert re.search(f"(?m)^{'.*'.join(words)}", refused), refused
    assert len(refused.replace(str(tmp_path), "")) < 500
    assert "None" not in refused
    assert "synthetic_side" not in refused


BOMB = [b"a: &a [x,x,x,x,x,x,x,x,x,x]"] + [
    b"%c: &%c [%s]" % (n, n, b",".join([b"*%c" % (n - 1)] * 10)) for n in b"bcdefgh"
]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", ": expected a mapping of settings"),
        (b"- run_dir\n- seed\n", ": expected a mapping of settings"),
        (b"just words\n", ": expected a mapping of settings"),
        (DATA.encode() + b"seed: \xff\n", ":7: the config is not UTF-8"),
        (DATA.encode("utf-16"), ":1: the config is not UTF-8; convert the file: iconv -f UTF-16"),
        (b"model: " + b"{a: " * 10_000, ":1: invalid YAML: nested too deeply"),
        (b"#" * 5_000_000, ": too long for a config: over 1,000,000 characters"),
        (b"%YAML 1." + b"1" * 5000, ":1: invalid YAML"),
        (b"\n".join(BOMB), ":1: too large or too deeply nested for a config (aliases"),
    ],
    ids=range(9),
)
def test_files_that_are_no_config_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    refused = refusal(tmp_path, content)
    assert refused.startswith(f"{tmp_path}/c.yaml{message}")
    assert "\n" not in refused


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ('train.max_steps="50"', "got '50'; write 50 without quotes (optimizer"),
        ("train.max_steps=0100", "got '0100'; write 100 (optimizer"),
        ("train.max_steps=1e3", "got 1e3; write 1000 (optimizer"),
        ("train.max_steps=5.5", "got 5.5 (optimizer"),
        ("train.max_steps=100.000", "got 100.000; write 100000, if these are thousands (optimizer"),
        (
            "train.max_steps=1,250,000",
            "got '1,250,000'; write 1250000, if these are thousands (optimizer",
        ),
        ("train.max_steps=nan", "got 'nan' (optimizer"),
        ("train.max_steps=many", "got 'many' (optimizer"),
        ("model.dropout='0.1'", "a valid number, got '0.1'; write 0.1 without quotes (residual"),
        ("model.dropout='nan'", "a valid number, got 'nan' (residual"),
        ("model.dropout=1.000", "less than 1, got 1.000 (residual"),
        ("data.workers='4'", "'auto' or a valid integer, got '4'; write 4 without quotes (proc"),
        ("data.workers=0", "got 0 (processes that tokenize or check large corpora; auto: one per"),
        ("data.src_lang=no", 'got no, which YAML reads as a boolean: write "no" in quotes if'),
        ("data.src_lang=True", 'got True: write "True" in quotes if the word is meant (source'),
        ("data.train=[]", "should have at least 1 item, not 0, got a list of 0 (corpora"),
        ("data.valid=[]", "should have at least 1 item, not 0, got a list of 0 (corpus"),
        ("data.train=a.en", "should be a list, got 'a.en' (corpora"),
        ("data.test={a: {src: 5, tgt: b}}", "should be a valid string, got 5 (file of source"),
    ],
)
def test_advice_fits_the_value(tmp_path: Path, override: str, message: str) -> None:
    assert message in refusal(tmp_path, DATA, override)


def test_equal_languages_are_noticed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for overrides, warnings in (
        (["data.tgt_lang=en"], 1),
        (["data.tgt_lang=en", "data.train=[{src: a, tgt: b, tgt_lang: de}]"], 0),
        ([], 0),
    ):
        caplog.clear()
        load(tmp_path, DATA, *overrides)
        assert caplog.text.count("data.tgt_lang: en is the source language, too;") == warnings


def test_one_training_file_for_both_sides_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Unless a model makes one of the sides; copied text can be meant to be learned from."""
    load(tmp_path, DATA, "data.train=[{src: a, tgt: a}, {src: a, model: m}, {src: a, tgt: b}]")
    expected = "data.train.0.tgt: a is the source's file as well: the model learns to copy it; "
    assert [each.message.startswith(expected) for each in caplog.records] == [True]


def test_a_text_given_as_the_config_gets_advice(tmp_path: Path) -> None:
    """A file of another suffix that is no YAML may be the text to train on."""
    for name, is_advised in (("train.en", True), ("train.yaml", False), ("train.yml", False)):
        (tmp_path / name).write_text("A: B: C\n")
        with pytest.raises(RefusedError, match="invalid YAML") as refused:
            load_config(tmp_path / name)
        assert ("is this a config? `mtrain init" in str(refused.value)) == is_advised


def test_a_missing_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match=r"absent\.yaml: cannot read the config: No such file"):
        load_config(tmp_path / "absent.yaml")
    with pytest.raises(RefusedError, match=r"absent: cannot read the config: No such file[^;]*$"):
        load_config(tmp_path / "absent")
    with pytest.raises(RefusedError, match="is a directory; give a config file"):
        load_config(tmp_path)


def test_every_finding_is_named_at_once(tmp_path: Path) -> None:
    message = refusal(tmp_path, DATA + "seed: x\nmodel: {norm: mid}\ntrain:\n  max_steps: 0\n")
    assert [line.split(": ")[1] for line in message.split("\n")] == [
        "seed",
        "model.norm",
        "train.max_steps",
    ]
    assert "\n" not in refusal(tmp_path, DATA, "data.train=[{file: a.tmx, src: en, model: m}]")


# --- --set ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("seed=5", "seed", 5),
        ("run_dir=runs/a=b", "run_dir", "runs/a=b"),
        ("run_dir='7'", "run_dir", "7"),
        ("train.peak_lr=5e-4", "train.peak_lr", 5e-4),
        ("train.peak_lr = 5e-4", "train.peak_lr", 5e-4),
        ("train.peak_lr=", "train.peak_lr", None),
        ("data.test.a={src: x, tgt: y}", "data.test.a", {"src": "x", "tgt": "y", "weight": 1.0}),
        ("data.valid.src=w.en", "data.valid", {"src": "w.en", "tgt": "v.de", "weight": 1.0}),
        ("decode={beam_size: 2}", "decode.beam_size", 2),
    ],
)
def test_set_takes_yaml_values(tmp_path: Path, override: str, key: str, value: Any) -> None:
    """Of several, the last one counts."""
    overrides = ("seed=3", "train.peak_lr=1e-3", override)
    result: Any = load(tmp_path, DATA, *overrides).model_dump()
    for part in key.split("."):
        result = result[part]
    assert result == value


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("seed", ["expected KEY=VALUE"]),
        ("train..max_steps=3", ["expected KEY=VALUE"]),
        ("train.max_setps=3", ["train.max_setps", "did you mean train.max_steps?"]),
        ("data.train.0.src=a", ["train", "is not a group"]),
        ("train.max_steps=many", ["train.max_steps", "a valid integer", "'many'"]),
        ("data.train=[{src: a", ["invalid YAML"]),
        ("seed=" + "[" * 10_000, ["[...: invalid YAML: nested too deeply"]),
        ("train={max_steps: 1, max_steps: 2}", ["train.max_steps", "duplicate key"]),
        ("seed=!!python/name:os.system ''", ["seed", "tag", "not allowed"]),
        ("seed=", ["seed", "a valid integer", "got nothing"]),
    ],
)
def test_set_errors_name_the_option(tmp_path: Path, override: str, words: list[str]) -> None:
    message = refusal(tmp_path, DATA, override)
    assert message.startswith(printable(f"--set {override[:20]}"))
    assert [word for word in words if word not in message] == []


def test_set_replaces_the_setting_and_what_is_below_it_alone(tmp_path: Path) -> None:
    """Also of where it was written, and in what form."""
    text = DATA + "  test:\n    a: {src: x, tgt: y, size: 1}\n    ab: {src: x, size: 2}\n"
    *others, last = refusal(tmp_path, text, "data.test.a={src: z}").splitlines()
    places = {tuple(line.split(": ")[:2]) for line in others}
    line = f"{tmp_path / 'c.yaml'}:9"
    assert places == {(line, "data.test.ab.tgt"), (line, "data.test.ab.size")}
    assert last.startswith("--set data.test.a={src: z}: data.test.a.tgt: required")
    config = load(tmp_path, DATA.replace("runs/x", "~"), "run_dir='7'")
    assert config.run_dir == "7"


# --- paths ------------------------------------------------------------------------------------

AT = {
    "run_dir": "run_dir={}",
    "data.root": "data.root={}",
    "data.valid.src": "data.valid={{src: {}, tgt: b}}",
    "data.train.0.tgt": "data.train=[{{src: a, tgt: {}}}]",
    "data.valid.file": "data.valid={{file: {}.tsv, src: a, tgt: b}}",
    "data.test.x.dataset": "data.test={{x: {{dataset: {}, split: s, src: a, tgt: b}}}}",
    "tokenizer.path": "tokenizer.path={}",
    "train.init_from": "train.init_from={}",
}


@pytest.mark.parametrize(("key", "override"), AT.items(), ids=AT)
def test_home_and_environment_are_expanded_in_every_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, override: str
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("PLACE", "/some/where")
    monkeypatch.delenv("NOWHERE", raising=False)
    for text, place in (
        ("~/x", "/home/me/x"),
        ("$PLACE/$", "/some/where/$"),
        ('"${PLACE}x"', "/some/wherex"),
        ("./a~b$1", "./a~b$1"),
    ):
        config = load(tmp_path, DATA, override.format(text).replace('".tsv', '.tsv"'))
        value: Any = config.model_dump()
        for part in key.split("."):
            value = value[int(part) if part.isdigit() else part]
        assert value.removesuffix(".tsv") == place
        assert load(tmp_path, dump_config(config)) == config
    for text in ("$NOWHERE/x", "'a/${NOWHERE}'"):
        message = refusal(tmp_path, DATA, override.format(text).replace("'.tsv", ".tsv'"))
        assert f" {key}: $" in message
        assert "NOWHERE" in message
        assert "is not set; set it or write the path out" in message
    monkeypatch.setenv("LATIN_1", os.fsdecode(b"caf\xe9"))
    text = override.format("./$LATIN_1/x")
    assert "expands to ./caf\\udce9/x" in refusal(tmp_path, DATA, text)
    monkeypatch.setenv("NESTED", "/some/$NOWHERE")
    message = refusal(tmp_path, DATA, override.format("$NESTED/x"))
    assert f" {key}: holds $NOWHERE when it is expanded; use a path without it" in message
    message = refusal(tmp_path, DATA, override.format("~no-such-user/x"))
    assert f" {key}: ~no-such-user has no home directory here" in message


def test_a_variable_is_no_name_that_a_hub_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "secret")
    override = "data.valid={dataset: $TOKEN, split: s, src: a, tgt: b}"
    message = refusal(tmp_path, DATA, override)
    assert "data.valid.dataset: $TOKEN is not the path of a folder" in message
    assert "secret" not in message


# --- writing and comparing --------------------------------------------------------------------

ODD = ["no", "on", "~", "null", "1e-4", "010", "1:30", "- a", "#", "a: b", "\x85", "\u2028", "'\""]
ODD += ["No", "NULL", "0E0", "7", "5e4", ".5", "+1", "1_0", "two\nlines", " x "]
LETTERS = st.characters(codec="utf-8", exclude_characters="\0")
WORDS = st.text(LETTERS, min_size=1, max_size=8) | st.sampled_from(ODD)
PATHS = WORDS.filter(lambda word: word[0] != "~" and not VARIABLE.search(word))
SPECIAL = ("<pad>", "<unk>", "<s>", "</s>")
SYMBOLS = WORDS.filter(lambda word: word not in SPECIAL and not re.search(r"\s", word))
CORPORA = st.builds(TextCorpus, src=PATHS, tgt=PATHS) | st.builds(
    HubCorpus, dataset=PATHS, name=st.none() | WORDS, split=WORDS, src=WORDS, tgt=WORDS
)
CORPORA = CORPORA.filter(lambda corpus: corpus.src != corpus.tgt)
NAMES = st.from_regex(r"n[A-Za-z0-9_.]{0,5}", fullmatch=True)
RATES = st.floats(0, 1, exclude_max=True)
CONFIGS = st.builds(
    Config,
    run_dir=PATHS,
    data=st.builds(
        DataConfig,
        root=st.none() | PATHS,
        src_lang=WORDS,
        tgt_lang=st.sampled_from(["en", "no", "zh-TW", "deu_Latn"]),
        train=st.lists(CORPORA, min_size=1, max_size=3),
        valid=CORPORA,
        test=st.dictionaries(NAMES, CORPORA, max_size=2),
    ),
    tokenizer=st.builds(TokenizerConfig, user_symbols=st.lists(SYMBOLS, max_size=3, unique=True)),
    train=st.builds(
        TrainConfig,
        peak_lr=st.none() | st.floats(0, 1e30, exclude_min=True),
        adam_betas=st.lists(RATES, min_size=2, max_size=2),
    ),
)


@pytest.mark.slow
@settings(deadline=None, max_examples=60, phases=[Phase.explicit, Phase.generate])
@given(config=CONFIGS)
def test_a_config_written_is_read_back_the_same(
    tmp_path_factory: pytest.TempPathFactory, config: Config
) -> None:
    path = tmp_path_factory.getbasetemp() / "round_trip.yaml"
    path.write_text(dump_config(config), encoding="utf-8")
    assert load_config(path) == config


def test_changes_are_listed_by_dotted_keys_and_some_are_free(tmp_path: Path) -> None:
    old = load(tmp_path, DATA)
    assert changed_keys(old, load(tmp_path, DATA)) == []
    free = ["data.test={a: {src: x, tgt: y}}", "decode.beam_size=5", "train.threads=2"]
    new = load(tmp_path, DATA, "seed=2", "train.peak_lr=1e-3", *free)
    test = {"a": {"src": "x", "tgt": "y", "weight": 1.0}}
    fixed = [("seed", 1, 2), ("train.peak_lr", None, 1e-3)]
    changes = [("data.test", {}, test), ("decode.beam_size", 4, 5), ("train.threads", "auto", 2)]
    assert sorted(changed_keys(old, new)) == sorted(changes + fixed)
    assert fixed_changes(old, new) == fixed


def test_settings_that_may_change_within_a_run(tmp_path: Path) -> None:
    data = ["root=r", "train=[{src: a, tgt: b}]", "valid.src=a", "test.x={src: a, tgt: b}"]
    data += ["workers=2", "allow_swapped=true", "allow_overlap=true"]
    train = ["max_steps=9999", "patience=1", "log_every=1", "tensorboard=true"]
    train += ["keep_checkpoints=1", "average_last=1", "accum_steps=2", "step_batches=2"]
    train += ["device=cpu", "threads=2", "precision=fp32", "packing=false", "compile=false"]
    free = ["run_dir=y", "decode.beam_size=5", *(f"data.{each}" for each in data)]
    old, new = load(tmp_path, DATA), load(tmp_path, DATA, *free, *(f"train.{e}" for e in train))
    assert len(changed_keys(old, new)) == len(free) + len(train)
    assert fixed_changes(old, new) == []


# --- Configs that earlier versions kept --------------------------------------------------------

STORED = Path(__file__).with_name("stored_config_0_1.yaml")


def test_a_stored_config_of_an_earlier_version_is_read(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "mtrain"):
        config = load_stored_config(STORED)
    assert config.data.train[1].weight == 2
    assert [record.getMessage().partition(": ")[2] for record in caplog.records] == [
        "train.shard_optimizer is not used any more"
    ]
    assert dump_config(config) == dump_config(load_stored_config(STORED))


def test_what_is_gone_is_refused_where_it_was_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    text = STORED.read_text()
    file.write_text(text.replace("shard_optimizer: false", "shard_optimizer: true"))
    with pytest.raises(RefusedError, match=r"config.yaml:\d+: train.shard_optimizer: True is not"):
        load_stored_config(file)
    file.write_text(text)
    with pytest.raises(RefusedError, match=r"config.yaml:\d+: train.shard_optimizer: unknown"):
        load_config(file)
    file.write_text("train: 1\n")
    with pytest.raises(RefusedError, match=r"config.yaml:1: train: should be a mapping"):
        load_stored_config(file)


def test_a_clone_ships_its_configs_to_other_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    named = load_config(Path("configs/quickstart.yaml"))
    assert named == load_config(MANUAL.parent / "quickstart.yaml")
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "quickstart.yaml").write_text(DATA)
    assert load_config(Path("configs/quickstart.yaml")).run_dir == "runs/x"
    with pytest.raises(RefusedError, match=r"configs/absent\.yaml: cannot read the config"):
        load_config(Path("configs/absent.yaml"))
