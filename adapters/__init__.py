"""
The world outside: drivers, sources of pods, the service itself and its command line.

Everything that reads a socket, a file or a clock lives here; `claimlet.engine` decides.
"""
