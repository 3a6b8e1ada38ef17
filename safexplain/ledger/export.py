"""Charges as a file that other programs read.

Files that a ledger writes for others: whole or not at all, and never over the ledger itself.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import IO, Any

from safexplain._files import whole_file
from safexplain.errors import ConfigurationError, InputError
from safexplain.ledger.records import Charge
from safexplain.ledger.releases import to_json


@contextmanager
def replacing(target: str | PathLike[str], kept: Sequence[Path]) -> Iterator[Path]:
    """A path to write to, whose file takes the place of the target once the block is left without an error.

    Args:
        target: path.
        kept: files that must not be replaced.

    Raises:
        ConfigurationError: the target is one of them.
        InputError: there is no such folder, or it cannot be written.
    """
    path = Path(target)
    if any(path.resolve() == file.resolve() for file in kept):
        raise ConfigurationError(f"{path} is a file of the ledger itself; name another one")
    try:
        with whole_file(path) as partial:
            partial.unlink(missing_ok=True)  # SQLite would write into what a killed process left
            yield partial
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from None


COLUMNS = (
    "id", "time", "principal", "mechanism", "kind", "epsilon", "delta", "mu", "steps", "parameters", "period",
    "question", "digest", "repeated",
)  # fmt: skip


def line(charge: Charge) -> dict[str, Any]:
    """A charge as JSON types; what its kind of release does not have is None."""
    release = json.loads(to_json(charge.release))
    return {
        "id": charge.id,
        "time": charge.time.isoformat(),
        "principal": charge.principal,
        "mechanism": charge.mechanism,
        **{name: release.get(name) for name in ("kind", "epsilon", "delta", "mu", "steps")},
        "parameters": dict(charge.parameters),
        "period": charge.period.isoformat() if charge.period else None,
        "question": charge.question,
        "digest": charge.digest,
        "repeated": charge.repeated,
    }


def write(
    charges: Iterable[Charge], target: str | PathLike[str] | IO[str], format: str, kept: Sequence[Path] = ()
) -> int:
    """Write charges; how many there were.

    Args:
        charges: oldest first.
        target: path, or a text stream.
        format: "jsonl" or "csv".
        kept: files that must not be replaced.

    Raises:
        ConfigurationError: another format, or one of the files to keep.
        InputError: the file cannot be written.
    """
    if format not in ("jsonl", "csv"):
        raise ConfigurationError(f'format: expected "jsonl" or "csv", got {format!r}')
    if isinstance(target, str | PathLike):
        with replacing(target, kept) as partial, partial.open("w", encoding="utf-8", newline="") as stream:
            return write(charges, stream, format)
    table = csv.DictWriter(target, COLUMNS, lineterminator="\n")
    if format == "csv":
        table.writeheader()
    count = 0
    for charge in charges:
        content = line(charge)
        if format == "csv":
            table.writerow({**content, "parameters": json.dumps(content["parameters"])})
        else:
            target.write(json.dumps(content) + "\n")
        count += 1
    return count
