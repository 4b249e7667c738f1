"""Export to a package for Argos Translate and LibreTranslate.

A package (https://github.com/argosopentech/argos-translate) is a zip file of one directory:

    metadata.json         languages and versions
    README.md
    sentencepiece.model   the vocabulary
    model/                the weights, in CTranslate2's format
"""

import json
import re
import zipfile
from pathlib import Path
from typing import IO

import mtrain
from mtrain.config.languages import NAMES, language_code
from mtrain.data.tokenizer import Tokenizer
from mtrain.export import ctranslate2_format
from mtrain.export.parity import Engine
from mtrain.model.transformer import Shape
from mtrain.runtime.errors import RefusedError
from mtrain.translation.loading import LoadedModel

SUFFIX = ".argosmodel"
VOCABULARY, MODEL = "sentencepiece.model", "model"
VERSION = "1.0"  # of the package; also the oldest Argos Translate that reads it
MAX_TOKENS = 1024  # CTranslate2 cuts longer sentences, as Argos Translate calls it


def check(shape: Shape, quantization: str) -> None:
    """Raise `RefusedError` if CTranslate2 is missing, or sentences may need more positions than the
    model has.
    """
    ctranslate2_format.check(shape, quantization)
    if shape.positions == "learned" and shape.max_positions < MAX_TOKENS:
        raise RefusedError(
            f"data.max_length: {shape.max_positions} learned positions are too few: Argos "
            f"Translate cuts sentences at {MAX_TOKENS:,} tokens; use --to ctranslate2"
        )


def write(directory: Path, loaded: LoadedModel, quantization: str) -> None:
    """Write the content of a package; raises `OSError`, and `RefusedError` for a model that needs a
    tag before each source or whose languages are not codes.
    """
    if loaded.tag is not None:
        raise RefusedError(
            f"--to argos: the model needs the tag {loaded.tag}, which Argos Translate does not put "
            "before sources; use --to ctranslate2"
        )
    (src, src_name), (tgt, tgt_name) = _languages(loaded)
    metadata = {"package_version": VERSION, "argos_version": VERSION}
    metadata |= {"from_code": src, "from_name": src_name, "to_code": tgt, "to_name": tgt_name}
    (directory / "metadata.json").write_text(json.dumps(metadata, indent=1) + "\n", "utf-8")
    text = f"# {src_name} to {tgt_name}\n\nTrained with mtrain {mtrain.__version__}.\n"
    (directory / "README.md").write_text(text, "utf-8")
    (directory / VOCABULARY).write_bytes(loaded.tokenizer.proto)
    (directory / MODEL).mkdir(exist_ok=True)
    ctranslate2_format.write_model(directory / MODEL, loaded, quantization, MAX_TOKENS + 1)


def load(directory: Path, tokenizer: Tokenizer) -> Engine:
    """Load the content of a package."""
    return ctranslate2_format.load_model(directory / MODEL, directory / VOCABULARY, tokenizer)


def pack(directory: Path, loaded: LoadedModel, sink: IO[bytes]) -> None:
    """Write the content of a package as a zip file; raises `OSError`."""
    codes = "_".join(code for code, _ in _languages(loaded))
    name = f"translate-{codes}-{VERSION.replace('.', '_')}"
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as package:
        for path in sorted(path for path in directory.rglob("*") if path.is_file()):
            package.write(path, f"{name}/{path.relative_to(directory)}")


def _languages(loaded: LoadedModel) -> list[tuple[str, str]]:
    """Return code and name of the source and of the target language of the first validation corpus,
    such as `de`, `German` for `deu`, and `sr-Cyrl`, `Serbian Cyrl` for `sr_Cyrl`.
    """
    data = loaded.config.data
    languages = []
    for tag in data.languages(data.valid_corpora[0]):
        language, subtags = language_code(tag), re.split("[-_]", tag)[1:]
        code = "-".join((language, *subtags))
        if not re.fullmatch("[A-Za-z][A-Za-z0-9-]*", code):
            raise RefusedError(
                f"--to argos: {tag!r} is not a language code, which the package is named after"
            )
        name = NAMES.get(language, language)
        languages.append((code, " ".join((name, *subtags))))
    return languages
