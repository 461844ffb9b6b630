"""report: the page that people read: one HTML file that holds all it shows and asks nothing of any network."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from jointenergy.metrics.likelihood import COLLAPSED
from jointenergy.metrics.registry import WORDS
from jointenergy.report.drawings import STYLE as STYLE_OF_PICTURES
from jointenergy.report.sections import Cell, Picture, Section, Table
from jointenergy.report.suite import RunEvaluation

REPORT = "report.html"
LONG = 44  # letters of a cell that may be broken into lines
SCREEN_DPI = 96  # what a page counts in; pictures are saved finer, so that they are sharp on any screen

STYLE = """
:root { --ink: #1a1a1a; --soft: #5a6068; --line: #e2e5e9; --paper: #ffffff; --wash: #f6f8fa; --blue: #0072B2;
  --good: #00664a; --bad: #a83d00; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--wash); color: var(--ink); font: 16px/1.55 system-ui, -apple-system, "Segoe UI",
  Roboto, "Helvetica Neue", Arial, sans-serif; }
main, header > div { max-width: 70rem; margin: 0 auto; padding: 0 1.25rem; }
header { background: var(--paper); border-bottom: 1px solid var(--line); padding: 2rem 0 1rem; }
h1 { font-size: 1.05rem; font-weight: 600; color: var(--soft); margin: 0 0 .4rem; }
.headline { font-size: 1.6rem; line-height: 1.3; font-weight: 650; margin: 0 0 1rem; max-width: 48rem; }
nav { font-size: .92rem; } nav a { margin-right: 1rem; color: var(--blue); text-decoration: none; white-space: nowrap; }
nav a:hover { text-decoration: underline; }
section { background: var(--paper); border: 1px solid var(--line); border-radius: 8px; margin: 1.25rem 0;
  padding: 1.1rem 1.4rem 1.3rem; }
