"""Execute the notebooks of docs/tutorials and write their pages, with what they print and draw.

    python scripts/write_tutorials.py [NAME ...]

A tutorial is a plain script in jupytext's percent format, docs/tutorials/NAME.py. It is executed as a notebook in an
empty folder. Its page is NAME.md, its pictures are NAME-1.png and so on, the notebook with its output is NAME.ipynb.
A test compares the text and code of a page with its script; another executes all of them.
"""

from __future__ import annotations

import base64
import os
import re
import sys
import tempfile
from pathlib import Path
from time import monotonic

import jupytext
import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "tutorials"
LIMIT = 180  # seconds on two cores
ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
PROGRESS = re.compile(
    r"^iteration \d+/\d+ .*\n(?=iteration \d+/\d+ )", flags=re.M
)  # all lines of progress except the last


def names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.py"))


def notebook(name: str) -> NotebookNode:
    """Convert a script to a notebook, not executed; cells are numbered, so that the file is reproducible."""
    found: NotebookNode = jupytext.read(FOLDER / f"{name}.py")
    for i, cell in enumerate(found.cells):
        cell["id"] = f"{name}-{i}"
    found.metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return found


def executed(name: str, folder: Path, limit: float = LIMIT) -> NotebookNode:
    """Execute the notebook in a folder, with the commands of this Python."""
    found = notebook(name)
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"
    os.environ["TTY_COMPATIBLE"] = "0"  # lines of progress instead of a bar
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    where = {"metadata": {"path": str(folder)}}
    NotebookClient(found, timeout=limit, kernel_name="python3", coalesce_streams=True, resources=where).execute()
    for cell in found.cells:
        cell.metadata.pop("execution", None)
        for output in cell.get("outputs", []):
            if output.output_type == "stream":
                output.text = PROGRESS.sub("", ANSI.sub("", output.text).replace("\r\n", "\n"))
    return found


def page(found: NotebookNode, name: str) -> tuple[str, dict[str, bytes]]:
    """Return a page in Markdown, and its pictures by file name."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in found.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        shell = cell.source.startswith("!")
        source = re.sub(r"^!", "", cell.source, flags=re.M) if shell else cell.source
        parts.append(f"```{'sh' if shell else 'python'}\n{source}\n```")
        printed = ""
        for output in cell.get("outputs", []):
            if output.output_type == "stream":
                printed += output.text
            elif "image/png" in output.get("data", {}):
                file = f"{name}-{len(pictures) + 1}.png"
                pictures[file] = base64.b64decode(output.data["image/png"])
                parts.append(f"![What the code above draws]({file})")
        if printed.strip():
            lines = [line.rstrip() for line in printed.strip("\n").splitlines()]
            parts.append("\n".join(("```text", *lines, "```")))
    parts.append(f"[The notebook]({name}.ipynb) and [the script]({name}.py) of this page.")
    return "\n\n".join(parts) + "\n", pictures


def without_output(text: str) -> str:
    """Return a page without the output and pictures of its code."""
    return re.sub(r"```text\n.*?```\n\n|!\[What the code above draws\]\(.*?\)\n\n", "", text, flags=re.S)


def main(asked: list[str]) -> None:
    for name in asked or names():
        began = monotonic()
        with tempfile.TemporaryDirectory() as folder:
            found = executed(name, Path(folder), limit=10 * LIMIT)
        text, pictures = page(found, name)
        (FOLDER / f"{name}.md").write_text(text)
        for old in FOLDER.glob(f"{name}-[0-9]*.png"):
            old.unlink()
        for file, png in pictures.items():
            (FOLDER / file).write_bytes(png)
        nbformat.write(found, FOLDER / f"{name}.ipynb")
        sys.stdout.write(f"{name}: {monotonic() - began:.0f} s, {len(pictures)} pictures\n")


if __name__ == "__main__":
    main(sys.argv[1:])
