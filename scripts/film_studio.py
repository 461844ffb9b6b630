"""Film the studio in Chromium: python scripts/film_studio.py writes docs/figures/studio.gif."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import urlopen

from PIL import Image
from playwright.sync_api import Page, sync_playwright

TARGET = Path(__file__).resolve().parents[1] / "docs" / "figures" / "studio.gif"
ADDRESS, PORT = "http://127.0.0.1", "8399"
SIZE = {"width": 900, "height": 640}
COLORS = 64  # a GIF has at most 256; fewer make a smaller file


class Film:
    """Pictures of a page, each shown for some milliseconds."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.frames: list[Image.Image] = []
        self.times: list[int] = []

    def take(self, milliseconds: int) -> None:
        picture = Image.open(io.BytesIO(self.page.screenshot())).convert("RGB")
        self.frames.append(picture.quantize(COLORS, dither=Image.Dither.NONE))
        self.times.append(milliseconds)

    def follow(self, n: int, milliseconds: int = 120) -> None:
        """Take n pictures of something that moves, the last one for longer."""
        for _ in range(n - 1):
            self.take(milliseconds)
        self.take(1500)

    def write(self, path: Path) -> None:
        first, *others = self.frames
        first.save(path, save_all=True, append_images=others, duration=self.times, loop=0, optimize=True)


def shoot(page: Page) -> Film:
    """Use one panel after another as a person would."""
    film = Film(page)
    page.get_by_text("16 chains").wait_for()
    for digit in ("3", "8"):
        page.get_by_role("button", name=digit, exact=True).click()
        film.follow(14)
    page.get_by_role("tab", name="Ask").click()
    page.get_by_text("Nearest training rows").wait_for()
    film.take(2000)
    page.get_by_role("tab", name="Complete").click()
    page.get_by_text("mean of the chains").wait_for()
    film.take(2000)
    page.get_by_role("tab", name="Convert").click()
    page.get_by_text("Mean change of a pixel").wait_for()
    page.get_by_role("button", name="8", exact=True).click()
    film.follow(14)
    return film


def main() -> None:
    words = [sys.executable, "-m", "jointenergy", "studio", "digits-jem", "--no-browser", "--port", PORT]
    server = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    try:
        for _ in range(200):
            try:
                urlopen(f"{ADDRESS}:{PORT}").close()
                break
            except OSError:
                time.sleep(0.2)
        with sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            page = browser.new_page(viewport=SIZE)
            page.set_default_timeout(60_000)
            page.goto(f"{ADDRESS}:{PORT}")
            shoot(page).write(TARGET)
            browser.close()
    finally:
        server.terminate()
        server.wait()
    print(f"{TARGET.name}: {TARGET.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
