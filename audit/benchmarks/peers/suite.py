"""Against others, on the same work: attacks, DP steps, explanations, bounds, and who was in.

Each peer runs in an environment of its own, made on demand under `--environments` (see `environments.py`), as one
process; safexplain as another one, or in the same one where the peer's environment runs both and little is to be told
(Captum, Opacus). Both read the same file of arrays, and work in turns, A B A B ..., one thread each:
a run of either side that does not count, then rounds until there are enough or time is up. What is compared is the time
of the processor; getting ready (imports, building objects) is told apart. The ratio is the peer's time over ours within
a round, above 1 where we are faster, and its median and quartiles over rounds are shown. Times in milliseconds depend
on what else the machine did; ratios hardly do.

A peer that cannot be installed or does not run is named, with the reason. Nothing of a peer is bundled or copied; its
licence stands beside its name. ML Privacy Meter's RMIA is in its repository only, not on PyPI: `--checkout DIR` names a
clone, of which the file is read through git.

A finished peer is kept in the result; `--only PEER` runs one anew (repeat for more).

    python -m audit.benchmarks.peers [--environments DIR] [--checkout DIR] [--only PEER] [--data DIR] [--quick]
"""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from ...shared.run import (
    Unusable,
    concluded,
    destination,
    earlier,
    parser,
    provenance,
    rounded,
    table,
    write_json,
)
from .contests import PEERS, Contest, Peer
from .environments import Skipped
from .race import Race, Run, Worker, quartiles, race

Arrays = dict[str, Any]


def figures(contest: Contest, found: Race, quality: Callable[[str, Run], dict[str, Any]]) -> dict[str, Any]:
    """What is recorded of a race.

    Args:
        contest: what was raced.
        found: the runs.
        quality: a call and what it answered -> how good that is.
    """
    sides = {}
    for name, call, runs, ready in (
        ("ours", contest.ours, found.ours, found.set_up[0]),
        ("theirs", contest.theirs, found.theirs, found.set_up[1]),
    ):
        sides[name] = {
            "call": call,
            "processor_seconds": quartiles([r.processor for r in runs])["median"],
            "clock_seconds": quartiles([r.seconds for r in runs])["median"],
            "set_up_seconds": ready,
            "quality": quality(call, runs[-1]),
        }
    return {
        "what": contest.what,
        "unit": contest.unit,
        "rounds": len(found.ours),
        "ratio": quartiles(found.ratios()),
        "clock_ratio": quartiles(found.ratios(clock=True)),
        **sides,
    }


def asked(peer: Peer, options: argparse.Namespace, works: Path) -> dict[str, Any]:
    """All races with a peer.

    Args:
        peer: whom to ask.
        options: of the command line.
        works: folder of the files of arrays; those that are missing are made.

    Returns:
        Its part of the result: "skipped" with a reason, or races, releases and where they ran.
    """
    start = time.perf_counter()
    about: dict[str, Any] = {
        "title": peer.title,
        "licence": peer.licence,
        "asked_for": peer.asked_for,
        "one_process": peer.together,
    }
    races: dict[str, Any] = {}
    failed: dict[str, str] = {}
    try:
        extra = peer.checked_out(options.checkout)
        python = peer.environment.python(options.environments)
        about["releases"] = versions(python, peer.packages) | extra
        for module, contests in peer.works(options.quick).items():
            work = made(module, works, options)
            arrays = dict(np.load(work))
            name = f"{__package__}.work.{module}"
            quality = importlib.import_module(name).quality
            extra_environment = {"PEER_CHECKOUT": str(options.checkout or "")}
            with ExitStack() as open_sides:
                them = open_sides.enter_context(Worker(python, name, work, extra_environment, options.longest))
                us = (
                    them
                    if peer.together
                    else open_sides.enter_context(Worker(Path(sys.executable), name, work, None, options.longest))
                )
                for contest in contests:
                    print(f"{peer.key}: {contest.name}", flush=True)
                    try:
                        run = race(
                            (us, contest.ours), (them, contest.theirs), options.rounds, options.limit, once=contest.once
                        )
                    except Skipped as reason:
                        failed[contest.name] = str(reason)
                        print(f"  skipped: {reason}", flush=True)
                        continue
                    races[contest.name] = figures(contest, run, lambda c, r, a=arrays, q=quality: q(c, a, r))
                    print(f"  ratio {races[contest.name]['ratio']}", flush=True)
    except (Skipped, Unusable) as reason:
        return about | {"skipped": str(reason)}
    if not races:
        return about | {"skipped": "; ".join(f"{name}: {reason}" for name, reason in failed.items())}
    return about | {"races": races, "skipped_races": failed, **provenance(time.perf_counter() - start)}


