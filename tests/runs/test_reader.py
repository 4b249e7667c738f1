"""Files of a run that may be from somebody else: bounded, and no link is followed."""

from __future__ import annotations

from pathlib import Path

import pytest

from mtrain.runs import reader
from mtrain.runtime.errors import UserError


def test_translations_that_no_set_has_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "validation").mkdir()
    (tmp_path / "validation" / "average.txt").write_text("a\nb\nc\n")
    assert list(reader.read_translations(tmp_path, "average")) == ["a", "b", "c"]
    monkeypatch.setattr(reader, "MAX_LINES", 2)
    with pytest.raises(UserError, match=r"average\.txt:3: .* or more lines than any set has"):
        list(reader.read_translations(tmp_path, "average"))
    (tmp_path / "validation").rename(tmp_path / "elsewhere")
    (tmp_path / "validation").symlink_to("elsewhere")
    with pytest.raises(UserError, match=r"validation: is a link, .*; links are not followed"):
        list(reader.read_translations(tmp_path, "average"))


def test_the_end_of_a_log_is_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(reader.end_of_log(tmp_path)) == []
    (tmp_path / "train.log").write_bytes(b"first\nsecond\r\nthird\xff\n")
    assert list(reader.end_of_log(tmp_path)) == ["first", "second", "third\ufffd"]
    monkeypatch.setattr(reader, "MAX_LOG_BYTES", 10)
    monkeypatch.setattr(reader, "MAX_MESSAGE_BYTES", 4)
    assert list(reader.end_of_log(tmp_path)) == ["d", "thir"]
