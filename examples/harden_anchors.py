"""What Alibi's anchors carry out of a service, natively and hardened. Needs: pip install "safexplain[alibi]"."""

import json
import os

import numpy as np
from alibi.explainers import AnchorTabular
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import RandomForestClassifier

from safexplain import HardenedAnchors
from safexplain.explain import anchor_hardening


def numbers(value: object) -> set[float]:
    """Every number in an answer, at any depth."""
    if isinstance(value, dict):
        return set().union(*map(numbers, value.values())) if value else set()
    if isinstance(value, list):
        return set().union(*map(numbers, value)) if value else set()
    return {float(value)} if isinstance(value, int | float) else set()


def rows_in(answers: list[str], rows: np.ndarray) -> int:
    """How many training rows have 27 or more of their 30 numbers in the answers."""
    found = set().union(*(numbers(json.loads(answer)) for answer in answers))
    return sum(sum(float(v) in found for v in row) >= 27 for row in rows)


def main() -> None:
    data = load_breast_cancer()
    x, y = data.data[:400], data.target[:400]
    forest = RandomForestClassifier(10, random_state=0).fit(x, y)
    native = AnchorTabular(forest.predict, list(data.feature_names), seed=0)
    native.fit(x)
    hardened = HardenedAnchors(native, hardening=anchor_hardening(os.urandom(32)))  # in production: one secret key

    queries = data.data[400:403]
    before = [native.explain(query, n_covered_ex=20).to_json() for query in queries]
    released = [hardened.explain(query, n_covered_ex=20) for query in queries]
    after = [explanation.to_json() for explanation in released]
    print(f"training rows in three native answers:   {rows_in(before, x)}")
    print(f"training rows in three hardened answers: {rows_in(after, x)}")
    print("fields of a hardened answer:", ", ".join(released[0].data))
    again = hardened.explain(queries[0], n_covered_ex=20)
    print("asked again, the same answer:", again.to_json() == after[0])


if __name__ == "__main__":
    main()
