"""The tutorials: pages say what their scripts say, and each notebook runs to its end."""

from __future__ import annotations

import nbformat
import pytest
from scripts.write_tutorials import FOLDER, executed, names, notebook, page, without_output

NAMES = names()


def test_there_are_eight():
    tables = ["table", "table-outliers", "table-questions", "table-regression"]
    assert ["attributes", "detect", "finetune", "images", *tables] == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_page_and_a_notebook_have_the_text_and_code_of_their_script(name):
    """Fails if a script was changed and `make tutorials` not run again."""
    written = (FOLDER / f"{name}.md").read_text()
    assert without_output(written) == page(notebook(name), name)[0]
    assert "![What the code above draws]" in written
    kept = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    assert [cell.source for cell in kept.cells] == [cell.source for cell in notebook(name).cells]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs(name, tmp_path):
    """Fails if a cell raises, takes more than three minutes, or the pictures are gone."""
    found = executed(name, tmp_path)
    text, pictures = page(found, name)
    assert pictures
    assert "healthy" in text
