"""The figure of docs/differential-privacy.md: epsilon against steps under both adjacencies.

python docs/figures/make_dp_figure.py [--out docs/figures]
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from make_figures import SCHEMES, style

from safexplain.dp import plot_epsilons


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw it for the light and the dark scheme of the site."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    options = parser.parse_args(arguments)
    for scheme in SCHEMES:
        with mpl.rc_context(style(scheme)):
            figure = plot_epsilons(noise_multiplier=5.5728, sample_rate=0.25, steps=500, delta=1e-5)
            figure.savefig(options.out / f"epsilons-{scheme}.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
