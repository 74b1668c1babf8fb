"""What daemons of all tiers share: storage, driver, identity, links, sandbox, service."""
