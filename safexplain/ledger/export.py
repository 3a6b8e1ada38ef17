"""Charges as a file that other programs read."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import IO, Any

from safexplain.errors import ConfigurationError
from safexplain.ledger.output_files import replacing
from safexplain.ledger.records import Charge
from safexplain.ledger.releases import to_json

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
