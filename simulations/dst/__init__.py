"""Deterministic simulation testing: the tiers' real machines and journals in a world that fails.

One heap of what is to happen, one seed, no thread and no real time (the way of FoundationDB's
simulator and TigerBeetle's VOPR). A seed draws which faults there are and how strong
(`swarm`), so that each seed is another kind of bad day; at a drawn time all of them heal.

    world      nodes, virtual time, faults that are planned, orders of operators
    host       one node: the daemons' driver over their journal, in virtual time
    network    what becomes of messages
    attacks      what a coordinator or an edge does that is not to be trusted
    bundles    what the author of a bundle does
    attackers      several of them together, and what comes of each attack
    work       training that takes whole numbers, so that sums can be checked to the last bit
    auditor    the oracles: what must hold, whatever happens
    edge_book  what it knows of edges
    bounds     what must hold in every machine's state
    check      runs seeds; `report` says what failed and how to see it again, `kept_report` keeps it
    large      100,000 devices, without faults

    delian dst --seeds 500
    delian dst --hostile --seeds 10000 --resume report.json
"""
