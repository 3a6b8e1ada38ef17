"""The audit report: one HTML file that holds everything it shows, with the verdict first."""

from safexplain.audit.report.model import Configuration, Pictures, ReportData
from safexplain.audit.report.page import render, write_report

__all__ = ["Configuration", "Pictures", "ReportData", "render", "write_report"]
