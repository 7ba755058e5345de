"""Can a person use the page?"""

import json
import re
import shutil
import threading

import numpy as np
import pytest
from clients import int32, open_client
from hands import Keys
from servers import ROOT

PAD = "canvas.pad"
# Digits as a hand writes them, stroke by stroke.
HANDWRITTEN = {
    "zero": [[(0.5, 0.15), (0.35, 0.22), (0.27, 0.4), (0.27, 0.6), (0.35, 0.8), (0.5, 0.87), (0.65, 0.8), (0.73, 0.6), (0.73, 0.4),
              (0.65, 0.22), (0.5, 0.15)]],
    "one": [[(0.38, 0.3), (0.52, 0.12), (0.52, 0.88)]],
    "two": [[(0.3, 0.3), (0.38, 0.16), (0.55, 0.13), (0.68, 0.25), (0.65, 0.42), (0.45, 0.65), (0.28, 0.86), (0.74, 0.86)]],
    "three": [[(0.3, 0.2), (0.5, 0.12), (0.68, 0.22), (0.66, 0.38), (0.48, 0.48), (0.68, 0.58), (0.72, 0.75), (0.52, 0.88), (0.3, 0.8)]],
    "four": [[(0.5, 0.12), (0.28, 0.55), (0.75, 0.55)], [(0.62, 0.35), (0.58, 0.88)]],
    "five": [[(0.7, 0.14), (0.36, 0.14), (0.33, 0.45), (0.55, 0.42), (0.7, 0.56), (0.68, 0.76), (0.5, 0.87), (0.3, 0.82)]],
    "six": [[(0.62, 0.13), (0.42, 0.3), (0.32, 0.58), (0.36, 0.8), (0.52, 0.88), (0.68, 0.78), (0.66, 0.6), (0.5, 0.54), (0.36, 0.65)]],
    "seven": [[(0.28, 0.15), (0.72, 0.15), (0.55, 0.5), (0.42, 0.88)]],
    "eight": [[(0.5, 0.5), (0.35, 0.38), (0.36, 0.2), (0.5, 0.13), (0.64, 0.2), (0.65, 0.38), (0.5, 0.5), (0.34, 0.62), (0.33, 0.8),
               (0.5, 0.88), (0.67, 0.8), (0.66, 0.62), (0.5, 0.5)]],
    "nine": [[(0.66, 0.35), (0.55, 0.5), (0.38, 0.44), (0.35, 0.25), (0.48, 0.13), (0.63, 0.18), (0.66, 0.35), (0.62, 0.62), (0.52, 0.88)]],
}


def go_to_model(page, name: str) -> None:
    page.press("Models", "nav")
    page.press(name, "main")
    page.sees("main h1", name)


def test_the_page_shows_models_and_moving_plots(page):
    page.sees("h1", "Overview")
    page.sees(".model-name", "digits")
    page.sees(".badge.good", "ready")
    ended = threading.Event()

    def infer() -> None:
        ones = np.ones((1, 16), np.int32)
        with open_client("http", page.server) as client:
            while not ended.wait(0.01):
                client.infer("simple", [int32("INPUT0", ones), int32("INPUT1", ones)])

    thread = threading.Thread(target=infer)
    thread.start()
    try:
        page.sees(".tile", "Requests per second")
        page.until(lambda: page.text(".legend b") not in ("–", "0"), "requests are counted")
        for title in ("Requests per second", "Mean time of a request"):
            line = f'[aria-label="{title}"] .line.c0'
            before = page.attribute(line, "d")
            page.until(lambda: page.attribute(line, "d").count("L") > before.count("L") + 2, "the line grows")
        page.sees(".bars", "Compute")
        page.sees(".bars", "unaligned")
    finally:
        ended.set()
        thread.join()
    page.take_picture("overview")


def test_a_model_has_its_versions_and_the_configuration_in_force(page):
    go_to_model(page, "simple")
    page.sees("main .head", "Version 1 ready")
    page.until(lambda: page.shows("details:has(pre.config) summary"), "the configuration in force")
    page.click("details:has(pre.config) summary")
    page.until(lambda: json.loads(page.text("pre.config"))["max_batch_size"] == 8, "the configuration")
    page.sees(".facts", "Largest batch")


