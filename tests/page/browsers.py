"""Which browser opens the page, and as whom?"""

import contextlib
import os
import pathlib
import shutil

import pytest

# Debian's names first. Selenium would fetch others, which this never does.
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def browser_paths() -> tuple[str, str] | None:
    """The browser and its driver, if both are there."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    driver = shutil.which("chromedriver")
    return (browser, driver) if browser and driver else None


@contextlib.contextmanager
def opened(user: int | None = None, home: pathlib.Path | None = None):
    """A browser that shows no window, in a profile that goes with it; of another user, whose home is `home`."""
    paths = browser_paths()
    if paths is None:
        pytest.skip("no chromium and chromium-driver here; Debian has packages of these names")
    selenium = pytest.importorskip("selenium.webdriver", reason="selenium is not installed; tests/setup_venv.py does it")
    options = selenium.ChromeOptions()
    options.binary_location = paths[0]
    # Whoever runs the tests as root has no sandbox, and a small container has little of /dev/shm.
    for word in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    place = {**os.environ, "HOME": str(home)} if home else None
    somebody = {"user": user, "group": user, "extra_groups": []} if user else {}
    driver = selenium.Chrome(options=options, service=selenium.ChromeService(paths[1], env=place, popen_kw=somebody))
    try:
        yield driver
    finally:
        driver.quit()


def home_of(user: int, scratch: pathlib.Path) -> pathlib.Path:
    """A folder of another user's, and a way to it: pytest's own folders are for the one who runs it."""
    home = scratch / "home"
    home.mkdir()
    os.chown(home, user, user)
    for folder in (home, *home.parents):
        if folder.stat().st_uid == 0 and folder.is_relative_to(scratch.parent.parent.parent):
            folder.chmod(folder.stat().st_mode | 0o011)
    return home
