"""An adversary beside each command: a member of the group who renames, links and swaps (docs/security.md)."""
