"""`python -m fsqueue`: the command line, which is a package of its own."""

import importlib

if __name__ == "__main__":
    importlib.import_module("fsqueue_cli.entry").main()
