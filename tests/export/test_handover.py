"""Models in CTranslate2's form: the real library scores and translates with them as mtrain does."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ctranslate2
import pytest
import torch
from conftest import (
    TinyConfig,
    check_agreement_lines,
    made_up_pairs,
    random_model,
    run_mtrain,
)

from mtrain.config.loading import load_config
from mtrain.config.schema import Config, Corpus, HubCorpus, TextCorpus
from mtrain.corpus import tables
from mtrain.data.tokenizer import Tokenizer
from mtrain.export import ctranslate2_format, handover, marian_format
from mtrain.export.proof import Agreement, Difference, Engine
from mtrain.model.transformer import Shape
from mtrain.runs import manifest
from mtrain.runtime.errors import RefusedError, UserError
from mtrain.translation.loading import LoadedModel
from mtrain.translation.scorer import Scorer

PAIRS = made_up_pairs(40, 21)
SOURCES = [src for src, _ in PAIRS]


@pytest.fixture
def config(tiny_config: TinyConfig) -> Config:
    return load_config(tiny_config())


def write(loaded_model: LoadedModel, directory: Path, sample: Path | None = None) -> list[str]:
    """Export, and return what is shown."""
    shown: list[str] = []
    handover.export(loaded_model, "ctranslate2", directory, "float32", sample, shown.append)
    return shown


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize(
    ("positions", "tie"), [("sinusoidal", "all"), ("learned", "output"), ("learned", "none")]
)
def test_the_library_scores_random_weights_as_the_model_does(
    tokenizer: Tokenizer, config: Config, tmp_path: Path, norm: str, positions: str, tie: str
) -> None:
    shape = {"norm": norm, "positions": positions, "tie_embeddings": tie}
    model = random_model(vocab_size=tokenizer.vocab_size, num_decoder_layers=3, **shape)
    loaded_model = LoadedModel(model, tokenizer, config.decode, config)
    ctranslate2_format.write(tmp_path, loaded_model, "float32")

    sources, targets = ([side[i] for side in PAIRS] for i in (0, 1))
    expected, _ = Scorer(loaded_model).score(sources, targets)
    pieces = tokenizer.all_pieces
    source_ids, target_ids = (tokenizer.encode(texts) for texts in (sources, targets))
    served = ctranslate2.Translator(str(tmp_path), device="cpu")
    scored = served.score_batch(
        [[pieces[i] for i in (*row, tokenizer.eos_id)] for row in source_ids],
        [[pieces[i] for i in row] for row in target_ids],
    )
    found = [sum(result.log_probs) for result in scored]

    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=1e-4, atol=1e-3)


def test_pieces_that_a_tokenizer_lacks_get_names_of_their_own() -> None:
    import sentencepiece

    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SOURCES),
        model_writer=out,
        vocab_size=60,
        hard_vocab_limit=False,
        bos_id=-1,
        pad_id=-1,
        user_defined_symbols=["<pad>"],
        minloglevel=2,
    )
    tokenizer = Tokenizer(out.getvalue())
    pieces = tokenizer.all_pieces

    assert len(pieces) == len(set(pieces)) == tokenizer.vocab_size
    assert pieces[tokenizer.bos_id] == "<s>"
    assert pieces[tokenizer.pad_id] == "<<pad>>"


def test_rounding_leaves_the_model_itself_as_it_is(
    loaded_model: LoadedModel, tmp_path: Path
) -> None:
    before = {name: weight.clone() for name, weight in loaded_model.model.named_parameters()}
    shown: list[str] = []

    handover.export(loaded_model, "ctranslate2", tmp_path / "served", "int8", None, shown.append)

    after = dict(loaded_model.model.named_parameters())
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert [line.split(":")[0] for line in shown if not line.startswith(" ")] == [
        "float32, greedy",
        "float32, beam 4",
        "int8, greedy",
        "int8, beam 4",
    ]
    manifest.verify(tmp_path / "served", "model.bin", "config.json", "tokenizer.model")
    served = ctranslate2.Translator(str(tmp_path / "served"), device="cpu")
    assert served.compute_type.startswith("int8")


@pytest.fixture
def changed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a setter of parts of the engine, each made of the engine as it is."""
    load = ctranslate2_format.load

    def change(**parts: Callable[[Engine], Any]) -> None:
        def loaded(directory: Path, tokenizer: Tokenizer) -> Engine:
            engine = load(directory, tokenizer)
            return replace(engine, **{name: part(engine) for name, part in parts.items()})

        monkeypatch.setattr(ctranslate2_format, "load", loaded)

    return change


@pytest.mark.parametrize(
    "parts",
    [
        {"search": lambda engine: lambda *args: [row[::-1] for row in engine.search(*args)]},
        {"decode": lambda engine: lambda rows: [text + "!" for text in engine.decode(rows)]},
    ],
)
def test_a_model_that_translates_otherwise_is_not_exported(
    loaded_model: LoadedModel, tmp_path: Path, changed: Callable[..., None], parts: dict[str, Any]
) -> None:
    changed(**parts)
    with pytest.raises(UserError, match="CTranslate2 translates differently: greedy"):
        write(loaded_model, tmp_path / "served")
    assert list(tmp_path.iterdir()) == []


