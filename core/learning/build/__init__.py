"""From a task and an algorithm to a bundle of compiled programs."""
