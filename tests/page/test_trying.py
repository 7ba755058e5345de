"""Does the form for trying a model send and show exactly what a person means?"""

import json
import pathlib
import shutil

import pytest
import servers

# Neither is a number of the browser's, which has 53 bits.
WIDE = {"INT64": [9007199254740993, -9223372036854775808, 1], "UINT64": [18446744073709551615, 9007199254740993, 0]}

# A model of this name must steer neither the page nor its calls.
ODD_NAME = "<img src=x onerror=alert(1)> %2F\"'&é"


@pytest.fixture(scope="module")
def shown(launcher, tmp_path_factory):
    """Models whose inputs differ, in a server of their own."""
    if launcher.oracle or any(launcher.urls):
        pytest.skip("needs a nerite of its own")
    repository = tmp_path_factory.mktemp("tried")
    shutil.copytree(servers.ROOT / "examples" / "models" / "simple", repository / "simple")
    for model in ("identity_int64", "identity_uint64", "identity_fp64", "optional_pair"):
        shutil.copytree(launcher.catalogue / model, repository / model)
    widen(launcher.catalogue / "repeat_int32", repository / "repeat_int64")
    shutil.copytree(launcher.catalogue / "identity_fp64", repository / ODD_NAME)
    config = repository / ODD_NAME / "config.pbtxt"
    config.write_text("".join(line for line in config.read_text().splitlines(keepends=True) if not line.startswith("name:")))
    with launcher.running("tried", servers.onnxruntime_flag(), repository=repository) as server:
        yield server


def widen(model: pathlib.Path, to: pathlib.Path) -> None:
    """The same model with integers of 64 bits in the place of 32."""
    shutil.copytree(model, to)
    for file in (to / "config.pbtxt", to / "1" / "model.py"):
        file.write_text(file.read_text().replace("INT32", "INT64").replace("int32", "int64"))


def go_to_model(page, name: str) -> None:
    page.open(f"/#/models/{name}")
    page.sees("main h1", name)
    page.until(lambda: page.shows("form"), "a form to try it")


def give(page, name: str, text: str) -> None:
    page.press("JSON", f'[aria-label="How to give {name}"]')
    page.write(f'[aria-label="JSON for {name}"]', text)


def send_it(page, name: str) -> None:
    """Ticks the box that sends an optional input, or clears it."""
    def clicked():
        label = next(one for one in page.all("label.given") if name in one.text)
        page.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", label)
        label.click()

    page.again_if_replaced(clicked)


def test_an_optional_input_is_left_out_until_it_is_asked_for(page):
    go_to_model(page, "optional_pair")
    give(page, "INPUT0", "[1.5, 2]")
    box = 'label.given input[type="checkbox"]'
    assert not page.again_if_replaced(lambda: page.find(box).is_selected())
    assert not page.shows('[aria-label="How to give INPUT1"]')
    page.sees("main td", "FP32, optional")
    page.press("Run", "form")
    page.sees('[data-output="OUTPUT0"]', "1.5  2")
    assert not page.all('[data-output="OUTPUT1"] pre.values')
    page.take_picture("optional_left_out")

    send_it(page, "INPUT1")
    give(page, "INPUT1", "[7, 8, 9]")
    page.press("Run", "form")
    page.sees('[data-output="OUTPUT1"]', "7  8  9")
    for scheme in ("light", "dark"):
        page.prefer(scheme)
        page.take_picture(f"optional_given_{scheme}")
    page.resize(400, 800)
    assert page.overflow() <= 0
    page.take_picture("optional_given_phone")

    send_it(page, "INPUT1")
    page.press("Run", "form")
    page.until(lambda: not page.all('[data-output="OUTPUT1"] pre.values'), "the answer without the second input")


def test_an_input_that_is_not_optional_has_no_choice(page):
    go_to_model(page, "simple")
    page.until(lambda: len(page.all("form textarea.mono")) >= 2, "fields for JSON")
    assert not page.all("label.given")


@pytest.mark.parametrize("datatype", WIDE)
def test_integers_of_64_bits_go_in_and_come_out_exactly(page, datatype):
    go_to_model(page, f"identity_{datatype.lower()}")
    give(page, "INPUT0", json.dumps(WIDE[datatype]))
    page.press("Run", "form")
    page.sees('[data-output="OUTPUT0"]', "  ".join(map(str, WIDE[datatype])))


