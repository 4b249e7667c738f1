"""`mtrain report`: the content of a run directory on one self-contained HTML page."""

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from mtrain.check.diagnosis import diagnose
from mtrain.check.findings import Findings
from mtrain.config.schema import Config
from mtrain.corpus.lines import evenly_spaced, medium_line_indices
from mtrain.data.tokenizer import Tokenizer
from mtrain.report import attention_maps as maps
from mtrain.report.curves import Chart, charts_of
from mtrain.report.heatmap import Sentence, menus, render
from mtrain.runs import layout, manifest, reader, sets
from mtrain.runs.history import Entry, History
from mtrain.runs.reader import Run
from mtrain.runs.records import Loop, MetricsFile, duration, read_record
from mtrain.runs.synthetic import with_synthetic_text
from mtrain.runtime.errors import UserError, as_user_error, printable
from mtrain.runtime.log import first_numbers, logger
from mtrain.runtime.stop import Stop
from mtrain.scoring.notes import Note, find_faults, summary
from mtrain.translation import loading

SAMPLES, MAX_TRANSLATIONS = 6, 6  # validation lines that are shown; steps whose translations are
ATTENDED = 3  # number of these lines with attention maps
NOT_CHECKED = "The text was not checked"
MAX_EXAMPLES = 5  # examples of a kind of finding
MAX_LOGGED = 40  # distinct lines about the data; newest distinct warnings and errors
MAX_LETTERS = 4000  # characters of a line of text

# A log line about the data, or a warning. Used with `match`, at the start only: a search takes
# quadratic time on a hostile line.
_LOGGED = re.compile(
    r"\S{10} \S{8} (?:(INFO) (?=(?:train|data\.(?:valid|test)[^:]*): )|WARNING |ERROR )(.*)"
)
_TOTAL = re.compile(r"train: [\d,]+ of [\d,]+ pairs$")  # the size of the training text


@dataclass(frozen=True)
class Sample:
    """A line of the validation set: its source, reference and translations."""

    number: int
    texts: list[tuple[str, str, str]]  # title, language, text
    key_suffix: str = ""  # of `data.valid`: ".0", ".1", ... in a list of validation corpora
    tag: str | None = None


@dataclass
class Report:
    """The content of the page; `section_notes` has notes on what is missing and why."""

    run: Run
    config: Config
    history: History
    charts: list[Chart] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    sentences: list[Sentence] = field(default_factory=list)
    findings: list[Findings] = field(default_factory=list)
    data: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)  # of the summary
    translation_notes: list[Note] | None = None  # on the best translations of the validation set
    section_notes: dict[str, list[str]] = field(default_factory=dict)

    @property
    def scores(self) -> list[tuple[str, Entry]]:
        """Names and entries of the scores: the best validation (each corpus of a list, too), the
        averaged model's validation, and the test sets.
        """
        best, average = self.history.best, self.history.average
        validations = [best] if average is best else [best, average]
        scores = [("validation", entry) for entry in validations if entry is not None]
        if best is not None:
            for i, corpus in enumerate(best.get("parts", [])):
                scores.append((f"data.valid.{i}", {**corpus, "checkpoint": best["checkpoint"]}))
        return scores + [(f"test {name}", entry) for name, entry in self.history.tests.items()]

    @property
    def measures(self) -> dict[str, tuple[str, str]]:
        """The columns of the tables of scores: key of an entry, title, and format."""
        columns = {"bleu": ("BLEU", "%.2f"), "chrf": ("chrF", "%.2f")}
        columns["nll"] = ("NLL per token", "%.4f")
        if self.config.train.metric == "command":
            columns["command"] = ("command", "%.6g")
        return columns

    @property
    def verdict(self) -> list[str]:
        """Sentences on faults of the best translations, if these were read, and on whether training
        still helped at the end.
        """
        notes = self.translation_notes
        return list(filter(None, (None if notes is None else summary(notes), self.history.outlook)))

    def add_note(self, section: str, text: str) -> None:
        """Add a note to a section."""
        self.section_notes.setdefault(section, []).append(text)

    @contextmanager
    def note_failure(self, section: str, consequence: str) -> Iterator[None]:
        """Turn an error in the block into a note of the section and a warning."""
        try:
            yield
        except (UserError, OSError) as error:
            reason = as_user_error(error)
            logger.warning("report: %s: %s", consequence, reason)
            self.add_note(section, f"{consequence}: {reason}")


def make_page(run_dir: Path, texts: list[str], *, check: bool) -> str:
    """Make the report of a run, with attention maps of the given sentences (or else of some of the
    validation set) and, if `check`, the data check; raises `UserError` if it is no run directory.
    """
    report = collect_report(run_dir, texts)
    if check:
        with report.note_failure("data", NOT_CHECKED):
            report.findings = check_text(report)
    else:
        report.add_note("data", NOT_CHECKED)
    provenance = report.run.provenance
    return render(
        "report.html",
        report=report,
        menus=menus(report.sentences),
        config="\n".join(map(printable, report.run.text.split("\n"))),
        provenance=provenance and json.dumps(provenance.model_dump(exclude_unset=True), indent=2),
    )


