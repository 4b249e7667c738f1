"""Heat maps of attention: they show the weights of the model, and pages load nothing."""

from __future__ import annotations

import html
import re
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import check_that_nothing_is_loaded, random_model, run_here

from mtrain.config.schema import override_decode
from mtrain.report import attention_maps as maps
from mtrain.report.attention_maps import Selection
from mtrain.report.heatmap import KINDS, HeatMap, Sentence, menus, opacity
from mtrain.runtime.errors import RefusedError, UserError, printable
from mtrain.translation.loading import LoadedModel, load
from mtrain.translation.translator import Translator

LINE = "bavo celu minek"


def path_cells(path: str) -> set[tuple[int, int]]:
    return {(int(row), int(column)) for column, row in re.findall(r"M(\d+) (\d+)h1v1h-1z", path)}


# --- weights ----------------------------------------------------------------------------------


def test_maps_are_the_weights_of_the_model_for_its_own_translation(
    loaded_model: LoadedModel,
) -> None:
    (sentence,) = maps.compute_maps(loaded_model, [(LINE, None)], Selection())
    assert sentence.target == Translator(loaded_model).best([LINE])[0]
    assert not sentence.is_forced

    ids = loaded_model.ids
    (src,), (tgt,) = (
        loaded_model.tokenizer.encode([LINE]),
        loaded_model.tokenizer.encode([sentence.target]),
    )
    with torch.no_grad():
        expected = loaded_model.model.attention_maps(
            torch.tensor([[*src, ids.eos]]), torch.tensor([[ids.bos, *tgt]])
        )
    shape = loaded_model.model.shape
    layers = {"encoder": shape.num_encoder_layers, "decoder": 1, "cross": 1}
    assert [(m.kind, m.layer, m.head) for m in sentence.maps] == [
        (kind, layer, head)
        for kind, count in layers.items()
        for layer in range(1, count + 1)
        for head in range(shape.num_heads + 1)
    ]
    for each in sentence.maps:
        weights = expected[each.kind][each.layer - 1][0].numpy()
        wanted = weights.mean(0) if each.head == 0 else weights[each.head - 1]
        np.testing.assert_allclose(each.weights, wanted, atol=1e-6)
        np.testing.assert_allclose(each.weights.sum(1), 1, atol=1e-5)
        assert each.weights.shape == (len(each.rows), len(each.columns))


def test_long_tokens_are_shown_in_short(
    loaded_model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maps, "MAX_LETTERS", 1)
    (sentence,) = maps.compute_maps(loaded_model, [(LINE, "zwent")], Selection(heads=(0,)))
    for each in sentence.maps:
        assert {len(token) for token in each.rows + each.columns} == {1}


def test_axes_are_queries_and_keys(loaded_model: LoadedModel) -> None:
    (sentence,) = maps.compute_maps(loaded_model, [(LINE, "zwent yalch")], Selection(heads=(0,)))
    by_kind = {each.kind: each for each in sentence.maps}
    read, target = by_kind["encoder"].rows, by_kind["cross"].rows[:-1]
    assert "".join(read[:-1]).replace("▁", " ").strip() == LINE
    assert "".join(target).replace("▁", " ").strip() == "zwent yalch"
    assert by_kind["encoder"].columns == by_kind["cross"].columns == read
    assert by_kind["cross"].rows == by_kind["decoder"].rows == [*target, "</s>"]
    assert by_kind["decoder"].columns == ["<s>", *target]
    assert read[-1] == "</s>"
    assert sentence.is_forced
    (sentence,) = maps.compute_maps(loaded_model, [(LINE, "")], Selection(("decoder",), heads=(0,)))
    assert sentence.maps[0].weights.tolist() == [[1.0]]


def test_what_reading_changes_is_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"zwent\r\nxomt\n")
    source = [b"bavo\r\n", b"f\xffosi\n"]
    assert maps.read_pairs(source, target) == [("bavo", "zwent"), ("f\ufffdosi", "xomt")]
    counts = "carriage returns removed: 2", "lines invalid UTF-8, read with U+FFFD: 1"
    assert caplog.messages == [*counts]


