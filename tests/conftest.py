"""Property tests draw new examples on every run at a desk, and the same ones in continuous integration."""

import os

from hypothesis import settings

settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")
