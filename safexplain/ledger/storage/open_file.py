"""Whether an open file is still the one at its path: who deletes or replaces it leaves the process that holds it alone
with what it goes on writing, while everybody else counts from another file.
"""

from __future__ import annotations

import os
from pathlib import Path


class OpenFile:
    """A file, as it is when this is made.

    Args:
        path: of the file, which is there.

    Raises:
        OSError: it is not.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._identity = _identity(path)

    def stands(self) -> bool:
        """Whether the path still leads to it."""
        try:
            return _identity(self.path) == self._identity
        except FileNotFoundError:
            return False


def _identity(path: Path) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino
