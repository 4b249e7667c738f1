"""The bar of a training run on narrow terminals."""

from tqdm import tqdm

from mtrain.runtime.log import FIGURES


def test_the_figures_of_a_long_run_fit_a_terminal_of_80_columns() -> None:
    postfix = "loss 3.701  ppl 14.72  121,825 tok/s"
    bar = {"prefix": "training", "bar_format": FIGURES, "postfix": postfix}
    shown = tqdm.format_meter(71_000, 100_000, 99_000, ncols=79, **bar)
    assert shown == f"training: 71% 71000/100000, 11:13:56 left, {postfix}"
