"""`mtrain report`: the content of a run directory on one self-contained page."""

import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from mtrain.check.diagnosis import diagnose
from mtrain.check.findings import Findings
from mtrain.config.schema import Config, Corpus, HubCorpus
from mtrain.corpus.lines import is_blank
from mtrain.corpus.readers import Text, read_text, reading_of, scan
from mtrain.data.tokenizer import Tokenizer
from mtrain.report import maps
from mtrain.report.curves import Chart, charts_of, spaced
from mtrain.report.heatmap import Sentence, choices
from mtrain.report.rendering import render
from mtrain.runs import layout, manifest, reader
from mtrain.runs.directory import RunDirectory
from mtrain.runs.history import History
from mtrain.runs.records import BEST, PROVENANCE, STATUS, Entry, Provenance, Status
from mtrain.runtime.errors import UserError, printable
from mtrain.runtime.log import logger, progress_bar, shorten
from mtrain.runtime.stop import Stop
from mtrain.scoring import metrics
from mtrain.scoring.metrics import Score
from mtrain.translation import loading

SAMPLES, MOST_TRANSLATIONS, ATTENDED = 6, 6, 3
NOT_CHECKED = "The text was not checked"
MOST_FOUND = 5  # examples of a kind of finding
MOST_LOGGED = 40  # different lines of the log, the newest
MOST_LETTERS = 4000  # of a line of text

# Anchored at the start: searching anywhere takes far longer on a hostile line.
_DATA = re.compile(r"\S{10} \S{8} INFO ((?:train|valid|test [^:]*): (?!BLEU ).*)")
_WARNING = re.compile(r"\S{10} \S{8} (?:WARNING|ERROR) (.*)")

Found = TypeVar("Found")
P = ParamSpec("P")


@dataclass(frozen=True)
class Scored:
    """The scores of a model on a set; with intervals if the text is available."""

    set: str
    entry: Entry
    bleu: Score | None = None
    chrf: Score | None = None


@dataclass(frozen=True)
class Sample:
    """A sentence of the validation set and its translations."""

    number: int
    source: str | None
    reference: str | None
    translations: list[tuple[str, str]]


@dataclass
class Report:
    """The content of the page; `notes` list what is missing and why, by section."""

    run: RunDirectory
    text: str  # of config.yaml
    config: Config
    status: Status | None = None
    made_of: Provenance | None = None
    history: History = field(default_factory=lambda: History("bleu"))
    charts: list[Chart] = field(default_factory=list)
    scores: list[Scored] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    sentences: list[Sentence] = field(default_factory=list)
    findings: list[Findings] = field(default_factory=list)
    data: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    notes: dict[str, list[str]] = field(default_factory=dict)

    def note(self, section: str, text: str) -> None:
        """Add a note to a section, once."""
        notes = self.notes.setdefault(section, [])
        if text not in notes:
            notes.append(text)

    def attempt(
        self,
        section: str,
        otherwise: str,
        find: Callable[P, Found | None],
        *args: P.args,
        **options: P.kwargs,
    ) -> Found | None:
        """Call `find`; if it fails, a note and a warning give the consequence and the reason."""
        try:
            return find(*args, **options)
        except UserError as error:
            logger.warning("report: %s: %s", otherwise, error)
            self.note(section, f"{otherwise}: {error}")
            return None

    def corpora(self) -> dict[str, tuple[Corpus, str | None]]:
        """Return every corpus of the config by its key, with the hash of the text that the run
        used, if it is known.
        """
        data, made_of = self.config.data, self.made_of
        hashes = dict(enumerate(made_of.train if made_of else []))
        tests = {name: test.get("sha256") for name, test in self.history.tests.items()}
        known = {**(made_of.test if made_of else {}), **{n: h for n, h in tests.items() if h}}
        return {
            **{f"data.train[{i}]": (each, hashes.get(i)) for i, each in enumerate(data.train)},
            "data.valid": (data.valid, made_of.valid if made_of else None),
            **{f"data.test.{name}": (each, known.get(name)) for name, each in data.test.items()},
        }


def make_page(run_dir: Path, texts: list[str], *, check: bool = True) -> str:
    """Make the report of a run, with attention for the given sentences, or some of the validation
    set, and with the data check if `check`; raises `UserError` where there is no run.
    """
    report = gather(run_dir, texts)
    if check:
        report.findings = report.attempt("data", NOT_CHECKED, check_text, report) or []
    else:
        report.note("data", NOT_CHECKED)
    return render(
        "report.html",
        report=report,
        choices=choices(report.sentences),
        config="\n".join(map(printable, report.text.split("\n"))),
        facts=flat(report.made_of.model_dump(exclude_unset=True)) if report.made_of else [],
    )


