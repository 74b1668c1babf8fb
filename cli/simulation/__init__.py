"""Commands of the simulator: runs, comparisons, sweeps, scenarios, data, faults."""
