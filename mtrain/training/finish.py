"""The end of a run: the last checkpoints are averaged and validated, then the best model is scored
on the test sets. What an earlier start has finished is not repeated.
"""

from functools import partial

from pydantic import TypeAdapter
from safetensors.torch import load, save

from mtrain.config.schema import dump_config
from mtrain.corpus.readers import Text
from mtrain.runs import checkpoint, layout
from mtrain.runs.checkpoint import Snapshot
from mtrain.runtime.distributed import BYTES
from mtrain.runtime.log import logger
from mtrain.training.resume import Checkpoints
from mtrain.training.validation import Validation, summary
from mtrain.translation.loading import LoadedModel, unpack

NAMES = TypeAdapter(list[str])


def finish(validation: Validation, checkpoints: Checkpoints, step: int) -> None:
    """Average and test a run whose last step is `step`."""
    _validate_average(validation, checkpoints, step)
    _test(validation, step)


def _validate_average(validation: Validation, checkpoints: Checkpoints, step: int) -> None:
    names = validation.ranks.share(partial(_average, validation, checkpoints, step), NAMES)
    if not names:
        return
    name, valid = layout.AVERAGE, validation.prepared.valid
    entry = validation.evaluate(_load(validation, name), valid, name, step, "average/")
    validation.history.average = {"step": step, "checkpoint": name, "of": names, **entry}
    validation.write_history()
    logger.info("average of %d  %s", len(names), summary(entry))


def _average(validation: Validation, checkpoints: Checkpoints, step: int) -> list[str]:
    """Average the last scheduled checkpoints and return their names; none if there is nothing to
    validate.
    """
    directory, train = validation.run.checkpoints, validation.config.train
    paths = checkpoint.last_scheduled(directory, step, train.save_every, train.average_last)
    intact = checkpoint.whole_ones(paths)
    if len(intact) < len(paths):
        bad = paths[-1 - len(intact)]
        logger.warning("%s: damaged or missing; only later checkpoints are averaged", bad)
    names = [path.name for path in intact]
    before = validation.history.average or {}
    is_done = before.get("of") == names and checkpoint.is_good(directory / layout.AVERAGE)
    if len(intact) < 2 or is_done:
        return []
    validation.stop.check()
    validation.run.check_held()
    snapshot = checkpoints.snapshot(checkpoint.average(intact))
    checkpoint.save(directory / layout.AVERAGE, snapshot)
    return names


def _test(validation: Validation, step: int) -> None:
    """Score the test sets with the best model."""
    validation.ranks.first(partial(_mark_lost, validation))
    validation.broadcast_history()
    best, tests = validation.history.best, validation.prepared.tests
    if best is None:
        return
    for name, text in tests.items():
        _test_set(validation, name, text, best["checkpoint"], step)
    logger.info("best: %s  %s", best["checkpoint"], summary(best))
    for name in tests:
        entry = validation.history.tests[name]
        logger.info("test %s: %s  %s", name, summary(entry), entry["signature"])


def _mark_lost(validation: Validation) -> None:
    """Mark the validations whose checkpoints are not intact, until the best one's is."""
    lost = []
    while best := validation.history.best:
        path = validation.run.checkpoints / best["checkpoint"]
        if checkpoint.is_good(path):
            break
        best["lost"] = True
        lost.append(path)
    if lost:
        logger.warning("%s: damaged or missing; using the best of the others", lost[0])
        validation.write_history()


def _test_set(validation: Validation, name: str, text: Text, best: str, step: int) -> None:
    """Score a test set, unless its scores are those of the same model, text and search."""
    identity = {
        "checkpoint": best,
        "step": step,
        "sha256": text.sha256,
        "decode": validation.config.decode.model_dump(),
    }
    before = validation.history.tests.get(name, {})
    if {key: before.get(key) for key in identity} == identity:
        return
    model = _load(validation, best)
    entry = validation.evaluate(model, text, f"test-{name}", step, f"test/{name}/")
    validation.history.tests[name] = {**identity, **entry}
    validation.write_history()


def _load(validation: Validation, name: str) -> LoadedModel:
    """Load a checkpoint as `mtrain translate` does: on rank 0, and broadcast, since other machines
    may not see the file yet.
    """
    path = validation.run.checkpoints / name
    data = validation.ranks.share(lambda: save(checkpoint.load_or_name_good(path).weights), BYTES)
    config, proto = validation.config, validation.prepared.tokenizer.proto
    return unpack(
        Snapshot(load(data), dump_config(config), proto),
        path,
        config.decode.model_dump(),
        device=str(validation.learner.device),
        check_stop=validation.stop.check,
    )