def gather(run_dir: Path, texts: list[str]) -> Report:
    """Collect the content of a run directory."""
    if not os.path.lexists(run_dir / layout.CONFIG):
        raise UserError(f"{run_dir}: not a run directory: it holds no config.yaml")
    if (run_dir / manifest.NAME).exists():
        raise UserError(f"{run_dir}: not a run directory but a checkpoint; give the run's")
    run = RunDirectory(run_dir)
    report = Report(run, *reader.read_settings(run_dir))
    attempt = report.attempt
    attempt("run", "Links are not followed", _refuse_links, run_dir)
    report.status = attempt("run", "The state is unknown", run.read, layout.STATUS, STATUS)
    report.made_of = attempt("settings", "Left out", run.read, layout.RUN, PROVENANCE)
    stored = attempt("scores", "Left out", run.read, layout.BEST, BEST)
    report.history = History.of(report.config.train.metric, stored)
    if stored is None and "scores" not in report.notes and any(_translations(run_dir)):
        report.note("scores", "Left out: best.json is missing, though there are validations")
    with progress_bar(5, "part", "reading the run") as bar:
        report.charts = list(charts_of(_read_records(report)))
        bar.update()
        attempt("log", "Left out", _read_log, report)
        bar.update()
        without = "Sources and references are left out"
        valid = attempt("samples", without, _read_own, report, "data.valid")
        report.scores = list(_scores(report, valid))
        bar.update()
        places = moderate(valid.sources) if valid is not None else list(range(SAMPLES))
        report.samples = _samples(report, valid, places)
        bar.update()
        report.sentences = _attention(report, valid, places, texts)
    return report


def check_text(report: Report) -> list[Findings]:
    """Check the text with the run's vocabulary; raises `UserError` if a part of it is not known to
    be the run's.
    """
    for key, (corpus, sha256) in report.corpora().items():
        check_known(report.config, key, corpus, sha256)
    found = diagnose(
        _with_own_vocabulary(report), Stop(), examples=MOST_FOUND, with_forecast=False, timed=False
    )
    return found.corpora


def _with_own_vocabulary(report: Report) -> Config:
    """Return the config with the run's own vocabulary alone, wherever the run took it from."""
    config, vocabulary = report.config, reader.read_vocabulary(report.run.path)
    settings: dict[str, object] = {"path": None}
    if vocabulary is not None:
        name = str(report.run.path / layout.TOKENIZER)
        settings["vocab_size"] = Tokenizer(vocabulary, name).vocab_size
    parts = {
        "run_dir": str(report.run.path),
        "tokenizer": config.tokenizer.model_copy(update=settings),
        "train": config.train.model_copy(update={"init_from": None}),
    }
    return config.model_copy(update=parts)


def check_known(config: Config, key: str, corpus: Corpus, sha256: str | None) -> None:
    """Raise `UserError` unless a corpus is, by its hash, the text of the run: another person's
    config may name any file of this machine, which no page may show. Why a file cannot be read may
    quote it, so that is only logged.
    """
    if isinstance(corpus, HubCorpus):
        raise UserError(f"{key}: a dataset of the Hugging Face hub is not asked for again")
    try:
        found = scan(corpus, reading_of(config)) if sha256 is not None else None
    except UserError as error:
        logger.warning("report: %s", error)
        raise UserError(f"{key}: cannot be read as the text of the run") from None
    if found is None or found.sha256 != sha256:
        raise UserError(f"{key}: not known to be the text of the run")


def _read_own(report: Report, key: str) -> Text:
    """Read a scored set; raises `UserError` unless it is available and what the run scored."""
    corpus, sha256 = report.corpora()[key]
    check_known(report.config, key, corpus, sha256)
    assert sha256 is not None
    return read_text(corpus, reading_of(report.config, keep_blank=True), sha256)


def _refuse_links(run_dir: Path) -> None:
    """Raise `UserError` that names the links in a run, all of which are left out."""
    if found := reader.links(run_dir):
        raise UserError(", ".join(str(path.relative_to(run_dir)) for path in found))


