"""Does the page of `nerite bench` show each measured point, in light and dark, and without a network?"""

import subprocess

import pytest
import servers

LIMIT_S = 250
# Short windows and a margin that nothing leaves: a stable figure is not what is asked for.
MEASURE = ["-p", "200", "-s", "100000", "-r", "5"]
LEVELS, SIZES = 3, 2
# Luminance of text against the page, by the recommendation WCAG 2.
CONTRAST_MIN = 4.5

COUNT = "return document.querySelectorAll(arguments[0]).length"
# Those whose place is not within their picture.
OUTSIDE = """
return [...document.querySelectorAll('figure svg')].flatMap(picture => {
  const frame = picture.getBoundingClientRect()
  return [...picture.querySelectorAll('circle, rect, text')].filter(one => {
    const box = one.getBoundingClientRect()
    return box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1 || box.bottom > frame.bottom + 1
  }).map(one => one.outerHTML)
})"""
# The contrast of each text of a picture.
CONTRASTS = """
const luminance = color => {
  const [red, green, blue] = color.match(/[0-9.]+/g).map(Number).map(part => part / 255)
    .map(part => part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue
}
const paper = luminance(getComputedStyle(document.body).backgroundColor)
return [...document.querySelectorAll('svg text')].map(text => {
  const ink = luminance(getComputedStyle(text).fill)
  return (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05)
})"""


@pytest.fixture(scope="module")
def pages(shown, tmp_path_factory):
    """A page of several levels, and one of a sweep over sizes."""
    folder = tmp_path_factory.mktemp("bench")

    def written(name: str, *options: str) -> str:
        command = [servers.nerite_binary(), "bench", "-u", shown.http, *options, *MEASURE, "--html", folder / name]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
        assert done.returncode == 0, done
        return (folder / name).as_uri()

    return {
        "levels": written("levels.html", "-m", "simple", "--concurrency-range", f"1:{LEVELS}"),
        "sizes": written("sizes.html", "-m", "identity_fp32", "--sweep", "sizes", "--sizes", "1K,64K"),
    }


def opened(browser, page: str, scheme: str = "light") -> None:
    browser.get_log("browser")
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    browser.get(page)


def test_each_level_has_its_points(browser, pages):
    opened(browser, pages["levels"])
    counts = {
        # A point for p50 and one for p99.
        "#latency-over-throughput circle": 2 * LEVELS,
        "#histograms figure": LEVELS,
        "#figures tbody tr": LEVELS,
        "#costs tbody tr": LEVELS,
    }
    assert {css: browser.execute_script(COUNT, css) for css in counts} == counts
    # The legend, and more than two parts of each bar.
    assert browser.execute_script(COUNT, "#time rect") > 7 + 2 * LEVELS
    assert browser.execute_script(OUTSIDE) == []


def test_each_size_has_its_points(browser, pages):
    opened(browser, pages["sizes"])
    assert browser.execute_script(COUNT, "#sizes-http circle") == 2 * SIZES
    assert browser.execute_script(COUNT, "#sizes-http tbody tr") == SIZES
    assert browser.execute_script(OUTSIDE) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_readable(browser, pages, pictures, scheme):
    opened(browser, pages["levels"], scheme)
    browser.save_screenshot(str(pictures / f"bench_{scheme}.png"))
    contrasts = browser.execute_script(CONTRASTS)
    assert contrasts
    assert min(contrasts) >= CONTRAST_MIN, contrasts
    assert browser.get_log("browser") == []


def test_nothing_is_fetched(browser, pages):
    opened(browser, pages["levels"])
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
