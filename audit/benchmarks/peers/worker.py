"""One side of a race in a process of its own: makes a call ready once, then runs and times it whenever it is asked.

Runs in a peer's environment, so that it and the modules of `work` need nothing but NumPy when they are imported, and
nothing newer than Python 3.7, which CARLA needs. Reads a line of JSON a request and writes one a reply; whatever
libraries print goes to standard error.

    {"call": "RMIA", "run": false}  ->  {"set_up_seconds": 3.1}
    {"call": "RMIA", "run": true}   ->  {"seconds": .02, "processor": .02, "units": 1, "values": {}, "arrays": FILE}

What goes wrong in a call is answered as {"error": "TypeError: ..."}.

`race.Worker` starts it.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    Call = Callable[[], dict[str, Any]]
"""Does the work once and returns plain values and arrays; "units" among them: how many things were done (1)."""


def main(module: str, work: str, folder: str) -> None:
    """Answer requests until standard input ends."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    warnings.filterwarnings("ignore")
    with np.load(work, allow_pickle=False) as file:
        arrays = {key: file[key] for key in file.files}
    made: dict[str, Call] = {}
    for line in sys.stdin:
        request = json.loads(line)
        try:
            reply = _answer(module, request, arrays, made, Path(folder))
        except Exception as error:
            traceback.print_exc()
            reply = {"error": f"{type(error).__name__}: {error}".strip().splitlines()[0][:300]}
        print(json.dumps(reply), file=replies, flush=True)


def _answer(
    module: str, request: dict[str, Any], work: dict[str, Any], made: dict[str, Call], folder: Path
) -> dict[str, Any]:
    name = request["call"]
    if not request["run"]:
        start = time.perf_counter()
        made[name] = importlib.import_module(module).CALLS[name](work)
        return {"set_up_seconds": time.perf_counter() - start}
    busy, clock = time.process_time(), time.perf_counter()
    found = made[name]()
    spent = {"seconds": time.perf_counter() - clock, "processor": time.process_time() - busy}
    kept = {key: value for key, value in found.items() if isinstance(value, np.ndarray)}
    path = folder / f"{os.getpid()}.npz"
    np.savez(path, **kept)
    values = {key: value for key, value in found.items() if key not in kept}
    return {**spent, "units": values.pop("units", 1), "values": values, "arrays": str(path)}
