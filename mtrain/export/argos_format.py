"""Packages for Argos Translate and LibreTranslate, made of models in CTranslate2's format.

A package (https://github.com/argosopentech/argos-translate) is a zip file of one directory:

    metadata.json         languages and versions
    README.md
    sentencepiece.model   the vocabulary
    model/                the weights
"""

import json
import re
import zipfile
from pathlib import Path
from typing import IO

import mtrain
from mtrain.config.languages import NAMES, language_code
from mtrain.export.ctranslate2_format import MAX_TOKENS
from mtrain.runs import layout
from mtrain.runtime.errors import RefusedError
from mtrain.translation.loading import LoadedModel

SUFFIX = ".argosmodel"
VERSION = "1.0"  # of the package; also the oldest Argos Translate that reads it


def check(loaded: LoadedModel, output: Path) -> None:
    """Raise `RefusedError` if the name of the output does not end in `SUFFIX`, and for a model that
    needs a tag, has too few learned positions, or has languages that are not codes.
    """
    if output.suffix != SUFFIX:
        raise RefusedError(f"--output {output}: give a name that ends in {SUFFIX}")
    if (limit := loaded.positions_limit) < MAX_TOKENS:
        raise RefusedError(
            f"data.max_length: {limit} learned positions are too few: Argos Translate cuts "
            f"sentences at {MAX_TOKENS:,} tokens; use --to ctranslate2"
        )
    if loaded.tag is not None:
        raise RefusedError(
            f"--to argos: the model needs the tag {loaded.tag}, which Argos Translate does not put "
            "before sources; use --to ctranslate2"
        )
    _languages(loaded)


def pack(directory: Path, loaded: LoadedModel, sink: IO[bytes]) -> None:
    """Write a model that is in CTranslate2's format as a package; raises `OSError`."""
    (src, src_name), (tgt, tgt_name) = _languages(loaded)
    metadata = {"package_version": VERSION, "argos_version": VERSION}
    metadata |= {"from_code": src, "from_name": src_name, "to_code": tgt, "to_name": tgt_name}
    text = f"# {src_name} to {tgt_name}\n\nTrained with mtrain {mtrain.__version__}.\n"
    folder = f"translate-{src}_{tgt}-{VERSION.replace('.', '_')}"
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as package:
        package.writestr(f"{folder}/metadata.json", json.dumps(metadata, indent=1) + "\n")
        package.writestr(f"{folder}/README.md", text)
        for path in sorted(directory.iterdir()):
            is_vocabulary = path.name == layout.TOKENIZER
            name = "sentencepiece.model" if is_vocabulary else f"model/{path.name}"
            package.write(path, f"{folder}/{name}")


def _languages(loaded: LoadedModel) -> list[tuple[str, str]]:
    """Return code and name of the source and of the target language of the first validation corpus,
    such as `de`, `German` for `deu`, and `sr-Cyrl`, `Serbian Cyrl` for `sr_Cyrl`.
    """
    data = loaded.config.data
    languages = []
    for tag in data.languages(data.valid_corpora[0]):
        language = language_code(tag)
        subtags = re.split("[-_]", tag)[1:]
        code = "-".join((language, *subtags))
        if not re.fullmatch("[A-Za-z][A-Za-z0-9-]*", code):
            raise RefusedError(
                f"--to argos: {tag!r} is not a language code, which a package needs; use --to "
                "ctranslate2"
            )
        name = NAMES.get(language, language)
        languages.append((code, " ".join((name, *subtags))))
    return languages
