"""The audit report: one HTML file that holds everything it shows; `outcome` writes it with all files of an audit."""
