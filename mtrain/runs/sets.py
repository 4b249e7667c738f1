"""Read the validation and test sets of a run, if their hashes are those that the run recorded."""

from pathlib import Path

from mtrain.corpus.readers import ScoredText, read_scored_text, reading_of
from mtrain.runs import layout, manifest, verify
from mtrain.runs.reader import Run, read_run
from mtrain.runtime.errors import RefusedError, UserError
from mtrain.runtime.log import logger


def read_run_of(model: Path) -> Run:
    """Read the run that a model, a run directory or one of its checkpoints, belongs to; raises
    `UserError` if there is none.
    """
    is_run = any((model / name).exists() for name in (layout.RUN, layout.CHECKPOINTS))
    # absolute, since the parent of a relative path such as `average` is only `.`
    path = model if is_run else model.absolute().parent.parent
    run = read_run(path)
    if run.config is not None:
        return run
    if is_run or (path / layout.RUN).exists():
        raise run.errors[layout.CONFIG]
    if not (model / manifest.NAME).exists():  # a lone checkpoint has a vocabulary, too
        layout.refuse_prepared(model)
    raise UserError(
        f"{model}: belongs to no run directory, so it has no sets; give files with -s/--source and "
        "-r/--reference"
    )


def names(run: Run) -> dict[str, str]:
    """Return the key of each set by its name: `valid`, `valid.0` of a list, or a test set's."""
    keys = dict[str, str]()
    for key in run.corpora:  # data.valid comes first, and wins over a test set of that name
        if not key.startswith("data.train"):
            keys.setdefault(key.removeprefix("data.").removeprefix("test."), key)
    return keys


def key_of(run: Run, name: str) -> str:
    """Return the key of the set of that name; raises `RefusedError` with all names."""
    keys = names(run)
    if name not in keys:
        raise RefusedError(f"--on {name}: the run has no such set; choose one of {', '.join(keys)}")
    return keys[name]


def read_set(run: Run, key: str) -> ScoredText:
    """Read a validation or test set; raises `UserError` as `check_known` does."""
    assert run.config is not None
    check_known(run, key)
    corpus, sha256 = run.corpora[key]
    assert sha256 is not None
    return read_scored_text(corpus, reading_of(run.config, keep_blank=True), sha256)


def check_known(run: Run, key: str) -> None:
    """Raise `UserError` unless a corpus has the hash of the text that the run used: the config may
    be from somebody else and name any file of this machine, which no page may show. The reason why
    a file cannot be read may quote the file, so it is only logged.
    """
    state = "without a hash in run.json"  # then the corpus is not even read
    if run.corpora[key][1] is not None:
        finding = verify.check_corpus(run, key)
        if (state := finding.state) == verify.OK:
            return
        logger.warning("%s", finding)
    raise UserError(f"{key}: {state}, and so not known to be the text of the run")
