"""Configs and dataset cards that nobody should have written; more in `config/test_schema.py`."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from faults.rig import Bench
from mtrain.config.corpora import HubCorpus
from mtrain.corpus.lines import Reading
from mtrain.corpus.readers import read_pairs

ALIASES = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 10)}]\n" for i in range(9)
)
# What is added or replaced, or the whole file, and what the message must name.
CONFIGS: list[tuple[str | bytes, str]] = [
    ("seed: !!python/object/apply:os.system ['touch MARKER']", "seed"),
    ("seed: !!python/name:os.system", "seed"),
    ("seed: 1\nseed: 2", "seed"),
    ("model: {<<: {d_model: 16}}", "model"),
    ("model: {num_encoder_layers: 1000000000}", "num_encoder_layers"),
    ("decode: {beam_size: 1000000000}", "beam_size"),
    ('data: {src_lang: en, tgt_lang: "d\\0"}', "NUL"),
    (ALIASES.encode(), "aliases"),
    ("\n".join(" " * i + "a:" for i in range(1400)).encode(), "nested too deeply"),
    (b"# " + b"x" * (2 << 20), "too long"),
    (b"%YAML 1." + b"1" * 5000 + b"\n---\nseed: 1\n", "invalid YAML"),
]


def test_hostile_configs(bench: Bench) -> None:
    base = yaml.safe_load(bench.config.read_text())
    marker, run = bench.directory / "marker", bench.directory / "run"

    def trial(case: tuple[str | bytes, str]) -> str:
        text, word = case
        if isinstance(text, str):
            rest = {k: v for k, v in base.items() if k not in yaml_keys(text)}
            text = text.replace("MARKER", str(marker)) + "\n"
            text = (yaml.safe_dump({**rest, "run_dir": str(run)}) + text).encode()
        file = bench.rig().directory.with_suffix(".yaml")
        file.write_bytes(text)
        done = bench.processes.mtrain("train", "-c", file)
        written = "something was written" if marker.exists() or run.exists() else ""
        return done.refuses(2, f"{file}:", word) or written

    bench.inject(trial, CONFIGS, quick=3)


def yaml_keys(text: str) -> set[str]:
    return {line.split(":")[0] for line in text.splitlines()}


@pytest.mark.parametrize(
    "card",
    [
        f"{ALIASES}configs: *j\n",
        "configs: [\n",
        "- 1\n",
        "configs: [{config_name: a, data_files: 'https://127.0.0.1:9/a.csv'}]\n",
        "configs: [{config_name: default, data_files: 'zip://a.csv::a.zip'}]\n",
        "configs: [{config_name: default, data_files: '../other.csv'}]\n",
        "x" * (1 << 24),
    ],
    ids=lambda text: text[:20],
)
@pytest.mark.parametrize("name", ["README.md", ".huggingface.yaml"])
def test_a_card_of_a_local_dataset_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, card: str
) -> None:
    """A folder of the working directory, named as one of the hub might be."""
    monkeypatch.chdir(tmp_path)
    Path("set/fr-en").mkdir(parents=True)
    Path("other.csv").write_text("a,b\nsecret,secret\n")
    Path("set/fr-en/train.csv").write_text("a,b\none,eins\n")
    Path("set/fr-en/LICENSE.txt").touch()
    for folder in ("set", "set/fr-en"):
        Path(folder, name).write_text(f"---\n{card}---\n" if name == "README.md" else card)
    for place in ({"dataset": "set", "name": "fr-en"}, {"dataset": "set/fr-en"}):
        corpus = HubCorpus(split="train", src="a", tgt="b", **place)
        assert list(read_pairs(corpus, Reading())) == [("one", "eins")]
