"""A terminal recording of `safexplain demo` as an animated SVG, light and dark: docs/figures/demo-*.svg.

    python docs/figures/make_demo_recording.py            # records a real run (some minutes), then draws it
    python docs/figures/make_demo_recording.py --draw     # draws demo-recording.json again

The command runs in a pseudo-terminal of 80 columns. What the screen shows is kept about once a second, with the time at
which it was shown, in demo-recording.json. The drawing shows these screens in order, `SPEED` times as fast as the run;
the last one stays. Where the reader prefers reduced motion, the last screen alone is shown. Needs `pyte`, a terminal
emulator, which nothing else here needs: pip install pyte.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

HERE = Path(__file__).parent
RECORDING = HERE / "demo-recording.json"
COLUMNS, ROWS = 80, 48
TYPED = "safexplain demo --run-dir safexplain-runs/demo"
PLAY = 14.0
"""Seconds that the drawing takes for the whole run."""

LAST = 10.0
"""Seconds that it then shows the last screen, before it begins again."""

FRAMES = 40
"""Screens that are drawn, at most."""

THEMES = {
    "light": {"back": "#ffffff", "frame": "#d0d7de", "text": "#1f2328", "dim": "#59636e", "green": "#116329",
              "red": "#a40e26", "yellow": "#7d4e00", "bar": "#8250df", "rest": "#d0d7de", "blue": "#0550ae"},
    "dark": {"back": "#0d1117", "frame": "#30363d", "text": "#e6edf3", "dim": "#9198a1", "green": "#3fb950",
             "red": "#ff7b72", "yellow": "#d29922", "bar": "#bc8cff", "rest": "#30363d", "blue": "#79c0ff"},
}  # fmt: skip

Run = tuple[int, str, str]
"""Column, text and class of a piece of a line."""


def record() -> dict[str, Any]:
    """Run the demo in a pseudo-terminal; the screen about once a second, and when it was so."""
    import pty
    import select

    import pyte

    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    frames: list[dict[str, Any]] = []
    root = str(HERE.parents[1])
    environment = {
        **os.environ, "PYTHONPATH": os.environ.get("PYTHONPATH", root), "TERM": "xterm-256color",
        "COLUMNS": str(COLUMNS), "LINES": str(ROWS),
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        environment["SAFEXPLAIN_USES"] = str(Path(folder) / "uses.sqlite")  # as on a new machine
        began = time.monotonic()
        child, terminal = pty.fork()
        if not child:
            os.chdir(folder)
            os.execve(sys.executable, [sys.executable, "-m", *TYPED.split()], environment)
        while True:
            ready, _, _ = select.select([terminal], [], [], 1.0)
            if ready:
                try:
                    told = os.read(terminal, 1 << 16)
                except OSError:  # the other end is closed
                    break
                if not told:
                    break
                stream.feed(told)
            now = time.monotonic() - began
            if not frames or now - frames[-1]["seconds"] >= 1.0:
                frames.append({"seconds": round(now, 1), "screen": rows_of(screen)})
        _, status = os.waitpid(child, 0)
        frames.append({"seconds": round(time.monotonic() - began, 1), "screen": rows_of(screen)})
    if os.waitstatus_to_exitcode(status):
        raise SystemExit(f"the demo failed: {status}")
    kept = [frames[0], *(b for a, b in pairwise(frames) if a["screen"] != b["screen"])]
    return {"command": TYPED, "columns": COLUMNS, "seconds": frames[-1]["seconds"], "frames": spread(kept)}


def spread(frames: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """At most `FRAMES` of them, the first and the last always, spread over the time."""
    if len(frames) <= FRAMES:
        return frames
    times = [frames[-1]["seconds"] * i / (FRAMES - 1) for i in range(FRAMES)]
    return [
        frames[i] for i in sorted({min(range(len(frames)), key=lambda k: abs(frames[k]["seconds"] - t)) for t in times})
    ]


def rows_of(screen: Any) -> list[list[Run]]:
    """What a screen shows, as pieces of one colour, without trailing blanks."""
    rows: list[list[Run]] = []
    for y in range(screen.lines):
        cells = [screen.buffer[y][x] for x in range(screen.columns)]
        pieces, x = [], 0
        for kind, group in groupby(cells, key=kind_of):
            text = "".join(cell.data for cell in group)
            if text.strip():
                pieces.append((x + len(text) - len(text.lstrip()), text.strip(), kind))
            x += len(text)
        rows.append(pieces)
    while rows and not rows[-1]:
        rows.pop()
    return rows


def kind_of(cell: Any) -> str:
    """The class of a cell's colour."""
    colours = {"green": "green", "red": "red", "brown": "yellow", "cyan": "blue", "blue": "blue", "magenta": "blue"}
    if cell.data in "━╸╺":
        return "rest" if cell.fg in ("3a3a3a", "237", "default") else "bar"
    kind = colours.get(cell.fg, "")
    if cell.bold:
        kind = f"{kind} bold".strip()
    return kind


