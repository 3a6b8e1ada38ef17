"""Runs the notebooks and writes each as a page of the site, with what it printed and drew.

    python docs/notebooks/render.py [name ...]

A notebook is a Python file in jupytext's percent format: `jupytext --to ipynb images.py` makes a notebook of it for
Jupyter, and VS Code opens it as it is. The page has the same cells, their printed output, and each figure twice, for
the light and the dark scheme of the site. Nothing here changes what a notebook computes: a cell that is not shown asks
for SVG with a transparent background, and the colour of the ink is exchanged afterwards.
"""

from __future__ import annotations

import argparse
import os
import re
import tempfile
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SOURCES = sorted(path for path in HERE.glob("*.py") if path != Path(__file__))

INK, DARK_INK = "#24292f", "#d7dae0"
LONGEST = 900
"""Seconds that a cell may take; a machine may be busy."""

SET_UP = f"""
import warnings
import matplotlib as mpl
from matplotlib_inline.backend_inline import set_matplotlib_formats
set_matplotlib_formats("svg", metadata={{"Date": None}})
mpl.rcParams |= {{name: "{INK}" for name in mpl.rcParams if name in
    ("text.color", "axes.labelcolor", "axes.edgecolor", "axes.titlecolor", "xtick.color", "ytick.color")}}
mpl.rcParams |= {{"figure.facecolor": "none", "axes.facecolor": "none", "savefig.facecolor": "none",
    "legend.facecolor": "none", "legend.edgecolor": "none", "svg.hashsalt": "safexplain"}}
warnings.filterwarnings("ignore", "IProgress not found")
"""
"""The warning is tqdm's, which Captum and others import: it would rather have ipywidgets."""


def execute(source: Path, folder: Path) -> nbformat.NotebookNode:
    """The notebook with its outputs, run in a fresh kernel in a folder of its own.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell failed.
    """
    notebook = jupytext.read(source)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(SET_UP))
    before = dict(os.environ)
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ.update(PYTHONPATH=os.pathsep.join(paths), SAFEXPLAIN_USES=str(folder / "uses.sqlite"))
    try:
        NotebookClient(
            notebook, timeout=LONGEST, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
        ).execute()
    finally:
        os.environ.clear()
        os.environ.update(before)
    del notebook.cells[0]
    return notebook


def printed(notebook: nbformat.NotebookNode, name: str = "stdout") -> str:
    """What all cells wrote to a stream."""
    return "".join(output.text for output in _outputs(notebook) if output.get("name") == name)


def page(notebook: nbformat.NotebookNode, stem: str) -> tuple[str, dict[str, str]]:
    """The page as Markdown, and file name -> SVG of its figures."""
    title, _, story = notebook.cells[0].source.partition("\n")
    about = (
        f"*The notebook `docs/notebooks/{stem}.py`, with what it printed when it was run."
        f" `jupytext --to ipynb docs/notebooks/{stem}.py` opens it in Jupyter.*"
    )
    parts, figures = [title, about, story.strip()], {}
    for cell in notebook.cells[1:]:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        if text := "".join(output.text for output in cell.outputs if output.get("name") == "stdout"):
            parts.append(f"```text\n{text.rstrip()}\n```")
        for drawn in (
            output.data["image/svg+xml"] for output in cell.outputs if "image/svg+xml" in output.get("data", {})
        ):
            number = len(figures) // 2 + 1
            called = re.search(r"# Figure: (.+)", cell.source)
            if called is None:
                raise ValueError(
                    f'{stem}: a cell that draws needs a comment "# Figure: what it shows", for readers who cannot see it'
                )
            for scheme, ink in (("light", INK), ("dark", DARK_INK)):
                figures[f"{stem}-{number}-{scheme}.svg"] = drawn.replace(INK, ink)
            parts.append(
                "\n".join(
                    f"![{called[1]}](figures/{stem}-{number}-{scheme}.svg#only-{scheme})"
                    for scheme in ("light", "dark")
                )
            )
    return "\n\n".join(part for part in parts if part) + "\n", figures


def _outputs(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def main() -> None:
    """Write the pages that are named, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="*", help="such as `images`; all if none is named")
    names = parser.parse_args().name
    (HERE / "figures").mkdir(exist_ok=True)
    for source in SOURCES:
        if names and source.stem not in names:
            continue
        with tempfile.TemporaryDirectory() as folder:
            notebook = execute(source, Path(folder))
        if complaints := printed(notebook, "stderr"):
            raise SystemExit(f"{source.name} warns, which readers should not have to see:\n{complaints}")
        text, figures = page(notebook, source.stem)
        source.with_suffix(".md").write_text(text)
        for old in (HERE / "figures").glob(f"{source.stem}-*.svg"):
            old.unlink()
        for name, drawn in figures.items():
            (HERE / "figures" / name).write_text(drawn)
        print(f"{source.stem}: {len(text.splitlines())} lines, {len(figures) // 2} figures")


if __name__ == "__main__":
    main()
