"""Make pages of HTML: text in, no file of another host, for any window from a phone's on.

Jinja2 fills in the templates beside this module. It comes with the extra `pages`, and with `spark`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from fsqueue.errors import FsqueueError
from fsqueue.forks import held_off
from fsqueue.format.wording import counted, duration
from fsqueue.webpages.charts import moment

if TYPE_CHECKING:
    from jinja2 import Environment

_HIDDEN = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that show nothing, that turn the direction of the text behind them, or that no file of UTF-8 can hold."""


@dataclass(frozen=True, slots=True)
class Link:
    """A cell of a table that leads somewhere. `url`: a path of this very server, with its query encoded."""

    text: str
    url: str


def page(template: str, **values: Any) -> str:
    """Return a whole page: the template of this name, filled in. Text in `values` may be anybody's."""
    return environment().get_template(template).render(values)


@cache
def environment() -> Environment:
    """Return what fills in templates. Raise FsqueueError if Jinja2 is not installed.

    Whatever is put into a page is text, never markup: `&`, `<` and quotes are escaped, hidden characters are written
    as Python writes them (\\x1b, \\u202e).
    """
    try:
        with held_off():
            import jinja2
    except ModuleNotFoundError:
        raise FsqueueError(
            "Jinja2, which makes pages, is not installed. Nothing was done. To install it: "
            "pip install 'fsqueue-tasks[pages]'."
        ) from None
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("fsqueue.webpages"),
        autoescape=True,
        finalize=_visible,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"cell": _cell, "percent": _percent, "words": _words}
    made.filters |= {"counted": counted, "duration": duration, "moment": moment}
    made.tests["link"] = lambda value: isinstance(value, Link)
    return made


def script() -> str:
    """Return the script of the pages that a gateway serves, as it stands."""
    found = environment()
    assert found.loader is not None
    return found.loader.get_source(found, "page.js")[0]


def _visible(value: Any) -> Any:
    """Return a value that is put into a page, with its hidden characters written out. What a macro made is whole."""
    if isinstance(value, str) and not hasattr(value, "__html__"):
        return _HIDDEN.sub(lambda match: repr(match[0])[1:-1], value)
    return value


def _cell(value: Any) -> str:
    """Return what a table shows of a value: whole numbers in groups of three digits, a dash for nothing."""
    if value is None or value == "":
        return "–"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _percent(share: float) -> str:
    return f"{100 * share:.2f}%"


def _words(name: str) -> str:
    return name.replace("_", " ")
