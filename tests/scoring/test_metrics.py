"""Scores: sacreBLEU's own, to the last digit, and never of lists of unequal length."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import write_lines

from mtrain.cli import streams
from mtrain.runtime import log
from mtrain.runtime.errors import RefusedError, UserError
from mtrain.runtime.workers import map_tasks
from mtrain.scoring import metrics
from mtrain.scoring.metrics import (
    METRICS,
    check_tokenizer,
    choose_tokenizer,
    paired_tests,
    score,
    score_all,
    warn_of_zero,
)
from mtrain.scoring.references import (
    read_aligned,
    read_references,
    read_source,
    warn_of_swapped,
)
from mtrain.scoring.suitability import missing_tokenizers

REFERENCE = [
    "The old harbour lies behind the new one.",
    "She counts seven boats, two of them red.",
    "Nobody asked the Baker about his bread!",
    "It rained; we stayed at home.",
    "Why does the clock run backwards?",
    "A fox crosses the empty market square.",
]
SECOND = [
    "Behind the new harbour lies the old one.",
    "She is counting seven boats; two are red.",
    "No one asked the baker about bread.",
    "As it rained we stayed home.",
    "Why is the clock running backwards?",
    "The empty market square is crossed by a fox.",
]
HYPOTHESIS = [
    "The old harbour is behind the new one.",
    "she counts seven boats, two red.",
    "Nobody asked the baker about his bread!",
    "It rained, and we stayed at home.",
    "",
    "A fox crosses the market.",
]
CHINESE_REFERENCE = ["红色的船停在旧港口。", "她数了七只鸟，没有一只飞走。", "面包店今天不开门。"]
CHINESE = ["红船停在旧的港口。", "她数了七只鸟，一只也没有飞走。", "面包店今天开门。"]


def sacrebleu_cli(
    directory: Path, hypotheses: list[str], references: list[list[str]], *options: str
) -> dict[str, Any]:
    """Score with sacreBLEU's own command line."""
    files = [write_lines(directory / f"ref{i}", lines) for i, lines in enumerate(references)]
    command = [sys.executable, "-m", "sacrebleu", *map(str, files), *options, "-w", "8", "-i"]
    command += [str(write_lines(directory / "hyp", hypotheses)), "-m", "bleu", "chrf", "ter"]
    command += ["--confidence", "--confidence-n", "1000"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return {score["name"]: score for score in json.loads(done.stdout)}


ASIAN = ["-tok", "zh", "--ter-asian-support", "--ter-normalized"]


@pytest.mark.parametrize(
    ("hypotheses", "references", "language", "lowercase", "options"),
    [
        (HYPOTHESIS, [REFERENCE], "en", False, []),
        (HYPOTHESIS, [REFERENCE, SECOND], None, False, []),
        (HYPOTHESIS, [REFERENCE], "en", True, ["--lowercase", "--chrf-lowercase"]),
        (CHINESE, [CHINESE_REFERENCE], "zh", False, ASIAN),
    ],
    ids=["one reference", "two references", "lowercase", "Chinese"],
)
def test_scores_are_those_of_sacrebleu_s_command(
    tmp_path: Path,
    hypotheses: list[str],
    references: list[list[str]],
    language: str | None,
    lowercase: bool,
    options: list[str],
) -> None:
    expected = sacrebleu_cli(tmp_path, hypotheses, references, *options)
    result = score_all(hypotheses, references, language, None, lowercase)
    for found in result.values():
        theirs = expected[found.name]
        assert found.signature == theirs["signature"]
        assert found.score == pytest.approx(theirs["score"], abs=1e-5)
        mean, half = theirs["confidence_mean"], theirs["confidence_var"]
        assert found.ci == pytest.approx((mean - half, mean + half), abs=1e-5)
    assert result["bleu"].score > 20


def test_tokenized_text_brings_no_words_of_sacrebleu(caplog: pytest.LogCaptureFixture) -> None:
    lines = ["the harbour is old ."] * 100
    assert score("bleu", lines, [lines]).score == pytest.approx(100)
    assert caplog.messages == []


@pytest.mark.slow
def test_processes_count_the_edits_of_many_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    references, systems = [REFERENCE, SECOND], [("a", HYPOTHESIS), ("b", SECOND)]
    expected = score("ter", HYPOTHESIS, references, interval=True)
    compared = paired_tests(["ter"], systems, references, "13a", False)
    tasks: list[int] = []

    def recorded(work: Any, parts: Any, number: int, death: str) -> Any:
        parts = list(parts)
        tasks.append(len(parts))
        return map_tasks(work, parts, number, death)

    for name, value in (("MANY_CHARACTERS", 6), ("CHUNK", 4), ("map_tasks", recorded)):
        monkeypatch.setattr(metrics, name, value)
    monkeypatch.setattr(metrics, "available_threads", lambda: 2)
    assert score("ter", HYPOTHESIS, references, interval=True) == expected
    assert paired_tests(["ter"], systems, references, "13a", False) == compared
    assert tasks == [2, 2, 2]


def test_an_interval_changes_no_score_and_wants_a_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = score("bleu", HYPOTHESIS, [REFERENCE])
    assert plain.ci is None
    assert plain.score == score("bleu", HYPOTHESIS, [REFERENCE], interval=True).score
    for seed in ("7", "None"):  # None: resamples that nobody can repeat
        monkeypatch.setenv("SACREBLEU_SEED", seed)
        assert score("chrf", ["a boat"], [["a boat"]], interval=True).ci is not None
    for seed in ("abc", "-1", "1.5", "", "9" * 5000):
        monkeypatch.setenv("SACREBLEU_SEED", seed)
        assert score("chrf", ["a boat"], [["a boat"]]).score == pytest.approx(100)
        with pytest.raises(RefusedError, match=f"SACREBLEU_SEED={seed}: expected a whole number"):
            score("chrf", ["a boat"], [["a boat"]], interval=True)
        with pytest.raises(RefusedError, match="SACREBLEU_SEED"):
            paired_tests(["chrf"], [("a", ["b"]), ("c", ["d"])], [["b"]], "13a", False)


def test_perfect_and_hopeless_translations() -> None:
    for metric, best in (("bleu", 100), ("chrf", 100), ("ter", 0)):
        assert score(metric, REFERENCE, [SECOND, REFERENCE]).score == pytest.approx(best)
    assert score("bleu", ["xyz"] * 6, [REFERENCE]).score == 0.0


@pytest.mark.parametrize(("language", "library"), [("ja", "MeCab"), ("ko", "mecab_ko")])
def test_a_missing_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, language: str, library: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    tokenizer = f"sacrebleu.tokenizers.tokenizer_{language}_mecab"
    monkeypatch.delitem(sys.modules, tokenizer, raising=False)
    with pytest.raises(RefusedError, match=rf"mtrain\[{language}\].*--tokenize"):
        score_all(["a"], [["a"]], language, None, lowercase=False)
    (text,) = missing_tokenizers(["13a", f"{language}-mecab"])
    assert text.startswith("mtrain train needs this: ")
    assert f"pip install 'mtrain[{language}]'" in text


def test_a_damaged_model_of_a_tokenizer_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an interrupted download leaves it."""
    (tmp_path / "models").mkdir()
    file = tmp_path / "models" / "sacrebleu_tokenizer_spm.model"
    file.write_bytes(b"damaged")
    monkeypatch.setattr("sacrebleu.tokenizers.tokenizer_spm.SACREBLEU_DIR", str(tmp_path))
    with pytest.raises(RefusedError, match=rf"flores101 cannot be .*{file}; remove that file"):
        check_tokenizer("flores101")


def test_thai_references_bring_a_warning_of_ter_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    systems = [("a", ["หมา"]), ("b", ["แมว"])]
    for metric in ("chrf", "ter"):
        paired_tests([metric], systems, [["หมา"]], "char", False)
    assert [message[:18] for message in caplog.messages] == ["TER finds no words"]


def test_ter_compares_characters_of_chinese_that_is_mostly_in_latin() -> None:
    found = {
        tokenize: score(
            "ter", ["run apt-get update 狗"], [["run apt-get update 猫狗"]], tokenize=tokenize
        )
        for tokenize in ("zh", "13a")
    }
    assert [round(each.score) for each in found.values()] == [20, 25]


def test_a_model_of_a_tokenizer_that_cannot_be_fetched_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(**_: object) -> None:
        raise OSError("no network")

    monkeypatch.setattr("sacrebleu.metrics.bleu.BLEU", fail)
    with pytest.raises(RefusedError, match="flores101 cannot be loaded: no network; choose"):
        check_tokenizer("flores101")


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("count", [5, 7, 0])
def test_lists_of_other_lengths_are_refused_with_both_counts(metric: str, count: int) -> None:
    references = [REFERENCE, (SECOND + SECOND)[:count]]
    with pytest.raises(UserError, match=f"has 6 lines but the reference has {count}"):
        score(metric, HYPOTHESIS, references)


def test_files_must_have_lines_and_match_line_for_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no lines to score"):
        score("bleu", [], [[]])
    with pytest.raises(UserError, match="empty: holds no lines"):
        read_references([write_lines(tmp_path / "empty", [])])
    blank = write_lines(tmp_path / "blank", ["", " \t"])
    for paths in ([blank], [write_lines(tmp_path / "two", ["a", ""]), blank]):
        with pytest.raises(UserError, match="blank: all lines are blank; give a file"):
            read_references(paths)
    first = write_lines(tmp_path / "first", REFERENCE)
    short = write_lines(tmp_path / "short", SECOND[:5])
    with pytest.raises(UserError, match=r"short has 5 lines but \S*/first has 6"):
        read_references([first, short])
    for read in (read_aligned, read_source):
        with pytest.raises(UserError, match=r"short has 5 lines but the reference has 6"):
            read(short, [REFERENCE], Path("the reference"))


def test_carriage_returns_that_are_removed_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "text").write_bytes(b"a\r\nb\n")
    for read in (read_aligned, read_source):
        caplog.clear()
        assert read(tmp_path / "text", [], Path("the reference")) == ["a", "b"]
        assert caplog.messages == ["carriage returns removed: 1"]


def test_lines_of_a_source_that_are_not_utf8_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "source").write_bytes(b"caf\xe9\nth\xe9\nvin\n")
    assert read_source(tmp_path / "source", [["a", "b", "c"]]) == ["caf\ufffd", "th\ufffd", "vin"]
    [warning] = caplog.messages
    assert "UTF-8" in warning
    assert warning.endswith(": 2")


BLANK = [""] * 8


def test_a_copy_of_the_source_as_reference_is_noticed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = write_lines(tmp_path / "source", [*REFERENCE, *BLANK])
    for other, warnings in ((1, 1), (2, 1), (3, 0), (len(REFERENCE), 0)):
        caplog.clear()
        reference = ["x"] * other + [f" {line}" for line in REFERENCE[other:]] + BLANK
        read_source(source, [[*HYPOTHESIS, *BLANK], reference])
        assert caplog.text.count("source: most lines are the same in the source and") == warnings


ENGLISH, GERMAN = ["this is the roof of it"] * 6, ["das ist nicht ein Dach"] * 6


@pytest.mark.parametrize(
    ("sources", "references", "directions", "warns"),
    [
        (ENGLISH, GERMAN, [("en", "de")], False),
        (GERMAN, ENGLISH, [("en", "de")], True),
        (GERMAN, ENGLISH, [("de_AT", "eng")], False),
        (GERMAN, ENGLISH, [("en", "de"), ("de", "en")], False),
        (GERMAN, ENGLISH, [("aa", "ba")], False),
        (GERMAN, ENGLISH, [("en", "en")], False),
        (GERMAN[:4], ENGLISH[:4], [("en", "de")], False),
        (GERMAN, GERMAN, [("en", "de")], False),
    ],
)
def test_an_exchanged_source_and_reference_is_noticed(
    caplog: pytest.LogCaptureFixture,
    sources: list[str],
    references: list[str],
    directions: list[tuple[str, str]],
    warns: bool,
) -> None:
    assert warn_of_swapped(sources, [references], directions, ", or choose another tag") == warns
    assert warns == ("look like the target language (de)" in caplog.text)
    assert warns == caplog.text.endswith("the reference, or choose another tag\n")


@pytest.mark.parametrize(
    ("references", "language", "tokenize", "warns"),
    [
        (CHINESE_REFERENCE, None, None, True),
        (["ひらがな だけ", "カタカナ"], None, None, True),
        (["한국어 문장"], None, None, True),
        (CHINESE_REFERENCE, "de", None, True),
        (CHINESE_REFERENCE, "zh", None, False),
        (CHINESE_REFERENCE, None, "char", False),
        (["Das Schild zeigt 東.", "123 !?"], None, None, False),
        (["ที่นี่มีแมว"], "th", None, True),
        (["འབྲུག་ཡུལ་"], "dz", None, True),
    ],
)
def test_text_that_13a_does_not_cut_is_warned_of(
    caplog: pytest.LogCaptureFixture,
    references: list[str],
    language: str | None,
    tokenize: str | None,
    warns: bool,
) -> None:
    log.logger.propagate = True
    with caplog.at_level(logging.WARNING, "mtrain"):
        choose_tokenizer(tokenize, language, [references])
    found = [message for message in caplog.messages if "--tokenize char" in message]
    assert bool(found) == warns
    assert any("--tgt-lang" in message for message in found) == (warns and language in (None, "de"))


@pytest.mark.parametrize("tokenize", ["char", "intl", "13a"])
@pytest.mark.parametrize(
    ("hypothesis", "reference", "tokens"),
    [
        ("我喜爱吃苹果和香蕉。", "我喜欢吃苹果和香蕉。", 10),
        ("Der Hase läuft im Gras.", "Der Hund läuft im Gras.", 5),
    ],
)
def test_ter_depends_on_the_text_not_on_the_tokenizer_of_bleu(
    hypothesis: str, reference: str, tokens: int, tokenize: str
) -> None:
    found = score("ter", [hypothesis], [[reference]], tokenize=tokenize)
    assert found.score == pytest.approx(100 / tokens)
    systems = [("a", [hypothesis]), ("b", [reference])]
    _, rows = paired_tests(["ter"], systems, [[reference]], tokenize, False)["ter"]
    assert rows[0].score == pytest.approx(100 / tokens)


@pytest.mark.parametrize(
    ("references", "warns"), [(["ที่นี่มีแมว"], True), (CHINESE_REFERENCE, False), (REFERENCE, False)]
)
def test_text_that_ter_does_not_cut_is_warned_of(
    caplog: pytest.LogCaptureFixture, references: list[str], warns: bool
) -> None:
    log.logger.propagate = True
    with caplog.at_level(logging.WARNING, "mtrain"):
        score_all(references, [references], None, "char", lowercase=False)
    assert any("TER finds no words" in message for message in caplog.messages) == warns


@pytest.mark.parametrize(
    ("hypothesis", "reference", "warns"),
    [
        ("a boat", "a boat", True),
        ("the red house there", "that boat is old", True),
        ("a red boat there", "a red boat here", False),
    ],
)
def test_a_bleu_of_zero_is_explained(
    caplog: pytest.LogCaptureFixture, hypothesis: str, reference: str, warns: bool
) -> None:
    log.logger.propagate = True
    with caplog.at_level(logging.WARNING, "mtrain"):
        scores = score_all([hypothesis], [[reference]], "en", None, lowercase=False)
        warn_of_zero(scores)
    assert (scores["bleu"].score == 0) == warns
    assert any("BLEU is 0" in message for message in caplog.messages) == warns


def test_json_and_text_show_value_interval_and_signature() -> None:
    scores = score_all(HYPOTHESIS, [REFERENCE], "en", None, lowercase=False)
    assert list(scores) == ["bleu", "chrf", "ter"]
    for found, name in zip(scores.values(), ("BLEU", "chrF2", "TER"), strict=True):
        content = json.loads(json.dumps(found.as_json()))
        assert list(content) == ["score", "ci", "signature"]
        low, high = content["ci"]
        assert low < content["score"] < high
        assert "bs:1000" in content["signature"]
        assert str(found) == f"{name} {found.score:.2f} [{low:.2f}, {high:.2f}] {found.signature}"


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(
    ("hypotheses", "references"),
    [(["", "word"], ["text", "word"]), (["text", "word"], ["", "word"])],
)
def test_the_interval_of_lines_without_text(
    hypotheses: list[str], references: list[str], metric: str
) -> None:
    """Some resamples have no text at all on one side."""
    found = score(metric, hypotheses, [references], interval=True)
    assert found.ci is not None
    assert found.ci[0] <= found.score <= found.ci[1]


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("right", [1, 7])
def test_the_interval_of_few_lines_has_no_impossible_scores(metric: str, right: int) -> None:
    """`right` of eight lines are translated, the others have no word in common."""
    references = [f"word{number} of a line that is {number}" for number in range(8)]
    hypotheses = [text if at < right else "else" for at, text in enumerate(references)]
    found = score(metric, hypotheses, [references], interval=True)
    assert found.ci is not None
    assert 0 <= found.ci[0] <= found.score <= found.ci[1] <= (1e9 if metric == "ter" else 100)
    longer = [f"{text} " * number for number, text in enumerate(references)]
    found = score("ter", longer, [["word"] * 8], interval=True)
    assert found.ci is not None
    assert 100 < found.score < found.ci[1]


def test_an_output_is_looked_at_and_left_alone(tmp_path: Path) -> None:
    kept = write_lines(tmp_path / "kept", ["as it was"])
    for name in ("out", "kept"):
        streams.check_output(tmp_path / name)
    for name, message in (
        ("none/out", "No such file"),
        ("kept/out", "Not a dir"),
        (".", "Is a dir"),
    ):
        with pytest.raises(UserError, match=f"cannot write: {message}"):
            streams.check_output(tmp_path / name)
    assert [(item, item.read_text()) for item in tmp_path.iterdir()] == [(kept, "as it was\n")]
