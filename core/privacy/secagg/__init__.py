"""Secure aggregation: a coordinator learns the sum of a cohort's updates and of no smaller set.

The protocol is SecAgg+ (Bell, Bonawitz, Gascón, Lepoint, Raykova 2020, "Secure Single-Server
Aggregation with (Poly)Logarithmic Overhead", CCS 2020, ePrint 2020/704) with signed keys, masks
bound to the attempt and a consistency step; `docs/secure_aggregation.md` specifies it byte by byte.
Nothing here draws a random number or reads a clock: secrets come from the caller.

It has not been reviewed by a cryptographer.
"""
