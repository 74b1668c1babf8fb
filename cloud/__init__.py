"""The cloud tier: the coordinator's protocol, its daemon, its store, and the authority."""
