"""Heat maps of attention: what is drawn is what the model computed, and a file stands alone."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from conftest import Page, check_that_nothing_is_loaded, random_model, run_here
from hypothesis import given
from hypothesis import strategies as st

from mtrain.errors import RefusedError, UserError
from mtrain.report import maps, picture
from mtrain.report.heatmap import (
    FONT,
    HEADING,
    LONGEST,
    HeatMap,
    Sentence,
    cut,
    label,
    opacity,
    visible,
    width_of,
)
from mtrain.report.maps import Choice
from mtrain.report.picture import MARGIN
from mtrain.translate import Translator

SVG = "{http://www.w3.org/2000/svg}"
LINE = "bavo celu minek"


def drawn(
    rows: list[str], columns: list[str], weights: list[list[float]], causal: bool = False
) -> HeatMap:
    return HeatMap("cross", 1, 2, rows, columns, np.array(weights, np.float32), causal)


def path_cells(path: str) -> set[tuple[int, int]]:
    return {(int(row), int(column)) for column, row in re.findall(r"M(\d+) (\d+)h1v1h-1z", path)}


# --- weights ----------------------------------------------------------------------------------


def test_maps_are_the_weights_of_the_model_for_its_own_translation(translator: Translator) -> None:
    (sentence,) = maps.watch(translator, [(LINE, None)], Choice())
    assert sentence.target == translator.best([LINE])[0]
    assert not sentence.is_forced

    ids = translator.ids
    (src,), (tgt,) = (
        translator.tokenizer.encode([LINE]),
        translator.tokenizer.encode([sentence.target]),
    )
    with torch.no_grad():
        expected = translator.model.attention_maps(
            torch.tensor([[*src, ids.eos]]), torch.tensor([[ids.bos, *tgt]])
        )
    shape = translator.model.shape
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
        assert each.is_causal == (each.kind == "decoder")


def test_axes_hold_the_tokens_that_ask_and_those_that_are_seen(translator: Translator) -> None:
    (sentence,) = maps.watch(translator, [(LINE, "zwent yalch")], Choice(heads=(0,)))
    by_kind = {each.kind: each for each in sentence.maps}
    read, target = by_kind["encoder"].rows, by_kind["cross"].rows[:-1]
    assert "".join(read[:-1]).replace("▁", " ").strip() == LINE
    assert "".join(target).replace("▁", " ").strip() == "zwent yalch"
    assert by_kind["encoder"].columns == by_kind["cross"].columns == read
    assert by_kind["cross"].rows == by_kind["decoder"].rows == [*target, "</s>"]
    assert by_kind["decoder"].columns == ["<s>", *target]
    assert read[-1] == "</s>"
    assert sentence.is_forced


def test_an_empty_target_has_the_end_alone(translator: Translator) -> None:
    (sentence,) = maps.watch(translator, [(LINE, "")], Choice(kinds=("decoder",), heads=(0,)))
    (found,) = sentence.maps
    assert (found.rows, found.columns, found.weights.tolist()) == (["</s>"], ["<s>"], [[1.0]])


def test_a_choice_leaves_the_rest_out(translator: Translator) -> None:
    choice = maps.choose(["cross", "encoder"], [2], ["mean", "3"])
    (sentence,) = maps.watch(translator, [(LINE, None)], choice)
    assert [(m.kind, m.layer, m.head) for m in sentence.maps] == [
        ("encoder", 2, 0),
        ("encoder", 2, 3),
    ]


def test_blank_lines_are_left_out_with_a_word(
    translator: Translator, caplog: pytest.LogCaptureFixture
) -> None:
    found = maps.watch(translator, [("", None), (LINE, None), ("\u3000", None)], Choice())
    assert [each.source for each in found] == [LINE]
    assert "blank lines, left out: 2" in caplog.text
    with pytest.raises(UserError, match="all of it is blank"):
        maps.watch(translator, [(" ", None)], Choice())


def test_what_is_too_long_to_be_read_is_refused(translator: Translator) -> None:
    with pytest.raises(UserError, match=r"line 2: \d+ source and \d+ target tokens; a heat map of"):
        maps.watch(translator, [(LINE, None), (" ".join([LINE] * 70), "zwent")], Choice())


def test_learned_positions_bound_a_given_target(translator: Translator) -> None:
    shape = {"positions": "learned", "max_positions": 8}
    model = random_model(vocab_size=translator.tokenizer.vocab_size, **shape)
    small = replace(translator, model=model)
    with pytest.raises(UserError, match=r"target line 1 has .* the model learned 8 positions"):
        maps.watch(small, [("bavo", "zwent " * 9)], Choice())


def test_layers_and_heads_of_other_models_are_refused(translator: Translator) -> None:
    with pytest.raises(RefusedError, match="--layer 3: this model has 2 layers"):
        maps.watch(translator, [(LINE, None)], Choice(layers=(3,)))
    with pytest.raises(RefusedError, match="--head 5: this model has 4 heads"):
        maps.watch(translator, [(LINE, None)], Choice(heads=(5,)))


# --- drawings ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "other"), [("encoder", "decoder"), ("cross", "encoder")])
def test_layers_of_the_other_side_are_refused(
    translator: Translator, kind: str, other: str
) -> None:
    side = "encoder" if kind == "encoder" else "decoder"
    shape = replace(translator.model.shape, **{f"num_{other}_layers": 9, f"num_{side}_layers": 3})
    model = SimpleNamespace(model=SimpleNamespace(shape=shape))
    for chosen in (Choice((kind,), (3, 5)), Choice(("encoder", "cross"), (5,)), Choice((), (5,))):
        maps.check_choice(model, chosen)  # type: ignore[arg-type]
    with pytest.raises(RefusedError, match=f"--kind {kind} --layer 5: the {side} .* has 3 layers"):
        maps.check_choice(model, Choice((kind,), (5, 6)))  # type: ignore[arg-type]


def test_each_cell_has_the_shade_of_its_weight() -> None:
    shades = dict(drawn(["a", "b"], ["c", "d"], [[0.0, 1.0], [0.55, 0.02]]).shades)
    assert {shade: path_cells(path) for shade, path in shades.items()} == {
        opacity(11): {(1, 0)},
        opacity(20): {(0, 1)},
    }
    assert opacity(20) == 1
    shown = [opacity(level) for level in range(1, 21)]
    assert shown == sorted(set(shown))


def test_the_ground_of_a_causal_map_is_what_may_be_seen() -> None:
    rows = [[1.0, 0.0], [0.5, 0.5]]
    assert drawn(["a", "b"], ["c", "d"], rows).ground == "M0 0h2v2h-2z"
    assert drawn(["a", "b"], ["c", "d"], rows, causal=True).ground == "M0 0h1v1h1v1h-2z"


def test_the_summary_names_the_largest_weight_of_each_row() -> None:
    found = drawn(["▁x", "\x0b"], ["c", "d"], [[0.25, 0.75], [0.9, 0.1]]).summary
    assert found == "Largest weight of each row: ▁x → d 0.75; <U+000B> → c 0.90"


@pytest.mark.parametrize(
    ("token", "shown"),
    [
        ("▁Hund", "▁Hund"),
        ("学习", "学习"),
        ("\u202e", "<U+202E>"),
        ("a\x00\ud800", "a<U+0000><U+D800>"),
        ("\ue000", "<U+E000>"),
        ("\u0301", "\u25cc\u0301"),
        ("ن\u200cم", "ن\u200cم"),
    ],
)
def test_tokens_that_show_nothing_are_named(token: str, shown: str) -> None:
    assert label(token).text == shown


def test_long_texts_are_cut_in_no_time_to_the_room_there_is() -> None:
    shown = cut("x" * 200_000, 1000)
    assert shown == "x" * (len(shown) - 1) + "…"
    assert width_of(shown) <= 1000 < width_of("x" + shown)
    assert cut("bavo", 1000) == "bavo"
    assert cut("bavo", 1) == "…"
    assert len(label("x" * 200_000).text) < 40


@given(st.text(max_size=80))
def test_labels_take_bounded_room_and_are_xml(token: str) -> None:
    found = label(token)
    assert width_of(found.text) <= LONGEST * FONT
    assert found.text == found.whole or found.text.rstrip("\u2069").endswith("…")
    ElementTree.fromstring(f"<a>{found.whole.replace('&', '').replace('<', '')}</a>")


HOSTILE = ["</text><script>alert(1)</script>", "\"'&", "\x0b\ufffe", "学", "ن", "x" * 60]


@pytest.fixture
def hostile() -> Sentence:
    size = len(HOSTILE)
    weights = np.full((size, size), 1 / size, np.float32)
    found = [
        HeatMap(kind, layer, head, HOSTILE, HOSTILE, weights, kind == "decoder")
        for kind in ("encoder", "decoder", "cross")
        for layer in (1, 2)
        for head in (0, 1, 2)
    ]
    return Sentence("<b>\x01source</b>", "<script>alert(2)</script>\u202e", False, found)


def test_a_picture_is_xml_that_holds_every_map(hostile: Sentence) -> None:
    text = picture.draw_svg([hostile, hostile])
    root = ElementTree.fromstring(text)
    groups = [g for g in root.iter(f"{SVG}g") if g.get("role") == "img"]
    assert [g.get("aria-label") for g in groups] == [m.title for m in hostile.maps] * 2
    titles = [g.findtext(f"{SVG}text") for g in groups]
    assert titles == [m.place for m in hostile.maps] * 2
    assert root.find(f".//{SVG}script") is None
    assert {name for e in root.iter() for name in e.attrib if "href" in name} == set()
    assert "url(" not in text
    assert "@import" not in text
    shown = {e.text for e in root.iter(f"{SVG}text")}
    assert {"学", "ن", "<U+000B><U+FFFE>", "1. <b><U+0001>source</b>"} <= shown


def test_right_to_left_text_begins_at_its_right() -> None:
    first, last = "\u2068", "\u2069"
    assert label("▁שלום").text == f"{first}▁שלום{last}"
    assert label("سلام؟.").text == f"{first}سلام؟.{last}"
    assert label("▁bavo.").text == "▁bavo."
    assert width_of(label("▁שלום").text) == width_of("▁שלום")
    sentence = Sentence("שלום.", "a שלום", False, [drawn(["a"], ["b"], [[1.0]])])
    texts = [each.text for each in picture._arrange([sentence]).texts]
    assert texts[:2] == [f"1. {first}שלום.{last}", f"→ {first}a שלום{last}"]


def test_a_sentence_longer_than_its_maps_is_cut_to_the_picture() -> None:
    sentence = Sentence("x" * 99, "学" * 99, False, [drawn(["a"], ["b"], [[1.0]])])
    found = picture._arrange([sentence])
    for each in found.texts[:2]:
        assert each.text.endswith("…")
        assert each.x + width_of(each.text) * HEADING / FONT <= found.width - MARGIN
    css = (Path(picture.__file__).parent / "templates" / "heatmap.css").read_text()
    assert f".heat .source, .heat .target, .heat .kind {{ font-size: {HEADING}px; }}" in css


def test_nothing_in_a_picture_lies_outside_or_on_another(hostile: Sentence) -> None:
    found = picture._arrange([hostile])
    boxes = [(p.x, p.y, p.x + p.map.width, p.y + p.map.height) for p in found.maps]
    for i, (left, top, right, bottom) in enumerate(boxes):
        assert 0 <= left < right <= found.width
        assert 0 <= top < bottom <= found.height
        for l2, t2, r2, b2 in boxes[:i]:
            assert right <= l2 or r2 <= left or bottom <= t2 or b2 <= top


def test_a_page_stands_alone_and_chooses(hostile: Sentence) -> None:
    text = picture.draw_page([hostile], Path("runs/<i>"))
    page = check_that_nothing_is_loaded(text)
    assert page.text.count("<script>alert(2)</script>") == 1
    assert "Attention of <i>" in page.text
    assert text.count('class="map ') == len(hostile.maps)
    for key in ("kind-cross", "layer-2", "head-1"):
        rule = f"main:has(#{key}:checked) .map:not(.{key}) {{ display: none; }}"
        assert rule in text
    checked = re.findall(r'id="([^"]+)" checked', text)
    assert checked == ["kind-cross", "layer-all", "head-0"]


def test_a_page_without_the_usual_choice_shows_all(hostile: Sentence) -> None:
    few = replace(hostile, maps=[m for m in hostile.maps if m.kind == "encoder" and m.head == 1])
    kinds, layers, heads = picture.choices([few])
    assert [option.key for option in kinds if option.chosen] == ["all"]
    assert [option.key for option in layers] == ["all", "1", "2"]
    assert [option.key for option in heads if option.chosen] == ["all"]


def test_a_png_is_the_picture_at_twice_its_size(hostile: Sentence) -> None:
    data, _ = picture.draw_png([hostile])
    found = picture._arrange([hostile])
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    sizes = (int.from_bytes(data[16:20]), int.from_bytes(data[20:24]))
    assert sizes == (2 * found.width, 2 * found.height)


def test_a_png_that_no_machine_holds_is_refused(
    hostile: Sentence, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(picture, "MOST_PIXELS", 1000)
    with pytest.raises(RefusedError, match=r"a PNG of .* pixels is too large; choose with --kind"):
        picture.draw_png([hostile])


def test_characters_without_a_font_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = np.ones((1, 1), np.float32)
    one = HeatMap("cross", 1, 1, ["a"], ["学"], weights)
    drawing = picture._draw_character
    monkeypatch.setattr(
        picture, "_draw_character", lambda c, f: drawing("\U0010fffe" if c == "学" else c, f)
    )
    picture.draw(tmp_path / "a.png", [Sentence("a", "b", False, [one])], tmp_path)
    assert "no font of this machine has: " in caplog.text
    assert "学 (U+5B66)" in caplog.text
    assert ".svg or .html" in caplog.text
    assert "(U+0061)" not in caplog.text


def test_letters_are_drawn_in_whatever_family_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = np.ones((1, 1), np.float32)
    sentence = Sentence("a", "b", False, [HeatMap("cross", 1, 1, ["a"], ["b"], weights)])
    family = picture._installed_family()
    monkeypatch.setattr(picture, "FAMILIES", ("Nonesuch", family))
    picture._installed_family.cache_clear()
    assert picture._installed_family() == family
    assert picture.draw_png([sentence])[1] == []
    picture._installed_family.cache_clear()


def test_without_the_library_png_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    with pytest.raises(RefusedError, match=r"pip install 'mtrain\[plot\]'"):
        picture.check_format(Path("a.png"))
    picture.check_format(Path("a.svg"))


# --- the command ------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".html", ".svg", ".png"])
def test_the_command_writes_each_format(
    trained_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    output = tmp_path / f"a{suffix}"
    assert run_here(monkeypatch, "attention", "-m", trained_run, "-o", output, LINE) == 0
    assert output.read_bytes()[:4] in (b"<!do", b"<svg", b"\x89PNG")
    assert [item.name for item in tmp_path.iterdir()] == [output.name]


def test_the_command_reads_files_line_for_line(
    trained_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").write_bytes(b"bavo\r\ncelu dimar\n")
    (tmp_path / "target").write_text("zwent\nquarb\n")
    output = tmp_path / "a.html"
    options = ["-i", tmp_path / "in", "-t", tmp_path / "target", "--head", "mean"]
    assert run_here(monkeypatch, "attention", "-m", trained_run, "-o", output, *options) == 0
    page = Page(output.read_text())
    assert page.text.count("Target given") == 2
    assert "celu dimar" in page.text
    assert "quarb" in page.text


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["-o", "a.html"], 2, "give either a sentence or -i/--input FILE"),
        (["-o", "a.html", "-i", "in", "text"], 2, "give either a sentence or -i/--input FILE"),
        (["-o", "a.gif", "text"], 2, "--output a.gif: expected a name that ends in .html"),
        (["-o", "a.html", "--kind", "self", "text"], 2, "--kind self: expected encoder, decoder"),
        (["-o", "a.html", "--head", "0", "text"], 2, "--head 0: expected a number from 1, or mean"),
        (["-o", "a.html", "--head", "9", "text"], 2, "--head 9: this model has 4 heads"),
        (["-o", "a.html", " "], 1, "there is no text to look at: all of it is blank"),
        (["-o", "a.html", "-i", "in", "-t", "one"], 1, "one has 1 lines but the input has 2"),
        (["-o", "a.html", "-i", "in", "-t", "latin"], 1, "latin:1: not valid UTF-8"),
        (["-o", "a.html", "-i", "none"], 1, "none: cannot read: No such file"),
        (["-o", "a.html", "-i", "many"], 2, "more than 50 sentences to look at"),
        (["-o", "no/a.html", "text"], 1, "no/a.html: cannot write: No such file or directory"),
        (["-o", "in.svg", "-i", "in.svg"], 2, "in.svg: is read from; write to another file"),
    ],
)
def test_what_cannot_be_shown_is_one_clear_error(
    trained_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    code: int,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    texts = {"in": b"bavo\ncelu\n", "one": b"zwent\n", "latin": b"\xe4\n\n", "in.svg": b"bavo\n"}
    for name, content in {**texts, "many": b"bavo\n" * 51}.items():
        Path(name).write_bytes(content)
    before = sorted(tmp_path.iterdir())
    assert run_here(monkeypatch, "attention", "-m", trained_run, *options) == code
    err = capsys.readouterr().err
    assert message in err
    assert "Traceback" not in err
    assert sorted(tmp_path.iterdir()) == before


def test_visible_keeps_what_is_seen() -> None:
    assert visible("a ▁b 学 \u00a0") == "a ▁b 学 \u00a0"
