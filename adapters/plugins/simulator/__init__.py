"""
A DRA driver that does what a script tells it, as a process of its own.

It is a real driver on real sockets: it registers, prepares, writes CDI files, keeps a checkpoint
and comes back from a kill.  `claimlet demo` shows it; tests and benchmarks use it for the faults
that drivers have.  It manages no hardware.
"""