@pytest.mark.parametrize("digit", HANDWRITTEN)
def test_a_digit_drawn_by_mouse_is_read(page, digit):
    go_to_model(page, "digits")
    page.until(lambda: page.shows(PAD), "a place to draw")
    page.draw(PAD, HANDWRITTEN[digit])
    page.press("Run", "form")
    page.sees(".best", digit)
    page.until(lambda: page.shows('[data-phase="Compute"]'), "where the time went")
    page.take_picture(f"digit_{digit}")


def test_the_waterfall_has_all_phases(page):
    go_to_model(page, "digits")
    page.draw(PAD, HANDWRITTEN["one"])
    page.until(lambda: page.shows('[data-phase="Send"]'), "where the time went")
    phases = page.attributes(".fall-row", "data-phase")
    assert phases == ["Receive", "Queue", "Batch", "Compute", "Output", "Send"]
    # A request alone makes no line, and is seen all the same.
    page.until(lambda: page.all('[aria-label="Mean time of a request"] circle.point.c0'), "the request in the plot")


def test_the_waterfall_of_an_ensemble_has_its_steps(page):
    go_to_model(page, "chain")
    page.press("Run", "form")
    page.until(lambda: page.shows('[data-phase="Send"]'), "where the time went")
    labels = [row.split("\n")[0] for row in page.texts(".fall-row")]
    assert (labels[0], labels[-1]) == ("Receive", "Send"), labels
    assert sum(label.endswith(": compute") for label in labels) >= 2, labels
    page.take_picture("ensemble")


def test_responses_of_a_decoupled_model_come_one_by_one(page):
    go_to_model(page, "repeat_int32")
    page.until(lambda: len(page.all("form textarea.mono")) >= 2, "fields for JSON")
    page.write('[aria-label="JSON for IN"]', "[7, 8, 9]")
    page.write('[aria-label="JSON for DELAY"]', "[10, 10, 10]")
    page.press("Run", "form")
    page.sees(".result li:last-child", '{"OUT":9}')
    page.sees(".result", "3 responses")


def test_json_goes_in_and_numbers_come_out(page):
    go_to_model(page, "simple")
    page.until(lambda: len(page.all("form textarea.mono")) >= 2, "fields for JSON")
    left, right = list(range(16)), [100] * 16
    page.write('[aria-label="JSON for INPUT0"]', json.dumps(left))
    page.write('[aria-label="JSON for INPUT1"]', json.dumps([right]))
    page.press("Run", "form")
    page.sees('[data-output="OUTPUT0"]', "  ".join(str(one + 100) for one in left))
    page.sees('[data-output="OUTPUT1"]', "  ".join(str(one - 100) for one in left))
    page.take_picture("json")


def test_what_is_no_tensor_is_said_before_it_is_sent(page):
    go_to_model(page, "simple")
    page.until(lambda: len(page.all("form textarea.mono")) >= 2, "fields for JSON")
    for text, reason in (("[1, 2]", "16 elements, and 2 are given"), ("[1,", "no JSON"), (json.dumps([2.5] * 16), "does not fit INT32")):
        page.write('[aria-label="JSON for INPUT0"]', text)
        page.press("Run", "form")
        page.sees(".error", reason)


def test_text_goes_in_and_comes_out(page):
    go_to_model(page, "batched_bytes")
    page.until(lambda: page.shows("form textarea"), "a field for text")
    page.write("form textarea", "grün & <b>bold</b>")
    page.press("Run", "form")
    page.sees("pre.values", "grün & <b>bold</b>")


def test_a_file_of_raw_numbers_goes_in(page, tmp_path):
    place = tmp_path / "raw.bin"
    place.write_bytes(np.array([1.5, -2, 1e9], np.float32).tobytes())
    go_to_model(page, "identity_fp32")
    page.press("File", "form")
    page.send('form input[type="file"]', str(place))
    page.press("Run", "form")
    page.sees("pre.values", "1.5  -2  1000000000")


