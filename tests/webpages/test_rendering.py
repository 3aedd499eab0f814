"""How pages are filled in: what others wrote stays text, and what is missing is named."""

from __future__ import annotations

import subprocess
import sys

import jinja2
import pytest

from fsqueue.webpages import rendering


def filled(source: str, **values: object) -> str:
    return rendering.environment().from_string(source).render(values)


def test_what_others_wrote_is_text() -> None:
    assert filled("<i title='{{ a }}'>{{ a }}</i>", a="<b>'&\"") == (
        "<i title='&lt;b&gt;&#39;&amp;&#34;'>&lt;b&gt;&#39;&amp;&#34;</i>"
    )


def test_hidden_characters_are_written_out_also_behind_filters_and_in_what_is_put_together() -> None:
    hidden, shown = "a\x00\x1b[31m\u202e\u2066\x85\udcff\n", r"a\x00\x1b[31m\u202e\u2066\x85\udcff\n"
    said = filled("{{ a }}|{{ a | cell }}|{{ 'x' ~ a }}|{{ (a,) | first | words }}", a=hidden)
    assert said == "|".join((shown, shown, "x" + shown, shown))


def test_a_table_shows_numbers_dashes_and_ids() -> None:
    rows = [{"": "took", "lease_s": 12_345, "id": "01a2", "is_on": True, "worker": None}]
    source = "{% from 'elements.html' import table %}{{ table('Some', rows, identifier='id', long=('worker',)) }}"
    made = filled(source, rows=rows).replace(' role="cell"', "")
    assert '<th scope="row" role="rowheader">took</th>' in made
    assert '<td data-column="lease s" class="n">12,345</td>' in made
    assert '<td data-column="id" class="id">01a2</td>' in made
    assert '<td data-column="is on">True</td><td data-column="worker" class="long">–</td>' in made
    assert filled(source, rows=[]).strip() == "<p>None.</p>"


def test_a_value_that_is_missing_is_an_error_and_no_gap_in_the_page() -> None:
    with pytest.raises(jinja2.UndefinedError):
        rendering.page("report.html", queue="/q")


def test_without_jinja_it_says_what_to_install_and_nothing_is_done() -> None:
    program = """
import sys
sys.modules['jinja2'] = None
from fsqueue.errors import FsqueueError
from fsqueue.webpages import rendering
try:
    rendering.page('report.html')
except FsqueueError as error:
    print(error)
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout
    assert said == (
        "Jinja2, which makes pages, is not installed. Nothing was done. To install it: "
        "pip install 'fsqueue-tasks[pages]'.\n"
    )