def test_only_selected_maps_are_computed_and_blank_lines_are_skipped(
    loaded_model: LoadedModel, caplog: pytest.LogCaptureFixture
) -> None:
    selection = maps.parse_selection(["cross", "encoder"], [2], ["mean", "3"])
    (found,) = maps.compute_maps(
        loaded_model, [("", None), (LINE, None), ("\u3000", None)], selection
    )
    assert found.source == LINE
    assert [(m.kind, m.layer, m.head) for m in found.maps] == [("encoder", 2, 0), ("encoder", 2, 3)]
    assert "blank lines, skipped: 2" in caplog.text
    with pytest.raises(UserError, match="all lines are blank"):
        maps.compute_maps(loaded_model, [(" ", None)], Selection())


def test_sentences_that_are_too_long_are_refused(loaded_model: LoadedModel) -> None:
    with pytest.raises(UserError, match=r"line 2: \d+ source .* can be shown for at most 200;"):
        maps.compute_maps(loaded_model, [(LINE, None), (LINE * 70, "zwent")], Selection())
    decode = override_decode(loaded_model.decode, max_source_length=9)
    short = replace(loaded_model, decode=decode)
    with pytest.raises(UserError, match="line 1: 9 source and "):  # cut
        maps.compute_maps(short, [(LINE * 2, "zwent")], Selection())
    shape = {"positions": "learned", "max_positions": 8}
    model = random_model(vocab_size=loaded_model.tokenizer.vocab_size, **shape)
    with pytest.raises(UserError, match=r"line 1: .* at most 8; give a shorter"):
        maps.compute_maps(replace(loaded_model, model=model), [("bavo", "zwent " * 9)], Selection())
    (ids,) = loaded_model.tokenizer.encode([LINE])
    for positions, is_refused in ((len(ids), True), (len(ids) + 1, False)):  # with </s>
        shape = {"positions": "learned", "max_positions": positions}
        model = random_model(vocab_size=loaded_model.tokenizer.vocab_size, **shape)
        refusal = pytest.raises(UserError, match="can be shown for at most")
        with refusal if is_refused else nullcontext():
            maps.compute_maps(replace(loaded_model, model=model), [("bavo", LINE)], Selection())


def test_a_sentence_is_in_the_languages_of_its_direction_if_there_is_one(
    loaded_model: LoadedModel, both_run: Path
) -> None:
    both = load(both_run, device="cpu", precision="fp32")
    data = both.config.data.model_copy(update={"test": {}})  # whose set has no tag
    both = replace(both, config=both.config.model_copy(update={"data": data}))
    for model, languages in (
        (loaded_model, ("aa", "ba")),
        (both.tagged("<2aa>"), ("ba", "aa")),
        (both, ("", "")),
    ):
        (found,) = maps.compute_maps(model, [(LINE, "zwent")], Selection(("cross",)))
        assert found.languages == languages


# --- drawings ---------------------------------------------------------------------------------


def test_layers_and_heads_that_the_model_lacks_are_refused(loaded_model: LoadedModel) -> None:
    for selection, words in (
        (Selection(layers=(1, 3)), "--layer 3: these maps have 2 layers"),
        (Selection(("decoder",), (2,)), "--layer 2: these maps have 1 layer;"),
        (Selection(heads=(5,)), "--head 5: these maps have 4 heads"),
    ):
        with pytest.raises(RefusedError, match=words):
            maps.check_selection(loaded_model, selection)
    maps.check_selection(loaded_model, Selection(("decoder", "encoder"), (2,), (4,)))


def test_cells_and_summary_show_the_weights() -> None:
    weights = np.array([[0.0, 1.0], [0.55, 0.02]], np.float32)
    found = HeatMap("cross", 1, 2, ["a", "\x0b"], ["c", "d"], weights)
    assert {shade: path_cells(path) for shade, path in found.shades} == {
        opacity(11): {(1, 0)},
        opacity(20): {(0, 1)},
    }
    shown = [opacity(level) for level in range(1, 21)]
    assert shown == sorted(set(shown))
    assert shown[-1] == 1
    assert found.summary == "Largest weight of each row: a → d 1.00; \\x0b → c 0.55"