h2 { font-size: 1.25rem; margin: 0 0 .5rem; } h3 { font-size: 1rem; margin: 1.2rem 0 .3rem; }
p { margin: .35rem 0; max-width: 48rem; } section > p + p { font-size: .95rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .28rem .7rem .28rem 0; text-align: right; border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 600; vertical-align: bottom; }
th.words, td.words { text-align: left; } td { white-space: nowrap; } td.long { white-space: normal; min-width: 12rem; }
figure { margin: 1.2rem 0 0; } img { max-width: 100%; height: auto; display: block; }
figcaption { color: var(--soft); font-size: .9rem; max-width: 48rem; }
.good { color: var(--good); font-weight: 650; } .bad { color: var(--bad); font-weight: 650; }
details summary { cursor: pointer; color: var(--blue); }
pre { overflow-x: auto; background: var(--wash); padding: .8rem; border-radius: 6px; font-size: .85rem; }
@media print { body { background: #fff; } section { break-inside: avoid; border: none; } nav { display: none; } }
"""


def write(evaluation: RunEvaluation, folder: Path) -> Path:
    """`folder/report.html`, whole or not at all."""
    path, part = folder / REPORT, folder / f".{REPORT}.part"
    part.write_text(page(evaluation), encoding="utf-8")
    part.replace(path)
    return path


def page(evaluation: RunEvaluation) -> str:
    """The whole page."""
    links = " ".join(f'<a href="#{escape(s.name)}">{escape(s.title)}</a>' for s in evaluation.sections)
    title = f"{evaluation.name}: {evaluation.suite} evaluation"
    headline = f"{evaluation.headline[0].upper()}{evaluation.headline[1:]}."
    first = [s for s in evaluation.sections if s.name == "health"]
    rest = [s for s in evaluation.sections if s.name != "health"]
    glance = _glance(evaluation.metrics)
    sections = "\n".join([*map(_section, first), glance, *map(_section, rest)])
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<header><div>
<h1>{escape(title)}</h1>
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
    """The figures that a reader asks for first, the baseline's beside them."""
    rows = [
        (words.format(*_slots(name, metric)), metrics[metric], metrics.get(f"baseline.{metric}"))
        for name, words in WORDS.items()
        for metric in metrics
        if metrics[metric] is not None and _matches(name, metric) and not _in_doubt(metric, metrics)
    ]
    if not rows:
        return ""
    beside = any(row[2] is not None for row in rows)
    columns = ("", "run", "baseline") if beside else ("", "run")
    shown = Table("", columns, tuple(row if beside else row[:2] for row in rows))
    return f'<section id="glance">\n<h2>At a glance</h2>\n{table(shown)}\n</section>'


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
    parts = [f'<section id="{escape(section.name)}">', f"<h2>{escape(section.title)}</h2>"]
    parts += [_sentence(section, i, said) for i, said in enumerate(section.says)]
    parts += [table(t) for t in section.tables]
    parts += [_picture(p) for p in section.pictures]
    return "\n".join([*parts, "</section>"])


def _sentence(section: Section, index: int, said: str) -> str:
    verdict = ""
    if section.name == "health" and index == 0 and "healthy" in section.metrics:
        verdict = ' class="good"' if section.metrics["healthy"] else ' class="bad"'
    return f"<p{verdict}>{escape(said)}</p>"


def table(shown: Table) -> str:
    """A table as HTML; columns of words stand on the left, numbers on the right."""
    words = [i == 0 or _is_words([row[i] for row in shown.rows]) for i in range(len(shown.columns))]
    head = "".join(
        f'<th scope="col"{_class("words" if left else "")}>{escape(c)}</th>'
        for c, left in zip(shown.columns, words, strict=True)
    )
    rows = "\n".join(
        "<tr>" + "".join(_cell(text_of(c), left=left) for c, left in zip(row, words, strict=True)) + "</tr>"
        for row in shown.rows
    )
    title = f"<h3>{escape(shown.title)}</h3>" if shown.title else ""
    return f'{title}<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _is_words(cells: Sequence[Cell]) -> bool:
    return any(isinstance(cell, str) for cell in cells) and not any(isinstance(cell, float | int) for cell in cells)


def _cell(text: str, *, left: bool) -> str:
    kind = " ".join(["words"] * left + ["long"] * (len(text) > LONG))
    return f"<td{_class(kind)}>{escape(text)}</td>"


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""


def text_of(cell: Cell) -> str:
    """A cell as it is shown: numbers with four digits, what is missing as a dash."""
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, int):
        return f"{cell:,}"
    return f"{cell:.4g}" if isinstance(cell, float) else cell


def _picture(drawn: Picture) -> str:
    data = base64.b64encode(drawn.png).decode("ascii")
    caption = escape(drawn.caption)
    width = round(_width_of(drawn.png) * SCREEN_DPI / STYLE_OF_PICTURES["savefig.dpi"])
    return (
        f'<figure><img alt="{caption}" width="{width}" src="data:image/png;base64,{data}">'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def _width_of(png: bytes) -> int:
    """In pixels, as the head of the file says."""
    return int.from_bytes(png[16:20], "big")


def _about(evaluation: RunEvaluation) -> str:
    about = evaluation.about
    rows: list[tuple[Cell, ...]] = [
        ("run", about["run"]),
        ("baseline", about["baseline"]),
        *((name, other) for name, other in _mapping(about["others"]).items()),
        ("data", f"{about['data']}, {about['test_rows']:,} test rows"),
        ("parameters", about["parameters"]),
        ("seed of training, of this evaluation", f"{about['training_seed']}, {about['seed']}"),
        ("evaluated on", about["hardware"]),
        ("date", about["date"]),
        ("time of this evaluation", ", ".join(f"{name} {s:.1f} s" for name, s in evaluation.seconds.items())),
    ]
    shown = table(Table("", ("", ""), tuple(rows)))
    return (
        f'<section id="about">\n<h2>About this run</h2>\n{shown}\n'
        f"<details><summary>The recipe</summary><pre>{escape(evaluation.recipe)}</pre></details>\n</section>"
    )


def _mapping(value: object) -> Mapping[str, Any]:
    assert isinstance(value, Mapping)
    return value