def collect_report(run_dir: Path, texts: list[str]) -> Report:
    """Collect the content of a run directory."""
    if not os.path.lexists(run_dir):
        raise UserError(f"{run_dir}: no such directory; give a run directory")
    try:  # a directory that cannot be read may hold it
        (run_dir / layout.CONFIG).lstat()
    except (FileNotFoundError, NotADirectoryError):
        layout.refuse_prepared(run_dir)
        text = f"{run_dir}: not a run directory: it holds no config.yaml; give a run directory"
        raise UserError(text) from None
    if (run_dir / manifest.NAME).exists():
        raise UserError(f"{run_dir}: not a run directory but a checkpoint; give the run directory")
    run = reader.read_run(run_dir)
    if run.config is None:
        raise run.errors[layout.CONFIG]
    report = Report(run, run.config, run.history or History.begin(run.config.train.metric))
    with report.note_failure("run", "Links are not followed"):
        if links := reader.links(run_dir):
            raise UserError(", ".join(str(path.relative_to(run_dir)) for path in links))
    for name, error in run.errors.items():
        section = {layout.STATUS: "run", layout.RUN: "settings"}.get(name, "scores")
        with report.note_failure(section, "Not shown"):
            raise error
    if run.history is None and "scores" not in report.section_notes and any(_translations(run)):
        report.add_note("scores", "Not shown: best.json is missing, though there are validations")
    with report.note_failure("log", "Not shown"):
        _read_log(report)
    with report.note_failure("run", "The device is unknown"):
        if (machine := _machine_of(run)) is not None:
            report.facts["Device"] = machine
    with report.note_failure("curves", "There are no curves"):
        _add_charts(report)
    lines, data = _valid_lines(report), report.config.data
    _add_translation_notes(report, lines)
    sources = [line.texts[0][2] for line in lines]
    indices = medium_line_indices(sources, SAMPLES) if lines else list(range(SAMPLES))
    report.samples = _samples(report, lines, indices)
    if texts:
        tagged = [(data.valid_corpora[0].tag, text) for text in texts]
    else:
        tagged = [(lines[i].tag, sources[i]) for i in indices[:ATTENDED] if lines]
    _add_attention(report, tagged)
    return report


def _machine_of(run: Run) -> str | None:
    """Describe the device that the newest checkpoint with a trainer state was trained on, or return
    None. Raises `UserError`.
    """
    directory = run.path / layout.CHECKPOINTS
    paths = [] if directory.is_symlink() else layout.complete_checkpoints(directory)
    owned = (path for path in reversed(paths) if not path.is_symlink())
    states = (read_record(path / layout.TRAINER / layout.STATE, Loop) for path in owned)
    if (state := next(filter(None, states), None)) is None:
        return None
    device, precision, threads = map(state.machine.get, ("device", "precision", "threads"))
    return f"{device}, {precision}, threads: {threads}"


def check_text(report: Report) -> list[Findings]:
    """Check the text with the run's vocabulary; raises `UserError` unless the hash of each corpus
    shows that it is the run's text.
    """
    for key in report.run.corpora:
        sets.check_known(report.run, key)
    path = report.run.path
    config = with_synthetic_text(report.config, path)
    # read only the run's own vocabulary: the config may name any file of this machine
    settings: dict[str, object] = {"path": None}
    if (vocabulary := reader.read_vocabulary(path)) is not None:
        settings |= Tokenizer(vocabulary, str(path / layout.TOKENIZER)).settings
    changes = {
        "run_dir": str(path),
        # sacreBLEU would download the models of some tokenizers
        "data": config.data.model_copy(update={"bleu_tokenize": None}),
        "tokenizer": config.tokenizer.model_copy(update=settings),
        "train": config.train.model_copy(update={"init_from": None}),
    }
    config = config.model_copy(update=changes)
    return diagnose(config, Stop(), examples=MAX_EXAMPLES, with_forecast=False, timed=False).corpora


def _valid_lines(report: Report) -> list[Sample]:
    """Read the validation text, in the order of its translations. If it is missing or has changed,
    add a note and return no lines.
    """
    lines, data = list[Sample](), report.config.data
    with report.note_failure("samples", "Sources and references are not shown"):
        for key, corpus in zip(data.valid_keys, data.valid_corpora, strict=True):
            text = sets.read_set(report.run, key)
            suffix, (src_lang, tgt_lang) = key.removeprefix("data.valid"), data.languages(corpus)
            pairs = zip(text.sources, text.references, strict=True)
            for number, (src, tgt) in enumerate(pairs, 1):
                texts = [("Source", src_lang, _cut(src)), ("Reference", tgt_lang, _cut(tgt))]
                lines.append(Sample(number, texts, suffix, corpus.tag))
        return lines
    return []


