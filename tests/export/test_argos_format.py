"""Packages for Argos Translate: their content, what is refused, and the real program with one."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import ctranslate2
import pytest
from conftest import made_up_pairs, random_model, run_mtrain
from sentencepiece import SentencePieceProcessor

from mtrain.config.schema import override_decode
from mtrain.export import argos_format, convert
from mtrain.runtime.errors import RefusedError
from mtrain.translation import loading
from mtrain.translation.loading import LoadedModel
from mtrain.translation.translator import Translator

SOURCES = [src for src, _ in made_up_pairs(40, 21)]
NAME = "translate-aa_ba-1_0"

# Installs a package and translates lines as they are: its own splitter of sentences needs a model
# from the network.
SCRIPT = """
import json, sys
from argostranslate import package, sbd, translate

class Whole(sbd.ISentenceBoundaryDetectionModel):
    def split_sentences(self, text):
        return [text]

package.install_from_path(sys.argv[1])
found = translate.get_translation_from_codes("aa", "ba")
found.underlying.sentencizer = Whole()
lines = json.load(sys.stdin)
print(json.dumps([str(found), *(found.translate(line) for line in lines)]))
"""


def export(loaded: LoadedModel, path: Path, quantization: str = "float32") -> list[str]:
    shown: list[str] = []
    sample = path.with_name("sample")
    sample.write_text("".join(line + "\n" for line in SOURCES))
    convert.export(loaded, "argos", path, quantization, sample, shown.append)
    return shown


def expected(loaded: LoadedModel) -> list[str]:
    """Return mtrain's own translations with the settings of Argos Translate."""
    options: dict[str, Any] = {"beam_size": 4, "length_penalty": 0.2, "length_norm": "power"}
    decode = override_decode(loaded.decode, **options)
    return Translator(replace(loaded, decode=decode)).best(SOURCES)


def test_a_package_has_what_argos_translate_reads(
    loaded_model: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "new" / "aa_ba.argosmodel"
    path.parent.mkdir()
    decode = override_decode(loaded_model.decode, max_source_length=100)
    loaded_model = replace(loaded_model, decode=decode)
    monkeypatch.setattr(tempfile, "tempdir", "/proc")  # the only disk that is used is the output's
    shown = export(loaded_model, path, "int8")
    assert [line.split(":")[0] for line in shown if not line.startswith(" ")] == [
        f"{kind}, {search}" for kind in ("float32", "int8") for search in ("greedy", "beam 4")
    ]
    assert sorted(each.name for each in path.parent.iterdir()) == ["aa_ba.argosmodel", "sample"]
    with zipfile.ZipFile(path) as package:
        assert package.testzip() is None
        assert {each.compress_type for each in package.infolist()} == {zipfile.ZIP_DEFLATED}
        package.extractall(tmp_path)
    found = tmp_path / NAME
    assert sorted(each.name for each in found.iterdir()) == [
        *("README.md", "metadata.json", "model", "sentencepiece.model"),
    ]
    assert json.loads((found / "metadata.json").read_text()) == {
        **{"package_version": "1.0", "argos_version": "1.0"},
        **{"from_code": "aa", "from_name": "Afar", "to_code": "ba", "to_name": "Bashkir"},
    }
    pieces = SentencePieceProcessor(model_file=str(found / "sentencepiece.model"))
    served = ctranslate2.Translator(str(found / "model"), device="cpu")
    assert served.compute_type.startswith("int8")
    results = served.translate_batch(
        pieces.encode(SOURCES, out_type=str), beam_size=4, length_penalty=0.2
    )
    texts = [pieces.decode(result.hypotheses[0]) for result in results]
    assert sum(a == b for a, b in zip(texts, expected(loaded_model), strict=True)) >= 36
    long = pieces.encode(" ".join(SOURCES * 20), out_type=str)  # is cut, and has positions
    assert len(long) > 1024
    assert served.translate_batch([long], beam_size=4)[0].hypotheses[0]


@pytest.mark.skipif(
    importlib.util.find_spec("argostranslate") is None, reason="needs Argos Translate"
)
def test_argos_translate_installs_a_package_and_translates_alike(
    loaded_model: LoadedModel, tmp_path: Path
) -> None:
    path = tmp_path / "aa_ba.argosmodel"
    export(loaded_model, path)
    homes = ("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, path],
        env={**os.environ, **dict.fromkeys(homes, str(tmp_path)), "ARGOS_CHUNK_TYPE": "MINISBD"},
        input=json.dumps(SOURCES),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    name, *texts = json.loads(done.stdout)
    assert name == "Afar → Bashkir"
    assert texts == expected(loaded_model)


@pytest.mark.parametrize(
    ("tag", "code", "name"),
    [
        ("deu", "de", "German"),
        ("sr_Cyrl", "sr-Cyrl", "Serbian Cyrl"),
        ("pt-BR", "pt-BR", "Portuguese BR"),
        ("ast", "ast", "ast"),
    ],
)
def test_every_code_of_a_config_names_a_package(
    loaded_model: LoadedModel, tmp_path: Path, tag: str, code: str, name: str
) -> None:
    data = loaded_model.config.data.model_copy(update={"tgt_lang": tag})
    config = loaded_model.config.model_copy(update={"data": data})
    argos_format.pack(tmp_path, replace(loaded_model, config=config), sink := io.BytesIO())
    with zipfile.ZipFile(sink) as package:
        found = json.loads(package.read(f"translate-aa_{code}-1_0/metadata.json"))
    assert (found["to_code"], found["to_name"]) == (code, name)
    assert found["from_code"] == "aa"


@pytest.mark.slow
def test_the_command_rounds_to_int8_unless_told(trained_run: Path, tmp_path: Path) -> None:
    sample, path = tmp_path / "sample", tmp_path / "new" / "aa_ba.argosmodel"
    sample.write_text("".join(line + "\n" for line in SOURCES))
    options = ["--to", "argos", "-o", path, "--sample", sample]
    done = run_mtrain("export", "-m", trained_run, *options)
    assert done.returncode == 0, done.stderr
    assert "int8, beam 4: " in done.stdout
    assert zipfile.is_zipfile(path)
    again = run_mtrain("export", "-m", trained_run, *options)
    assert again.returncode == 2
    assert "exists already" in again.stderr


def test_models_that_argos_translate_cannot_use_are_refused(
    loaded_model: LoadedModel, both_run: Path, tmp_path: Path
) -> None:
    """Nothing is written."""
    data = loaded_model.config.data.model_copy(update={"src_lang": "../aa"})
    odd = replace(loaded_model, config=loaded_model.config.model_copy(update={"data": data}))
    for loaded, message in (
        (odd, r"'\.\./aa' is not a language code"),
        (loading.load(both_run, device="cpu"), "the model needs the tag <2bb>, which Argos"),
    ):
        with pytest.raises(RefusedError, match=message):
            export(loaded, tmp_path / "x.argosmodel")
    few, enough = (
        replace(loaded_model, model=random_model(positions="learned", max_positions=count))
        for count in (1023, 1024)
    )
    with pytest.raises(RefusedError, match="1023 learned positions are too few"):
        argos_format.check(few, Path("x.argosmodel"))
    argos_format.check(enough, Path("x.argosmodel"))
    assert [each.name for each in tmp_path.iterdir()] == ["sample"]
