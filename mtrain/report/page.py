"""`mtrain report`: the content of a run directory on one self-contained page."""

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
from mtrain.corpus.lines import moderate, spaced
from mtrain.data.tokenizer import Tokenizer
from mtrain.report import attention_maps as maps
from mtrain.report.curves import Chart, charts_of
from mtrain.report.heatmap import Sentence, choices, render
from mtrain.runs import checkpoint, layout, manifest, reader, sets
from mtrain.runs.history import Entry, History
from mtrain.runs.reader import Run
from mtrain.runs.records import LOOP, MetricsFile, duration, read_record
from mtrain.runs.synthetic import resolve
from mtrain.runtime.errors import UserError, as_user_error, printable
from mtrain.runtime.log import logger, shorten
from mtrain.runtime.stop import Stop
from mtrain.scoring.notes import Note, explain, judge
from mtrain.translation import loading

SAMPLES, MAX_TRANSLATIONS, ATTENDED = 6, 6, 3
NOT_CHECKED = "The text was not checked"
MAX_EXAMPLES = 5  # examples of a kind of finding
MAX_LOGGED = 40  # different lines of the log, the newest
MAX_LETTERS = 4000  # of a line of text

# A line of the log about the data, or a warning. Anchored at the start: searching anywhere takes
# far longer on a hostile line.
_LOGGED = re.compile(
    r"\S{10} \S{8} (?:(INFO) (?=(?:train|data\.(?:valid|test)[^:]*): )|WARNING |ERROR )(.*)"
)


@dataclass(frozen=True)
class Sample:
    """A sentence of the validation set and its translations: what each is, language and text."""

    number: int
    texts: list[tuple[str, str, str]]
    part: str = ""  # of a list of validation corpora
    tag: str | None = None


@dataclass
class Report:
    """The content of the page; `notes` list what is missing and why, by section."""

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
    looks: list[Note] | None = None  # at the best translations of the validation set
    notes: dict[str, list[str]] = field(default_factory=dict)

    @property
    def scores(self) -> list[tuple[str, Entry]]:
        """The best validation, the average's and those of the test sets, with their names."""
        best, average = self.history.best, self.history.average
        found = [best, None if average is best else average]
        name, parts = (best["checkpoint"], best.get("parts", [])) if best else ("", [])
        more = [(f"data.valid.{i}", {**part, "checkpoint": name}) for i, part in enumerate(parts)]
        more += [(f"test {name}", entry) for name, entry in self.history.tests.items()]
        return [*(("validation", entry) for entry in found if entry is not None), *more]

    @property
    def verdict(self) -> list[str]:
        """Whether something looks wrong with the best translations, if these are known, and whether
        training still helped at the end, in sentences.
        """
        looks = None if self.looks is None else judge(self.looks)
        return list(filter(None, (looks, self.history.outlook)))

    def note(self, section: str, text: str) -> None:
        """Add a note to a section, once."""
        notes = self.notes.setdefault(section, [])
        if text not in notes:
            notes.append(text)

    @contextmanager
    def part(self, section: str, otherwise: str) -> Iterator[None]:
        """Make a part of a section; if that fails, a note and a warning give the consequence and
        the reason.
        """
        try:
            yield
        except (UserError, OSError) as error:
            reason = as_user_error(error)
            logger.warning("report: %s: %s", otherwise, reason)
            self.note(section, f"{otherwise}: {reason}")


def make_page(run_dir: Path, texts: list[str], *, check: bool = True) -> str:
    """Make the report of a run, with attention for the given sentences, or some of the validation
    set, and with the data check if `check`; raises `UserError` where there is no run.
    """
    report = gather(run_dir, texts)
    if check:
        with report.part("data", NOT_CHECKED):
            report.findings = check_text(report)
    else:
        report.note("data", NOT_CHECKED)
    provenance = report.run.provenance
    return render(
        "report.html",
        report=report,
        choices=choices(report.sentences),
        config="\n".join(map(printable, report.run.text.split("\n"))),
        provenance=provenance and json.dumps(provenance.model_dump(exclude_unset=True), indent=2),
    )


