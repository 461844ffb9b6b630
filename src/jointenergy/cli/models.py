"""cli: `jointenergy models` lists the published models."""

from __future__ import annotations

from jointenergy.cli.tasks import AsCsv, AsJson


def models(as_json: AsJson = False, as_csv: AsCsv = False) -> None:
    """List the published models, with their size and figures.

    Every command that takes a run takes these names, and so does
    `jointenergy.load`. Figures are of the file, or means of seeds where there
    is none.
    """
    import os

    from jointenergy.cli import outputs
    from jointenergy.runs import pretrained

    elsewhere = "download" if os.environ.get(pretrained.BASE) else "in the repository"
    records: list[outputs.Record] = []
    for name, entry in pretrained.published().items():
        weights, place = entry.weights, pretrained.place_of(name)
        figures = entry.figures if weights is None else weights.figures
        where = "train it" if weights is None else elsewhere if place is None else "here"
        records.append(
            {
                "name": name,
                "where": where,
                "MB": None if weights is None else weights.bytes / 1e6,
                "accuracy": figures["accuracy"],
                "ece": figures["ece"],
                "seeds": entry.seeds if weights is None else 1,
                "model": entry.about,
            }
        )
    outputs.show(records, as_json=as_json, as_csv=as_csv)
