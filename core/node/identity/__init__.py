"""Identities of nodes: certificates, the authorities that issue them, and permissions."""
