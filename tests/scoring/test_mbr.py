"""Pairwise sentence chrF against sacreBLEU, and the choice by minimum Bayes risk."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics import CHRF

from mtrain.scoring import mbr
from mtrain.scoring.mbr import min_risk_index, pairwise_chrf

TEXT = st.text(st.sampled_from("ab c\u0308ß\U0001f600"), max_size=14)


@given(st.lists(TEXT, min_size=1, max_size=6), st.sampled_from([3, 1 << 24]))
def test_pairwise_chrf_equals_sacrebleu(texts: list[str], block: int) -> None:
    chrf = CHRF()
    expected = [[chrf.sentence_score(a, [b]).score for b in texts] for a in texts]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mbr, "BLOCK", block)
        np.testing.assert_allclose(pairwise_chrf(texts), expected, rtol=1e-12)


@given(st.lists(st.tuples(TEXT, st.floats(-9, 0)), min_size=1, max_size=6))
def test_the_choice_is_the_best_mean_against_the_others(pairs: list[tuple[str, float]]) -> None:
    texts, scores = [text for text, _ in pairs], [score for _, score in pairs]
    chosen = min_risk_index(texts, scores)
    chrf = CHRF()
    means = [
        np.mean([chrf.sentence_score(a, [b]).score for j, b in enumerate(texts) if j != i] or [0])
        for i, a in enumerate(texts)
    ]
    assert means[chosen] == pytest.approx(max(means), abs=1e-5)
    rivals = [s for s, mean in zip(scores, means, strict=True) if mean > max(means) - 1e-7]
    assert scores[chosen] >= max(rivals) or means[chosen] > max(means) - 1e-5


def test_equal_texts_support_each_other() -> None:
    assert min_risk_index(["a red bicycle", "the dog", "the dog"], [-0.1, -3.0, -2.0]) == 2
    assert min_risk_index(["alone"], [-1.0]) == 0
    assert min_risk_index(["a", "a\0"], [-2.0, -1.0]) == 1  # numpy's strings would be the same
