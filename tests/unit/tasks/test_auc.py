import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from megalith.tasks.auc import auc


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5)), max_size=40))
def test_auc_is_the_share_of_ordered_pairs(examples):
    labels = np.array([label for label, _ in examples], np.float32)
    scores = np.array([score for _, score in examples], np.float32)
    pairs = [
        0.5 if positive == negative else float(positive > negative)
        for positive in scores[labels == 1]
        for negative in scores[labels == 0]
    ]
    if pairs:
        np.testing.assert_allclose(auc(labels, scores), np.mean(pairs))
    else:
        assert np.isnan(auc(labels, scores))
