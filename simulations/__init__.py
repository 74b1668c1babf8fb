"""The local federation: scenarios, simulated and real fleets, reports, fault simulation."""
