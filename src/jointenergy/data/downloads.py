"""data: downloads of public data sets, verified by sha256 checksums.

A file gets its final name only after its checksum has been verified, so that a file with that name is complete. Sets
without an https host must be downloaded by hand.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from jointenergy.data.registry import READERS
from jointenergy.errors import InputError
from jointenergy.labels import nearest

RETRIES = 2
TIMEOUT = 30.0  # seconds without a byte

Report = Callable[[str, int, int], None]
"""Receives a file's name, the bytes downloaded so far and the total (0 if unknown)."""


@dataclass(frozen=True)
class Source:
    """Hold the host of a set's files and the sha256 of each; hosts other than this machine need https."""

    host: str
    files: Mapping[str, str]

    def __post_init__(self) -> None:
        if not self.host.startswith(("https://", "http://127.0.0.1:")):
            raise InputError(f"files are downloaded by https alone, got {self.host}")
        if strange := [name for name, known in self.files.items() if not re.fullmatch("[0-9a-f]{64}", known)]:
            raise InputError(f"{strange[0]} needs its sha256 to be downloaded")


def _idx(host: str, *sums: str) -> Source:
    names = (f"{part}-{kind}-ubyte.gz" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))
    return Source(host, dict(zip(names, sums, strict=True)))


SOURCES: dict[str, Source] = {
    "mnist": _idx(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    ),
    "fashion-mnist": _idx(
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    ),
    "kmnist": _idx(
        "https://codh.rois.ac.jp/kmnist/dataset/kmnist/",
        "51467d22d8cc72929e2a028a0428f2086b092bb31cfb79c69cc0a90ce135fde4",
        "e38f9ebcd0f3ebcdec7fc8eabdcdaef93bb0df8ea12bee65224341c8183d8e17",
        "edd7a857845ad6bb1d0ba43fe7e794d164fe2dce499a1694695a792adfac43c5",
        "20bb9a0ef54c7db3efc55a92eef5582c109615df22683c380526788f98e42a1c",
    ),
    "cifar10": Source(
        "https://www.cs.toronto.edu/~kriz/",
        {"cifar-10-binary.tar.gz": "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"},
    ),
    "cifar100": Source(
        "https://www.cs.toronto.edu/~kriz/",
        {"cifar-100-binary.tar.gz": "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec"},
    ),
}

BY_HAND = {
    "svhn": "get train_32x32.mat and test_32x32.mat from ufldl.stanford.edu/housenumbers, an address without https",
    "celeba": "accept its terms and get its files at mmlab.ie.cuhk.edu.hk/projects/CelebA.html",
    "zappos": "get it at vision.cs.utexas.edu/projects/finegrained/utzap50k, for non-commercial use",
    "footwear": "get the footwear of the Fashion Product Images at kaggle.com, which needs an account",
}
"""Sets to download by hand, and where to get them."""

MADE_OF = {"mnist-masks": "mnist"}
"""Sets that are read from the files of another set."""


def get(
    name: str,
    to: Path,
    *,
    report: Report = lambda *_: None,
    retries: int = RETRIES,
    sources: Mapping[str, Source] | None = None,
    elsewhere: str = "--to",
) -> list[Path]:
    """Download the files of a set into the sub-folder of `to` with its name; complete files are kept.

    A file with the same name and other content is never overwritten: it may be a repacked copy. If a file cannot be
    written, the error names the option `elsewhere`, which chooses another folder.
    """
    sources, name = SOURCES if sources is None else sources, MADE_OF.get(name, name)
    if name not in sources:
        raise _not_to_be_had(name)
    import pooch  # imported here because it is slow to load
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
                f"{source.host}{file} has another checksum than the published sha256 {known}: it was damaged on its "
                "way or changed, and was not kept"
            ) from error
        except OSError as error:
            reason = error.strerror or "Permission denied"  # the only case that pooch rewords
            raise InputError(f"{path} cannot be kept ({reason}): choose another folder with {elsewhere}") from error
        if other:
            raise InputError(
                f"{path} is there and has another checksum than the public file: remove it to get that one, or choose "
                f"another folder with {elsewhere}"
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
    """Describe a network error in a few words."""
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
    """Pass pooch's progress on as bytes of a file."""

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
        """Do nothing; pooch calls it at the end."""
