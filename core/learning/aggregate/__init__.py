"""From many updates to the next model: chains of stages, their order, robust rules."""
