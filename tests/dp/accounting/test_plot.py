"""The figure shows the accountant's numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from safexplain.dp import epsilons, plot_epsilons
from safexplain.dp.accounting import group_privacy_epsilon
from safexplain.errors import ConfigurationError


def test_the_curves_end_at_the_epsilons_of_the_last_step(tmp_path: Path) -> None:
    figure = plot_epsilons(2.0, 0.1, 100, 1e-5, path=tmp_path / "epsilons.png")
    curves = {line.get_label(): line for line in figure.axes[0].get_lines()}
    spent = epsilons(2.0, 0.1, 100, 1e-5)
    ends = [curves[name].get_ydata()[-1] for name in ("one record substituted", "one record added or removed")]
    assert ends == pytest.approx([spent.substitute, spent.add_remove])
    group = curves["substitution by group privacy (looser)"].get_ydata()[-1]
    assert group == pytest.approx(group_privacy_epsilon(2.0, 0.1, 100, 1e-5))
    assert all(list(line.get_xdata()) == sorted(set(line.get_xdata())) for line in curves.values())
    assert (tmp_path / "epsilons.png").stat().st_size > 10_000


def test_group_privacy_can_be_left_out_and_one_step_is_enough() -> None:
    assert len(plot_epsilons(2.0, 0.1, 1, 1e-5, group_privacy=False).axes[0].get_lines()) == 2


def test_impossible_values_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="sample_rate"):
        plot_epsilons(2.0, 1.1, 10, 1e-5)
