"""data: the public files of data sets, fetched from their hosts and known by their checksums.

A file is written under another name and moved to its own when its checksum is right, so that what bears the right name
is whole. Checksums are those that are published with the sets; a set whose files have none is got by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from jointenergy.data.registry import READERS
from jointenergy.errors import InputError
from jointenergy.labels import nearest

RETRIES = 2
TIMEOUT = 30.0  # seconds without a byte

Report = Callable[[str, int, int], None]
"""Told the name of a file, the bytes that are there and those that will be (0: not known)."""


@dataclass(frozen=True)
class Source:
    """Where the files of a set lie, and the checksum of each."""

    host: str
    files: Mapping[str, str]


def _idx(host: str, *sums: str) -> Source:
    names = (f"{part}-{kind}-ubyte.gz" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))
    return Source(host, {name: f"md5:{value}" for name, value in zip(names, sums, strict=True)})


SOURCES: dict[str, Source] = {
    "mnist": _idx(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "d53e105ee54ea40749a09fcbcd1e9432",
        "9fb629c4189551a2d022fa330f9573f3",
        "ec29112dd5afa0611ce80d1b7f02629c",
    ),
    "fashion-mnist": _idx(
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "25c81989df183df01b3e8a0aad5dffbe",
        "bef4ecab320f06d8554ea6380940ec79",
        "bb300cfdad3c16e7a12a480ee83cd310",
    ),
    "kmnist": _idx(
        "http://codh.rois.ac.jp/kmnist/dataset/kmnist/",
        "bdb82020997e1d708af4cf47b453dcf7",
        "e144d726b3acfaa3e44228e80efcd344",
        "5c965bf0a639b31b8f53240b1b52f4d7",
        "7320c461ea6c1c855c0b718fb2a4b134",
    ),
    "cifar10": Source(
        "https://www.cs.toronto.edu/~kriz/", {"cifar-10-binary.tar.gz": "md5:c32a1d4ab5d03f1284b67883e8d87530"}
    ),
    "cifar100": Source(
        "https://www.cs.toronto.edu/~kriz/", {"cifar-100-binary.tar.gz": "md5:03b5dce01913d631647c71ecec9e9cb8"}
    ),
    "svhn": Source(
        "http://ufldl.stanford.edu/housenumbers/",
        {
            "train_32x32.mat": "md5:e26dedcc434d2e4c54c9b2d4a06d8373",
            "test_32x32.mat": "md5:eb5a983be6a315427106f1b164d9cef3",
        },
    ),
}

BY_HAND = {
    "celeba": "its terms are agreed to and its files given at mmlab.ie.cuhk.edu.hk/projects/CelebA.html",
    "zappos": "it is given at vision.cs.utexas.edu/projects/finegrained/utzap50k, for work that is not commercial",
    "footwear": "it is the footwear of the Fashion Product Images at kaggle.com, which asks for an account",
}
"""Sets that nothing is downloaded of, and where they are to be had."""

MADE_OF = {"mnist-masks": "mnist"}
"""Sets that are read from the files of another."""


def get(
    name: str,
    to: Path,
    *,
    report: Report = lambda *_: None,
    retries: int = RETRIES,
    sources: Mapping[str, Source] | None = None,
) -> list[Path]:
    """The files of a set, in the sub-folder of `to` with its name; those that are there and whole are not got again.

    A file of the same name and another content is never overwritten: it may be a copy that was packed anew.
    """
    sources, name = SOURCES if sources is None else sources, MADE_OF.get(name, name)
    if name not in sources:
        raise _not_to_be_had(name)
    import pooch  # here, as it loads more than most programs need
    from requests.exceptions import RequestException

    pooch.get_logger().setLevel("WARNING")
    source, folder = sources[name], to / name
    store = pooch.create(path=folder, base_url=source.host, registry=dict(source.files), retry_if_failed=retries)
    paths = []
    for file, known in source.files.items():
        path = folder / file
        try:
            other = path.exists() and not pooch.hashes.hash_matches(str(path), known)
            if not other:
                store.fetch(file, downloader=pooch.HTTPDownloader(progressbar=_Bar(file, report), timeout=TIMEOUT))
        except RequestException as error:
            raise InputError(f"{source.host}{file} could not be fetched: {_reason(error)}; nothing was kept") from error
        except ValueError as error:
            raise InputError(
                f"{source.host}{file} has another checksum than the published {known}: it was damaged on its way or "
                "changed, and was not kept"
            ) from error
        except OSError as error:
            reason = error.strerror or "Permission denied"  # which alone pooch puts in words of its own
            raise InputError(f"{path} cannot be kept ({reason}): choose another folder with --to") from error
        if other:
            raise InputError(
                f"{path} is there and has another checksum than the public file: remove it to get that one, or choose "
                "another folder with --to"
            )
        paths.append(path)
    return paths


def _not_to_be_had(name: str) -> InputError:
    if name in BY_HAND:
        return InputError(f"data set {name!r} is not downloaded: {BY_HAND[name]}")
    if name in READERS:
        return InputError(f"data set {name!r} needs no download: {READERS[name].about}")
    return InputError(f"there is no data set called {name!r}: {nearest(name, [*SOURCES, *BY_HAND])}")


def _reason(error: Exception) -> str:
    """What a person needs of an error of the network."""
    from requests.exceptions import ChunkedEncodingError, ConnectTimeout, HTTPError, ReadTimeout
    from requests.exceptions import ConnectionError as Unreachable

    if isinstance(error, HTTPError) and error.response is not None:
        return f"the host answered {error.response.status_code} {error.response.reason}"
    if isinstance(error, ChunkedEncodingError):
        return "the connection broke off"
    if isinstance(error, ConnectTimeout | ReadTimeout):
        return f"the host was silent for {TIMEOUT:.0f} s"
    if isinstance(error, Unreachable):
        return "the host cannot be reached; is there a network?"
    return str(error)


class _Bar:
    """What pooch tells its progress, told on as bytes of a file."""

    def __init__(self, file: str, report: Report) -> None:
        self.file, self.report = file, report
        self.total = 0
        self.done = 0

    def update(self, n: int) -> None:
        self.done += n
        self.report(self.file, min(self.done, self.total) if self.total else self.done, self.total)

    def reset(self) -> None:
        self.done = 0

    def close(self) -> None:
        """Nothing is left to be done."""