def _add_charts(report: Report) -> None:
    """Add the charts and the time of the run; note missing or damaged records."""
    records, broken = MetricsFile(report.run.path / layout.METRICS).parse()
    if broken:
        skipped = first_numbers(broken)
        report.add_note("curves", f"Lines of metrics.jsonl that are not records: {skipped}")
    if (time := duration(report.run.provenance, records)) is not None:
        report.facts["Time, including pauses"] = time
    if not records and report.history.entries:
        report.add_note("curves", "Not shown: metrics.jsonl holds no records")
    report.charts = list(charts_of(records))


def _read_log(report: Report) -> None:
    """Read lines about the data, and warnings and errors, from the log, without repetitions."""
    matches = filter(None, map(_LOGGED.match, reader.end_of_log(report.run.path)))
    lines = [(match[1], match[2]) for match in matches]
    data = _of_last_start([text for level, text in lines if level == "INFO"])
    report.data = list(dict.fromkeys(data))[:MAX_LOGGED]
    for line in filter(_TOTAL.match, data):
        report.facts["Training text"] = line.removeprefix("train: ")
    newest_first = dict.fromkeys(text for level, text in reversed(lines) if level is None)
    report.warnings = list(newest_first)[:MAX_LOGGED][::-1]


def _of_last_start(lines: list[str]) -> list[str]:
    """Return the lines about the data of the newest start: those of the scored sets, and those of
    the training text, which begin with its size.
    """
    first = max((i for i, line in enumerate(lines) if _TOTAL.match(line)), default=0)
    named = set[str]()  # what is counted; an earlier start that failed counts the same
    while first > 0 and not lines[first - 1].startswith("train: "):
        what = lines[first - 1].rpartition(": ")[0]
        if what in named:
            break
        named.add(what)
        first -= 1
    return lines[first:]


def _add_translation_notes(report: Report, lines: list[Sample]) -> None:
    """Note faults of the best model's translations of the validation set."""
    best = report.history.best
    if best is None or not lines:
        return
    with report.note_failure("scores", "The translations were not checked"):
        # cut as the sources and references are, or long lines would seem too long
        translations = reader.read_translations(report.run.path, best["checkpoint"])
        hypotheses = list(map(_cut, translations))
        if len(hypotheses) == len(lines):
            sources, references = ([line.texts[i][2] for line in lines] for i in (0, 1))
            report.translation_notes = find_faults(hypotheses, [references], sources)


def _samples(report: Report, lines: list[Sample], indices: list[int]) -> list[Sample]:
    """Return the lines with these indices, each with its translations at different steps."""
    files = _translations(report.run)
    steps = sorted(step for name in files if (step := layout.step_of(Path(name))) is not None)
    if validated := report.history.steps:  # a run that was extended drops its earlier end
        steps = [step for step in steps if step in validated]
    chosen = {layout.step_name(step) for step in evenly_spaced(steps, MAX_TRANSLATIONS)}
    names = sorted(files & {*chosen, report.history.best_step_name})
    translations: dict[str, dict[int, str]] = {}  # title -> index of the line -> text
    for name in (*names, *(files & {layout.AVERAGE})):
        step = layout.step_of(Path(name))
        title = "Average" if step is None else f"Step {step:,}"
        with report.note_failure("samples", f"{title} is not shown"):
            hypotheses = enumerate(reader.read_translations(report.run.path, name))
            translations[title] = {i: _cut(text) for i, text in hypotheses if i in indices}
    if not any(translations.values()):
        scored = bool(report.history.entries)
        note = "Not shown: the translations are missing" if scored else "There is no validation yet"
        report.add_note("samples", note)
    data, samples = report.config.data, []
    for i in indices:
        line = lines[i] if lines else Sample(i + 1, [])
        tgt_lang = line.texts[1][1] if lines else data.languages(data.valid_corpora[0])[1]
        texts = [(title, tgt_lang, by_i[i]) for title, by_i in translations.items() if i in by_i]
        if texts:
            samples.append(replace(line, texts=line.texts + texts))
    return samples


def _translations(run: Run) -> set[str]:
    """Return the names of the files of validation translations, without suffix."""
    directory = run.path / layout.VALIDATION
    return set() if directory.is_symlink() else {file.stem for file in directory.glob("*.txt")}


def _cut(text: str) -> str:
    return text if len(text) <= MAX_LETTERS else f"{text[:MAX_LETTERS]} ..."


def _add_attention(report: Report, texts: list[tuple[str | None, str]]) -> None:
    """Add the best model's attention maps of sentences, given as (tag, text)."""
    if not texts:
        note = "Not shown without the validation set: give sentences with --text"
        report.add_note("attention", note)
        return
    with report.note_failure("attention", "Not shown"):
        directory = reader.resolve(report.run.path)
        reader.refuse_link(directory)
        loaded = loading.load(directory, device="cpu", precision="fp32")
        report.facts["Parameters"] = f"{loaded.model.num_parameters:,}"
        report.facts["Vocabulary"] = f"{loaded.tokenizer.vocab_size:,} pieces"
        for tag in dict.fromkeys(tag for tag, _ in texts):
            pairs: maps.Pairs = [(text, None) for text_tag, text in texts if text_tag == tag]
            report.sentences += maps.compute_maps(loaded.tagged(tag), pairs, maps.Selection())
