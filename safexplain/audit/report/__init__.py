"""The audit report: one HTML file that holds everything it shows, with the verdict first.

`root_cause` and `exposure` find which property of a map carries a leak and who is exposed most; `model` is what a
report is made of. `tables` puts the rows of `safexplain.verdict.words` beside graphics, `figures` and `maps` draw
curves and pictures; `page` fills `template.html.j2` with these and writes the file.
"""