def flat(content: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Return the leaves of a JSON object, with dotted keys."""
    rows: list[tuple[str, str]] = []
    for key, value in content.items():
        if isinstance(value, dict):
            rows += flat(value, f"{prefix}{key}.")
        else:
            rows.append((prefix + key, value if isinstance(value, str) else json.dumps(value)))
    return rows


def _read_records(report: Report) -> list[dict[str, Any]]:
    """Read the records of the curves; a note reports missing ones."""
    found = report.attempt("curves", "There are no curves", report.run.metrics.parse)
    if found is None:
        return []
    if found.broken:
        lines = shorten(found.broken)
        report.note("curves", f"Lines of metrics.jsonl that are no records are left out: {lines}")
    last, validated = (
        max((record["step"] for record in records), default=0)
        for records in (found.records, report.history.entries)
    )
    if last < validated:
        report.note(
            "curves",
            f"Records are missing: metrics.jsonl ends at step {last:,}, before the validation of "
            f"step {validated:,}",
        )
    return found.records


def _read_log(report: Report) -> None:
    """Take lines about the data, and warnings, from the log: of equal ones the newest."""
    found: dict[re.Pattern[str], dict[str, None]] = {_DATA: {}, _WARNING: {}}
    for line in reader.end_of_log(report.run.path):
        for pattern, texts in found.items():
            if match := pattern.match(line):
                texts.pop(match[1], None)
                texts[match[1]] = None
                if len(texts) > MOST_LOGGED:
                    del texts[next(iter(texts))]
    report.data, report.warnings = map(list, found.values())


def _scores(report: Report, valid: Text | None) -> Iterator[Scored]:
    """Yield the best validation, the average's, and the test sets, with intervals where the texts
    are available.
    """
    best, average = report.history.best, report.history.average
    for entry in (best, None if average is best else average):
        if entry is not None:
            yield _scored(report, "validation", entry, entry["checkpoint"], valid)
    for name, entry in report.history.tests.items():
        text = None
        if name in report.config.data.test:
            without = f"No confidence intervals for test {name}"
            text = report.attempt("scores", without, _read_own, report, f"data.test.{name}")
        yield _scored(report, f"test {name}", entry, f"test-{name}", text)


def _scored(report: Report, name: str, entry: Entry, file: str, text: Text | None) -> Scored:
    """Score translations again for their confidence intervals, if the text is given."""
    plain = Scored(name, entry)

    def find(text: Text) -> Scored:
        translations = reader.read_translations(report.run.path, file)
        path = layout.translations(report.run.path, file)
        if translations is None:
            raise UserError(f"{path} is missing")
        hypotheses = translations.texts_for(text.references)
        language = report.config.data.tgt_lang
        bleu = metrics.bleu_of_run(hypotheses, text.references, language, interval=True)
        if not bleu.is_equal(entry["bleu"]):
            raise UserError(f"{path}: differs from what was scored")
        chrf = metrics.score("chrf", hypotheses, [text.references], interval=True)
        return replace(plain, bleu=bleu, chrf=chrf)

    if text is None:
        return plain
    return report.attempt("scores", f"No confidence intervals for {name}", find, text) or plain


def moderate(lines: list[str]) -> list[int]:
    """Choose indices of lines of moderate length, evenly spaced: of the middle half by length."""
    lengths = sorted(len(line) for line in lines if not is_blank(line))
    if not lengths:
        return []
    low, high = lengths[len(lengths) // 4], lengths[3 * (len(lengths) - 1) // 4]
    fit = [i for i, line in enumerate(lines) if low <= len(line) <= high and not is_blank(line)]
    return spaced(fit, SAMPLES)


def _samples(report: Report, valid: Text | None, places: list[int]) -> list[Sample]:
    """Return the same lines of validations at different steps."""
    there = _translations(report.run.path)
    steps = sorted(step for name in there if (step := layout.step_of(Path(name))) is not None)
    chosen = map(layout.step_name, spaced(steps, MOST_TRANSLATIONS))
    names = sorted(there & {*chosen, report.history.best_step}) + [
        name for name in (layout.AVERAGE,) if name in there
    ]
    taken = {}
    for name in names:
        step = layout.step_of(Path(name))
        title = "Average" if step is None else f"Step {step:,}"
        lines = report.attempt(
            "samples", f"{title} is left out", _take, report.run.path, name, places
        )
        if lines:
            taken[title] = lines
    if not taken:
        scored = bool(report.history.entries)
        note = "Left out: the translations are missing" if scored else "There is no validation yet"
        report.note("samples", note)
    return [
        Sample(
            place + 1,
            _shortened(valid.sources[place]) if valid is not None else None,
            _shortened(valid.references[place]) if valid is not None else None,
            [(title, lines[place]) for title, lines in taken.items() if place in lines],
        )
        for place in places
        if any(place in lines for lines in taken.values())
    ]


def _translations(run_dir: Path) -> set[str]:
    """Return the files of translations of the validation set, without their suffix."""
    directory = run_dir / layout.VALIDATION
    return set() if directory.is_symlink() else {file.stem for file in directory.glob("*.txt")}


def _take(run_dir: Path, name: str, places: list[int]) -> dict[int, str]:
    """Read lines of a validation by their indices; raises `UserError`."""
    wanted = set(places)
    return {
        place: _shortened(line.decode("utf-8", "replace"))
        for place, line in enumerate(reader.read_translations(run_dir, name) or ())
        if place in wanted
    }


def _shortened(text: str) -> str:
    return text if len(text) <= MOST_LETTERS else f"{text[:MOST_LETTERS]} ..."


def _attention(
    report: Report, valid: Text | None, places: list[int], texts: list[str]
) -> list[Sentence]:
    """Return the attention maps of the given sentences, or of some of the validation set, with the
    run's best model.
    """
    if not texts and valid is not None:
        texts = [valid.sources[place] for place in places[:ATTENDED]]
    if not texts:
        report.note("attention", "Left out without the validation set: name sentences with --text")
        return []

    def find() -> list[Sentence]:
        for path in reader.links(report.run.path):
            if layout.CHECKPOINTS in (path.name, path.parent.name):
                reader.refuse_link(path)
        loaded = loading.load(report.run.path, device="cpu", precision="fp32")
        return maps.watch(loaded, [(text, None) for text in texts], maps.Choice())

    return report.attempt("attention", "Left out", find) or []
