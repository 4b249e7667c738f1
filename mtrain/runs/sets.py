"""The validation and test sets of a run as text, once it is known to be what the run used."""

from pathlib import Path

from mtrain.config.corpora import Corpus
from mtrain.corpus.readers import Text, read_text, reading_of
from mtrain.runs import layout, verify
from mtrain.runs.reader import Run, read_run
from mtrain.runtime.errors import RefusedError, UserError
from mtrain.runtime.log import logger


def read_run_of(model: Path) -> Run:
    """Read the run of a model: a run directory, or one that holds the checkpoint; raises
    `UserError` where there is none.
    """
    path = model if (model / layout.RUN).exists() else model.parent.parent
    run = read_run(path)
    if run.config is None:
        raise UserError(f"{model}: belongs to no run directory, and so has no sets of its own")
    return run


def names(run: Run) -> dict[str, str]:
    """Return the key of each set by its name: `valid`, `valid.0` of a list, or a test set's."""
    scored = [key for key in run.corpora if not key.startswith("data.train")]
    # reversed: data.valid wins over a test set that is named valid
    return {key.removeprefix("data.").removeprefix("test."): key for key in scored[::-1]}


def key_of(run: Run, name: str) -> str:
    """Return the key of the set of that name; raises `RefusedError` with the names of all."""
    known = names(run)
    if name not in known:
        listed = ", ".join(list(known)[::-1])
        raise RefusedError(f"--on {name}: the run has no such set; choose one of {listed}")
    return known[name]


def read_set(run: Run, key: str) -> tuple[Corpus, Text]:
    """Read a validation or test set; raises `UserError` if it is not known to be the run's."""
    assert run.config is not None
    check_known(run, key)
    corpus = run.corpora[key][0]
    return corpus, read_text(corpus, reading_of(run.config, keep_blank=True), "")


def check_known(run: Run, key: str) -> None:
    """Raise `UserError` unless a corpus is, by its hash, the text of the run: another person's
    config may name any file of this machine, which no page may show. Why a file cannot be read may
    quote it, so that is only logged.
    """
    state = "without a hash"  # and not even read
    if run.corpora[key][1] is not None:
        finding, _ = verify.check_corpus(run, key)
        if (state := finding.state) == verify.OK:
            return
        logger.warning("%s", finding)
    raise UserError(f"{key}: {state}, and so not known to be the text of the run")
