"""`python -m mita.attention.native` builds the C++ core for this machine's processor."""

from .library import build

try:
    print(f"built: {build()}")
except ValueError as error:
    raise SystemExit(str(error)) from None
