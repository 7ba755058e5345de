"""What does a copy from a bucket refuse, place and remove?"""

import pytest

from nerite.fleet import _bucket, _bucket_plan, _bucket_source, _bucket_sums
from nerite.fleet._bucket_plan import BucketError, Remote, Step

EMPTY_MD5 = "d41d8cd98f00b204e9800998ecf8427e"
SUM = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def remotes(*keys: str) -> "list[Remote]":
    return [Remote(key, 1, "v") for key in keys]


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("/etc/passwd", "begins with '/'"),
        ("../other/1/model.py", "begins with '..'"),
        ("m/../../x", "begins with '..'"),
        ("..nerite-fetch/owned", "begins with '..'"),
        ("m/./1", "the part '.'"),
        ("m//1", "empty part"),
        ("m/1/", "ends in '/'"),
        ("", "ends in '/'"),
        ("m\\..\\x", "backslash"),
        ("m/\n", "cannot be printed"),
        ("m/\0", "cannot be printed"),
        ("m/\udcff", "cannot be printed"),
        ("m/" + "é" * 128, "more than 255 bytes"),
        ("/".join("m" * 33), "33 parts, more than 32"),
    ],
)
def test_a_name_that_is_no_plain_path_is_refused(key: str, reason: str) -> None:
    with pytest.raises(BucketError) as refused:
        _bucket_plan.checked(remotes("m/config.pbtxt", key))
    assert reason in str(refused.value) and repr(key) in str(refused.value)


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        (("m/1/a", "m/1/A"), ["'m/1/a'", "'m/1/A'"]),
        (("Model/1/a", "model/1/b"), ["'Model'", "'model'"]),
        (("m", "m/1/a"), ["'m'", "file and a folder"]),
        (("m/1/a", "m/1"), ["'m/1'", "file and a folder"]),
        (("m/1/a", "m/1/a"), ["'m/1/a'", "there twice"]),
        ((), ["no objects"]),
    ],
)
def test_names_that_do_not_fit_together_are_refused(keys: "tuple[str, ...]", named: "list[str]") -> None:
    with pytest.raises(BucketError) as refused:
        _bucket_plan.checked(remotes(*keys))
    assert all(name in str(refused.value) for name in named), refused.value


def test_more_objects_than_there_may_be_are_refused(monkeypatch) -> None:
    monkeypatch.setattr(_bucket_plan, "OBJECTS_MAX", 3)
    with pytest.raises(BucketError, match="more than 3 objects"):
        _bucket_plan.checked(remotes("a", "b", "c", "d"))


def test_plain_names_are_kept() -> None:
    keys = ("m/1/model.onnx", "m/config.pbtxt", "m/1/weights 2/.hidden", "größe/1/model.py", "SHA256SUMS")
    assert list(_bucket_plan.checked(remotes(*keys))) == list(keys)


@pytest.mark.parametrize(
    ("wanted", "found", "owned", "expected"),
    [
        ({"m": {"m/1/a": "x"}}, {}, (), [("add", "m")]),
        ({"m": {"m/1/a": "x"}}, {"m": {"m/1/a": "x"}}, ["m"], []),
        ({"m": {"m/1/a": "y"}}, {"m": {"m/1/a": "x"}}, ["m"], [("exchange", "m")]),
        # A file that went, and one that came.
        ({"m": {"m/1/a": "x"}}, {"m": {"m/1/a": "x", "m/2/a": "y"}}, ["m"], [("exchange", "m")]),
        ({"m": {"m/1/a": "x", "m/2/a": "y"}}, {"m": {"m/1/a": "x"}}, ["m"], [("exchange", "m")]),
        # Somebody removed a model, or emptied it.
        ({"m": {"m/1/a": "x"}}, {}, ["m"], [("add", "m")]),
        ({"m": {"m/1/a": "x"}}, {"m": {}}, ["m"], [("exchange", "m")]),
        # What others put there is neither removed nor replaced.
        ({"m": {"m/1/a": "x"}}, {"m": {"m/1/a": "x"}, "own": {}}, ["m"], []),
        ({"m": {"m/1/a": "x"}}, {"m": {"m/1/a": "x"}, "gone": {}}, ["m", "gone"], [("remove", "gone")]),
        # In this order: what is new, what changed, a configuration, and what goes.
        (
            {"a": {"a/1": "2"}, "config.pbtxt": {"config.pbtxt": "2"}, "labels": {"labels": "2"}, "z": {"z/1": "1"}},
            {"0": {}, "a": {"a/1": "1"}, "config.pbtxt": {"config.pbtxt": "1"}, "labels": {"labels": "1"}},
            ["0", "a", "config.pbtxt", "labels"],
            [("add", "z"), ("exchange", "a"), ("exchange", "labels"), ("exchange", "config.pbtxt"), ("remove", "0")],
        ),
    ],
)
def test_steps(wanted, found, owned, expected) -> None:
    assert _bucket_plan.steps(wanted, found, owned) == [Step(*step) for step in expected]


