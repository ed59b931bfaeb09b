"""A headless browser for pages on disk, without a network."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, Route, expect, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")
DEADLINE_MS = 60_000


def executable() -> str | None:
    """Path of a browser of the Chromium family; None if there is none on PATH."""
    return next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def browser() -> Iterator[Browser]:
    """The browser; it ends with the block."""
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=executable(), args=sandbox, timeout=DEADLINE_MS
        )
        yield started
        started.close()


def open_page(
    browser: Browser, path: Path, dark: bool = False, width: int = 1400, height: int = 900
) -> tuple[Page, list[str]]:
    """Opens a report or a comparison and waits until all of it is rendered.

    Returns:
      The page, and a list that gets an entry for each error on the console, each exception, and
      each request for anything that is not in the file.
    """
    problems: list[str] = []
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if dark else "light",
        offline=True,
    )
    context.set_default_timeout(DEADLINE_MS)
    expect.set_options(timeout=DEADLINE_MS)  # it has a default of its own

    def only_files(route: Route) -> None:
        if route.request.url.startswith(("file:", "data:", "blob:")):
            route.continue_()
        else:
            problems.append(f"asked for {route.request.url}")
            route.abort()

    context.route("**/*", only_files)
    page = context.new_page()
    page.on("pageerror", lambda error: problems.append(f"exception: {error}"))
    page.on(
        "console",
        lambda message: problems.append(message.text) if message.type == "error" else None,
    )
    page.goto(path.resolve().as_uri())
    page.wait_for_selector("body[data-charts=ready]")
    page.evaluate("drawAll()")  # charts off the screen are drawn when they come near it
    if page.locator("#rollouts").count():
        page.wait_for_selector("body[data-table=ready]")
    return page, problems