@pytest.mark.parametrize("at", range(3))
def test_a_picture_goes_in_and_its_digit_is_read(page, tmp_path, at):
    from PIL import Image

    place = tmp_path / "digit.png"
    sample = np.fromfile(ROOT / "examples" / "digits" / "samples.bin", np.uint8)[4:].reshape(-1, 65)[at]
    pixels = (sample[:64].reshape(8, 8).astype(np.float32) / 16 * 255).astype(np.uint8)
    Image.fromarray(pixels).resize((64, 64), Image.Resampling.NEAREST).save(place)
    go_to_model(page, "digits")
    page.press("Image", "form")
    page.send('form input[type="file"]', str(place))
    page.until(lambda: page.shows("canvas.picture"), "the picture is shown")
    assert page.attribute('form select:has(option[value="0 to 16"])', "value") == "0 to 16", "the values that the model was trained on"
    page.press("Run", "form")
    page.sees(".best", list(HANDWRITTEN)[sample[64]])


def test_a_model_is_unloaded_and_loaded(page):
    go_to_model(page, "identity_fp32")
    page.press("Unload", "main")
    page.sees("main .badge", "unavailable")
    page.take_picture("unloaded")
    page.press("Load", "main")
    page.sees("main .badge", "ready")
    page.sees("form legend", "INPUT0")


def test_a_load_that_fails_says_why(page, shown):
    config = shown.repository / "simple" / "config.pbtxt"
    good = config.read_text()
    try:
        config.write_text(good.replace("TYPE_INT32", "TYPE_FP32"))
        go_to_model(page, "simple")
        page.press("Reload", "main")
        page.sees(".error", "load failed for model 'simple'")
        # The browser tells of the refused call, and of nothing else.
        assert ["status of 400" in one for one in page.complaints()] == [True]
    finally:
        config.write_text(good)
    # The version before it still serves.
    page.press("Reload", "main")
    page.until(lambda: not page.all("main .error"), "the reload went well")
    page.sees("main .badge", "ready")


def ready_models(page) -> tuple[int, int, int]:
    """What the tile of the first view says: how many models are ready, should be, and failed."""
    page.press("Overview", "nav")
    page.sees(".tile", "Models ready")
    # Platforms are told by the server's list of models. Until that comes, the metrics are all there is.
    page.sees("main table", "onnxruntime_onnx")
    (tile,) = (text for text in page.texts(".tile") if text.startswith("Models ready"))
    ready, wanted, failed = re.fullmatch(r"Models ready\n(\d+) of (\d+)(?:\n(\d+) unavailable)?", tile).groups(default="0")
    return int(ready), int(wanted), int(failed)


def test_a_model_that_fails_is_counted_where_one_looks_first(page, shown):
    name = "broken_by_a_name_that_is_longer_than_a_phone_is_wide_and_by_its_file"
    folder = shown.repository / name
    ready, wanted, failed = ready_models(page)
    with open_client("http", shown) as client:
        client.unload("simple")
        # One that was unloaded need not be up.
        page.until(lambda: ready_models(page) == (ready - 1, wanted - 1, failed), "one less is wanted")
        client.load("simple")
        (folder / "1").mkdir(parents=True)
        (folder / "1" / "model.onnx").write_bytes(b"nothing")
        try:
            with pytest.raises(Exception, match="load failed"):
                client.load(name)
            page.until(lambda: ready_models(page) == (ready, wanted + 1, failed + 1), "one failed")
            page.resize(360, 740)
            page.sees(".model-name", name)

            def alignment() -> str:
                cell = next(one for one in page.all("main td:first-child") if name in one.text)
                return cell.value_of_css_property("text-align")

            assert page.again_if_replaced(alignment) == "left" and page.overflow() <= 0
            page.take_picture("phone_failed")
        finally:
            shutil.rmtree(folder)
            client.unload(name)


def test_a_model_that_cannot_be_read_is_counted(page, shown):
    ready, wanted, failed = ready_models(page)
    folder = shown.repository / "unreadable"
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text("input { data_type: TYPE_FLOAT32 }")
    try:
        with open_client("http", shown) as client, pytest.raises(Exception, match="TYPE_FLOAT32"):
            client.load("unreadable")
        page.until(lambda: ready_models(page) == (ready, wanted + 1, failed + 1), "one cannot be read")
    finally:
        shutil.rmtree(folder)
    page.until(lambda: ready_models(page) == (ready, wanted, failed), "it is gone")


