"""Choose the folder of each pass over the script."""

from __future__ import annotations

import os
import tempfile


class Folders:
    """The folders in which the passes run: ``workdir`` for all, until a pass is refused there.

    From then on each pass has its own subfolder, with links to what ``workdir`` held before the first pass. The first
    pass never has one: it may have downloaded its data.
    """

    def __init__(self, workdir: str | None) -> None:
        self.now = workdir
        self.apart = False
        self._workdir = workdir
        self._used = [workdir or ""]
        self._held = os.listdir(workdir) if workdir is not None else []

    def renew(self, attempt: int) -> bool:
        """Let the pass ``attempt`` run in its own folder; return False if none can be made."""
        if self._workdir is None:
            return False
        workdir = os.path.abspath(self._workdir)
        try:
            folder = tempfile.mkdtemp(prefix=f"pass-{attempt}-", dir=workdir)
            for name in self._held:
                os.symlink(os.path.join(workdir, name), os.path.join(folder, name))
        except OSError:
            return False
        self.now, self.apart = folder, True
        self._used.append(folder)
        return True

    def hold(self, path: str) -> bool:
        """Return whether a file that the script wrote still exists; an unnamed one has the path of its folder."""
        return any(os.path.isfile(os.path.join(folder, path)) for folder in self._used)
