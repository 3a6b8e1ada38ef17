"""What a search gives: the front, the chosen point and its confirmation, and the files that say so.

Everything but the confirmation's files is plain JSON without a key: `front.json` is what people read, `hardening.json`
what `safexplain audit --hardening` and `HardenedIG(hardening=...)` take.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safexplain._files import make_folder, write_atomically
from safexplain.audit.report.outcome import AuditRun
from safexplain.tune.page import render
from safexplain.tune.result import Examples, Point, Study
from safexplain.verdict.certificate.write import write_json
from safexplain.verdict.evidence import EXIT_CODES


@dataclass(frozen=True, eq=False)
class Tuned:
    """What a search found.

    Args:
        front: points that no other one dominates in leak and utility, the one that leaks least first.
        chosen: the one that keeps most among those whose leak is surely within the policy's allowance; if there is
            none, the least leaking one (`within` is false then).
        confirmed: the audit of the chosen point, on the certification split; None: the search was interrupted.
        study: what was searched.
        within: whether the chosen point's upper bound is within the allowance.
        examples: for pictures; None where none were kept.
    """

    front: tuple[Point, ...]
    chosen: Point
    confirmed: AuditRun | None
    study: Study
    within: bool = True
    examples: Examples | None = None

    @property
    def exit_code(self) -> int:
        """Of the command line: the confirmation's, or 3 (inconclusive) without one."""
        return EXIT_CODES["inconclusive"] if self.confirmed is None else self.confirmed.exit_code

    @property
    def files(self) -> dict[str, str]:
        """What `save` writes: kind -> name."""
        found = {"page": "front.html", "front": "front.json", "hardening": "hardening.json"}
        return found | ({} if self.confirmed is None else self.confirmed.files)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {
            "front": [point.to_dict() for point in self.front],
            "chosen": self.chosen.to_dict(),
            "within": self.within,
            "confirmed": None if self.confirmed is None else self.confirmed.to_dict(),
            **self.study.to_dict(),
            "exit_code": self.exit_code,
        }

    def save(self, folder: str | Path) -> Path:
        """Write front.json, front.html, hardening.json and, of a confirmed choice, the files of `AuditRun.save`.

        Returns:
            The folder, which is made if it is missing.

        Raises:
            InputError: a file cannot be written.
        """
        folder = make_folder(folder)
        if self.confirmed is not None:
            self.confirmed.save(folder)
        write_json(folder / "hardening.json", self.chosen.hardening.to_dict())
        write_json(folder / "front.json", self.to_dict())
        result = None if self.confirmed is None else self.confirmed.result
        page = render(self.study, self.front, self.chosen, self.within, result, self.examples)
        write_atomically(folder / "front.html", page.encode("utf-8", errors="replace"), "the page")
        return folder
