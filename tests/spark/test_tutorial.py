"""docs/tutorials/spark.md, typed as it stands: its programs start Sparks of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pages import Typed, blocks, text_of
from tests.spark.conftest import CONF

PAGE = "docs/tutorials/spark.md"


@pytest.mark.slow
def test_the_tutorial_as_it_stands(has_spark: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {key: value for key, value in CONF.items() if "daemon" not in key}
    (tmp_path / "spark-defaults.conf").write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    typed = Typed(tmp_path, PAGE, {"/scratch/me": str(tmp_path)}, {})
    for block in blocks(text_of(PAGE)):
        typed.type(block)
    assert typed.printed is not None