def gather(run_dir: Path, texts: list[str]) -> Report:
    """Collect the content of a run directory."""
    if not os.path.lexists(run_dir):
        raise UserError(f"{run_dir}: no such directory; give a run directory")
    if not os.path.lexists(run_dir / layout.CONFIG):
        raise UserError(f"{run_dir}: not a run directory: it holds no config.yaml")
    if (run_dir / manifest.NAME).exists():
        raise UserError(f"{run_dir}: not a run directory but a checkpoint; give the run's")
    run = reader.read_run(run_dir)
    if run.config is None:
        raise run.errors[layout.CONFIG]
    report = Report(run, run.config, run.history or History.begin(run.config.train.metric))
    with report.part("run", "Links are not followed"):
        if found := reader.links(run_dir):
            raise UserError(", ".join(str(path.relative_to(run_dir)) for path in found))
    for name, error in run.errors.items():
        section = {layout.STATUS: "run", layout.RUN: "settings"}.get(name, "scores")
        with report.part(section, "Left out"):
            raise error
    if run.history is None and "scores" not in report.notes and any(_translations(run)):
        report.note("scores", "Left out: best.json is missing, though there are validations")
    with report.part("run", "The device is not known"):
        if (machine := _machine_of(run)) is not None:
            report.facts["Device"] = machine
    with report.part("curves", "There are no curves"):
        report.charts = list(_charts(report))
    with report.part("log", "Left out"):
        _read_log(report)
    lines, data = _valid_lines(report), report.config.data
    _judge(report, lines)
    sources = [line.texts[0][2] for line in lines]
    places = moderate(sources, SAMPLES) if lines else list(range(SAMPLES))
    report.samples = _samples(report, lines, places)
    own = [(lines[i].tag, sources[i]) for i in places[:ATTENDED] if lines]
    _watch(report, [(data.valid_parts[0].tag, text) for text in texts] or own)
    return report


def _machine_of(run: Run) -> str | None:
    """Describe the device that the newest checkpoint was trained on; None if it is not known.
    Raises `UserError`.
    """
    directory = run.path / layout.CHECKPOINTS
    paths = [] if directory.is_symlink() else layout.steps(directory)
    for path in (path for path in paths[::-1] if not path.is_symlink()):
        state = read_record(path / layout.TRAINER / layout.STATE, LOOP)
        if state is not None:
            parts = {key: state.machine.get(key) for key in ("device", "precision", "threads")}
            return "{device}, {precision}, threads: {threads}".format(**parts)
    return None


def check_text(report: Report) -> list[Findings]:
    """Check the text with the run's vocabulary; raises `UserError` if a part of it is not known to
    be the run's.
    """
    for key in report.run.corpora:
        sets.check_known(report.run, key)
    # with the run's own vocabulary alone, wherever the run took it from
    config, path = report.config, report.run.path
    settings: dict[str, object] = {"path": None}
    if (vocabulary := reader.read_vocabulary(path)) is not None:
        settings["vocab_size"] = Tokenizer(vocabulary, str(path / layout.TOKENIZER)).vocab_size
    parts = {
        "run_dir": str(path),
        "tokenizer": config.tokenizer.model_copy(update=settings),
        "train": config.train.model_copy(update={"init_from": None}),
    }
    config = resolve(config, path).model_copy(update=parts)
    return diagnose(config, Stop(), examples=MAX_EXAMPLES, with_forecast=False, timed=False).corpora


def _valid_lines(report: Report) -> list[Sample]:
    """Read the validation text, in the order of its translations; without it, or if it is not what
    the run scored, add a note.
    """
    lines, data, keys = list[Sample](), report.config.data, report.run.valid_keys
    with report.part("samples", "Sources and references are left out"):
        for key, corpus in zip(keys, data.valid_parts, strict=True):
            _, text = sets.read_set(report.run, key)
            part, (src, tgt) = key.removeprefix("data.valid"), data.languages(corpus)
            for number, pair in enumerate(zip(text.sources, text.references, strict=True), 1):
                texts = [("Source", src, _cut(pair[0])), ("Reference", tgt, _cut(pair[1]))]
                lines.append(Sample(number, texts, part, corpus.tag))
        return lines
    return []


