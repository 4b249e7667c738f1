"""Codes of languages: which are known, what is meant by others, and how BLEU cuts a language."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest
from conftest import TinyConfig, Train, contents, run_mtrain, status
from sacrebleu.metrics.bleu import BLEU

from mtrain.config.changes import fixed_changes
from mtrain.config.languages import (
    MISTAKES,
    NAMES,
    SCRIPT_NAMES,
    BleuTokenizer,
    known_script,
    language_error,
    tokenizer_for,
)
from mtrain.config.loading import load_config
from mtrain.corpus.writing_systems import SCRIPTS
from mtrain.runs import manifest

CODES = "de deu ger zh-CN zh_TW zh-Hant-TW sr-Latn deu_Latn es-419 EN pt-br kau haw iw"


def test_codes_and_their_regional_forms_are_known() -> None:
    scripts = {code for codes in SCRIPTS.values() for code in codes.split() if len(code) < 4}
    assert [code for code in {*CODES.split(), *NAMES, *scripts} if language_error(code)] == []
    assert scripts <= NAMES.keys()
    assert language_error("kr") is not None  # Kanuri, but Korean is meant


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        *(("jp", "ja"), ("cn", "zh"), ("kr", "ko"), ("Chinese", "zh"), ("Japanese", "ja")),
        *(("japan", "ja"), ("Portugese", "pt"), ("Chinese (Simplified)", "zh"), ("cn-CN", "zh")),
        ("de-AT or de-DE", "de"),
    ],
)
def test_the_code_that_is_meant_is_named(text: str, meant: str) -> None:
    error = f"{text}: not known as a language code (ISO 639); did you mean {meant}?"
    assert language_error(text) == error


def test_no_code_is_guessed_from_nothing() -> None:
    for text in ("xx", "src", "x", "12", "français", "klingon-x"):
        assert str(language_error(text)).endswith("; write a code such as en or zh-TW")
    assert all(meant == "" or not language_error(meant) for meant in MISTAKES.values())


def test_scripts_have_names_and_codes_in_any_case() -> None:
    for name in (*SCRIPT_NAMES, "latin", "Latn", "HAN", "Old_Italic"):
        assert known_script(name) == name


def test_the_target_language_names_the_tokenizer() -> None:
    for names, tokenizer in (
        (("de", "", None), "13a"),
        (("zh", "zh-CN", "zh_TW", "ZHO", "cmn_Hans", "yue", "lzh_Hant"), "zh"),
        (("ja", "jpn_Jpan"), "ja-mecab"),
        (("ko", "kor"), "ko-mecab"),
    ):
        assert {tokenizer_for(name) for name in names} == {tokenizer}
    assert set(get_args(BleuTokenizer)) == set(BLEU.TOKENIZERS)


def test_an_unknown_source_language_is_only_warned_of(
    tiny_config: TinyConfig, caplog: pytest.LogCaptureFixture
) -> None:
    load_config(tiny_config(**{"data.src_lang": "english"}))
    assert caplog.messages == [
        "data.src_lang: english: not known as a language code (ISO 639); did you mean en?"
    ]


@pytest.mark.slow
def test_a_named_tokenizer_stands_for_any_language_and_may_not_change(
    tiny_config: TinyConfig, tmp_path: Path, train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    config, run = tiny_config(**{"data.tgt_lang": "bb", "train.max_steps": 4}), tmp_path / "run"
    assert train(config) == 2
    assert not run.exists()
    assert train(config, "--set", "data.bleu_tokenize=char") == 0
    assert "|tok:char|" in contents(run)["best.json"]["history"][0]["signature"]
    assert "test held_out: BLEU" in capsys.readouterr().err
    assert "|tok:char|" in contents(run)["best.json"]["tests"]["held_out"]["signature"]
    assert train(config, "--set", "data.bleu_tokenize=13a") == 2
    assert 'data.bleu_tokenize: char in the run, "13a" now' in capsys.readouterr().err
    assert status(run)["state"] == "complete"
    files = ["-s", config.parent / "data/test.src", "-r", config.parent / "data/test.tgt"]
    for options, name in (
        ([], "char"),
        (["--tokenize", "13a"], "13a"),
        (["--tgt-lang", "de"], "13a"),
    ):
        for text in (["--on", "held_out"], files):
            done = run_mtrain("eval", "-m", run, *text, *options, "--json")
            assert f"|tok:{name}|" in json.loads(done.stdout)["bleu"]["signature"]
    checkpoint = run / "checkpoints/step-00000004"
    settings = checkpoint / "config.yaml"
    settings.write_text(settings.read_text().replace("tokenize: char", "tokenize: spm"))
    manifest.seal(checkpoint)
    done = run_mtrain("eval", "-m", checkpoint, *files)
    assert done.returncode == 2
    assert "sacreBLEU downloads this tokenizer; add --tokenize" in done.stderr


def test_the_tokenizer_of_the_language_may_be_named_later(tiny_config: TinyConfig) -> None:
    """As a run needs that began with a language that is refused now."""
    before = load_config(tiny_config())
    for name, changes in (("13a", []), ("intl", [("data.bleu_tokenize", None, "intl")])):
        now = load_config(tiny_config(**{"data.bleu_tokenize": name}))
        assert fixed_changes(before, now) == changes
