"""report: evaluate a run: sections of figures and drawings, one page, results files."""
