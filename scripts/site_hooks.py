"""Hooks of mkdocs: copies of repository files, the command line's help, formulas as MathML.

The pages of docs/ link to files outside it, such as `../results/digits-jem.json`, so that links work in the repository
too. The site gets copies of these files, and its links lead to the copies.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

import latex2mathml.converter
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "CODE_OF_CONDUCT.md", "SECURITY.md")
COPIED = ("LICENSE", "results/*.json", "results/curves/*", "examples/*.py")
LISTED = {"Records": "records", "Decisions": "decisions"}  # sections of the navigation with all pages of a folder
LINK = re.compile(r"\[([^]]*)\]\(([^)#\s:]+)(#[^)\s]*)?\)")
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', flags=re.S)
CLI = "reference/cli.md"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List all pages of a folder, and let the site serve its offline search itself."""
    for section in config.nav or []:
        for title, folder in LISTED.items():
            if title in section:
                section[title] = [f"{folder}/{path.name}" for path in sorted((ROOT / "docs" / folder).glob("*.md"))]
    config.extra["polyfills"] = ["assets/iframe-worker.js"]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add pages and files of the repository from outside docs/."""
    for pattern in (*PAGES, *COPIED):
        for path in sorted(ROOT.glob(pattern)):
            files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links out of docs/ to the copies in the site, drop those to folders; fill the command line's page."""
    if page.file.src_uri == CLI:
        return markdown + command_line()
    here = posixpath.dirname(page.file.src_uri)
    place = here if page.file.src_uri in PAGES else posixpath.join("docs", here)

    def led(found: re.Match[str]) -> str:
        wanted = posixpath.normpath(posixpath.join(place, found[2]))
        inside = wanted.removeprefix("docs/")
        if (ROOT / wanted).is_dir():
            return found[1]
        if files.get_file_from_path(inside) is None:
            return found[0]
        return f"[{found[1]}]({posixpath.relpath(inside, here or '.')}{found[3] or ''})"

    parts = re.split(r"(^```.*?^```|`[^`\n]*`)", markdown, flags=re.S | re.M)
    return "".join(part if i % 2 else LINK.sub(led, part) for i, part in enumerate(parts))


def on_page_content(html: str, **_: Any) -> str:  # noqa: ANN401 (what mkdocs passes)
    """Convert formulas to MathML, which browsers draw without a script."""

    def drawn(found: re.Match[str]) -> str:
        text = found[2].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
        block = found[1] == "div"
        formula = latex2mathml.converter.convert(text.strip(), display="block" if block else "inline")
        return f'<div class="formula">{formula}</div>' if block else formula

    return FORMULA.sub(drawn, html)


def command_line() -> str:
    """Return the help of each command."""
    import os

    from typer.testing import CliRunner

    from jointenergy.cli.main import COMMANDS, app

    os.environ["TERMINAL_WIDTH"] = "96"

    def help_of(*words: str) -> str:
        lines = CliRunner().invoke(app, [*words, "--help"], color=False).output.splitlines()
        return "\n".join(line.rstrip() for line in lines).strip("\n")

    parts = [f"\n```text\n{help_of()}\n```"]
    for panel in dict.fromkeys(entry.panel for entry in COMMANDS.values()):
        parts.append(f"## {panel}")
        for name, entry in COMMANDS.items():
            if entry.panel == panel:
                parts += [f"### jointenergy {name}", f"```text\n{help_of(name)}\n```"]
    return "\n\n".join(parts) + "\n"
