"""Numbers without the digits that are other ones on another CPU."""

import numpy as np

from kvib.cohort import FloatArray

_SPLIT = 2.0**12 + 1


def rounded(scores: FloatArray) -> FloatArray:
    """Scores to 41 of their 53 binary digits, by Veltkamp's split; below 4e304, lest it overflow.

    The last digits of exponentials, logarithms and matrix products differ between libraries and
    CPUs. An index sorts scores by their exponent, and where weights are 1, 2, 4, … many scores are
    powers of two: on the border between two buckets, where the last digit would choose.
    """
    far = scores * _SPLIT
    far += scores - far
    return np.asarray(far)