def made(module: str, works: Path, options: argparse.Namespace) -> Path:
    """The file of a kind of work, made where it is missing in this run."""
    path = works / f"{module}.npz"
    if not path.is_file():
        print(f"preparing {module}", flush=True)
        np.savez(path, **importlib.import_module(f"{__package__}.work.{module}").prepare(options.data, options.quick))
    return path


def versions(python: Path, packages: Sequence[str]) -> dict[str, str]:
    """Of packages in an environment."""
    code = (
        "import sys\ntry: from importlib.metadata import version\n"
        "except ImportError: from importlib_metadata import version  # before Python 3.8\n"
        "print(*(version(p) for p in sys.argv[1:]), sep='\\n')"
    )
    done = subprocess.run([str(python), "-c", code, *packages], capture_output=True, text=True, check=True)
    return dict(zip(packages, done.stdout.split(), strict=True))


def show(results: dict[str, Any]) -> str:
    """The races of all peers, and who was skipped, as text."""
    rows = []
    for found in results.values():
        for name, r in found.get("races", {}).items():
            ratio = "{median:.2f} ({low:.2f} to {high:.2f})".format(**r["ratio"])
            times = (f"{1e3 * r[side]['processor_seconds']:.2f}" for side in ("ours", "theirs"))
            rows.append((found["title"], name, *times, ratio, r["ours"]["quality"], r["theirs"]["quality"]))
        for name, reason in found.get("skipped_races", {}).items():
            rows.append((found["title"], name, "", "", f"skipped: {reason}", "", ""))
        if "skipped" in found:
            rows.append((found["title"], "", "", "", f"skipped: {found['skipped']}", "", ""))
    return table(("peer", "work", "our ms", "their ms", "theirs / ours", "our quality", "their quality"), rows)


def main(argv: list[str] | None = None) -> int:
    """Ask all peers that are not finished; 0 unless none at all could be asked."""
    p = parser("peers", __doc__)
    p.add_argument("--environments", type=Path, help="folder of the peers' environments (default: in the cache folder)")
    p.add_argument("--checkout", type=Path, help="a clone of ML Privacy Meter's repository, to ask its RMIA")
    p.add_argument("--only", action="append", choices=[peer.key for peer in PEERS], help="one peer, asked anew")
    p.add_argument("--rounds", type=int, help="most rounds of a race (default 9; 1 with --quick)")
    p.add_argument("--limit", type=float, default=60.0, help="seconds after which a race has no further rounds")
    p.add_argument("--longest", type=float, default=600.0, help="seconds after which a single call is given up")
    options = p.parse_args(argv)
    options.environments = (options.environments or options.cache / "peers").absolute()
    options.checkout = options.checkout and options.checkout.absolute()
    options.rounds = options.rounds or (1 if options.quick else 9)
    start, out = time.perf_counter(), destination(options)
    results = earlier(out, options.quick)
    with tempfile.TemporaryDirectory() as works:
        for peer in PEERS:
            if options.only and peer.key not in options.only:
                continue
            if not options.only and "races" in results.get(peer.key, {}):
                print(f"{peer.key}: kept from an earlier run; --only {peer.key} asks it again", flush=True)
                continue
            results[peer.key] = rounded(asked(peer, options, Path(works)))
            ordered = {each.key: results[each.key] for each in PEERS if each.key in results}
            report = {"benchmark": "peers", "quick": options.quick, "results": ordered}
            write_json(out, report | {"last_run": provenance(time.perf_counter() - start)})
    print(show(results))
    missed = [] if any("races" in found for found in results.values()) else ["no peer could be asked"]
    return concluded(missed, out)