def test_a_stream_shows_integers_of_64_bits_exactly(page):
    go_to_model(page, "repeat_int64")
    give(page, "IN", json.dumps(WIDE["INT64"]))
    give(page, "DELAY", "[0, 0, 0]")
    page.press("Run", "form")
    page.sees(".result", "3 responses")
    page.until(lambda: page.texts(".result li") == [f'{{"OUT":{one}}}' for one in WIDE["INT64"]], "all digits")
    page.take_picture("stream_int64")


def test_parameters_keep_the_digits_of_their_integers(page):
    go_to_model(page, "identity_int64")
    page.click("form summary")
    # As a Number it would be 2 ** 64, which no integer of 64 bits is.
    for timeout in (2**64 - 1, 2**64):
        page.write('form textarea[placeholder*="priority"]', f'{{"timeout": {timeout}}}')
        page.press("Run", "form")
        if timeout < 2**64:
            page.sees('[data-output="OUTPUT0"]', "0  1  2  3")
        else:
            page.sees(".result .error", "timeout")
    page.driver.get_log("browser")


def test_real_numbers_of_64_bits_are_shown_whole(page):
    go_to_model(page, "identity_fp64")
    give(page, "INPUT0", "[123456789.125, 0.1]")
    page.press("Run", "form")
    page.sees('[data-output="OUTPUT0"]', "123456789.125")


@pytest.mark.parametrize(("text", "reason"), [("[1.5]", "1.5 is no integer"), ('["1"]', '"1" is no integer'), ("[null]", "null is no integer"),
                                              ("[9223372036854775808]", "9223372036854775808 does not fit INT64"), ("[1,", "this is no JSON")])
def test_what_is_no_integer_of_64_bits_is_said(page, text, reason):
    go_to_model(page, "identity_int64")
    give(page, "INPUT0", text)
    page.press("Run", "form")
    page.sees(".result .error", reason)


CASES = [
    ("[9007199254740993, -9007199254740993, -1, 0.5]", "[9007199254740993,-9007199254740993,-1,0.5]"),
    (r'{"18446744073709551615": "9007199254740993 \" 1", "": {"__proto__": [18446744073709551615]}}',
     r'{"18446744073709551615":"9007199254740993 \" 1","":{"__proto__":[18446744073709551615]}}'),
    (r'[true, null, "\\", 9007199254740993, "i1", "t"]', r'[true,null,"\\",9007199254740993,"i1","t"]'),
    ("{}", "{}"),
]


@pytest.mark.parametrize(("text", "written"), CASES)
def test_json_is_read_and_written_with_all_digits(page, text, written):
    script = """
        const [text, done] = arguments;
        const scripts = document.querySelector("script[type=module]").src;
        import(new URL("json.js", scripts)).then(({ exactParse, exactJson }) => {
          const value = exactParse(text);
          done([exactJson(value), exactJson(value, "\\n")]);
        }).catch((error) => done([String(error), ""]));
    """
    short, long = page.driver.execute_async_script(script, text)
    assert short == written
    assert json.loads(long) == json.loads(text)
    assert long == json.dumps(json.loads(text), indent=2)


def test_a_model_with_an_odd_name_is_opened_and_tried(page):
    page.open("/")
    page.press("Models", "nav")
    page.press(ODD_NAME, "main")
    page.sees("main h1", ODD_NAME)
    page.until(lambda: page.shows("form"), "a form to try it")
    give(page, "INPUT0", "[1.5]")
    page.press("Run", "form")
    page.sees('[data-output="OUTPUT0"]', "1.5")
    page.until(lambda: page.all('[data-phase="Send"]'), "where the time went")


def test_an_error_leaves_no_waterfall_of_an_earlier_request(page):
    go_to_model(page, "identity_fp64")
    give(page, "INPUT0", "[1.5]")
    page.press("Run", "form")
    page.until(lambda: page.all('[data-phase="Send"]'), "where the time went")
    give(page, "INPUT0", "[1e999]")
    page.press("Run", "form")
    page.sees("p.error", "a number of this array is too large")
    assert not page.all('[data-phase="Send"]')
