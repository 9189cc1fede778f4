"""
`claimlet demo`: two pods live through a refusal, a force-delete, a crash and a reboot.

Everything in it is real: processes, sockets, the log and its server, all below one temporary
directory.  What is shown was seen; an act that does not show what it should ends the demo.
"""
