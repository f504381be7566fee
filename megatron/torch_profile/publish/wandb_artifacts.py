# SPDX-License-Identifier: Apache-2.0
"""A window's traces as a W&B artifact. W&B's own process uploads; training never waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from megatron.torch_profile.log import Slug, say, warn
from megatron.torch_trace.wording import megabytes

MB = 10**6
MOST_MB = 500
"""A file; what is larger no browser opens from W&B, and wants `torch-trace slim` first."""
MOST_MB_TOTAL = 2000
"""A window; a run's storage is paid for, and a window of a thousand ranks is no document."""
TYPE = "torch-profile"


class TraceArtifacts:
    """Makes artifacts beside training and logs them from the training's own thread.

    Args:
        writer: returns the `wandb` module or a run.
    """

    def __init__(self, writer: Callable[[], Any]) -> None:
        self._writer = writer
        self._wanted: list[tuple[str, Sequence[Path]]] = []
        self._making: threading.Thread | None = None
        self._made: list[tuple[Any, str]] = []

    @property
    def busy(self) -> bool:
        """Whether one is still to be made or to be logged."""
        making = self._making is not None and self._making.is_alive()
        return bool(self._wanted or self._made) or making

    def begin(self, window: str, files: Sequence[Path]) -> None:
        """Make the artifact of one window; W&B reads every byte for its digest, so in a thread.

        Args:
            window: name of its folder.
            files: its traces; what is over the limits is named and left out.
        """
        self._wanted.append((window, files))
        self.pick_up()

    def pick_up(self) -> None:
        """Log what has been made, and go on to the next."""
        if self._making is not None and self._making.is_alive():
            return
        run = _run_of(self._writer())
        if run is None:  # it has ended
            self._wanted.clear()
            self._made.clear()
            return
        for artifact, window in self._made:
            run.log_artifact(artifact, aliases=["latest", window])
            say(
                Slug.ARTIFACT,
                "the traces of %s are in the W&B artifact %s",
                window,
                artifact.name,
            )
        self._made.clear()
        if self._wanted:
            self._making = threading.Thread(
                target=self._make,
                args=(f"{TYPE}-{run.id}", *self._wanted.pop(0)),
                name="torch-profile-artifact",
                daemon=True,
            )
            self._making.start()

    def _make(self, name: str, window: str, files: Sequence[Path]) -> None:
        try:
            import wandb

            taken = within_limits(files)
            artifact = wandb.Artifact(name, TYPE, metadata={"window": window})
            for file in taken:
                # Immutable: read from where it lies, not copied first.
                artifact.add_file(
                    str(file), f"{window}/{file.name}", skip_cache=True, policy="immutable"
                )
            if taken:
                self._made.append((artifact, window))
            if len(taken) < len(files):
                warn(
                    Slug.ARTIFACT_TOO_LARGE,
                    "the W&B artifact of %s takes %s a trace and %s in all, so it leaves out %s",
                    window,
                    megabytes(MOST_MB),
                    megabytes(MOST_MB_TOTAL),
                    ", ".join(str(file) for file in files if file not in taken),
                )
        except Exception as error:
            warn(
                Slug.ARTIFACT_FAILED,
                "there is no W&B artifact of %s: %s: %s",
                window,
                type(error).__name__,
                error,
            )


def within_limits(files: Sequence[Path]) -> list[Path]:
    """The files, in order, that are small enough and still fit together with those before."""
    taken, total = [], 0
    for file in files:
        size = file.stat().st_size
        if size <= MOST_MB * MB and total + size <= MOST_MB_TOTAL * MB:
            taken.append(file)
            total += size
    return taken


def _run_of(writer: Any) -> Any:
    return getattr(writer, "run", writer)
