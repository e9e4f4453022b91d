"""Sound files, read by their name."""

from __future__ import annotations

from .by_path import by_path
from .call import SOUND

CALLS = (
    by_path(SOUND, "soundfile", "read"),
    *(by_path(SOUND, module, "load") for module in ("librosa.core.audio", "librosa.core", "librosa")),
    by_path(SOUND, "torchaudio", "load"),
    by_path(SOUND, "scipy.io.wavfile", "read"),
)
