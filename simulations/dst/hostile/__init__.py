"""Parties that do not keep to the protocol, in the fault simulation."""
