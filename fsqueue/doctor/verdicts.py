"""The findings of a look at a filesystem: each has a verdict, what was seen, and what to ask for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from fsqueue.filesystem import Mount, mountadvice

OK, WARNING, UNFIT, UNTRIED = mountadvice.OK, mountadvice.WARNING, mountadvice.UNFIT, "untried"
"""A queue's need is met; met, but with a limit that users should know; not met; not tested."""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The finding of one probe. `seen` and `advice` are sentences for people; `figures` numbers for programs."""

    probe: str
    verdict: str
    seen: str
    advice: str = ""
    figures: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name."""
        return asdict(self)


def worst(findings: Iterable[ProbeResult]) -> str:
    """Return the verdict over all: unfit if anything is, else with a warning if anything has one, else ok."""
    verdicts = {finding.verdict for finding in findings}
    return next((verdict for verdict in (UNFIT, WARNING) if verdict in verdicts), OK)


def about(mount: Mount) -> ProbeResult:
    """Return what is known of a mount, as a finding."""
    verdict, seen, advice = mountadvice.advice_on(mount)
    return ProbeResult(
        "mount",
        verdict,
        f"{mount.kind} at {mount.point} ({mount.options}): {seen}",
        advice,
        {"type": mount.kind, "point": mount.point, "options": mount.options, "source": mount.source},
    )
