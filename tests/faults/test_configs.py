"""Configs that nobody should have written: refused by file, line and key; nothing is written."""

from __future__ import annotations

from pathlib import Path

import yaml
from conftest import TinyConfig

from faults.conftest import Count, Tally
from faults.rig import Processes, in_parallel

# What is added or replaced, at which line of the file it stands, and what the message must name.
LINES: list[tuple[str, str, list[str]]] = [
    ("python tag", "seed: !!python/object/apply:os.system ['touch MARKER']", ["seed"]),
    ("python name", "seed: !!python/name:os.system", ["seed"]),
    ("python module", "seed: !!python/module:os", ["seed"]),
    ("unknown key", "sede: 1", ["sede", "did you mean seed"]),
    ("unknown key within", "model: {dmodel: 16}", ["dmodel", "d_model"]),
    ("unknown key elsewhere", "train: {beam_size: 4}", ["beam_size"]),
    ("wrong type", "seed: [1]", ["seed"]),
    ("text for a number", "seed: seven", ["seed", "seven"]),
    ("number for text", "data: {src_lang: 1, tgt_lang: de}", ["src_lang"]),
    ("no for a language", "data: {src_lang: no, tgt_lang: de}", ["src_lang", "quote"]),
    ("a number that YAML takes for text", "train: {peak_lr: 1e-4x}", ["peak_lr"]),
    ("duplicate key", "seed: 1\nseed: 2", ["seed"]),
    ("duplicate section", "model: {d_model: 16}\nmodel: {d_model: 32}", ["model"]),
    ("negative size", "model: {d_model: -16}", ["d_model"]),
    ("zero size", "model: {num_heads: 0}", ["num_heads"]),
    ("negative dropout", "model: {dropout: -0.1}", ["dropout"]),
    ("dropout of one", "model: {dropout: 1.0}", ["dropout"]),
    ("nan", "train: {peak_lr: .nan}", ["peak_lr"]),
    ("infinity", "train: {peak_lr: .inf}", ["peak_lr"]),
    ("heads that do not divide", "model: {d_model: 16, num_heads: 3}", ["num_heads"]),
    ("not a choice", "train: {schedule: linaer}", ["schedule", "linear"]),
    ("2^63", "seed: 9223372036854775808000", ["seed"]),
    ("a billion layers", "model: {num_encoder_layers: 1000000000}", ["num_encoder_layers"]),
    ("two kinds of rate", "train: {lr_factor: 1.0, peak_lr: 0.1}", ["peak_lr"]),
    ("octal", "seed: 0o17", ["seed"]),
    ("sexagesimal", "seed: 1:30", ["seed"]),
    ("merge key", "model: {<<: {d_model: 16}}", ["model"]),
    ("list for a section", "model: [1, 2]", ["model"]),
    ("text for a section", "model: small", ["model"]),
    ("nothing for a section", "data:", ["data"]),
    ("an escaped NUL", 'run_dir: "r\\0"', ["run_dir", "NUL"]),
    ("a NUL in a file name", 'data: {src_lang: en, tgt_lang: "d\\0"}', ["tgt_lang", "NUL"]),
    ("a beam of a billion", "decode: {beam_size: 1000000000}", ["beam_size"]),
]
ALIASES = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 10)}]\n" for i in range(9)
)
WHOLE: list[tuple[str, bytes]] = [
    ("alias bomb", ALIASES.encode()),
    ("10,000 deep", b"a: " + b"[" * 10_000),
    ("10,000 deep and closed", b"a: " + b"[" * 10_000 + b"]" * 10_000),
    ("10,000 deep in blocks", "\n".join(" " * i + "a:" for i in range(1400)).encode()),
    ("NUL", b"seed: 1\0\n"),
    ("not UTF-8", b"seed: \xff\n"),
    ("UTF-16", "seed: 1\n".encode("utf-16")),
    ("empty", b""),
    ("a list", b"- 1\n- 2\n"),
    ("not YAML", b"seed: [1\nmodel: }\n"),
    ("tabs", b"model:\n\td_model: 16\n"),
    ("two documents", b"seed: 1\n---\nseed: 2\n"),
    ("two megabytes", b"# " + b"x" * (2 << 20)),
    ("no character", b'seed: "\\U00110000"\n'),
    ("a version of 5,000 digits", b"%YAML 1." + b"1" * 5000 + b"\n---\nseed: 1\n"),
]


def test_hostile_configs(
    tiny_config: TinyConfig, tmp_path: Path, processes: Processes, tally: Tally, count: Count
) -> None:
    base = yaml.safe_load(tiny_config().read_text())
    marker = tmp_path / "marker"
    cases: list[tuple[str, bytes, int | None, list[str]]] = []
    for name, text, words in LINES:
        text = text.replace("MARKER", str(marker))
        replaced = {line.split(":")[0] for line in text.splitlines()}
        base["run_dir"] = str(tmp_path / f"run of {name}")
        rest = yaml.safe_dump({k: v for k, v in base.items() if k not in replaced})
        cases.append((name, (rest + text + "\n").encode(), rest.count("\n") + 1, words))
    cases += [(name, data, None, []) for name, data in WHOLE]
    some = cases[:: count(5, 1)]

    def trial(case: tuple[str, bytes, int | None, list[str]]) -> str:
        name, data, line, words = case
        file = tmp_path / f"{name}.yaml".replace(" ", "_").replace("^", "")
        file.write_bytes(data)
        done = processes.mtrain("train", "-c", file)
        place = str(file) if line is None else f"{file}:"
        trouble = done.refuses(2, place, *words)
        if line is not None and not any(f"{file}:{n}" in done.err for n in (line, line + 1)):
            trouble += f"\nexpected line {line}"
        if marker.exists() or (tmp_path / f"run of {name}").exists():
            trouble += "\nsomething was written"
        return trouble and f"{name}: {trouble}"

    tally.check(10, "hostile configs", in_parallel(trial, some))
