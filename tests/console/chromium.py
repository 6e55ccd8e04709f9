"""A headless Chromium for the tests of the console, driven through selenium."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

__all__ = ["WHY_NOT", "open_chromium", "thrown"]

_BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
_DRIVER = shutil.which("chromedriver")

WHY_NOT = (
    "there is no Chromium to look at the console with: apt-get install chromium chromium-driver"
    if _BROWSER is None or _DRIVER is None
    else None
)
"""Why there is no browser; None: there is one."""


@contextmanager
def open_chromium(profile: Path) -> Iterator[Chrome]:
    """Run a browser for the body."""
    if WHY_NOT is not None:
        pytest.skip(WHY_NOT)
    options = Options()
    options.binary_location = _BROWSER
    for argument in (
        "--headless=new",
        "--no-sandbox",  # The tests may run as root.
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-extensions",
        "--disable-background-networking",
        "--disable-component-update",
        "--no-first-run",
        "--no-proxy-server",
        "--window-size=1280,900",
        f"--user-data-dir={profile}",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = Chrome(options=options, service=Service(_DRIVER))
    try:
        yield driver
    finally:
        driver.quit()


def thrown(driver: Chrome) -> list[str]:
    """Return what the browser's console got since the last call that is worth a look."""
    return [line["message"] for line in driver.get_log("browser") if line["level"] in ("SEVERE", "WARNING")]
