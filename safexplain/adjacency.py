"""What two neighbouring data sets differ in, how batches are drawn, and what each covers, in words."""

from __future__ import annotations

from typing import Literal, get_args

from safexplain.errors import ConfigurationError

Adjacency = Literal["add_remove", "substitute", "zero_out"]
"""One record present or absent; one record's value, label or attributes anything; one record or an empty one."""

Sampling = Literal["poisson", "fixed-size", "full-batch"]
"""Each record joins each batch by its own coin; a uniform subset of fixed size; every record in every batch."""

PROTECTS: dict[Adjacency, str] = {
    "add_remove": "whether a record was in the training data",
    "substitute": "what a record's features and label are, though it be known that it was there",
    "zero_out": "whether a record or an empty one stood in its place, the number of records being known",
}
"""What an observer of the trained model cannot tell, up to epsilon and delta."""

SHUFFLED = (
    "shuffled batches are not accounted: passing over a shuffled data set is not Poisson sampling, and the epsilon of"
    " Poisson sampling can be far too small for it (Chua et al. 2024, arXiv 2403.17673). Draw Poisson batches"
    ' (DPFineTuner and make_private do), or account each epoch as one step with sampling="full-batch", which holds for'
    " any order in which each record is in one batch an epoch"
)


def check_adjacency(adjacency: str) -> None:
    """Raise ConfigurationError unless it is one of `Adjacency`."""
    if adjacency not in get_args(Adjacency):
        raise ConfigurationError(f"adjacency: expected one of {', '.join(get_args(Adjacency))}, got {adjacency!r}")


def check_sampling(sampling: str) -> None:
    """Raise ConfigurationError unless it is one of `Sampling`; shuffling is refused with the reason."""
    if sampling in ("shuffle", "shuffled", "shuffling"):
        raise ConfigurationError(SHUFFLED)
    if sampling not in get_args(Sampling):
        raise ConfigurationError(f"sampling: expected one of {', '.join(get_args(Sampling))}, got {sampling!r}")
