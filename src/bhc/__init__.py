"""One trained network in, many small ones out: instant compression for the context you ask for."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bhc.api import *  # noqa: F403

__version__ = "0.1.0"
PACKAGES = ("contexts", "data", "layers", "models", "training")  # public ones


def __getattr__(name: str) -> Any:
    """A public name; the first that is asked for loads torch.

    Not before: our own commands set up what torch reads when it is loaded (``bhc.__main__``).
    """
    if name in PACKAGES:
        return import_module(f"bhc.{name}")
    if not name.startswith("_") or name == "__all__":
        api = import_module("bhc.api")
        if hasattr(api, name):
            return getattr(api, name)
        if name in globals():  # a package that was loaded with the others
            return globals()[name]
    raise AttributeError(f"module 'bhc' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *import_module("bhc.api").__all__})