def _charts(report: Report) -> Iterator[Chart]:
    """Draw the curves; a note reports missing records."""
    records, broken = MetricsFile(report.run.path / layout.METRICS).parse()
    if broken:
        report.note("curves", f"Lines of metrics.jsonl that are no records: {shorten(broken)}")
    if (time := duration(report.run.provenance, records)) is not None:
        report.facts["Time, pauses included"] = time
    if not records and report.history.entries:
        report.note("curves", "Left out: metrics.jsonl holds no records")
    yield from charts_of(records)


def _read_log(report: Report) -> None:
    """Take lines about the data, and warnings, from the log: of equal ones the newest."""
    found = filter(None, map(_LOGGED.match, reader.end_of_log(report.run.path)))
    newest = dict.fromkeys(reversed([(match[1], match[2]) for match in found]))
    report.data, report.warnings = (
        [text for level, text in newest if level == kind][:MAX_LOGGED][::-1]
        for kind in ("INFO", None)
    )


def _judge(report: Report, lines: list[Sample]) -> None:
    """Look for what is wrong with the best model's translations of the validation set."""
    best = report.history.best
    if best is None or not lines:
        return
    with report.part("scores", "The translations were not looked at"):
        hypotheses = list(reader.read_translations(report.run.path, best["checkpoint"]))
        if len(hypotheses) == len(lines):
            sources, references = ([line.texts[i][2] for line in lines] for i in (0, 1))
            report.looks = explain(hypotheses, [references], sources)


def _samples(report: Report, lines: list[Sample], places: list[int]) -> list[Sample]:
    """Return the same lines of validations at different steps."""
    there = _translations(report.run)
    steps = sorted(step for name in there if (step := layout.step_of(Path(name))) is not None)
    chosen = {layout.step_name(step) for step in spaced(steps, MAX_TRANSLATIONS)}
    names = sorted(there & {*chosen, report.history.best_step_name})
    found = {}
    for name in (*names, *(there & {layout.AVERAGE})):
        step = layout.step_of(Path(name))
        title = "Average" if step is None else f"Step {step:,}"
        with report.part("samples", f"{title} is left out"):
            translated = reader.read_translations(report.run.path, name)
            found[title] = {i: _cut(line) for i, line in enumerate(translated) if i in places}
    if not any(found.values()):
        scored = bool(report.history.entries)
        note = "Left out: the translations are missing" if scored else "There is no validation yet"
        report.note("samples", note)
    data, samples = report.config.data, []
    for place in places:
        line = lines[place] if lines else Sample(place + 1, [])
        tgt = line.texts[1][1] if lines else data.languages(data.valid_parts[0])[1]
        texts = [(each, tgt, found[each][place]) for each in found if place in found[each]]
        if texts:
            samples.append(replace(line, texts=line.texts + texts))
    return samples


def _translations(run: Run) -> set[str]:
    """Return the files of translations of the validation set, without their suffix."""
    directory = run.path / layout.VALIDATION
    return set() if directory.is_symlink() else {file.stem for file in directory.glob("*.txt")}


def _cut(text: str) -> str:
    return text if len(text) <= MAX_LETTERS else f"{text[:MAX_LETTERS]} ..."


def _watch(report: Report, texts: list[tuple[str | None, str]]) -> None:
    """Add attention maps of sentences, with their tags, by the run's best model."""
    if not texts:
        report.note("attention", "Left out without the validation set: name sentences with --text")
        return
    with report.part("attention", "Left out"):
        directory = checkpoint.resolve(report.run.path)
        reader.refuse_link(directory)
        loaded = loading.load(directory, device="cpu", precision="fp32")
        report.facts["Parameters"] = f"{loaded.model.num_parameters:,}"
        report.facts["Vocabulary"] = f"{loaded.tokenizer.vocab_size:,} pieces"
        for tag in dict.fromkeys(tag for tag, _ in texts):
            pairs: maps.Pairs = [(text, None) for own, text in texts if own == tag]
            report.sentences += maps.watch(loaded.tagged(tag), pairs, maps.Choice())
