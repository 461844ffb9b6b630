"""report: the page that people read: one HTML file that holds all it shows and asks nothing of any network."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

from jointenergy.files.writing import write_text
from jointenergy.metrics.likelihood import COLLAPSED
from jointenergy.metrics.registry import WORDS
from jointenergy.report.drawings import STYLE as STYLE_OF_PICTURES
from jointenergy.report.sections import Cell, Picture, Section, Table
from jointenergy.report.suite import RunEvaluation

REPORT = "report.html"
MANY = 4  # columns beyond which a table becomes a list on a narrow screen
NONE = "-"  # of a cell without a value, which a list on a narrow screen leaves out
SCREEN_DPI = 96  # what a page counts in; pictures are saved finer, so that they are sharp on any screen

STYLE = """
:root { color-scheme: light dark; --ink: #1a1a1a; --soft: #5a6068; --line: #e2e5e9; --paper: #ffffff; --wash: #f6f8fa;
  --blue: #0067a3; --good: #00664a; --bad: #a83d00; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8ea; --soft: #a2a9b1; --line: #343a41; --paper: #1b1f24;
  --wash: #121519; --blue: #6cb8ec; --good: #4fc79f; --bad: #ff9a62; }
  img { filter: brightness(.86); border-radius: 6px; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--wash); color: var(--ink); font: 16px/1.5 system-ui, -apple-system, "Segoe UI",
  Roboto, "Helvetica Neue", Arial, sans-serif; }
main, header > div { max-width: 60rem; margin: 0 auto; padding: 0 1.25rem; }
header { background: var(--paper); border-bottom: 1px solid var(--line); padding: 1.4rem 0 1rem; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 .3rem; }
.headline { color: var(--soft); margin: 0 0 .6rem; max-width: 48rem; }
nav { font-size: .92rem; }
nav a { margin-right: .9rem; color: var(--blue); text-decoration: none; display: inline-block; }
nav a:hover { text-decoration: underline; }
section { background: var(--paper); border: 1px solid var(--line); border-radius: 8px; margin: 1rem 0;
  padding: .9rem 1.3rem 1rem; }
