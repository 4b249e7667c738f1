"""Configs and dataset cards that nobody should have written; more in `config/test_schema.py`."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from faults.rig import Bench
from mtrain.config.schema import HubCorpus
from mtrain.corpus.lines import Reading
from mtrain.corpus.readers import read_pairs
from mtrain.runtime.errors import UserError

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
    (b"# " + b"x" * (2 << 20), "too many"),
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

    bench.inject(10, "hostile configs", trial, CONFIGS, quick=3)


def yaml_keys(text: str) -> set[str]:
    return {line.split(":")[0] for line in text.splitlines()}


@pytest.mark.parametrize(
    ("card", "reason"),
    [
        (f"{ALIASES}configs: *j\n", "holds more than"),
        ("a: &a {x: 1}\nconfigs: &b {<<: [*a, *b]}\n", "holds more than"),
        ("configs: [\n", "not valid YAML"),
        ("configs: " + "[" * 600 + "\n", "recursion"),
        ("- 1\n", "not a mapping"),
        ("dataset_info: [en]\n", "cannot load"),
        ("configs: [{config_name: a, data_files: 'https://127.0.0.1:9/a.csv'}]\n", "an address"),
    ],
    ids=lambda text: text[:20],
)
@pytest.mark.parametrize("name", ["README.md", ".huggingface.yaml"])
def test_hostile_cards_of_a_local_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, card: str, reason: str
) -> None:
    """A folder of the working directory, named as one of the hub might be."""
    monkeypatch.chdir(tmp_path)
    Path("set").mkdir()
    Path("set/train.csv").write_text("a,b\none,eins\n")
    corpus = HubCorpus(dataset="set", split="train", src="a", tgt="b")
    assert list(read_pairs(corpus, Reading())) == [("one", "eins")]
    Path("set", name).write_text(f"---\n{card}---\n" if name == "README.md" else card)
    with pytest.raises(UserError, match=reason):
        list(read_pairs(corpus, Reading()))
