"""Translation memories: the text of two languages, whatever stands around it, and nothing else."""

from __future__ import annotations

import re
import tracemalloc
from collections import Counter
from pathlib import Path
from xml.sax.saxutils import escape

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtrain.config.corpora import FileCorpus
from mtrain.corpus import tmx
from mtrain.corpus.lines import DROPPED, TOO_LONG, Reading
from mtrain.corpus.readers import read_pairs, scan
from mtrain.corpus.tmx import INLINE_CODES, SEVERAL_TEXTS
from mtrain.runtime.errors import UserError

HEAD = '<?xml version="1.0"?>\n<!DOCTYPE tmx SYSTEM "tmx14.dtd">\n<tmx version="1.4">\n<header/>\n'
LACKS = "pairs dropped: no en or no de in the unit"
BLANK = "pairs dropped: blank on a side"


def tuv(language: str, segment: str, attribute: str = "xml:lang") -> str:
    return f'<tuv {attribute}="{language}"><prop type="a">b</prop><seg>{segment}</seg></tuv>'


def unit(*variants: str) -> str:
    return f'<tu tuid="1"><note>a note</note>{"".join(variants)}</tu>\n'


def pair(src: str, tgt: str) -> str:
    return unit(tuv("en", src), tuv("de", tgt))


def memory(*units: str, head: str = HEAD) -> str:
    return f"{head}<body>\n{''.join(units)}</body>\n</tmx>\n"


def write(directory: Path, text: str | bytes, name: str = "a.tmx") -> Path:
    path = directory / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
    return path


def corpus(path: Path, src: str = "en", tgt: str = "de") -> FileCorpus:
    return FileCorpus(file=str(path), src=src, tgt=tgt)


def read(
    path: Path, src: str = "en", tgt: str = "de", *, keep_blank: bool = False
) -> tuple[list[tuple[str, str]], Counter[str]]:
    reading = Reading(keep_blank=keep_blank)
    return list(read_pairs(corpus(path, src, tgt), reading)), reading.counts


def error_of(path: Path, src: str = "en", tgt: str = "de") -> str:
    """The one error of reading, which a scan finds already."""
    for action in (lambda: read(path, src, tgt), lambda: scan(corpus(path, src, tgt), Reading())):
        with pytest.raises(UserError) as caught:
            action()
    return str(caught.value)


def test_a_memory_of_level_1(tmp_path: Path) -> None:
    """As TMX 1.1 has it: `lang` without a prefix, no inline elements, codes in capitals."""
    head = '<?xml version="1.0" ?>\n<!-- a comment -->\n<tmx version="1.1">\n<header srclang="EN"/>'
    units = [
        unit(tuv("EN", "A boat &amp; a bridge", "lang"), tuv("DE", "Boot &#38; Brücke", "lang")),
        unit(tuv("DE", "<![CDATA[<Tee>]]>", "lang"), tuv("EN", "&lt;tea&gt;", "lang")),
    ]
    path = write(tmp_path, memory(*units, head=head))
    assert read(path)[0] == [("A boat & a bridge", "Boot & Brücke"), ("<tea>", "<Tee>")]


@pytest.mark.parametrize(
    ("segment", "text"),
    [
        ('Press <bpt i="1">&lt;b&gt;</bpt>Start<ept i="1">&lt;/b&gt;</ept>.', "Press Start."),
        ('a<ph x="1">{0}</ph> b<it pos="begin">[i]</it>c<ut>{u}</ut>', "a bc"),
        ("the <hi>old <hi type='x'>red</hi></hi> boat", "the old red boat"),
        ("see<ph>\\f{<sub>a footnote</sub>}</ph> here", "see here"),
        ("a <hi>b<ph>c<sub>d <hi>e</hi><ph/></sub></ph></hi> f", "a b f"),
        ("kept: <g id='1'>by a tool</g><x/>", "kept: by a tool"),
        ("<bpt i='1'/>all<ept i='1'/>", "all"),
        ("two\nlines", "two lines"),
        ("\n      set in \r\n\r\n \t by a tool   \n    ", "set in by a tool"),
        (" two  spaces ", " two  spaces "),
        ("a <hi>b\n</hi>\n c", "a b c"),
        ("&#13;&#10;x&#9;y", "x\ty"),
        ("a\u2028b\u0085c", "a\u2028b\u0085c"),
    ],
)
def test_inline_elements_and_line_breaks(tmp_path: Path, segment: str, text: str) -> None:
    assert read(write(tmp_path, memory(pair(segment, "x"))))[0] == [(text, "x")]