h2 { font-size: 1.15rem; margin: 0 0 .4rem; } h3 { font-size: .95rem; margin: 1rem 0 .2rem; }
p { margin: .3rem 0; max-width: 48rem; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; max-width: 100%; }
th, td { padding: .25rem .8rem .25rem 0; text-align: right; border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 600; vertical-align: bottom; }
#glance table { width: 100%; max-width: 42rem; table-layout: fixed; } #glance th:first-child { width: 54%; }
#glance table + table thead { visibility: collapse; }
th.words, td.words { text-align: left; } td { white-space: nowrap; } td.words { white-space: normal; }
figure { margin: .6rem 0 0; } img { max-width: 100%; height: auto; display: block; background: #fff; }
figcaption { color: var(--soft); font-size: .88rem; max-width: 48rem; margin-top: .3rem; }
.good { color: var(--good); font-weight: 650; } .bad { color: var(--bad); font-weight: 650; }
details { margin-top: .7rem; } details p { font-size: .93rem; }
summary { cursor: pointer; color: var(--blue); font-size: .92rem; }
pre { overflow-x: auto; background: var(--wash); padding: .8rem; border-radius: 6px; font-size: .85rem; }
@media (max-width: 36rem) {
  main, header > div { padding: 0 .7rem; } section { padding: .7rem .8rem; } h1 { font-size: 1.25rem; }
  table { font-size: .82rem; } th, td { padding: .2rem .45rem .2rem 0; } th { overflow-wrap: break-word; }
  table.many thead { display: none; } table.many, table.many tbody, table.many tr { display: block; }
  table.many tr { padding: .35rem 0; border-bottom: 1px solid var(--line); }
  table.many td { display: flex; justify-content: space-between; gap: 1rem; border: 0; padding: .06rem 0; }
  table.many td::before { content: attr(data-label); color: var(--soft); text-align: left; }
  table.many td.none { display: none; }
  table.many td:first-child { display: block; font-weight: 600; } table.many td:first-child::before { content: none; }
}
@media print { body { background: #fff; } section { break-inside: avoid; border: none; } nav { display: none; } }
"""


def write(evaluation: RunEvaluation, folder: Path) -> Path:
    """`folder/report.html`, whole or not at all."""
    path = folder / REPORT
    write_text(path, page(evaluation))
    return path


def page(evaluation: RunEvaluation) -> str:
    """The whole page: samples, the verdict, the figures of most interest; then each part, its details folded."""
    links = " ".join(f'<a href="#{escape(s.name)}">{escape(s.title)}</a>' for s in evaluation.sections)
    headline = f"{evaluation.headline[0].upper()}{evaluation.headline[1:]}."
    named = {s.name: s for s in evaluation.sections}
    shown = named.get("samples")
    hero = next((p for p in shown.pictures if not p.folded), None) if shown is not None else None
    rest = [replace(s, pictures=tuple(p for p in s.pictures if p is not hero)) for s in evaluation.sections]
    pictures = "" if hero is None else f'<section id="pictures">\n{_picture(hero)}\n</section>'
    first = [pictures, *(_section(s) for s in rest if s.name == "health"), _glance(evaluation.metrics)]
    sections = "\n".join([*first, *(_section(s) for s in rest if s.name != "health")])
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(evaluation.name)}: {evaluation.suite} evaluation</title>
<style>{STYLE}</style>
</head>
<body>
<header><div>
<h1>{escape(evaluation.name)}</h1>
<p class="headline">{escape(headline)}</p>
<nav>{links} <a href="#about">About</a></nav>
</div></header>
<main>
{sections}
{_about(evaluation)}
</main>
</body>
</html>
"""


def _glance(metrics: Mapping[str, float | None]) -> str:
    """The figures that a reader asks for first, the baseline's beside them: fractions, and below what has a scale."""
    rows: list[tuple[str, float | None, float | None]] = [
        (words.format(*_slots(name, metric)), metrics[metric], metrics.get(f"baseline.{metric}"))
        for name, words in WORDS.items()
        for metric in metrics
        if metrics[metric] is not None and _matches(name, metric) and not _in_doubt(metric, metrics)
    ]
    if not rows:
        return ""
    beside = any(row[2] is not None for row in rows)
    columns = ("", "run", "baseline") if beside else ("", "run")
    wide = len(columns)
    small = [row[:wide] for row in rows if abs(row[1] or 0.0) <= 1]
    large = [row[:wide] for row in rows if abs(row[1] or 0.0) > 1]
    tables = [table(Table("", columns, tuple(part))) for part in (small, large) if part]
    return f'<section id="glance">\n<h2>At a glance</h2>\n{"".join(tables)}\n</section>'


def _in_doubt(metric: str, metrics: Mapping[str, float | None]) -> bool:
    """A bound that rests on a few chains is told in its section, with that said."""
    share = metrics.get("likelihood_effective_share")
    return metric.startswith("log_likelihood_") and share is not None and share < COLLAPSED


def _matches(name: str, metric: str) -> bool:
    parts, found = name.split("."), metric.split(".")
    return len(parts) == len(found) and all(a in ("*", b) for a, b in zip(parts, found, strict=True))


def _slots(name: str, metric: str) -> list[str]:
    """What the stars of a name stand for in a metric, as words."""
    pairs = zip(name.split("."), metric.split("."), strict=True)
    return [found.replace("_", " ").replace("-", " ") for part, found in pairs if part == "*"]


def _section(section: Section) -> str:
    """The verdict or the lead, one picture and one table; all else is for who unfolds it."""
    verdict = section.name == "health"
    lead = section.lead
    bare = not section.tables and not section.pictures
    lead = lead or (section.says if bare or verdict else ())
    pictures = [p for p in section.pictures if not p.folded][:1]
    tables = [] if verdict else [t for t in section.tables if not t.folded][:1]
    parts = [f'<section id="{escape(section.name)}">', f"<h2>{escape(section.title)}</h2>"]
    parts += [_sentence(section, i, said) for i, said in enumerate(lead)]
    parts += [table(t) for t in tables] + [_picture(p) for p in pictures]
    folded = [f"<p>{escape(said)}</p>" for said in section.says if said not in lead]
    folded += [table(t) for t in section.tables if t not in tables]
    folded += [_picture(p) for p in section.pictures if p not in pictures]
    if folded:
        parts += ["<details><summary>Details: how it was measured, all figures</summary>", *folded, "</details>"]
    return "\n".join([*parts, "</section>"])


def _sentence(section: Section, index: int, said: str) -> str:
    verdict = ""
    if section.name == "health" and index == 0 and "healthy" in section.metrics:
        verdict = ' class="good"' if section.metrics["healthy"] else ' class="bad"'
    return f"<p{verdict}>{escape(said)}</p>"


def table(shown: Table) -> str:
    """A table as HTML; columns of words stand on the left, numbers on the right, each column in one form."""
    columns = [[row[i] for row in shown.rows] for i in range(len(shown.columns))]
    words = [i == 0 or _is_words(cells) for i, cells in enumerate(columns)]
    texts = [texts_of(cells) for cells in columns]
    head = "".join(
        f'<th scope="col"{_class("words" if left else "")}>{escape(c)}</th>'
        for c, left in zip(shown.columns, words, strict=True)
    )
    rows = "\n".join(
        "<tr>"
        + "".join(
            f'<td{_class("words" * left, "none" * (text == NONE))} data-label="{escape(c)}">{escape(text)}</td>'
            for c, text, left in zip(shown.columns, row, words, strict=True)
        )
        + "</tr>"
        for row in zip(*texts, strict=True)
    )
    title = f"<h3>{escape(shown.title)}</h3>" if shown.title else ""
    many = _class("many" if len(shown.columns) > MANY else "")
    return f"{title}<table{many}><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _is_words(cells: Sequence[Cell]) -> bool:
    return any(isinstance(cell, str) for cell in cells) and not any(isinstance(cell, float | int) for cell in cells)


def _class(*kinds: str) -> str:
    named = " ".join(filter(None, kinds))
    return f' class="{named}"' if named else ""


def texts_of(cells: Sequence[Cell]) -> list[str]:
    """The cells of a column as they are shown: its floats with as many decimals as give the largest three digits."""
    floats = [c for c in cells if isinstance(c, float) and math.isfinite(c)]
    largest = max((abs(c) for c in floats), default=0.0)
    decimals = 3 if largest == 0 else min(6, max(0, 2 - math.floor(math.log10(largest))))
    # A share of 1.000 is one of three decimals, as 0.999 is.
    decimals = max(decimals, 3) if largest <= 1 else decimals
    return [_text_of(c, decimals) for c in cells]


def _text_of(cell: Cell, decimals: int) -> str:
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return NONE
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, int):
        return f"{cell:,}"
    return rounded(cell, decimals) if isinstance(cell, float) else cell


def rounded(value: float, decimals: int) -> str:
    """A number with so many decimals, a zero without a sign."""
    return f"{round(value, decimals) + 0.0:,.{decimals}f}"


def _picture(drawn: Picture) -> str:
    data = base64.b64encode(drawn.png).decode("ascii")
    caption = escape(drawn.caption)
    pixels = int.from_bytes(drawn.png[16:20], "big")  # the width, as the head of the file says
    width = round(pixels * SCREEN_DPI / STYLE_OF_PICTURES["savefig.dpi"])
    return (
        f'<figure><img alt="{caption}" width="{width}" src="data:image/png;base64,{data}">'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def _about(evaluation: RunEvaluation) -> str:
    about = evaluation.about
    rows: list[tuple[Cell, ...]] = [
        ("run", about["run"]),
        ("baseline", about["baseline"]),
        *((name, other) for name, other in _mapping(about["others"]).items()),
        ("data", f"{about['data']}, {about['test_rows']:,} test rows"),
        ("parameters", f"{about['parameters']:,}"),
        ("seed of training, of this evaluation", f"{about['training_seed']}, {about['seed']}"),
        ("evaluated on", about["hardware"]),
        ("date", about["date"]),
        ("time of this evaluation", ", ".join(f"{name} {s:.1f} s" for name, s in evaluation.seconds.items())),
    ]
    shown = table(Table("", ("", ""), tuple(rows)))
    recipe = f"<details><summary>The recipe</summary>\n<pre>{escape(evaluation.recipe)}</pre></details>\n"
    return (
        f'<section id="about">\n<h2>About this run</h2>\n<details><summary>Data, seeds, hardware, date</summary>\n'
        f"{shown}</details>\n{recipe if evaluation.recipe else ''}</section>"
    )


def _mapping(value: object) -> Mapping[str, Any]:
    assert isinstance(value, Mapping)
    return value