def test_a_unit_of_somebody_else_is_not_replaced() -> None:
    with pytest.raises(BucketError, match="the folder has 'm', which no copy put there: remove it"):
        _bucket_plan.steps({"m": {"m/1/a": "x"}}, {"m": {}}, ())


def test_a_file_of_sums_names_each_object() -> None:
    sums = _bucket_plan.parse_sums(f"{SUM}  ./m/1/a\n{SUM.upper()} *m/b c\n\n")
    assert sums == {"m/1/a": SUM, "m/b c": SUM}
    objects = _bucket_plan.checked(remotes("m/1/a", "m/b c", "SHA256SUMS"))
    assert _bucket_plan.with_sums(objects, sums)["m/1/a"].sums == {"sha256": SUM}
    with pytest.raises(BucketError, match="names 'm/1/a', which is not in the bucket"):
        _bucket_plan.with_sums({key: objects[key] for key in ("m/b c", "SHA256SUMS")}, sums)
    with pytest.raises(BucketError, match="does not name 'm/b c'"):
        _bucket_plan.with_sums(objects, {"m/1/a": SUM})


@pytest.mark.parametrize("line", [SUM, f"{SUM[1:]}  a", f"{SUM[1:]}g  a", f"\\{SUM}  a", f"{SUM}  ", "<html>"])
def test_a_file_of_sums_in_another_form_is_refused(line: str) -> None:
    with pytest.raises(BucketError, match="line 2 of SHA256SUMS"):
        _bucket_plan.parse_sums(f"{SUM}  a\n{line}\n")


def test_an_identity_follows_the_content() -> None:
    one = Remote("m/1/a", 1, "etag")
    others = [Remote("m/1/b", 1, "etag"), Remote("m/1/a", 2, "etag"), Remote("m/1/a", 1, "other")]
    names = {_bucket_plan.identity("s3://b", remote) for remote in (one, *others)} | {_bucket_plan.identity("s3://c", one)}
    assert len(names) == 5
    same = [Remote("m/1/a", 1, validator, sums={"sha256": SUM}) for validator in ("x", "")]
    assert len({_bucket_plan.identity("s3://b", remote) for remote in same}) == 1
    with pytest.raises(BucketError, match="neither an ETag nor a time for 'm/1/a'.*SHA256SUMS"):
        _bucket_plan.identity("https://b", Remote("m/1/a", 1, ""))


def test_a_disk_that_is_too_small_is_named_with_both_numbers() -> None:
    _bucket_plan.check_space(10, 10, "/models")
    with pytest.raises(BucketError, match="11 bytes are to be fetched, and the disk of /models has 10 free"):
        _bucket_plan.check_space(11, 10, "/models")


@pytest.mark.parametrize(("failures", "wait_s"), [(0, 30), (1, 1), (2, 2), (5, 16), (6, 30), (10_000, 30)])
def test_failures_in_a_row_wait_longer(failures: int, wait_s: float) -> None:
    assert _bucket_plan.delay_s(30, failures) == wait_s


