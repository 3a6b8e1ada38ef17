"""The audit report: one HTML file that holds everything it shows, with the verdict first.

`root_cause` and `exposure` find which property of a map carries a leak and who is exposed most; `model` holds the
contents of a report. `tables` adds bars to the rows of `safexplain.verdict.words`, `figures` draws curves and pictures,
and `outcome` fills `template.html.j2` with these and writes all files of an audit.
"""
