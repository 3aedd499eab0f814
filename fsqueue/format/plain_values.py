"""Texts and whole numbers as values of `str` and `int` themselves, before anything is compared or written."""

from __future__ import annotations

from typing import cast


def plain(value: object) -> object:
    """Return an instance of a subclass of str or int as the str or int that it holds; any other value as it is.

    A subclass may override what it is compared, encoded or formatted by. What is compared would then be another value
    than what is written: a key would not be found in its own file, and a second task would get it. These two methods
    of the base classes read what the object holds, and no override reaches them.
    """
    kind = type(value)
    if kind is str or kind is int or kind is bool:
        return value
    if issubclass(kind, str):
        return str.__str__(value)
    return int.__int__(cast(int, value)) if issubclass(kind, int) else value