HOSTILE = ["</text><script>alert(1)</script>", "\"'&", "\x0b\ufffe", "学", "ن", "x" * 60]


@pytest.fixture
def hostile() -> Sentence:
    size = len(HOSTILE)
    weights = np.full((size, size), 1 / size, np.float32)
    found = [
        HeatMap(kind, layer, head, HOSTILE, HOSTILE, weights)
        for kind in ("encoder", "decoder", "cross")
        for layer in (1, 2)
        for head in (0, 1, 2)
    ]
    return Sentence("<b>\x01source</b>", "<script>alert(2)</script>\u202e", False, found, ("", ""))


def test_a_page_loads_nothing_and_has_menus(hostile: Sentence) -> None:
    text = maps.draw_page([hostile], Path("runs/<i>"))
    page = check_that_nothing_is_loaded(text)
    assert page.text.count("<script>alert(2)</script>") == 1
    assert "Attention of <i>" in page.text
    assert text.count('class="map ') == text.count('viewBox="0 0 6 6"') == len(hostile.maps)
    labels = [html.unescape(label) for label in re.findall(r"<bdi [^>]*>([^<]*)</bdi>", text)]
    assert labels == 2 * len(hostile.maps) * [printable(token) for token in HOSTILE]
    for key in ("kind-cross", "layer-2", "head-1"):
        assert f"main:has(#{key}:checked) .map:not(.{key}) {{ display: none; }}" in text
    assert re.findall(r'id="([^"]+)" checked', text) == ["kind-cross", "layer-all", "head-0"]
    few = replace(hostile, maps=[m for m in hostile.maps if m.kind == "encoder" and m.head == 1])
    assert [chosen for _, chosen, _ in menus([few])] == ["all", "all", "all"]
    assert list(menus([few])[1][2]) == ["all", "1", "2"]


def test_a_page_names_the_model_in_the_working_directory(
    hostile: Sentence, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert f"<title>Attention of {tmp_path.name}</title>" in maps.draw_page([hostile], Path())


def test_the_text_of_a_page_is_marked_with_its_language(hostile: Sentence) -> None:
    one = [next(each for each in hostile.maps if each.kind == kind) for kind in KINDS]
    sentence = replace(hostile, maps=one, languages=("zh_TW", "ur"))
    text = maps.draw_page([sentence], Path("run"))
    assert re.findall("<dd ([^>]*)>", text) == ['dir="auto" lang="zh-TW"', 'dir="rtl" lang="ur"']
    found = re.findall('<div class="(columns|rows)" lang="([^"]*)"', text)
    encoder, decoder = ["zh-TW", "zh-TW"], ["ur", "ur"]
    assert [language for _, language in found] == [*encoder, *decoder, "zh-TW", "ur"]
    assert "lang=" not in maps.draw_page([hostile], Path("run")).split("<body", 1)[1]


def test_lines_of_the_input_that_are_not_utf_8_are_read_and_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert maps.read_pairs([b"caf\xe9\n", b"bavo\n"], None) == [("caf\ufffd", None), ("bavo", None)]
    assert caplog.messages == ["lines invalid UTF-8, read with U+FFFD: 1"]


# --- the command ------------------------------------------------------------------------------


def test_the_command_reads_files_line_for_line(
    trained_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").write_bytes(b"bavo\r\ncelu dimar\n")
    (tmp_path / "target").write_text("zwent\nquarb\n")
    output = tmp_path / "out" / "a.html"
    output.parent.mkdir()
    options = ["-i", tmp_path / "in", "-t", tmp_path / "target", "--head", "mean"]
    assert run_here(monkeypatch, "attention", "-m", trained_run, "-o", output, *options) == 0
    page = check_that_nothing_is_loaded(output.read_text())
    assert page.text.count("Given target") == 2
    assert "celu dimar" in page.text
    assert "quarb" in page.text
    assert run_here(monkeypatch, "attention", "-m", trained_run, "-o", output, LINE) == 0
    assert LINE in output.read_text()
    assert list(output.parent.iterdir()) == [output]