def test_text_that_the_engine_encodes_or_decodes_otherwise_is_named(
    loaded_model: LoadedModel, tmp_path: Path, changed: Callable[..., None]
) -> None:
    changed(
        encode=lambda engine: lambda lines: [[9], *engine.encode(lines)[1:]],
        decode=lambda engine: lambda rows: [f" {text}" for text in engine.decode(rows)],
    )
    shown = write(loaded_model, tmp_path / "served")
    assert "  lines that CTranslate2 cuts into other pieces: 1 (1)" in shown
    text = "  lines that CTranslate2 shows without unknown pieces or white space at the ends: 12"
    assert f"{text} (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, ...)" in shown
    assert (tmp_path / "served" / "config.json").exists()


@pytest.mark.parametrize(
    ("beam_size", "lines", "different", "is_equal"),
    [
        (1, 1000, 1, True),
        (1, 1000, 2, False),
        (4, 1000, 50, True),
        (4, 1000, 51, False),
        (4, 10, 1, True),
        (4, 10, 2, False),
        (4, 2, 1, False),
        (1, 1, 1, False),
    ],
)
def test_how_many_lines_may_differ(
    beam_size: int, lines: int, different: int, is_equal: bool
) -> None:
    line = Difference(1, ("a", "b"), (-1.0, -1.5))
    found = Agreement(beam_size, lines, 100, [line] * different, [], [])

    assert found.is_equal is is_equal
    assert found.lost == pytest.approx(0.005 * different)


# --- The command -----------------------------------------------------------------------------


def test_the_command_writes_a_model_that_the_library_translates_with(
    trained_run: Path, tmp_path: Path
) -> None:
    sample = tmp_path / "sample"
    sample.write_text("".join(line + "\n" for line in ["", *SOURCES]))
    served = tmp_path / "new" / "served"

    done = run_mtrain("export", "-m", trained_run, "-o", served, "--sample", sample)

    assert done.returncode == 0, done.stderr
    check_agreement_lines(done.stdout)
    assert "lines that" not in done.stdout
    tokenizer = Tokenizer.load(served / "tokenizer.model")
    pieces = tokenizer.pieces.encode(SOURCES, out_type=str)
    results = ctranslate2.Translator(str(served), device="cpu").translate_batch(
        [[*row, "</s>"] for row in pieces]
    )
    expected = [tgt for _, tgt in PAIRS]
    found = [tokenizer.pieces.decode(result.hypotheses[0]) for result in results]
    assert sum(a == b for a, b in zip(found, expected, strict=True)) >= 36


def test_lines_that_differ_are_named_by_their_numbers_in_the_sample(
    loaded_model: LoadedModel, tmp_path: Path, changed: Callable[..., None]
) -> None:
    changed(search=lambda engine: lambda rows, *rest: [[] for _ in rows])
    sample = tmp_path / "sample"
    sample.write_text("\n \nbavo\n\ncelu\n")
    shown: list[str] = []
    with pytest.raises(UserError, match="CTranslate2 translates differently"):
        handover.export(
            loaded_model, "ctranslate2", tmp_path / "served", "float32", sample, shown.append
        )
    names = ["mtrain", "CTranslate2"]
    expected = [[number, name] for number in ("3", "5") for name in names]
    assert [line.split()[1:3] for line in shown[1:]] == expected


def test_a_place_that_cannot_be_written_is_named(loaded_model: LoadedModel, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(UserError, match=r"file/served: cannot write: "):
        write(loaded_model, tmp_path / "file" / "served")


def test_a_limit_of_one_token_leaves_empty_translations_on_both_sides(
    loaded_model: LoadedModel, tmp_path: Path
) -> None:
    decode = loaded_model.decode.model_copy(update={"max_len_a": 0.0, "max_len_b": 0})
    write(replace(loaded_model, decode=decode), tmp_path / "served")
    assert (tmp_path / "served" / "model.bin").exists()


@pytest.mark.parametrize(
    ("module", "form", "extra"),
    [
        ("ctranslate2.specs.model_spec", ctranslate2_format, "ctranslate2"),
        ("transformers", marian_format, "hf"),
    ],
)
def test_without_the_library_the_error_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, module: str, form: handover.Form, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(RefusedError, match=rf"pip install 'mtrain\[{extra}\]'"):
        form.check(Shape(100, 0), "float32")


@pytest.mark.parametrize("text", ["", "\n \n"])
def test_a_sample_without_text_is_an_error(
    loaded_model: LoadedModel, tmp_path: Path, text: str
) -> None:
    (tmp_path / "sample").write_text(text)
    with pytest.raises(UserError, match="sample: holds no lines to translate"):
        write(loaded_model, tmp_path / "served", tmp_path / "sample")


@pytest.mark.parametrize(
    ("valid", "message"),
    [
        (
            HubCorpus(dataset="some/pairs", split="valid", src="en", tgt="de"),
            r"some/pairs valid: .* name lines with --sample",
        ),
        (
            TextCorpus(src="/gone.src", tgt="/gone.tgt"),
            r"gone\.src: .*; or name other lines with --sample",
        ),
    ],
)
def test_where_the_validation_set_is_not_here_a_sample_can_be_named(
    loaded_model: LoadedModel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    valid: Corpus,
    message: str,
) -> None:
    monkeypatch.setattr(tables, "_load_dataset", None)
    data = loaded_model.config.data.model_copy(update={"valid": valid})
    elsewhere = replace(loaded_model, config=loaded_model.config.model_copy(update={"data": data}))
    with pytest.raises(UserError, match=message):
        write(elsewhere, tmp_path / "served")
