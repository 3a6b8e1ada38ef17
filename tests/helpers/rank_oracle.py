"""RankNorm, TopKSet and Levels, one number at a time."""

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
        out.append(value if balanced else math.copysign(value, v) if v else 0.0)
    return out


def slow_format(clip, row):
    """1 for each named feature, or the step of each over the number of steps; the first go before their equals."""
    d = len(row)

    def first(keys, count):
        order = sorted(range(d), key=lambda j: (-keys[j], j))[:count]
        return [j in order and keys[j] > 0 for j in range(d)]

    if not hasattr(clip, "n"):
        count = max(clip.k or 0, round((clip.fraction or 0) * d), 1)
        return [float(named) for named in first(row if clip.positive else [abs(v) for v in row], count)]
    out = [0.0] * d
    for j in range(1, clip.n + 1):
        count = max(1, round(d / 2**j))
        if clip.balanced and min(row) < 0 < max(row):
            sides = [(1, first(row, max(1, count // 2))), (-1, first([-v for v in row], max(1, count // 2)))]
        else:
            named = first([abs(v) for v in row], count)
            sides = [
                (1, [n and v > 0 for n, v in zip(named, row, strict=True)]),
                (-1, [n and v < 0 for n, v in zip(named, row, strict=True)]),
            ]
        for sign, named in sides:
            out = [v + sign * n for v, n in zip(out, named, strict=True)]
    return [v / clip.n for v in out]