@pytest.mark.parametrize(
    ("src", "languages", "chosen"),
    [
        ("en", ["en-GB", "EN", "en"], 1),
        ("en", ["en-GB", "en_us"], 0),
        ("EN", ["eng", "fr", "en-US"], 2),
        ("en", ["eng", " en "], 1),
        ("en-US", ["en", "en-GB", "en-us"], 2),
        ("en_us", ["en", "en-US-x-old"], 1),
        ("zh-Hant", ["zh-TW", "zh-Hant-HK"], 1),
        ("en-US", ["en", "en-GB"], None),
        ("en", ["eng", "", "e"], None),
    ],
)
def test_variants_of_a_language(
    tmp_path: Path, src: str, languages: list[str], chosen: int | None
) -> None:
    variants = [tuv(language, f"text {i}") for i, language in enumerate(languages)]
    units = [unit(*variants, tuv("de", "Text")), unit(tuv(src, "b"), tuv("de", "c"))]
    path = write(tmp_path, memory(*units))
    pairs = read(path, src)[0]
    assert pairs == ([] if chosen is None else [(f"text {chosen}", "Text")]) + [("b", "c")]


@pytest.mark.parametrize(
    ("languages", "src", "tgt", "pair"),
    [
        ("pt-PT pt-BR", "pt-PT", "pt-BR", "01"),
        ("pt-PT pt-BR", "pt", "pt-BR", "01"),
        ("pt-PT pt-BR", "pt", "pt-PT", "10"),
        ("pt-PT pt-BR", "pt-PT", "pt", "01"),
        ("pt-BR", "pt-BR", "pt", ""),
        ("zh-Hant-TW zh-Hans", "zh", "zh-Hant", "10"),
        ("zh-Hant-TW zh-Hans zh", "zh", "zh-Hant", "20"),
    ],
)
def test_kinds_of_one_language_are_a_pair_of_two(
    tmp_path: Path, languages: str, src: str, tgt: str, pair: str
) -> None:
    """The vaguer side chooses among the rest."""
    variants = [tuv(language, str(i)) for i, language in enumerate(languages.split())]
    path = write(tmp_path, memory(unit(*variants)))
    if pair:
        assert read(path, src, tgt)[0] == [tuple(pair)]
    else:
        assert f"no unit has both {src} and {tgt};" in error_of(path, src, tgt)


def test_units_that_lack_a_language_are_counted_and_blank_ones_as_ever(tmp_path: Path) -> None:
    units = [
        pair("a", "b"),
        unit(tuv("en", "only")),
        unit(),
        unit('<tuv xml:lang="en"/>', tuv("de", "no segment")),
        pair(" ", "c"),
        unit(tuv("fr", "x"), tuv("en", "d"), tuv("de", "")),
        unit(tuv("fr", "x"), tuv("en", "d"), tuv("de", "e")),
    ]
    path = write(tmp_path, memory(*units))
    assert read(path) == ([("a", "b"), ("d", "e")], {LACKS: 3, BLANK: 2})
    kept, counts = read(path, keep_blank=True)
    assert kept == [("a", "b"), (" ", "c"), ("d", ""), ("d", "e")]
    assert counts == {LACKS: 3}
    assert scan(corpus(path), Reading()).pairs == 7


@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "windows-1252", "koi8-r"]
)
def test_encodings(tmp_path: Path, encoding: str) -> None:
    texts = ("чай", "хлеб") if encoding == "koi8-r" else ("Brücke", "ça")
    names = {"utf-16-le": "utf-16", "utf-16-be": "utf-16", "utf-8-sig": "utf-8"}
    name = names.get(encoding, encoding)
    head = HEAD.replace('"1.0"', f'"1.0" encoding="{name}"')
    mark = "\ufeff" if encoding in ("utf-16-le", "utf-16-be") else ""
    data = (mark + memory(pair(*texts), head=head)).replace("\n", "\r\n").encode(encoding)
    assert read(write(tmp_path, data))[0] == [texts]


LAUGHS = """<!DOCTYPE tmx [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">
<!ENTITY c "&b;&b;&b;&b;&b;&b;&b;&b;">]>"""
BAD_1 = "a.tmx:6: unit 1: not well-formed XML: "
FAULTS: list[tuple[str | bytes, str]] = [
    (memory(pair("a", "b")).replace("</seg>", "</sug>", 1), BAD_1 + "mismatched"),
    (memory(pair("a", "b"))[:-20], BAD_1 + "unclosed"),
    ("", "a.tmx:1: not well-formed XML: no element found"),
    ("plain text", "a.tmx:1: not well-formed XML: syntax error"),
    (memory(pair("a & b", "c")), BAD_1),
    (memory(pair("a\x00b", "c")), BAD_1),
    (memory(pair("&#xD800;", "c")), BAD_1 + "reference to"),
    (memory(pair("a", "b")).encode().replace(b">a<", b">\xff<"), BAD_1),
    ('<xliff version="1.2"><file/></xliff>', "a.tmx:1: not TMX: its root is <xliff>"),
    (LAUGHS + memory(pair("&c;", "b"), head="<tmx>"), "a.tmx:1: declares the entity a, which is"),
    (
        '<!DOCTYPE tmx [\n<!ENTITY x SYSTEM "file:///etc/hostname">]>'
        + memory(pair("&x;", "b"), head="<tmx>"),
        "a.tmx:2: declares the entity x",
    ),
    (
        '<!DOCTYPE tmx [<!ENTITY % x SYSTEM "http://127.0.0.1/x"> %x;]>' + memory(head="<tmx>"),
        "a.tmx:1: declares the entity x",
    ),
    (memory(pair("a&nbsp;b", "c")), "a.tmx:6: unit 1: unknown entity &nbsp;"),
    (memory(pair("&x;", "c"), head="<tmx>"), BAD_1.replace("6", "2") + "undefined"),
    (memory("<tu><tu/></tu>"), "a.tmx:6: unit 1: <tu> within <tu>"),
    (memory(unit("<tuv><seg>a<seg>b</seg></seg></tuv>")), "a.tmx:6: unit 1: <seg> within <seg>"),
    (memory(unit(tuv("en", "a<tu>b</tu>"), tuv("de", "c"))), "no unit has both en and de"),
    (memory("<a>" * 300 + "</a>" * 300), "a.tmx:6: elements nested more than 200 deep"),
    (memory(), "no unit has both en and de; its languages are none"),
    (
        memory(unit(tuv("en-US", "a"), tuv("fr", "b")), unit(tuv("it", "c"))),
        "a.tmx: no unit has both en and de; its languages are en-US, fr, it",
    ),
    (
        memory(head=HEAD.replace('"1.0"', '"1.0" encoding="shift_jis"')),
        "a.tmx: cannot be decoded: multi-byte encodings are not supported; convert the file",
    ),
    (memory(head=HEAD.replace('"1.0"', '"1.0" encoding="no-such"')), "convert the file to UTF-8"),
]


