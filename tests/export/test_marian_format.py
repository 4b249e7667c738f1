"""Models in Hugging Face's form: the real library cuts, searches and joins with them as mtrain
does.
"""

from __future__ import annotations

import io
import json
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import sentencepiece
import torch
import transformers
from conftest import made_up_pairs, make_tokenizer, random_model, shape_with, write_config
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError

from mtrain.config.loading import load_config
from mtrain.config.schema import Config
from mtrain.data.batches import SpecialIds, collate
from mtrain.data.tokenizer import Tokenizer
from mtrain.export import convert, marian_format
from mtrain.runtime.errors import RefusedError, UserError
from mtrain.translation.loading import LoadedModel
from mtrain.translation.scorer import Scorer
from mtrain.translation.translator import Translator

pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")

PAIRS = made_up_pairs(40, 21)
SOURCES = [src for src, _ in PAIRS]
CHINESE = [
    "今天下午,老师在图书馆门口等我们。",
    "“你好!”她笑着说:「明天见?」",
    "请把第３章的标题改成ＡＢＣ，谢谢。",
    "湖边的小路很安静，只有几只鸟在叫。",
]
# What a tokenizer may trip over. Texts that begin like `>>de<<` are apart: see below.
ODD = [
    "two  and   three spaces",
    " one before, one behind ",
    "</s> in a text is text",
    "a<pad>b <unk> <s>c",
    "<0xE4> <0x0A>",
    "x >>de<< y",
    ">>> a quoted line",
    "don 't , you 're . “so” ‘it’ — … «goes» 1 000 %",
    "ﬁ ① Å ﷺ ａｂｃ，。！？",
    "𠮷 🎉 👩‍👩‍👧 \ufffd \u200b",
    "tab\tno-break\u00a0wide\u3000form\x0cfeed\u2028line\u0085next\x00null",
    "▁lower ▁▁ lines",
    "",
]
TEXTS = [*SOURCES, *CHINESE, *ODD]


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> None:
        raise AssertionError("the network")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def test_the_direction_is_that_of_the_lines_compared(
    loaded_model: LoadedModel, tmp_path: Path
) -> None:
    """Not that of the first training text, which may be the other one."""
    data = loaded_model.config.data
    back = data.train[0].model_copy(update={"swap": True})
    changed = data.model_copy(update={"train": [back, *data.train]})
    config = loaded_model.config.model_copy(update={"data": changed})
    marian_format.write(tmp_path, replace(loaded_model, config=config), "float32")
    stored = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert (stored["source_lang"], stored["target_lang"]) == (data.src_lang, data.tgt_lang)


@pytest.mark.parametrize(("tag", "is_read"), [(">>ba<<", True), ("<2ba>", False), (">>ba", False)])
def test_tags_that_the_library_does_not_read_are_warned_of(
    loaded_model: LoadedModel,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    tag: str,
    is_read: bool,
) -> None:
    data = loaded_model.config.data
    train = [data.train[0].model_copy(update={"tag": tag})]
    config = loaded_model.config.model_copy(
        update={"data": data.model_copy(update={"train": train})}
    )
    marian_format.write(tmp_path, replace(loaded_model, config=config), "float32")
    assert (f"MarianTokenizer does not read {tag}: " in caplog.text) == (not is_read)


# --- The model -------------------------------------------------------------------------------


@pytest.mark.parametrize("tie", ["all", "output", "none"])
@pytest.mark.parametrize("heads", [1, 4])
def test_the_library_scores_random_weights_as_the_model_does(
    tokenizer: Tokenizer, config: Config, tmp_path: Path, tie: str, heads: int
) -> None:
    shape = {"tie_embeddings": tie, "num_heads": heads, "num_decoder_layers": 3}
    model = random_model(vocab_size=tokenizer.vocab_size, **shape)
    loaded_model = LoadedModel(model, tokenizer, config.decode, config)
    marian_format.write(tmp_path, loaded_model, "float32")
    marian = transformers.MarianMTModel.from_pretrained(tmp_path)

    ids = [loaded_model.encode_sources([side[i] for side in PAIRS])[0] for i in (0, 1)]
    batch = collate(list(zip(*ids, strict=True)), SpecialIds.of(tokenizer))
    with torch.no_grad():
        expected = model(batch.src, batch.tgt_in)
        found = marian(
            batch.src, (batch.src != tokenizer.pad_id).long(), decoder_input_ids=batch.tgt_in
        ).logits
    real = batch.tgt_in != tokenizer.pad_id

    assert expected[real].std() > 0.5
    torch.testing.assert_close(found[real], expected[real], rtol=1e-4, atol=1e-4)
    assert not marian.training
    assert not marian.final_logits_bias.any()