@pytest.mark.parametrize(
    ("scheme", "info", "expected"),
    [
        ("s3", {"ETag": f'"{EMPTY_MD5}"'}, {"md5": EMPTY_MD5}),
        ("s3", {"ETag": f'"{EMPTY_MD5}"', "ServerSideEncryption": "AES256"}, {"md5": EMPTY_MD5}),
        ("s3", {"ETag": f'"{EMPTY_MD5}"', "ServerSideEncryption": "aws:kms"}, {}),
        ("s3", {"ETag": f'"{EMPTY_MD5}"', "SSECustomerAlgorithm": "AES256"}, {}),
        ("s3", {"ETag": f'"{EMPTY_MD5}-2"', "ChecksumCRC32": "AAAAAA==-2", "ChecksumType": "COMPOSITE"}, {}),
        ("s3", {"ETag": f'"{EMPTY_MD5}-2"', "ChecksumCRC32": "AAAAAQ=="}, {"crc32": "00000001"}),
        ("gs", {"md5Hash": "1B2M2Y8AsgTpgAmY7PhCfg==", "crc32c": "AAAAAA=="}, {"md5": EMPTY_MD5, "crc32c": "00000000"}),
        ("https", {"ETag": f'"{EMPTY_MD5}"'}, {}),
        ("file", {}, {}),
    ],
)
def test_sums_of_a_store(scheme: str, info: dict, expected: "dict[str, str]") -> None:
    assert _bucket_sums.of(scheme, info) == expected


def test_the_best_sum_counts(tmp_path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"123456789")
    # That of CRC-32 is the check value of its definition.
    good = {"crc32": "cbf43926", "md5": "25f9e794323b453885f5181f1b624d0b"}
    assert _bucket_sums.difference(path, good) == ""
    assert _bucket_sums.difference(path, {"crc32": "cbf43926"}) == ""
    assert _bucket_sums.difference(path, {"crc64nvme": "0"}) is None
    assert "the md5 25f9e794" in _bucket_sums.difference(path, {**good, "md5": EMPTY_MD5})


@pytest.mark.parametrize(
    ("rest", "key"),
    [
        ("m/1/a", "m/1/a"), ("m/", "m/"), ("a%20b", "a b"),
        # Columns of an index page, the page itself, and pages above it.
        ("?C=N;O=D", None), ("#top", None), ("", None), ("./", None), ("../", None), ("../other/a", None),
        # These are refused as names.
        ("%2e%2e/a", "../a"), ("m//a", "m//a"),
    ],
)
def test_links_below_the_url(rest: str, key: "str | None") -> None:
    assert _bucket_source.below(rest) == key


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        ({"ETag": '"abc"', "Last-Modified": "Mon"}, "abc"), ({"etag": "CJ=", "generation": "5"}, "CJ="), ({"Last-Modified": "Mon"}, "Mon"),
        ({"mtime": 1.5, "ino": 7}, "1.5-7"), ({}, ""),
    ],
)
def test_validators(info: dict, expected: str) -> None:
    assert _bucket_source.validator(info) == expected


def test_no_secret_is_shown() -> None:
    url, options = "https://user:hunter2@host/models", {"key": "AKIA1234", "client_kwargs": {"aws_session_token": "t0ken", "region_name": "eu"}}
    assert _bucket_source.shown(url) == "https://host/models"
    assert set(_bucket_source.secrets(url, options)) == {"user:hunter2", "hunter2", "AKIA1234", "t0ken"}


@pytest.mark.parametrize("url", ["ftp://host/x", "models", "simplecache::s3://bucket", "https://host/x?sig=hunter2", "s3://b#x", "zip://x::s3://b", "https://[x/y"])
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(BucketError, match="correct ") as refused:
        _bucket_source.Source(url, {})
    assert "hunter2" not in str(refused.value)


def test_options_are_json_or_text() -> None:
    words = ["anon=true", "key=a=b", "client_kwargs.region_name=eu", "client_kwargs.verify=false"]
    assert _bucket.options(words) == {"anon": True, "key": "a=b", "client_kwargs": {"region_name": "eu", "verify": False}}
    with pytest.raises(ValueError, match="KEY=VALUE"):
        _bucket.options(["anon"])
