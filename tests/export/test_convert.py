"""Exports: what is compared, refused and written; CTranslate2 scores as the model does."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ctranslate2
import pytest
import torch
import transformers
from conftest import made_up_pairs, make_tokenizer, random_model, run_mtrain, shape_with

from mtrain.config.corpora import Corpus, HubCorpus, TextCorpus
from mtrain.config.schema import Config, override_decode
from mtrain.corpus import hub
from mtrain.data.tokenizer import Tokenizer
from mtrain.export import convert, ctranslate2_format, marian_format, parity
from mtrain.export.parity import Agreement, Difference, Engine
from mtrain.runs import manifest
from mtrain.runtime.errors import RefusedError, UserError
from mtrain.translation import loading
from mtrain.translation.loading import LoadedModel
from mtrain.translation.scorer import Scorer
from mtrain.translation.translator import Translator

PAIRS = made_up_pairs(40, 21)
SOURCES = [src for src, _ in PAIRS]
KINDS_AND_SEARCHES = [(kind, s) for kind in ("float32", "int8") for s in ("greedy", "beam 4")]


def write(loaded_model: LoadedModel, directory: Path, **options: Any) -> list[str]:
    """Export, and return what is shown."""
    shown: list[str] = []
    defaults = {"to": "ctranslate2", "quantization": "float32", "sample": None}
    convert.export(
        loaded_model, **{**defaults, "directory": directory, "show": shown.append, **options}
    )
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
        [[pieces[i] for i in row] for row in source_ids],
        [[pieces[i] for i in row] for row in target_ids],
    )
    found = [sum(result.log_probs) for result in scored]

    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=1e-4, atol=1e-3)


def test_rounding_leaves_the_model_itself_as_it_is(
    loaded_model: LoadedModel, tmp_path: Path
) -> None:
    before = {name: weight.clone() for name, weight in loaded_model.model.named_parameters()}
    shown = write(loaded_model, tmp_path / "served", quantization="int8")
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


def test_differences_by_rounding_are_announced_as_such(
    loaded_model: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    different = [Difference(1, ("a", "b"), (-1.0, -1.0))]
    found = {size: Agreement(size, 3, 9, different, [], []) for size in (1, 4)}
    monkeypatch.setattr(convert, "compare", lambda *arguments: found[arguments[3]])
    shown = write(loaded_model, tmp_path / "served", quantization="int8")
    exact, _, rounded, _ = (line for line in shown if not line.startswith(" "))
    assert exact == "float32, greedy: 2 of 3 lines equal (66.7%)"
    assert rounded == exact.replace("float32", "int8") + (
        "; weights are rounded, which changes some translations"
    )


@pytest.mark.parametrize("lost", [0.4, 0.6])
def test_much_lost_probability_is_warned_of(
    loaded_model: LoadedModel, tmp_path: Path, caplog: pytest.LogCaptureFixture, lost: float
) -> None:
    """With weights that are rounded, there is another choice. Lines are few, all of them new."""
    different = [Difference(1, ("a", "b"), (-1.0, -1.0 - lost))]
    found = {size: Agreement(size, 3, 10, different, [], []) for size in (1, 4)}
    (tmp_path / "sample").write_text("a\nb\nc\n")
    with pytest.MonkeyPatch.context() as patch, caplog.at_level("INFO", "mtrain"):
        patch.setattr(convert, "compare", lambda *arguments: found[arguments[3]])
        patch.setattr(convert, "MAX_SHOWN", 0)
        patch.setattr(convert, "MAX_LINES", 2)
        options = {"quantization": "int8", "sample": tmp_path / "sample"}
        shown = write(loaded_model, tmp_path / "served", **options)
    assert shown[1::2] == ["  and 1 more"] * 4
    assert f"comparing on 2 lines of {tmp_path / 'sample'}" in caplog.messages
    text = "2 of 3 lines equal (66.7%): different translations lose 0.060 log-probability per token"
    choose = "; if that is too much, choose --quantization float32"
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    expected = [f"{kind}, {search}: {text}" for kind, search in KINDS_AND_SEARCHES]
    expected[2:] = [each + choose for each in expected[2:]]
    assert warnings == (expected if lost > 0.5 else [])


@pytest.mark.parametrize("to", ["ctranslate2", "hf-marian"])
def test_lines_are_cut_alike(
    loaded_model: LoadedModel, tmp_path: Path, to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convert, "NEEDED", {1: 0.999})  # a beam has near-ties
    short = override_decode(loaded_model.decode, max_source_length=8)
    short_model = replace(loaded_model, decode=short)
    assert len(short_model.encode_sources(SOURCES)[1]) > 10
    (tmp_path / "sample").write_text("".join(f"{line}\n" for line in SOURCES))
    options = {"to": to, "sample": tmp_path / "sample"}
    shown = write(short_model, tmp_path / "served", **options)
    assert not any("other pieces" in line for line in shown)


@pytest.mark.parametrize("to", ["ctranslate2", "hf-marian"])
def test_the_tag_of_the_validation_set_is_the_first_piece(
    both_run: Path, tmp_path: Path, to: str, request: pytest.FixtureRequest
) -> None:
    caplog, patch = map(request.getfixturevalue, ("caplog", "monkeypatch"))
    patch.setattr(convert, "NEEDED", {1: 0.999})  # a beam has near-ties
    tags, compare = [], convert.compare
    patch.setattr(convert, "compare", lambda *args: tags.append(args[0].tag) or compare(*args))
    with caplog.at_level("INFO", "mtrain"):
        shown = write(loading.load(both_run, device="cpu"), tmp_path / "served", to=to)
    assert tags == ["<2bb>"]
    assert shown[0] == "float32, greedy: 12 of 12 lines equal (100.0%)"
    assert not any("other pieces" in line for line in shown)
    assert ", each after the piece <2bb>" in caplog.text
    assert ("does not read <2bb>: put its id before" in caplog.text) == (to == "hf-marian")


@pytest.mark.parametrize("form", convert.FORMATS.values())
def test_split_digits_are_kept(config: Config, tmp_path: Path, form: Any) -> None:
    texts = [f"{source} {number}" for number, source in enumerate(SOURCES, 1900)]
    split = make_tokenizer(texts, split_digits=True)
    model = random_model(vocab_size=split.vocab_size)
    form.check(shape_with(), "float32")
    form.write(tmp_path, LoadedModel(model, split, config.decode, config), "float32")
    found = form.load(tmp_path, split).encode(["bavo 1984"])
    assert [split.all_pieces[i] for i in found[0]][-4:] == [*"1984"]


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
        {"search": lambda engine: lambda rows, *rest: [[] for _ in rows]},
        {"decode": lambda engine: lambda rows: [text + "!" for text in engine.decode(rows)]},
    ],
)
def test_a_model_that_translates_otherwise_is_not_exported(
    loaded_model: LoadedModel,
    tmp_path: Path,
    changed: Callable[..., None],
    capsys: pytest.CaptureFixture[str],
    parts: dict[str, Any],
) -> None:
    """The lines that differ are named by their numbers in the sample."""
    changed(**parts)
    sample = tmp_path / "sample"
    sample.write_text("\n \nbavo\n\ncelu\n")
    with pytest.raises(UserError, match="CTranslate2 translates differently: greedy"):
        write(loaded_model, tmp_path / "served", sample=sample, show=print)
    assert list(tmp_path.iterdir()) == [sample]
    expected = [[number, name] for number in ("3", "5") for name in ("mtrain", "CTranslate2")]
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[1:3] for line in shown if line.startswith("  line ")] == expected


def test_text_that_the_engine_encodes_or_decodes_otherwise_is_named(
    loaded_model: LoadedModel, tmp_path: Path, changed: Callable[..., None]
) -> None:
    changed(
        encode=lambda engine: lambda lines: [[9], *engine.encode(lines)[1:]],
        decode=lambda engine: (
            lambda rows: [f" {text}".replace(" ", "\n") for text in engine.decode(rows)]
        ),
    )
    (tmp_path / "sample").write_text("\n".join(SOURCES))
    shown = write(loaded_model, tmp_path / "served", sample=tmp_path / "sample")
    assert "  lines that CTranslate2 splits into other pieces: 1 (1)" in shown
    text = "  lines that CTranslate2 decodes without unknown pieces or white space at the ends: 40"
    assert f"{text} (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, ...)" in shown
    assert (tmp_path / "served" / "config.json").exists()


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
@pytest.mark.parametrize("form", [ctranslate2_format, marian_format])
@pytest.mark.parametrize(
    ("likely", "longest"), [("eos_id", 2), ("pad_id", 10), ("bos_id", 10), (None, 60)]
)
def test_limits_and_special_pieces_are_those_of_mtrain(
    tokenizer: Tokenizer, config: Config, tmp_path: Path, form: Any, likely: str, longest: int
) -> None:
    """Empty translations, those that reach the limit, padding and bos that a model finds likely;
    there are positions for the longest sources and translations.
    """
    model = random_model(vocab_size=tokenizer.vocab_size, tie_embeddings="none")
    norm = model.decoder_layers[-1].feed_norm
    with torch.no_grad():
        norm.weight.zero_()  # each step has the same probabilities
        model.output.weight[tokenizer.eos_id] = -9 * norm.bias
        if likely:
            model.output.weight[getattr(tokenizer, likely)] = 99 * norm.bias
    options = {"max_source_length": 50, "max_len_a": 0.0, "max_len_b": longest}
    decode = override_decode(config.decode, **options)
    loaded_model = LoadedModel(model, tokenizer, decode, config)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ctranslate2_format, "MAX_TOKENS", 4)
        form.write(tmp_path, loaded_model, "float32")
    engine, lines = form.load(tmp_path, tokenizer), dict(enumerate(SOURCES[:6], 1))
    found = parity.compare(loaded_model, engine, lines, 1, lambda number: None)
    assert found.differences == []
    assert found.tokens == len(lines) * (1 if likely == "eos_id" else longest + 1)


def test_translations_that_differ_are_scored_by_the_model(loaded_model: LoadedModel) -> None:
    """The lost log-probability, of which there is a warning, is that of the other translations."""
    tokenizer, lines = loaded_model.tokenizer, {3: "bavo", 5: "celu dimar"}
    nothing = Engine(
        "other", tokenizer.encode, lambda rows, *_: [[] for _ in rows], tokenizer.decode
    )
    found = parity.compare(loaded_model, nothing, lines, 1, lambda number: None)
    texts = list(lines.values())
    decode = override_decode(loaded_model.decode, beam_size=1)
    best = Translator(replace(loaded_model, decode=decode)).best(texts)
    scores = [Scorer(loaded_model).score(texts, targets)[0] for targets in (best, ["", ""])]
    expected = torch.tensor(scores).T
    torch.testing.assert_close(torch.tensor([each.scores for each in found.differences]), expected)
    assert found.lost == pytest.approx(float(expected[:, 0].sum() - expected[:, 1].sum()) / 2)
    assert found.lost > 0.1


def test_unknown_pieces_that_the_engine_leaves_out_are_no_difference(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = make_tokenizer(SOURCES, vocab_size=90, byte_fallback=False)
    loaded_model = LoadedModel(random_model(vocab_size=90), tokenizer, config.decode, config)
    ids = [*tokenizer.encode(["bavo"])[0], tokenizer.unk_id]
    [text] = tokenizer.decode([ids])
    translated = [SimpleNamespace(text=text, score=-1.0)]
    monkeypatch.setattr(parity.Translator, "translate", lambda *_: ([translated], []))
    engine = Engine(
        "other", tokenizer.encode, lambda *_: [ids], lambda rows: tokenizer.decode([rows[0][:-1]])
    )
    found = parity.compare(loaded_model, engine, {1: "celu"}, 1, lambda number: None)
    assert (found.differences, found.decoded) == ([], [1])


@pytest.mark.parametrize(
    ("beam_size", "lines", "different", "is_equal"),
    [
        (1, 1000, 1, True),
        (1, 1000, 2, False),
        (4, 1000, 50, True),
        (4, 1000, 51, False),
        (1, 40, 1, True),
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


def by_ctranslate2(directory: Path) -> list[str]:
    manifest.verify(directory, "model.bin", "config.json", "tokenizer.model")
    processor = Tokenizer.load(directory / "tokenizer.model").processor
    results = ctranslate2.Translator(str(directory), device="cpu").translate_batch(
        processor.encode(SOURCES, out_type=str), beam_size=4
    )
    return [processor.decode(result.hypotheses[0]) for result in results]


def by_transformers(directory: Path) -> list[str]:
    manifest.verify(directory, "config.json", "model.safetensors", "vocab.json", "source.spm")
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(directory)
    assert type(tokenizer) is transformers.MarianTokenizer
    batch = tokenizer(SOURCES, return_tensors="pt", padding=True, truncation=True)
    return tokenizer.batch_decode(model.generate(**batch, num_beams=4), skip_special_tokens=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "translate"), [("ctranslate2", by_ctranslate2), ("hf-marian", by_transformers)]
)
@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
def test_the_command_writes_a_model_that_the_library_translates_with(
    loaded_model: LoadedModel,
    trained_run: Path,
    tmp_path: Path,
    form: str,
    translate: Callable[[Path], list[str]],
) -> None:
    """The weights of the trained run differ between machines in their last bits, so a few lines
    may be near-ties.
    """
    sample, served = tmp_path / "sample", tmp_path / "new" / "served"
    sample.write_text("".join(line + "\n" for line in ["", *SOURCES]))
    options = ["--to", form, "-o", served, "--sample", sample]
    done = run_mtrain("export", "-m", trained_run, *options)
    modes = {file.stat().st_mode for file in served.rglob("*") if file.is_file()}
    assert modes == {sample.stat().st_mode}

    assert done.returncode == 0, done.stderr
    greedy, beam = [line for line in done.stdout.splitlines() if not line.startswith(" ")]
    assert re.fullmatch(r"float32, greedy: (39|40) of 40 lines equal \([0-9.]+%\)", greedy)
    assert re.fullmatch(r"float32, beam 4: (38|39|40) of 40 lines equal \([0-9.]+%\)", beam)
    assert "lines that" not in done.stdout
    assert f"comparing on 40 lines of {sample}" in done.stderr.splitlines()
    assert done.stderr.splitlines()[-1].startswith(f"wrote {served} (")
    decode = override_decode(loaded_model.decode, beam_size=4, length_norm="power")
    ours, found = Translator(replace(loaded_model, decode=decode)).best(SOURCES), translate(served)
    assert sum(a == b for a, b in zip(found, ours, strict=True)) >= 36
    assert sum(a == b for a, (_, b) in zip(found, PAIRS, strict=True)) >= 36


def test_a_place_that_cannot_be_written_is_named(loaded_model: LoadedModel, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file/served: cannot write: "):
        write(loaded_model, tmp_path / "file" / "served")


@pytest.mark.parametrize("to", sorted(convert.FORMATS))
def test_an_output_that_exists_is_refused_before_anything_is_compared(
    loaded_model: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str
) -> None:
    monkeypatch.setattr(convert, "compare", None)
    output = tmp_path / "a.argosmodel"
    output.write_text("")
    with pytest.raises(RefusedError, match=r"a\.argosmodel: exists already"):
        write(loaded_model, output, to=to)


@pytest.mark.parametrize("to", sorted(convert.FORMATS))
def test_a_name_that_libraries_cannot_read_is_refused(
    loaded_model: LoadedModel, tmp_path: Path, to: str
) -> None:
    output = tmp_path / os.fsdecode(b"caf\xe9.argosmodel")
    with pytest.raises(RefusedError, match=r"caf\\udce9\.argosmodel: its path is not UTF-8, which"):
        write(loaded_model, output, to=to)


@pytest.mark.parametrize("form", ["ctranslate2", "hf-marian"])
def test_a_limit_of_one_token_leaves_empty_translations_on_both_sides(
    loaded_model: LoadedModel, tmp_path: Path, form: str
) -> None:
    decode = override_decode(loaded_model.decode, beam_size=1, max_len_a=0.0, max_len_b=0)
    write(replace(loaded_model, decode=decode), tmp_path / "served", to=form)
    assert (tmp_path / "served" / "config.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize("to", ["ctranslate2", "hf-marian"])
@pytest.mark.parametrize("option", [{"no_repeat_ngram": 1}, {"sample": True, "temperature": 9.0}])
def test_sampling_and_banned_repeats_of_the_run_do_not_spoil_the_comparison(
    loaded_model: LoadedModel, tmp_path: Path, to: str, option: dict[str, Any]
) -> None:
    decode = override_decode(loaded_model.decode, **option)
    other = replace(loaded_model, decode=decode)
    assert Translator(other).best(SOURCES) != Translator(loaded_model).best(SOURCES)
    assert write(other, tmp_path / "served", to=to)[0].endswith("lines equal (100.0%)")


@pytest.mark.parametrize(
    ("module", "form", "extra"),
    [
        ("ctranslate2", ctranslate2_format, "ctranslate2"),
        ("transformers", marian_format, "hf"),
    ],
)
def test_without_the_library_the_error_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, module: str, form: Any, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(RefusedError, match=rf"pip install 'mtrain\[{extra}\]'"):
        form.check(shape_with(), "float32")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("\n \n", "sample: no lines to translate; give other lines with --sample FILE"),
        (
            HubCorpus(dataset="some/pairs", split="valid", src="en", tgt="de"),
            r"some/pairs valid: .* give lines with --sample FILE",
        ),
        (
            TextCorpus(src="/gone.src", tgt="/gone.tgt"),
            r"gone\.src: .*; or give other lines with --sample FILE",
        ),
    ],
)
def test_without_lines_to_compare_on_a_sample_can_be_named(
    loaded_model: LoadedModel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    given: str | Corpus,
    message: str,
) -> None:
    """A hub is asked for no dataset."""
    monkeypatch.setattr(hub, "_load_dataset", None)
    sample, config = None, loaded_model.config
    if isinstance(given, str):
        sample = tmp_path / "sample"
        sample.write_text(given)
    else:
        data = config.data.model_copy(update={"valid": given})
        config = config.model_copy(update={"data": data})
    with pytest.raises(UserError, match=message):
        write(replace(loaded_model, config=config), tmp_path / "served", sample=sample)


def test_lines_of_the_validation_set_are_named_by_their_numbers(
    loaded_model: LoadedModel, tmp_path: Path
) -> None:
    """Blank lines count, but are not translated."""
    paths = {"src": tmp_path / "src", "tgt": tmp_path / "tgt"}
    paths["src"].write_text("bavo\n\ncelu\nfosi\n")
    paths["tgt"].write_text("a\nb\n\nd\n")
    valid = TextCorpus(**{side: str(path) for side, path in paths.items()})
    data = loaded_model.config.data.model_copy(update={"valid": valid})
    config = loaded_model.config.model_copy(update={"data": data})
    assert convert._read_sample(config, None) == {1: "bavo", 3: "celu", 4: "fosi"}


def test_a_missing_sample_is_refused_without_advice_to_give_one(
    loaded_model: LoadedModel, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=r"gone: cannot read") as refused:
        write(loaded_model, tmp_path / "served", sample=tmp_path / "gone")
    assert "--sample" not in str(refused.value)