@pytest.mark.parametrize(("seed", "ending"), [(0, 2.5), (1, 1.0)])
def test_a_random_model_generates_the_ids_that_mtrain_finds(
    tokenizer: Tokenizer, config: Config, tmp_path: Path, seed: int, ending: float
) -> None:
    """Also where the limit is reached."""
    model = random_model(seed, vocab_size=tokenizer.vocab_size, tie_embeddings="none")
    bias = model.decoder_layers[-1].feed_norm.bias
    with torch.no_grad():  # surer of its words, and with an eos that is likely enough to come
        model.output.weight.mul_(3)
        model.output.weight[tokenizer.eos_id] += ending * bias / bias.square().sum()
    loaded_model = LoadedModel(model, tokenizer, config.decode, config)
    marian_format.write(tmp_path, loaded_model, "float32")
    engine = marian_format.load(tmp_path, tokenizer)

    rows = loaded_model.encode_sources(SOURCES[:12])[0]
    ids, limits = (
        [row.tolist() for row in rows],
        [loaded_model.target_limit(len(row)) for row in rows],
    )
    for beam_size in (1, 4):
        changes = {"beam_size": beam_size, "length_norm": "power"}
        ours = replace(loaded_model, decode=loaded_model.decode.model_copy(update=changes))
        expected = [found[0].score for found in Translator(ours).translate(SOURCES[:12])[0]]
        found = engine.search(ids, limits, beam_size, ours.decode.length_penalty)
        assert len({tuple(row) for row in found}) > 6
        assert len({len(row) - limit for row, limit in zip(found, limits, strict=True)}) > 1
        scores = -Scorer(ours).pair_nll(rows, [np.array(row, np.int64) for row in found])
        torch.testing.assert_close(scores, torch.tensor(expected).double(), rtol=1e-4, atol=1e-3)


def test_what_the_files_say(loaded_model: LoadedModel, tmp_path: Path) -> None:
    marian_format.write(tmp_path, loaded_model, "float32")
    config, search, vocabulary, _ = (
        json.loads((tmp_path / name).read_text(encoding="utf-8"))
        for name in ("config.json", "generation_config.json", "vocab.json", "tokenizer_config.json")
    )
    special = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
    special |= {"forced_eos_token_id": 3, "decoder_start_token_id": 2}
    expected = {
        "architectures": ["MarianMTModel"],
        "activation_function": "relu",
        "scale_embedding": True,
        "max_position_embeddings": 1034,  # 1,023 tokens, 10 more, eos
        "dropout": 0.0,
        "vocab_size": 350,
    }
    assert {key: config[key] for key in expected} == expected
    search.pop("transformers_version")
    beam = {"num_beams": 2, "length_penalty": 0.6, "early_stopping": True}
    assert search == {**special, **beam, "bad_words_ids": [[0], [2]], "max_new_tokens": 1034}
    assert list(vocabulary) == loaded_model.tokenizer.all_pieces
    assert list(vocabulary.values()) == list(range(350))


# --- Text ------------------------------------------------------------------------------------


def foreign(texts: list[str], **options: Any) -> Tokenizer:
    """Train a vocabulary as SentencePiece does by itself."""
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_writer=out,
        hard_vocab_limit=False,
        minloglevel=2,
        **options,
    )
    return Tokenizer(out.getvalue())


MIXED = [*(text for pair in made_up_pairs(200, 22) for text in pair), *(3 * CHINESE)]
VOCABULARIES: dict[str, Callable[[], Tokenizer]] = {
    "bpe": lambda: make_tokenizer(MIXED, vocab_size=380),
    "unigram with symbols": lambda: make_tokenizer(
        MIXED, vocab_size=360, model_type="unigram", user_symbols=["<x>", "@@", "湖边"]
    ),
    "nmt_nfkc": lambda: make_tokenizer(MIXED, vocab_size=380, normalization="nmt_nfkc"),
    "foreign": lambda: foreign(MIXED, vocab_size=120),
    "foreign without bos": lambda: foreign(
        MIXED, vocab_size=120, model_type="bpe", bos_id=-1, user_defined_symbols=["<pad>"]
    ),
}


