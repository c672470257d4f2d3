"""Where it goes: emitted networks as files."""

from bhc.formats.network import EmittedNetwork, read_network, to_bytes

__all__ = ["EmittedNetwork", "read_network", "to_bytes"]