@pytest.mark.parametrize("view", ["#/", "#/models", "#/models/digits", "#/models/simple", "#/memory"])
def test_a_phone_shows_everything_without_scrolling_sideways(page, view):
    page.resize(360, 740)
    page.open(f"/{view}")
    page.until(lambda: page.all("main table, main .hint, main form"), "something is shown")
    if "digits" in view:
        page.until(lambda: page.shows(PAD), "a place to draw")
    assert page.overflow() <= 0
    page.take_picture(f"phone_{view.strip('#/').replace('/', '_') or 'overview'}")


def test_dark_and_light_follow_the_system_until_they_are_chosen(page):
    def ground() -> str:
        return page.find("body").value_of_css_property("background-color")

    page.prefer("light")
    light = ground()
    page.prefer("dark")
    page.until(lambda: ground() != light, "dark follows the system")
    dark = ground()
    page.sees(".model-name", "digits")
    page.take_picture("dark_overview")
    go_to_model(page, "digits")
    page.draw(PAD, HANDWRITTEN["three"])
    page.sees(".top-answer", "%")
    page.take_picture("dark_digits")
    page.click("#theme")
    assert ground() == light
    page.click("#theme")
    assert ground() == dark
    page.click("#theme")
    page.prefer("light")
    page.until(lambda: ground() == light, "light follows the system")


def test_everything_is_reached_by_keyboard(page):
    page.tab_to("Models")
    page.keys(Keys.ENTER)
    page.sees("h1", "Models")
    page.tab_to("simple")
    page.keys(Keys.ENTER)
    page.sees("main h1", "simple")
    page.until(lambda: len(page.all("form textarea.mono")) >= 2, "fields for JSON")
    page.tab_to("Run")
    page.keys(Keys.ENTER)
    page.sees('[data-output="OUTPUT1"]', "0  0  0")
    page.open("/#/models/digits")
    page.until(lambda: page.shows(PAD), "a place to draw")
    page.tab_to(page.attribute(PAD, "aria-label"))
    # A line from the top to the bottom, which is a one.
    page.keys(*[Keys.ARROW_UP] * 6, Keys.SPACE, *[Keys.ARROW_DOWN] * 12, Keys.SPACE)
    page.sees(".best", "one")


def test_models_are_loaded_and_all_views_opened_by_keyboard(page):
    page.open("/#/models/identity_fp32")
    page.sees("main .badge", "ready")
    for label, state in (("Unload", "unavailable"), ("Load", "ready")):
        page.until(lambda label=label: label in page.texts("main .head button"), f"a button '{label}'")
        page.tab_to(label)
        page.keys(Keys.ENTER)
        page.sees("main .badge", state)
    for view, title in (("Memory", "Shared memory"), ("Requests", "Requests")):
        page.tab_to(view)
        page.keys(Keys.ENTER)
        page.sees("h1", title)


def test_the_theme_is_chosen_by_keyboard(page):
    def theme() -> str | None:
        return page.attribute("html", "data-theme")

    assert theme() is None
    for label, after in (("as the system", "light"), ("light", "dark"), ("dark", None)):
        page.tab_to(f"Colours: {label}")
        page.keys(Keys.SPACE)
        page.until(lambda after=after: theme() == after, f"the theme is {after}")


def test_nothing_is_asked_while_nobody_looks(page):
    page.sees(".model-name", "digits")
    count = "return performance.getEntriesByType('resource').length"
    page.driver.execute_cdp_cmd("Emulation.setFocusEmulationEnabled", {"enabled": False})
    page.driver.execute_script(
        "Object.defineProperty(document, 'hidden', {get: () => window.away ?? false, configurable: true}); window.away = true"
    )
    page.until(lambda: (lambda before: page.driver.execute_async_script("setTimeout(arguments[0], 2500)") or
                        page.driver.execute_script(count) == before)(page.driver.execute_script(count)), "the page rests")
    before = page.driver.execute_script(count)
    page.driver.execute_script("window.away = false; document.dispatchEvent(new Event('visibilitychange'))")
    page.until(lambda: page.driver.execute_script(count) > before, "the page goes on")