@pytest.fixture(scope="module", params=list(VOCABULARIES))
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a vocabulary of mtrain and what the library reads of it."""
    directory = tmp_path_factory.mktemp("text")
    tokenizer = VOCABULARIES[request.param]()
    return tokenizer, load_marian(directory, tokenizer)


def load_marian(directory: Path, tokenizer: Tokenizer) -> Any:
    config = load_config(write_config(directory))
    model = random_model(vocab_size=tokenizer.vocab_size, pad_id=tokenizer.pad_id)
    loaded_model = LoadedModel(model, tokenizer, config.decode, config)
    marian_format.write(directory, loaded_model, "float32")
    return transformers.MarianTokenizer.from_pretrained(directory)


def agree(tokenizer: Tokenizer, marian: Any, texts: list[str]) -> None:
    """Check that texts are cut into the same ids, and joined to the same texts but for what the
    library leaves out.
    """
    rows = tokenizer.encode(texts)
    assert marian(texts)["input_ids"] == [[*row, tokenizer.eos_id] for row in rows]
    known = [[number for number in row if number != tokenizer.unk_id] for row in rows]
    generated = [[tokenizer.bos_id, *row, tokenizer.eos_id, tokenizer.pad_id] for row in rows]
    joined = marian.batch_decode(generated, skip_special_tokens=True)
    assert joined == [text.strip() for text in tokenizer.decode(known)]


@pytest.mark.slow
def test_text_is_cut_and_joined_alike(engine: tuple[Tokenizer, Any]) -> None:
    tokenizer, marian = engine

    agree(tokenizer, marian, [*TEXTS, "a<x>b @@c", "他在湖边<x>散步"])

    assert len(marian) == tokenizer.vocab_size
    ids = tokenizer.unk_id, tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id
    given = marian.unk_token_id, marian.pad_token_id, marian.bos_token_id, marian.eos_token_id
    assert given == ids


FRAGMENTS = st.one_of(
    st.text(max_size=6),
    st.sampled_from(
        ["</s>", "<unk>", "<pad>", "<s>", "<x>", "@@", ">>", " ", "  ", "，", "▁", *TEXTS]
    ),
)


@given(st.lists(FRAGMENTS, max_size=6).map("".join))
def test_any_text_is_cut_and_joined_alike(engine: tuple[Tokenizer, Any], text: str) -> None:
    if "<<" not in text:
        agree(*engine, [text])


def test_a_text_that_begins_like_a_language_code_is_cut_otherwise(
    engine: tuple[Tokenizer, Any],
) -> None:
    """The library's rule, which no setting changes: README tells of it."""
    tokenizer, marian = engine
    text = ">>de<< " + SOURCES[0]

    assert marian(text)["input_ids"][:-1] != tokenizer.encode([text])[0]


@pytest.mark.slow
def test_long_texts_are_cut_off_where_mtrain_does(
    loaded_model: LoadedModel, tmp_path: Path
) -> None:
    decode = loaded_model.decode.model_copy(update={"max_source_length": 12})
    short = replace(loaded_model, decode=decode)
    marian_format.write(tmp_path, short, "float32")
    marian = transformers.MarianTokenizer.from_pretrained(tmp_path)
    text = " ".join(SOURCES)

    found = marian(text, truncation=True)["input_ids"]
    assert found == [*short.encode_sources([text])[0][0].tolist(), 3]
    assert len(found) == 12


def test_punctuation_is_left_alone_where_sacremoses_is_installed(
    loaded_model: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Normalizer:
        def __init__(self, language: str) -> None:
            assert language == "aa"

        def normalize(self, text: str) -> str:
            raise AssertionError("normalized")

    module = ModuleType("sacremoses")
    monkeypatch.setattr(module, "MosesPunctNormalizer", Normalizer, raising=False)
    monkeypatch.setitem(sys.modules, "sacremoses", module)
    marian_format.write(tmp_path, loaded_model, "float32")

    agree(loaded_model.tokenizer, transformers.MarianTokenizer.from_pretrained(tmp_path), TEXTS)


# --- Refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ({"norm": "pre"}, "model.norm: pre: Marian supports only post; use --to ctranslate2"),
        ({"positions": "learned"}, "model.positions: learned: Marian supports only sinusoidal"),
    ],
)
def test_what_marian_cannot_express_is_refused(shape: dict[str, str], message: str) -> None:
    with pytest.raises(RefusedError, match=message):
        marian_format.check(shape_with(**shape), "float32")


def test_a_full_disk_is_an_error_of_the_place(
    loaded_model: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **options: Any) -> None:
        raise SafetensorError("No space left on device")

    monkeypatch.setattr(transformers.MarianMTModel, "save_pretrained", fail)
    with pytest.raises(UserError, match=r"/marian: cannot write: No space left on device"):
        convert.export(loaded_model, "hf-marian", tmp_path / "marian", "float32", None, print)
    assert list(tmp_path.iterdir()) == []
