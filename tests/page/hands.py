"""What does a person do with the page?"""

import base64
import json
import re
import time

import pytest

pytest.importorskip("selenium", reason="selenium is not installed; tests/setup_venv.py does it")
from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException  # noqa: E402
from selenium.webdriver import ActionChains, Keys  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402

PATIENCE_S = 30


class Hands:
    """Clicks, types, draws and looks."""

    def __init__(self, driver, server, pictures):
        self.driver, self.server, self.pictures = driver, server, pictures

    def open(self, path: str) -> None:
        """As one who comes for the first time."""
        self.leave()
        self.driver.get(f"http://{self.server.metrics}{path}")
        self.until(lambda: self.text("#status") == "live", "the page is live")

    def leave(self) -> None:
        """Leaves the page of an earlier test, which complains of its server's end, and drops those complaints."""
        self.driver.get("about:blank")
        self.driver.get_log("browser")

    def resize(self, width: int, height: int) -> None:
        """The window's inside, as on a device of that size: a window of the system has a least width."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def prefer(self, scheme: str) -> None:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def until(self, holds, what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                if holds():
                    return
            except (NoSuchElementException, StaleElementReferenceException):
                pass
            assert time.monotonic() < deadline, f"not in {PATIENCE_S} s: {what}\n{self.text('body')}"
            time.sleep(0.05)

    def find(self, css: str):
        return self.driver.find_element(By.CSS_SELECTOR, css)

    def all(self, css: str) -> list:
        return self.driver.find_elements(By.CSS_SELECTOR, css)

    def again_if_replaced(self, act):
        """What `act` returns. The page may replace an element after the driver has found it; `act` is called again then."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return act()
            except StaleElementReferenceException:
                if time.monotonic() > deadline:
                    raise

    def text(self, css: str) -> str:
        return self.again_if_replaced(lambda: self.find(css).text)

    def texts(self, css: str) -> list[str]:
        """Those of all these elements."""
        return self.again_if_replaced(lambda: [one.text for one in self.all(css)])

    def attribute(self, css: str, name: str) -> str | None:
        return self.again_if_replaced(lambda: self.find(css).get_attribute(name))

    def attributes(self, css: str, name: str) -> list[str | None]:
        """Those of all these elements."""
        return self.again_if_replaced(lambda: [one.get_attribute(name) for one in self.all(css)])

    def shows(self, css: str) -> bool:
        return self.again_if_replaced(lambda: self.find(css).is_displayed())

    def click(self, css: str) -> None:
        self.again_if_replaced(lambda: self.find(css).click())

    def send(self, css: str, text: str) -> None:
        """Types into a field, or names a file to a field for files."""
        self.again_if_replaced(lambda: self.find(css).send_keys(text))

    def sees(self, css: str, text: str) -> None:
        """Waits until one of these elements shows the text."""
        self.until(lambda: any(text in one for one in self.texts(css)), f"'{text}' in {css}")

    def press(self, label: str, within: str = "body") -> None:
        """Clicks the button or link of this label, when it is there and can be pressed."""
        def one():
            found = self.find(within).find_elements(By.XPATH, f".//*[self::button or self::a][normalize-space()={xpath_text(label)}]")
            return next((each for each in found if each.is_displayed() and each.is_enabled()), None)

        def pressed():
            button = one()
            if button is None:
                return False
            self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", button)
            button.click()
            return True

        self.until(pressed, f"a button '{label}'")

    def write(self, css: str, text: str) -> None:
        def written():
            field = self.find(css)
            field.clear()
            field.send_keys(text)

        self.again_if_replaced(written)

    def draw(self, css: str, strokes: list[list[tuple[float, float]]]) -> None:
        """Draws with the mouse, by points from (0, 0) to (1, 1) of the element."""
        self.until(lambda: self.find(css).is_displayed(), f"{css} to draw on")
        pad = self.find(css)
        self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", pad)
        width, height = pad.size["width"], pad.size["height"]
        for stroke in strokes:
            chain = ActionChains(self.driver, duration=10)
            places = [(int((x - 0.5) * width), int((y - 0.5) * height)) for x, y in stroke]
            chain.move_to_element_with_offset(pad, *places[0]).click_and_hold()
            for place in places[1:]:
                chain.move_to_element_with_offset(pad, *place)
            chain.release().perform()

    def keys(self, *keys: str) -> None:
        ActionChains(self.driver).send_keys(*keys).perform()

    def tab_to(self, text: str, steps_max: int = 80) -> None:
        """Goes on with Tab until the element with this text or label has the focus, and is seen to have it."""
        for _ in range(steps_max):
            self.keys(Keys.TAB)
            outline = self.again_if_replaced(lambda: self.outline_of_focused(text))
            if outline is not None:
                assert outline != "none", f"'{text}' has the focus, and nobody sees it"
                return
        raise AssertionError(f"'{text}' cannot be reached with Tab")

    def outline_of_focused(self, text: str) -> str | None:
        """The style of the outline of the element with the focus, if it has this text or label."""
        focused = self.driver.switch_to.active_element
        names = (focused.text, focused.get_attribute("aria-label"), focused.accessible_name)
        return focused.value_of_css_property("outline-style") if text in names else None

    def overflow(self) -> int:
        """Pixels by which the page is wider than its window."""
        return self.driver.execute_script("return document.documentElement.scrollWidth - document.documentElement.clientWidth")

    def take_picture(self, name: str) -> None:
        """The whole page, also what one would scroll to."""
        self.driver.execute_script("window.scrollTo(0, 0)")
        shot = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True})
        (self.pictures / f"{name}.png").write_bytes(base64.b64decode(shot["data"]))

    def complaints(self) -> list[str]:
        """Errors and warnings of the browser's console, broken content security policy included."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]

    def foreign_resources(self) -> list[str]:
        """What the page has fetched from elsewhere than its own origin. A picture that the page made itself is a blob of that origin."""
        script = "return [location.origin, performance.getEntriesByType('resource').map((one) => one.name)]"
        origin, names = self.driver.execute_script(script)
        assert origin == f"http://{self.server.metrics}" and names, "the page is open, and has fetched its files"
        return [name for name in names if not name.removeprefix("blob:").startswith(f"{origin}/")]

    def json(self, path: str):
        """What a script of the page would get."""
        script = "const done = arguments[1]; fetch(arguments[0]).then((r) => r.text()).then(done, (e) => done(String(e)))"
        return json.loads(self.driver.execute_async_script(script, path))


def xpath_text(text: str) -> str:
    """The text as XPath writes it. XPath has no escapes, so a text with both quotation marks is joined from parts."""
    parts = ", ".join(f"'{part}'" if "'" not in part else f'"{part}"' for part in re.split("(')", text))
    return f"concat({parts}, '')"
