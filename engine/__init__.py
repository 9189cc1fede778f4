"""The rules of a node's claims, pure: no I/O, no clock, no environment (only `loop` awaits)."""
