"""The authority: the part that has the CA's key.

It enrols nodes, renews their certificates, revokes names and signs lists.

It runs as a process of its own (`delian authority run`, `daemon.py`), on a machine that the
coordinator's operator does not run, or inside the coordinator, for trials on one machine. The
coordinator knows it by `port.AuthorityPort` alone: `local.py` is the CA's folder behind it,
`remote.py` the other process.
"""
