"""completion: the shell's tab key."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from .common import example
from .main import cli
from .printing import say


@click.command(
    epilog=example(
        """fsqueue completion bash > ~/.local/share/bash-completion/completions/fsqueue
fsqueue completion zsh  > ~/.zfunc/_fsqueue     # with 'fpath+=~/.zfunc' before compinit in ~/.zshrc
fsqueue completion fish > ~/.config/fish/completions/fsqueue.fish"""
    )
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a completion script for your shell. Store it as in the example, and start a new shell."""
    kind = get_completion_class(shell)
    assert kind is not None
    say(*kind(cli, {}, "fsqueue", "_FSQUEUE_COMPLETE").source().split("\n"))