@pytest.mark.parametrize(("text", "words"), FAULTS, ids=[words for _, words in FAULTS])
def test_a_file_that_is_no_sound_memory_is_refused(
    tmp_path: Path, text: str | bytes, words: str
) -> None:
    assert words in error_of(write(tmp_path, text))


def test_a_file_may_have_too_long_units_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tmx, "MAX_UNIT_LENGTH", 200)
    path = write(tmp_path, memory(pair("a", "b")))
    assert read(path) == ([], {DROPPED + TOO_LONG: 1})
    assert scan(corpus(path), Reading()).pairs == 1


def test_names_of_elements_may_have_prefixes(tmp_path: Path) -> None:
    text = re.sub("<(/?)", r"<\1x:", memory(pair("a", "b"), head="<tmx>"))
    assert read(write(tmp_path, text))[0] == [("a", "b")]


def test_an_error_names_a_few_languages(tmp_path: Path) -> None:
    units = [unit(tuv(f"x{n}", "a")) for n in range(30)]
    assert error_of(write(tmp_path, memory(*units))).endswith(", x18, x19")


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    segment = "a boat on the water " * 20
    path = write(tmp_path, memory(*[pair(segment, segment)] * 20_000))
    assert path.stat().st_size > 16_000_000
    tracemalloc.start()
    count = sum(1 for _ in read_pairs(corpus(path), Reading()))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 20_000
    assert peak < 6_000_000  # a block, its text and its units


LETTERS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Cn"]), max_size=30)


@given(st.lists(st.tuples(LETTERS, LETTERS), min_size=1, max_size=5))
def test_what_is_written_comes_back(
    tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[str, str]]
) -> None:
    text = memory(*(pair(escape(src), escape(tgt)) for src, tgt in pairs))
    path = write(tmp_path_factory.getbasetemp(), text)
    assert read(path, keep_blank=True)[0] == pairs


def test_units_with_several_texts_in_a_language_are_counted(tmp_path: Path) -> None:
    several = unit(tuv("en", "a"), tuv("en", "x"), tuv("de", "b"), tuv("fr", "c"), tuv("fr", "d"))
    other = unit(tuv("en", "a"), tuv("de", "b"), tuv("fr", "c"), tuv("fr", "d"))
    path = write(tmp_path, memory(several, other, pair("c", "d")))
    assert read(path) == ([("a", "b"), ("a", "b"), ("c", "d")], Counter({SEVERAL_TEXTS: 1}))
    assert scan(corpus(path), Reading()).pairs == 3


def test_units_with_inline_codes_in_the_languages_of_the_pair_are_counted(tmp_path: Path) -> None:
    code = "press<ph>{0}</ph> now"
    both, other = unit(tuv("en", code), tuv("de", code)), unit(tuv("fr", code), tuv("en", "a"))
    missing = unit(tuv("fr", code), tuv("it", "a"))
    plain = unit(tuv("en", "<hi>a</hi>"), tuv("de", "b"), tuv("fr", code))
    path = write(tmp_path, memory(both, plain, other, missing))
    pairs, counts = read(path)
    assert pairs == [("press now", "press now"), ("a", "b")]
    assert counts[INLINE_CODES] == 1
    assert scan(corpus(path), Reading()).pairs == 4


def test_a_stop_ends_the_reading_of_units(tmp_path: Path) -> None:
    def stop() -> None:
        raise InterruptedError

    path = write(tmp_path, memory(pair("a", "b")))
    with pytest.raises(InterruptedError):
        list(read_pairs(corpus(path), Reading(check_stop=stop)))
