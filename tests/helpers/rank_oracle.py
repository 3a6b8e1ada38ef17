"""RankNorm, one number at a time."""

import math


def slow_rank(clip, row):
    """The numbers that belong to the ranks; equal ones share the mean of theirs."""

    def magnitudes(d, norm):
        raw = [(-math.log(1 - (j + 0.5) / d)) ** clip.shape for j in range(d)]
        return [v * norm / math.sqrt(sum(r * r for r in raw)) for v in raw]

    d = len(row)
    balanced = clip.balanced_from and d >= clip.balanced_from and min(row) < 0 < max(row)
    if balanced:
        above = magnitudes(d // 2, clip.norm / math.sqrt(2))
        values = [-v for v in reversed(above)] + [0.0] * (d % 2) + above
    else:
        values = magnitudes(d, clip.norm)
    keys, out = (row if balanced else [abs(v) for v in row]), []
    for v, key in zip(row, keys, strict=True):
        lower, equal = sum(k < key for k in keys), sum(k == key for k in keys)
        value = sum(values[lower : lower + equal]) / equal
        out.append(value if balanced else math.copysign(value, v))
    return out
