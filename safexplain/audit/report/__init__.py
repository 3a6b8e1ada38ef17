"""The audit report: one HTML file that holds everything it shows, with the verdict first.

`model` is what a report is made of: attacked configurations, pictures, provenance. `words` puts it into sentences,
`tables` into rows, `figures` and `maps` into curves and pictures; `page` fills `template.html.j2` with these and writes
the file.
"""

from safexplain.audit.report.model import ReportData as ReportData
from safexplain.audit.report.page import write_report as write_report