def draw(recording: dict[str, Any], theme: dict[str, str]) -> str:
    """The animated SVG: screens under each other would be one picture each; here one is visible at a time."""
    frames, total = recording["frames"], recording["seconds"]
    width, line, char = 660, 15.0, 7.83
    rows = max(len(frame["screen"]) for frame in frames) + 1
    height = rows * line + 62
    speed = total / PLAY
    whole = PLAY + LAST
    starts = [frame["seconds"] / speed for frame in frames]
    ends = [*starts[1:], whole]
    style = [
        f"svg{{background:{theme['back']}}}text{{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;"
        f"fill:{theme['text']};white-space:pre}}.bold{{font-weight:700}}",
        *(f".{name}{{fill:{theme[name]}}}" for name in ("dim", "green", "red", "yellow", "bar", "rest", "blue")),
        f".f{{visibility:hidden;animation:{whole:.1f}s step-end infinite}}",
    ]
    body = []
    for i, (frame, start, end) in enumerate(zip(frames, starts, ends, strict=True)):
        a, b = 100 * start / whole, 100 * end / whole
        hidden, shown = "visibility:hidden", "visibility:visible"
        before = f"0%{{{hidden}}}" if a > 0 else ""
        after = f"{b:.2f}%{{{hidden}}}" if b < 100 else ""
        style.append(f"@keyframes k{i}{{{before}{a:.2f}%{{{shown}}}{after}}}#f{i}{{animation-name:k{i}}}")
        texts = []
        for y, row in enumerate(frame["screen"]):
            for x, text, kind in row:
                class_ = f' class="{kind}"' if kind else ""
                at = f'x="{14 + x * char:.0f}" y="{58 + (y + 1) * line:.0f}"'
                long = f' textLength="{len(text) * char:.0f}"' if len(text) > 3 else ""
                texts.append(f"<text {at}{long}{class_}>{escape(text)}</text>")
        clock = "{}:{:02}".format(*divmod(round(frame["seconds"]), 60))
        texts.append(f'<text x="{width - 14}" y="26" text-anchor="end" class="dim">{clock}</text>')
        body.append(f'<g class="f" id="f{i}">{"".join(texts)}</g>')
    last = len(frames) - 1
    style.append(f"@media (prefers-reduced-motion:reduce){{.f{{animation:none}}#f{last}{{visibility:visible}}}}")
    title = f"{recording['command']}: a real run of {total / 60:.1f} minutes, shown {speed:.0f} times as fast"
    note = f"a real run of {total / 60:.0f} minutes on a busy machine, shown {speed:.0f} times as fast"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:.0f}" role="img"'
        f' aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title><style>{''.join(style)}</style>"
        f'<rect x=".5" y=".5" width="{width - 1}" height="{height - 1:.0f}" rx="6" fill="{theme["back"]}"'
        f' stroke="{theme["frame"]}"/>'
        f'<text x="14" y="26" class="dim">{escape(note)}</text>'
        f'<text x="14" y="52"><tspan class="green">$</tspan> {escape(recording["command"])}</text>'
        f"{''.join(body)}</svg>\n"
    )


def main() -> None:
    """Record, unless there is a recording to draw, and draw both schemes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--draw", action="store_true", help="draw the recording that is there")
    if not parser.parse_args().draw:
        RECORDING.write_text(json.dumps(record(), ensure_ascii=False) + "\n", encoding="utf-8")
    recording = json.loads(RECORDING.read_text(encoding="utf-8"))
    for name, theme in THEMES.items():
        (HERE / f"demo-{name}.svg").write_text(draw(recording, theme), encoding="utf-8")


if __name__ == "__main__":
    main()
